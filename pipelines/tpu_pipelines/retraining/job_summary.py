"""Writes reports about a run for CI: Markdown for the summary of a CI job or a pull request, and JUnit XML.

JUnit XML has no official standard. This module writes the elements in the XSD of Jenkins's xUnit plugin.
"""

import dataclasses
import re
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import markupsafe

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import byte_size, time
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.states import NOT_PROMOTED, PASSED, PROMOTED, State
from tpu_components.core.examples.artifacts import EVALUATION_FILE, PREFLIGHT_FILE
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.machines.machine_spec import billed_by
from tpu_components.core.pages.blocks import SIGNS, Block, Section, Sentences, Table, as_markdown
from tpu_components.core.pages.markdown import fence, in_markdown
from tpu_components.core.pages.scores import Score, scores_of, table_of
from tpu_components.core.registry.reference import CHAMPION, reference
from tpu_components.core.results.evaluation_info import Evaluation, Rule
from tpu_components.preflight_training.findings import PreflightReport
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.jobs import PlatformClient, Submission
from tpu_pipelines.retraining.retrain import RunDecision
from tpu_pipelines.runs.data_drift import champion_of
from tpu_pipelines.runs.summary import Summary
from tpu_pipelines.sizing.footprints import FootprintComparison, NamedFootprint, load_baseline

_SIGNS = {PROMOTED: SIGNS[True], PASSED: SIGNS[True], NOT_PROMOTED: SIGNS[False], State.FAILED: SIGNS[False]}
_LISTED_SLICES = 10
_HEADING_LEVEL = 3


@dataclasses.dataclass(frozen=True)
class RunFindings:
    """Findings of a run. Findings that a run does not have, for example because it is unfinished, are None or empty.

    Attributes:
        reasons: The gate's rules, with their outcomes.
        error: Message of the error that stopped the run. Empty if the run did not fail.
        evaluation: Metrics of the model and of the champion.
        preflight: Report of preflight.
        champion: Time, price and memory of the training run of the registered champion.
        same_as: Registered version of the model, if every step came from the cache; otherwise empty.
        unread: Error message if the run succeeded but its metrics could not be read; otherwise empty.
    """

    reasons: tuple[Rule, ...] = ()
    error: str = ""
    evaluation: Evaluation | None = None
    preflight: PreflightReport | None = None
    champion: NamedFootprint | None = None
    same_as: str = ""
    unread: str = ""

    @classmethod
    def of_folder(cls, run_dir: Path) -> Self:
        """Read the findings from a local run's folder."""
        if (summary := Summary.find(run_dir)) is None:
            return cls()
        evaluation = Evaluation.find(run_dir / "evaluation")
        preflight = PreflightReport.find(run_dir / "preflight") if summary.preflight else None
        deployed = summary.config.get("deploy") or {}
        named = reference(deployed.get("registry", ""), deployed.get("model_name", ""), CHAMPION)
        champion = _champion(evaluation, lambda: named) if preflight else None
        is_new = any(not step.cached for step in summary.steps.values())
        same_as = summary.deployment.version if summary.deployment and not is_new else ""
        return cls(summary.gate.reasons, summary.error, evaluation, preflight, champion, same_as)

    @classmethod
    def of_job(cls, submission: Submission, submitter: PlatformClient, config: Config, settings: Settings) -> Self:
        """Read the findings of a finished run on a platform. Findings that cannot be read are left out.

        Args:
            submission: The run.
            submitter: Client of the platform.
            config: Configuration of the run.
            settings: Settings of the platform.
        """
        if not submission.state.is_final:
            return cls()
        with tempfile.TemporaryDirectory() as folder:

            def fetch(step: str, output: str, name: str) -> Path:
                place = submitter.find_output(submission.job_id, step, output)
                if not place:
                    raise InputError(f"the platform does not report where the output of {step} is stored")
                if not Location(place).is_remote:
                    raise InputError(f"this machine cannot read the output of {step}: {place}")
                return storage.localize(Location(place).child(name), Path(folder)).parent

            try:
                evaluation = Evaluation.load(fetch("evaluate_model", "evaluation", EVALUATION_FILE))
            except (InputError, PlatformError) as error:
                return cls(error=submission.error, unread=str(error) if submission.state is State.SUCCEEDED else "")
            try:
                preflight = PreflightReport.load(fetch("preflight_training", "preflight", PREFLIGHT_FILE))
            except (InputError, PlatformError):  # Also for a run without preflight.
                preflight = None
        champion = _champion(evaluation, lambda: champion_of(config, settings)) if preflight else None
        return cls(evaluation.gate.reasons, submission.error, evaluation, preflight, champion)


def render_markdown(
    name: str, decision: RunDecision, outcome: str, links: Mapping[str, str], findings: RunFindings
) -> str:
    """Return GitHub Markdown about a retraining decision and the outcome of its run.

    Args:
        name: Name of the configuration.
        decision: The decision.
        outcome: Result of the run, or its state.
        links: URLs by link text.
        findings: Findings of the run.
    """
    result = outcome if decision.needed else f"not needed ({outcome})"
    linked = [f"[{in_markdown(text)}]({address})" for text, address in links.items() if address.startswith("https://")]
    title = f"{_SIGNS.get(outcome, '▶️')} {name}: {result}"
    blocks = [decision.reason, *_told_by(findings), markupsafe.Markup("\n".join(linked))]
    return as_markdown([Section(title, blocks)], _HEADING_LEVEL) + "\n"


def render_preflight(name: str, report: PreflightReport, comparison: FootprintComparison | None) -> str:
    """Return GitHub Markdown about preflight's findings for a configuration.

    Args:
        name: Name of the configuration.
        report: Findings of preflight for each machine.
        comparison: Comparison of the first machine with another training run, or None if there is no comparison.
    """
    failed = [reason for machine in report.machines for reason in machine.reasons]
    failed += comparison.broken if comparison else ()
    result = comparison.summary if comparison else report.machines[0].summary
    title = f"{SIGNS[not failed]} preflight of {name}: {result}"
    blocks: list[Block] = [Sentences([f"{SIGNS[False]} {reason}" for reason in failed])]
    if comparison:
        blocks += _beside(comparison)
    else:
        blocks.append(Sentences([machine.summary for machine in report.machines if machine.passed]))
    return as_markdown([Section(title, blocks)], _HEADING_LEVEL) + "\n"


def render_runs(runs: Mapping[str, RunFindings]) -> str:
    """Return GitHub Markdown about several runs: metrics with intervals, changed slices, and preflight's findings.

    Args:
        runs: Findings by the names of the runs.
    """
    return as_markdown([_side_by_side(runs), *_changed_slices(runs), _preflights(runs)])


def render_outputs(values: Mapping[str, str]) -> str:
    r"""Return lines `name=value` for `$GITHUB_OUTPUT`, without empty values.

    Example:
        >>> render_outputs({"needed": "true", "run": "", "outcome": "promoted\nneeded=false"})
        'needed=true\noutcome=promoted needed=false\n'
    """
    return "".join(f"{name}={' '.join(value.split())}\n" for name, value in values.items() if value)


def append(path: Path, text: str) -> None:
    """Append text to a file in place, because the file may be a mount, which cannot be replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


def render_junit(name: str, outcome: str, reasons: Sequence[Rule]) -> str:
    """Return the rules of the gate as JUnit test cases.

    If the run failed, was cancelled or has no rules, a test case for the run itself is added.

    Args:
        name: Name of the configuration.
        outcome: Result of the run, or its state.
        reasons: Rules of the gate.
    """
    rules = list(reasons)
    has_failed = outcome in (State.FAILED, State.CANCELLED)
    if has_failed or not rules:
        rules.append(Rule(not has_failed and outcome != NOT_PROMOTED, "", f"run: {outcome}"))
    failures = sum(not rule.passed for rule in rules)
    suite = ET.Element("testsuite", name=f"gate of {_legal(name)}", tests=str(len(rules)), failures=str(failures))
    for rule in rules:
        case = ET.SubElement(suite, "testcase", classname=_legal(name), name=_legal(rule.text))
        if not rule.passed:
            ET.SubElement(case, "failure", message=_legal(rule.text))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _told_by(findings: RunFindings) -> Iterator[Block]:
    if findings.error:
        yield fence(findings.error)
    if findings.unread:
        yield f"The metrics are not shown: {findings.unread}"
    if findings.same_as:
        yield f"The model is the same as version {findings.same_as}, which is already the champion."
    yield Sentences([f"{SIGNS[rule.passed]} {rule.text}" for rule in findings.reasons])
    if findings.evaluation is None:
        return
    yield table_of("metric", scores_of(findings.evaluation))
    yield _slices(findings.evaluation)
    if findings.preflight:
        yield f"Preflight: {findings.preflight.machines[0].summary}"
        if findings.champion and (comparison := FootprintComparison.make(findings.preflight, findings.champion)):
            yield f"Training compared with the champion: {comparison.summary}"
            yield from _beside(comparison)


def _beside(comparison: FootprintComparison) -> list[Block]:
    columns = {"": "<", "now": ">", comparison.name: ">", "difference": ">"}
    return [Table(columns, comparison.rows), Sentences(comparison.caveats)]


def _side_by_side(runs: Mapping[str, RunFindings]) -> Table:
    scored = {name: scores_of(findings.evaluation) for name, findings in runs.items() if findings.evaluation}
    rows: dict[str, list[str]] = {}
    for place, scores in enumerate(scored.values()):
        for score in scores:
            cells = rows.setdefault(score.label, [score.label, *("" for _ in scored)])
            cells[place + 1] = score.with_interval
    columns = {"with 95% confidence": "<", **dict.fromkeys(scored, ">")}
    return Table(columns, list(rows.values()))


def _changed_slices(runs: Mapping[str, RunFindings]) -> Iterator[Block]:
    for name, findings in runs.items():
        if findings.evaluation and (table := _slices(findings.evaluation)).rows:
            yield f"Slices of {name} that differ from the champion's slices:"
            yield table


def _preflights(runs: Mapping[str, RunFindings]) -> Table:
    reports = {name: findings.preflight for name, findings in runs.items() if findings.preflight}
    columns = {"preflight": "<", "machine": "<", "step": ">", "memory of a device": ">", "expected price of a run": ">"}
    rows = []
    for name, report in reports.items():
        machine = report.machines[0]
        cells = [machine.verdict_text, "", ""]
        if footprint := report.footprint(machine):
            price = f"{machine.cost.text}, {billed_by(machine.cost.target)}" if machine.cost else ""
            cells = [time(footprint.step_ms / 1e3), byte_size(footprint.peak_bytes), price]
        rows.append([name, machine.machine, *cells])
    return Table(columns, rows)


def _slices(evaluation: Evaluation) -> Table:
    """Return a table of at most 10 slices that differ significantly from the champion's, the worst first."""
    compared = [(part.difference.advantage, i) for i, part in enumerate(evaluation.slices) if part.difference]
    scores = [Score.of_slice(evaluation.slices[i]) for _, i in sorted(compared)]
    return table_of("slice", [score for score in scores if score.look in ("good", "bad")][:_LISTED_SLICES])


def _legal(text: str) -> str:
    """Replace characters that XML 1.0 forbids with U+FFFD."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)


def _champion(evaluation: Evaluation | None, look_up: Callable[[], str]) -> NamedFootprint | None:
    """Return the footprint of the champion in an evaluation, or None if the champion or its footprint is missing.

    Args:
        evaluation: The evaluation.
        look_up: Function that returns the reference of the registry's current champion, which may be a later version
            than the champion in the evaluation.
    """
    champion = evaluation.registered_champion if evaluation else None
    if not champion or not champion.version:
        return None
    try:
        return load_baseline(f"{look_up().rpartition('@')[0]}@{champion.version}")
    except (InputError, PlatformError):
        return None
