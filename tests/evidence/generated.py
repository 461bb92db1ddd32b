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
from typing import Any

from tests.evidence.benchmarks import whole_steps
from tests.evidence.component_interfaces import with_interface
from tests.support.cli import COMPONENTS, PIPELINES, REPOSITORY
from tests.test_repository import STEPS
from tpu_components import kfp as components
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
_LISTERS = {"create_tfrecords": "list_source", "predict_batch": "list_inputs"}  # They have the inputs of their step.
_TABLE = re.compile(r"(?<=<!-- settings -->\n).*?(?=\n<!-- /settings -->)", re.DOTALL)
_PARAMETERS = "| parameter | default | meaning |"
_INPUTS = "| parameter | type in KFP | default | meaning |"
_ARTIFACTS = "| also of the KFP component | type in KFP | meaning |"  # Inputs that are no parameters, and outputs.


def _parameters(params: type, component: Any = None) -> str:
    """The rows of a table of parameters, with their types in KFP if a component is named."""
    rows = []
    for field in fields_of(params).values():
        kind = f" {_kind(component.component_spec.inputs[field.name])} |" if component else ""
        shown = "required" if field.is_required else f"`{json.dumps(field.default, default=dataclasses.asdict)}`"
        rows.append(f"| `{field.name}` |{kind} {shown} | {_in_a_cell(field.meaning)} |\n")
    return "".join(rows)


def _artifacts(params: type, component: Any) -> str:
    """The rows of a table of a component's outputs, and of its inputs that are no parameters."""
    spec = component.component_spec
    rows = []
    for name, declared in spec.inputs.items():
        if name not in fields_of(params):
            default = f", default `{json.dumps(declared.default)}`" if declared.optional else ""
            rows.append(f"| input `{name}` | {_kind(declared)}{default} | {_in_a_cell(declared.description)} |\n")
    for name, declared in spec.outputs.items():
        rows.append(f"| output `{name}` | {_kind(declared)} | {_in_a_cell(declared.description)} |\n")
    return "".join(rows)


def _kind(declared: Any) -> str:
    """The type of an input or output, such as `Integer` or `Dataset`, as KFP declares it."""
    kind = re.sub(r"^(system|typing)\.|[@[].*", "", str(declared.type))
    return f"List of {kind}" if declared.is_artifact_list else kind


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("%%", "%").replace("|", "\\|")


def _with_table(readme: str, heading: str, rows: str) -> str:
    """A README with these rows in the table below a heading."""
    whole = f"{heading}\n|{'---|' * (heading.count('|') - 1)}\n"
    start = readme.index(whole) + len(whole)
    return readme[:start] + rows + re.sub(r"\A(\|.*\n)*", "", readme[start:])


def _step_readme(readme: str, params: type, component: Any) -> str:
    """The README of a step with the inputs and outputs of its component."""
    readme = _with_table(readme, _INPUTS, _parameters(params, component))
    return _with_table(readme, _ARTIFACTS, _artifacts(params, component))


def interfaces() -> dict[Path, str]:
    """The components as they should be."""
    files = {}
    for step, params in STEPS.items():
        component = COMPONENTS / step / "component.py"
        files[component] = with_interface(component.read_text(), step, params)
        if lister := _LISTERS.get(step):
            files[component] = with_interface(files[component], lister, params)
    return files


def texts() -> dict[Path, str]:
    """The schema and the READMEs as they should be, which follow from the components as they are."""
    serving = COMPONENTS / "serving" / "README.md"
    files = {serving: _with_table(serving.read_text(), _PARAMETERS, _parameters(ServeParams))}
    for step, params in STEPS.items():
        readme = COMPONENTS / step / "README.md"
        files[readme] = _step_readme(readme.read_text(), params, getattr(components, step))
    in_their_readmes = {step.section for step in STEP_TABLE.values()}
    settings = _TABLE.sub(lambda _: f"\n{as_markdown(in_their_readmes)}", README.read_text())
    files[FRONT] = with_preflight(FRONT.read_text())
    benchmarks = whole_steps.TABLE.with_name("README.md")
    files[benchmarks] = _with_summary(benchmarks.read_text())
    files[whole_steps.TABLE] = "\n".join([*whole_steps.steps(), ""])
    return {SCHEMA: schema.as_text(), README: settings, **files}


def with_preflight(readme: str) -> str:
    """The README of the repository with the text of the report that is kept: its table, its advice, a run's line."""
    report = PreflightReport.load(KEPT_PREFLIGHT)
    headline, table, _, advice, *_ = as_text(report).split("\n\n")
    example = "\n\n".join([f"$ {COMMAND}\n{headline}", table, advice])
    line = f"  preflight: {dataclasses.replace(report.machines[0], target='').summary}\n"
    readme = re.sub(rf"\$ {re.escape(COMMAND)}\n.*?(?=\n```)", lambda _: example, readme, flags=re.DOTALL)
    return re.sub(r"^  preflight: .*\n", lambda _: line, readme, flags=re.MULTILINE)


def _with_summary(readme: str) -> str:
    """The README of the benchmarks with the errors of the estimates."""
    summary = "\n".join(whole_steps.summary())
    return re.sub(r"(?<=```\n) +rows +distinct .*?(?=\n```)", lambda _: summary, readme, flags=re.DOTALL)


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
    if stale := {path: text for path, text in interfaces().items() if path.read_text() != text}:
        for path, text in stale.items():
            path.write_text(text)
        subprocess.run([sys.executable, "-m", "tests.evidence.generated"], check=True)  # Imports the new components.
        return
    for path, text in texts().items():
        path.write_text(text)
    _make_golden_pipelines()


if __name__ == "__main__":
    main()
