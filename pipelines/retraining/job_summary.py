"""What CI shows of runs: Markdown for a job's summary or a pull request, and the gate's rules as JUnit XML.

JUnit has no standard of its own; these are the elements of the XSD that Jenkins publishes with its xUnit plugin.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tpu_components.core.machines.machine_spec import billed_by
from tpu_components.core.results.evaluation_info import Difference, Evaluation, Rule, Slice
from tpu_components.core.results.metric_table import BY_NAME, show
from tpu_components.preflight_training.findings import PreflightReport
from tpu_components.preflight_training.footprint import footprint_of
from tpu_components.preflight_training.formatting import dollars, memory, time
from tpu_pipelines.checking.footprints import Comparison
from tpu_pipelines.platforms.jobs import State
from tpu_pipelines.retraining.retrain import Decision
from tpu_pipelines.runs.run_findings import RunFindings
from tpu_pipelines.runs.summary import FAILED, NOT_PROMOTED, PROMOTED

_SIGNS = {PROMOTED: "✅", NOT_PROMOTED: "❌", FAILED: "❌"}
_LISTED_SLICES = 10


def render_markdown(
    name: str, decision: Decision, outcome: str, links: Mapping[str, str], findings: RunFindings
) -> str:
    """Return what was decided and what became of it, as GitHub's Markdown.

    Args:
        name: Name of the configuration.
        decision: The decision.
        outcome: Result of the run, or its state.
        links: Addresses to show, by their texts.
        findings: Reasons of the gate, and figures.
    """
    told = outcome if decision.needed else f"not needed ({outcome})"
    lines = [f"### {_SIGNS.get(outcome, '▶️')} {_plain(name)}: {_plain(told)}", "", _plain(decision.reason), ""]
    lines += _told_by(findings)
    lines += [f"[{_plain(text)}]({address})" for text, address in links.items() if address.startswith("https://")]
    return "\n".join(lines).rstrip() + "\n"


def render_preflight(name: str, report: PreflightReport, comparison: Comparison | None) -> str:
    """Return what preflight found, beside another training where it was compared with one, as GitHub's Markdown.

    Args:
        name: Name of the configuration.
        report: Findings on its machines.
        comparison: The first of them beside another training.
    """
    failed = [reason for machine in report.machines for reason in machine.reasons]
    failed += comparison.broken if comparison else ()
    told = comparison.summary if comparison else report.machines[0].summary
    lines = [f"### {'❌' if failed else '✅'} preflight of {_plain(name)}: {_plain(told)}", ""]
    lines += [f"- ❌ {_plain(reason)}" for reason in failed]
    lines += [""] if failed else []
    if comparison:
        lines += _beside(comparison)
    else:
        lines += [f"- {_plain(machine.summary)}" for machine in report.machines if machine.passed]
    return "\n".join(lines).rstrip() + "\n"


def render_runs(runs: Mapping[str, RunFindings]) -> str:
    """Return the figures of several runs with their intervals, their slices that changed, and what preflight found.

    Args:
        runs: Findings by the names of the runs.
    """
    return "\n".join([*_side_by_side(runs), *_changed_slices(runs), *_preflights(runs)]).rstrip()


def render_outputs(values: Mapping[str, str]) -> str:
    r"""Return lines `name=value` for later steps, as `$GITHUB_OUTPUT` takes them; values that are empty are left out.

    Example:
        >>> render_outputs({"needed": "true", "run": "", "outcome": "promoted\nneeded=false"})
        'needed=true\noutcome=promoted needed=false\n'
    """
    return "".join(f"{name}={' '.join(value.split())}\n" for name, value in values.items() if value)


def append(path: Path, text: str) -> None:
    """Add to what earlier steps of a job have written; never a new file in its place, which may be mounted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


def render_junit(name: str, outcome: str, reasons: Sequence[Rule]) -> str:
    """Return the rules of the gate as test cases; where none is known, or it has failed, the run itself is one.

    Args:
        name: Name of the configuration.
        outcome: Result of the run, or its state.
        reasons: Rules of the gate.
    """
    rules, has_failed = list(reasons), outcome in (FAILED, State.CANCELLED)
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


def _told_by(findings: RunFindings) -> Iterator[str]:
    if findings.error:
        yield from ("```", findings.error.replace("```", "'''"), "```", "")
    if findings.unread:
        yield from (f"The figures are not shown: {_plain(findings.unread)}", "")
    if findings.same_as:
        yield from (f"The same model as version {_plain(findings.same_as)}, which is the champion already.", "")
    yield from (f"- {'✅' if rule.passed else '❌'} {_plain(rule.text)}" for rule in findings.reasons)
    yield ""
    if findings.evaluation is None:
        return
    yield from _figures(findings.evaluation)
    yield from _slices(findings.evaluation.slices)
    if findings.preflight:
        yield from (f"Preflight: {_plain(findings.preflight.machines[0].summary)}", "")
        if findings.champion and (comparison := Comparison.make(findings.preflight, findings.champion)):
            yield from (f"Training beside the champion's: {_plain(comparison.summary)}", "", *_beside(comparison))


def _beside(comparison: Comparison) -> Iterator[str]:
    yield from (f"| | now | {_plain(comparison.name)} | difference |", "|---|--:|--:|--:|")
    yield from (f"| {' | '.join(map(_plain, row))} |" for row in comparison.rows)
    yield ""
    yield from (f"- {_plain(words)}" for words in comparison.caveats)


def _side_by_side(runs: Mapping[str, RunFindings]) -> Iterator[str]:
    scored = {name: findings.evaluation for name, findings in runs.items() if findings.evaluation}
    figures = dict.fromkeys(figure for evaluation in scored.values() for figure in evaluation.metrics)
    if not scored:
        return
    yield from (f"| with 95 % confidence | {' | '.join(map(_plain, scored))} |", "|---" + "|--:" * len(scored) + "|")
    for figure in (figure for figure in figures if figure in BY_NAME):
        cells = (_with_interval(evaluation, figure) for evaluation in scored.values())
        yield f"| {figure} | {' | '.join(cells)} |"
    yield ""


def _with_interval(evaluation: Evaluation, figure: str) -> str:
    value, interval = evaluation.metrics.get(figure), _interval(evaluation, figure)
    return "" if value is None else f"{show(value)} ({interval})" if interval else show(value)


def _changed_slices(runs: Mapping[str, RunFindings]) -> Iterator[str]:
    for name, findings in runs.items():
        if findings.evaluation and (table := list(_slices(findings.evaluation.slices))):
            yield from (f"Slices of {_plain(name)} that differ from its champion's:", "", *table)


def _preflights(runs: Mapping[str, RunFindings]) -> Iterator[str]:
    reports = {name: findings.preflight for name, findings in runs.items() if findings.preflight}
    if not reports:
        return
    yield from (
        "| preflight | machine | step | memory of a device | expected price of a run |",
        "|---|---|--:|--:|--:|",
    )
    for name, report in reports.items():
        machine = report.machines[0]
        cells = ["does not fit", "", ""]
        if footprint := footprint_of(report, machine):
            price = f"{dollars(footprint.usd_per_run)}, {billed_by(footprint.target)}" if footprint.usd_per_run else ""
            cells = [time(footprint.step_ms / 1e3), memory(footprint.peak_bytes), price]
        yield f"| {' | '.join(map(_plain, [name, machine.machine, *cells]))} |"
    yield ""


def _figures(evaluation: Evaluation) -> Iterator[str]:
    figures = {name: value for name, value in evaluation.metrics.items() if name in BY_NAME}
    yield from ("| | model | with 95 % confidence | champion | better by |", "|---|--:|--:|--:|--:|")
    for name, value in figures.items():
        champion = (evaluation.champion or {}).get(name)
        beside = show(champion, value) if champion is not None else ""
        difference = _difference(evaluation.differences.get(name))
        yield f"| {name} | {show(value)} | {_interval(evaluation, name)} | {beside} | {difference} |"
    yield ""


def _interval(evaluation: Evaluation, figure: str) -> str:
    low, high = evaluation.intervals.get(figure, (None, None))
    return f"{show(low)} to {show(high)}" if low is not None and high is not None else ""


def _slices(slices: Sequence[Slice]) -> Iterator[str]:
    """Yield the slices that surely became better or worse, the worst first."""
    compared = [(part.difference, i) for i, part in enumerate(slices) if part.difference]
    changed = [(difference.advantage, i) for difference, i in compared if difference.is_clear]
    if not changed:
        return
    yield from ("| slice | examples | model | champion | better by |", "|---|--:|--:|--:|--:|")
    for _, i in sorted(changed)[:_LISTED_SLICES]:
        part = slices[i]
        figures = f"{show(part.value)} | {show(part.champion or 0.0)} | {_difference(part.difference)}"
        yield f"| {_plain(part.by)} {_plain(part.name)} | {part.num_examples:,} | {figures} |"
    yield ""


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return ""
    text = f"{difference.advantage:+.4f}"
    if difference.bounds:
        text += f" ({' to '.join(f'{bound:+.4f}' for bound in difference.bounds)})"
    return f"**{text}**" if difference.is_clear else text


def _plain(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line: classes and files have any names."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", " ".join(text.split()))


def _legal(text: str) -> str:
    """Return a text without the characters that XML 1.0 forbids."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)
