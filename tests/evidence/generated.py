"""What is made from the code and kept in the repository: `python -m tests.evidence.generated` writes it anew.

Also the golden pipelines, by the tests that compare them. With `--preflight`, also the preflight report of the README's
example, which the README shows. This compiles for two machines, which takes half a minute.
"""

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.evidence.component_interfaces import with_interface
from tests.support.cli import COMPONENTS, PIPELINES, REPOSITORY
from tests.test_repository import STEPS
from tpu_components.core.base.typed_values import fields_of
from tpu_components.core.examples.artifacts import PREFLIGHT_FILE
from tpu_components.preflight_training.findings import PreflightReport
from tpu_components.preflight_training.report import as_text
from tpu_components.serving.params import ServeParams
from tpu_pipelines.config import schema
from tpu_pipelines.config.schema import as_markdown
from tpu_pipelines.config.steps import STEP_TABLE

SCHEMA = PIPELINES / "configs" / "schema.json"
README = SCHEMA.with_name("README.md")
FRONT = REPOSITORY / "README.md"
KEPT_PREFLIGHT = REPOSITORY / "tests" / "golden" / "preflight"
GOLDEN_TESTS = "tests/pipelines/pipeline/test_compile.py"
COMMAND = "tpu-pipelines preflight digits --compare v5e-1,v6e-1 --target vertex,kubeflow"
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
    steps = {COMPONENTS / step / "README.md": params for step, params in STEPS.items()}
    steps[COMPONENTS / "serving" / "README.md"] = ServeParams
    files = {path: _with_parameters(path.read_text(), params) for path, params in steps.items()}
    for step, params in STEPS.items():
        component = COMPONENTS / step / "component.py"
        files[component] = with_interface(component.read_text(), step, params)
    in_their_readmes = {step.section for step in STEP_TABLE.values()}
    settings = _TABLE.sub(lambda _: f"\n{as_markdown(in_their_readmes)}", README.read_text())
    files[FRONT] = with_preflight(FRONT.read_text())
    return {SCHEMA: schema.as_text(), README: settings, **files}


def with_preflight(readme: str) -> str:
    """The README of the repository with the text of the report that is kept: its table, its advice, a run's line."""
    report = PreflightReport.load(KEPT_PREFLIGHT)
    headline, table, _, advice, *_ = as_text(report).split("\n\n")
    example = "\n\n".join([f"$ {COMMAND}\n{headline}", table, advice])
    line = f"  preflight: {dataclasses.replace(report.machines[0], target='').summary}\n"
    readme = re.sub(rf"\$ {re.escape(COMMAND)}\n.*?(?=\n```)", lambda _: example, readme, flags=re.DOTALL)
    return re.sub(r"^  preflight: .*\n", lambda _: line, readme, flags=re.MULTILINE)


def _make_preflight() -> None:
    """Run the README's command, and keep its report."""
    with tempfile.TemporaryDirectory() as workspace:
        command = [sys.executable, "-m", "tpu_pipelines.cli", *COMMAND.split()[1:], "--workspace", workspace]
        subprocess.run(command, check=True)
        shutil.copyfile(f"{workspace}/digits-preflight/{PREFLIGHT_FILE}", KEPT_PREFLIGHT / PREFLIGHT_FILE)


def _make_golden_pipelines() -> None:
    """Run the tests that compile them, in another process, which imports the components as they are now."""
    options = ("-q", "-p", "no:cacheprovider", "--durations", "0", "--numprocesses", "0", "-k", "golden")
    command = [sys.executable, "-m", "pytest", *options, GOLDEN_TESTS]
    subprocess.run(command, check=True, cwd=REPOSITORY, env=os.environ | {"UPDATE_GOLDEN": "1"})


def main() -> None:
    """Write these files."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.generated", description=__doc__)
    parser.add_argument("--preflight", action="store_true", help="also make the preflight report that is kept")
    if parser.parse_args().preflight:
        _make_preflight()
    for path, content in generated().items():
        path.write_text(content)
    _make_golden_pipelines()


if __name__ == "__main__":
    main()
