"""What is made from the code and kept in the repository: `python -m tests.generated` writes it anew."""

import argparse
import re
from pathlib import Path

from tests.cli import REPOSITORY
from tpu_pipelines.config.schema import as_markdown, as_text

SCHEMA = REPOSITORY / "pipelines" / "configs" / "schema.json"
README = SCHEMA.with_name("README.md")
_TABLE = re.compile(r"(?<=<!-- settings -->\n).*?(?=\n<!-- /settings -->)", re.DOTALL)


def generated() -> dict[Path, str]:
    """The files as they should be."""
    return {SCHEMA: as_text(), README: _TABLE.sub(lambda _: f"\n{as_markdown()}", README.read_text())}


def main() -> None:
    """Write these files."""
    argparse.ArgumentParser(prog="python -m tests.generated", description=__doc__).parse_args()
    for path, content in generated().items():
        path.write_text(content)


if __name__ == "__main__":
    main()
