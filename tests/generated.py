"""What is made from the code and kept in the repository: `python -m tests.generated` writes it anew."""

import argparse
import dataclasses
import json
import re
from pathlib import Path

from tests.cli import REPOSITORY
from tests.test_repository import STEPS
from tpu_components.core.base.typed_values import fields_of
from tpu_components.serving.params import ServeParams
from tpu_pipelines.config.schema import as_markdown, as_text

SCHEMA = REPOSITORY / "pipelines" / "configs" / "schema.json"
README = SCHEMA.with_name("README.md")
_TABLE = re.compile(r"(?<=<!-- settings -->\n).*?(?=\n<!-- /settings -->)", re.DOTALL)
_HEADING = "| parameter | default | meaning |\n|---|---|---|\n"


def _rows(params: type) -> str:
    """The table of parameters, without its heading."""
    rows = []
    for field in fields_of(params).values():
        shown = "required" if field.is_required else f"`{json.dumps(field.default, default=dataclasses.asdict)}`"
        meaning = field.meaning.replace("%%", "%").replace("|", "\\|")
        rows.append(f"| `{field.name}` | {shown} | {meaning} |\n")
    return "".join(rows)


def _with_parameters(readme: str, params: type) -> str:
    start = readme.index(_HEADING) + len(_HEADING)
    return readme[:start] + _rows(params) + re.sub(r"\A(\|.*\n)*", "", readme[start:])


def generated() -> dict[Path, str]:
    """The files as they should be."""
    steps = {REPOSITORY / "components" / step / "README.md": params for step, params in STEPS.items()}
    steps[REPOSITORY / "components" / "serving" / "README.md"] = ServeParams
    files = {path: _with_parameters(path.read_text(), params) for path, params in steps.items()}
    return {SCHEMA: as_text(), README: _TABLE.sub(lambda _: f"\n{as_markdown()}", README.read_text()), **files}


def main() -> None:
    """Write these files."""
    argparse.ArgumentParser(prog="python -m tests.generated", description=__doc__).parse_args()
    for path, content in generated().items():
        path.write_text(content)


if __name__ == "__main__":
    main()
