"""pytest plugin for tests that fail if a step no longer fits a TPU or becomes too slow. It needs no TPU.

```python
@pytest.mark.preflight(machine="v5e-8", max_step_ms=5, max_memory=0.9)
def test_train_step(preflight_step):
    preflight_step(train_step, params, batch)
```
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tpu_components.preflight_training.jax_steps.step_report import StepReport

_PROPERTY = "preflight"
_LIMITS = ("max_step_ms", "max_memory", "max_slowdown")
_MARKER = (
    "preflight(machine, max_step_ms=None, max_memory=None, max_slowdown=None): machine for which the fixture "
    "preflight_step compiles, such as v5e-8, and limits for the step; other arguments are passed to "
    "tpu_pipelines.preflight_step"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("preflight", "TPU preflight of steps (tpu-pipelines)")
    group.addoption("--preflight-reports", metavar="DIR", help="write the report of each step into this folder")
    group.addoption("--preflight-base", metavar="DIR", help="compare with reports that the base branch wrote")
    group.addoption("--preflight-markdown", metavar="FILE", help="append the reports to a file, as Markdown")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)
    base = config.getoption("--preflight-base")
    if base and not Path(base).is_dir():
        raise pytest.UsageError(
            f"There is no folder {base} to compare with. Write it on the base branch: pytest --preflight-reports {base}"
        )


@pytest.fixture
def preflight_step(request: pytest.FixtureRequest) -> Callable[..., "StepReport"]:
    """Return a function that compiles a step for the marker's machine, and fails the test if the step exceeds a limit.

    The function has the arguments of `tpu_pipelines.preflight_step` except `machine`, and returns the `StepReport`.
    """
    marker = request.node.get_closest_marker("preflight")
    if marker is None:
        raise pytest.UsageError(
            "The fixture preflight_step needs a machine. Mark the test: @pytest.mark.preflight(machine='v5e-8')."
        )
    names = iter(range(1, 1000))

    def check(step: Any, *args: Any, **options: Any) -> "StepReport":
        from tpu_components.core.base.errors import InputError
        from tpu_components.preflight_training.jax_steps.change import StepChange, StepLimits
        from tpu_components.preflight_training.jax_steps.step_report import StepReport
        from tpu_pipelines.api.steps import preflight_step as compile_step

        names_of_args = ("machine", *_LIMITS)
        settings = dict(zip(names_of_args, marker.args, strict=False)) | marker.kwargs | options
        machine = settings.get("machine")
        if not isinstance(machine, str) or len(marker.args) > len(names_of_args):
            pytest.fail(
                f"{request.node.nodeid}: the marker preflight expects one machine and {', '.join(_LIMITS)}, received "
                f"{machine!r}{' and more arguments' * (len(marker.args) > len(names_of_args))}. "
                "Write @pytest.mark.preflight(machine='v5e-8').",
                pytrace=False,
            )
        try:
            limits = StepLimits(**{name: settings.pop(name) for name in _LIMITS if name in settings})
            report = compile_step(step, *args, **settings)
        except InputError as error:
            pytest.fail(str(error), pytrace=False)
        assert isinstance(report, StepReport)
        folder = _folder_of(request.node.nodeid, next(names))
        config = request.config
        before = None
        if base := config.getoption("--preflight-base"):
            before = _report_before(Path(base) / folder)
        if reports := config.getoption("--preflight-reports"):
            report.save(Path(reports) / folder)
        change = StepChange(report, before, limits)
        request.node.user_properties.append((_PROPERTY, change.markdown()))
        if change.failures:
            pytest.fail("\n".join(change.failures), pytrace=False)
        return report

    return check


def _report_before(folder: Path) -> "StepReport | None":
    """Return the report that the base branch wrote into a folder, or None if there is no folder, as for a new step."""
    from tpu_components.core.base.errors import InputError
    from tpu_components.preflight_training.jax_steps.step_report import StepReport

    try:
        return StepReport.load(folder) if folder.exists() else None
    except InputError as error:
        pytest.fail(f"Cannot compare with an earlier report: {error}", pytrace=False)


def _folder_of(nodeid: str, number: int) -> str:
    """Return the name of a report's folder, which is based on the name of the test.

    From the second step of a test on, the name ends in `number`.
    """
    name = re.sub(r"[^\w.\[\]-]+", "-", nodeid)
    return name if number == 1 else f"{name}-{number}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Append the reports of all tests to the file that the option `--preflight-markdown` names, if it is set.

    Tests that ran in processes of pytest-xdist are included.
    """
    path = config.getoption("--preflight-markdown")
    reports = {
        report.nodeid: [str(value) for name, value in report.user_properties if name == _PROPERTY]
        for category in terminalreporter.stats.values()
        for report in category
        if getattr(report, "when", "") == "call"
    }
    sections = [f"## `{nodeid}`\n\n" + "\n\n".join(texts) for nodeid, texts in sorted(reports.items()) if texts]
    if path and sections:
        with open(path, "a", encoding="utf-8") as file:
            file.write("\n\n".join(sections) + "\n")
        terminalreporter.write_line(f"preflight: appended {len(sections)} reports to {path}")
