"""The command `retrain`: runs the pipeline if something has changed, and lists earlier decisions."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from tpu_components.core.base.errors import DONE, InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.states import State
from tpu_components.core.base.terminal import in_one_line
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.machines.machine_spec import MachineSpec
from tpu_components.core.sources.kinds import list_examples
from tpu_pipelines.checks.check_list import require_first
from tpu_pipelines.cli.jobs import StatePrinter, connect, tell_submission
from tpu_pipelines.cli.output import show, show_text, tell_hint
from tpu_pipelines.cli.platforms import ask_first, plan_checked, tell_sent
from tpu_pipelines.cli.runs import code_of, tell_outcome
from tpu_pipelines.config.configuration import Config, load_config
from tpu_pipelines.config.settings import load_settings
from tpu_pipelines.platforms.machines import place_training
from tpu_pipelines.platforms.platform import PLATFORMS, Platform
from tpu_pipelines.retraining import retrain as deciding
from tpu_pipelines.retraining.job_summary import RunFindings, append, render_junit, render_markdown, render_outputs
from tpu_pipelines.retraining.retrain import Occasion, RunDecision
from tpu_pipelines.runs.data_drift import find_drift
from tpu_pipelines.runs.run_local import RunOutcome, run_local
from tpu_pipelines.runs.summary import Summary
from tpu_pipelines.runs.workspace import with_registry
from tpu_pipelines.submission.submit import submit, wait, without_cache

# Options that cannot be combined with an action.
_ALONE = {"history": ("when", "wait", "force", "markdown", "junit", "outputs"), "dry_run": ("junit",)}


def retrain(arguments: argparse.Namespace) -> int:
    """Run the pipeline if something has changed, or list earlier decisions. Return the exit code."""
    occasion = Occasion.parse("changed" if arguments.when is None else arguments.when)
    if arguments.output and not arguments.history:
        raise InputError("--output requires --history. Add --history, or remove --output.")
    for action, others in _ALONE.items():
        idle = [f"--{other}" for other in others if getattr(arguments, other) not in (None, False)]
        if idle and getattr(arguments, action):
            action = action.replace("_", "-")
            raise InputError(f"--{action} cannot be combined with {' and '.join(idle)}. Remove one or the other.")
    config = load_config(arguments.config, arguments.overrides)
    if arguments.history:
        return _tell_history(arguments, config)
    report = _Report(arguments, config)
    try:
        if platform := PLATFORMS.get(arguments.target):
            return _retrain_there(arguments, platform, config, occasion, report)
        return _retrain_here(arguments, config, occasion, report)
    except InputError as error:
        report.fail(error)
        raise


def _retrain_here(arguments: argparse.Namespace, config: Config, occasion: Occasion, report: "_Report") -> int:
    listing = list_examples(config.data)
    entry = report.begin(deciding.decide_here(config, arguments.workspace, listing, occasion))
    if arguments.dry_run:
        return DONE
    run_dir = arguments.workspace / config.name
    entry = dataclasses.replace(entry, run=str(run_dir), outcome=deciding.STARTED)
    last = None if entry.needed else Summary.find(run_dir)
    if not last:
        report.keep(entry)  # Before the run, which may be killed.

    def tell(outcome: RunOutcome) -> None:
        report.keep(dataclasses.replace(entry, outcome=outcome.summary.result))
        deployment = outcome.summary.deployment
        report.write({}, lambda: RunFindings.of_folder(run_dir), deployment.version if deployment else "")
        tell_outcome(outcome, arguments.json, report.facts)

    if last:
        outcome = RunOutcome(last)
        tell(outcome)
    else:
        outcome = run_local(config, arguments.workspace, force=arguments.force, tell=tell, listing=listing)
    return code_of(outcome)


def _retrain_there(
    arguments: argparse.Namespace, platform: Platform, config: Config, occasion: Occasion, report: "_Report"
) -> int:
    settings = load_settings(os.environ, arguments.settings)
    require_first(config, platform, settings, needs_image=not arguments.dry_run)
    submitter = connect(platform, settings)
    plan = plan_checked(arguments, config, settings)
    tell_sent(platform, settings, config.training.model, plan.carried)
    entry = report.begin(deciding.decide(plan, submitter, occasion, lambda: find_drift(config, settings)))
    if arguments.dry_run:
        return DONE
    plan = without_cache(plan) if arguments.force else plan
    # Another caller, for example a schedule, may have started it.
    started = None if entry.needed or plan.has(entry.run) else submitter.get(entry.run)
    if entry.needed:
        ask_first(arguments, config, settings)
    submission = started or submit(plan, submitter, again=entry.needed)
    price = partial(_price, config, [job.machine for job in plan.jobs], platform, settings.region)
    report.keep(entry.with_run(submission, price(submission.machine)))  # Before waiting, which may be killed.
    if arguments.wait and plan.has(submission.job_id):
        submission = wait(plan, submission, submitter, StatePrinter(), arguments.poll_seconds)
        report.keep(entry.with_run(submission, price(submission.machine)))
    links = {submission.job_id: submission.url, "logs": submission.logs_url}
    report.write(links, lambda: RunFindings.of_job(submission, submitter, config, settings))
    return tell_submission(submission, arguments.json, report.facts)


class _Report:
    """Reports of a decision: on the terminal, in the history, and in files for CI."""

    def __init__(self, arguments: argparse.Namespace, config: Config) -> None:
        self._arguments = arguments
        self._config = config
        self._decision = self._entry = RunDecision.make(True, "the decision failed")
        self._is_decided = False

    @property
    def facts(self) -> dict[str, Any]:
        """Whether a run is needed and the reason, for JSON: `{"retrain": {"needed", "since", "changed", "reason"}}`."""
        decision = self._decision
        named = {"needed": decision.needed, "since": decision.run, "changed": decision.changed}
        return {"retrain": named | {"reason": decision.reason}}

    def begin(self, decision: RunDecision) -> RunDecision:
        """Print the decision and return it. With `--force`, the returned decision says that a run is needed.

        In a dry run, this method also writes the CI reports.
        """
        if self._arguments.force and not decision.needed:
            decision = dataclasses.replace(decision, needed=True, reason=f"--force was set, although {decision.reason}")
        self._decision = decision
        self._entry = decision
        self._is_decided = True
        words = in_one_line(f"{'needed' if decision.needed else 'not needed'}: {decision.reason}")
        if self._arguments.dry_run:
            show(self.facts, words, self._arguments.json)
            outcome = "needed (dry run)" if decision.needed else "dry run"
            self._entry = dataclasses.replace(decision, outcome=outcome)
            self.write({}, RunFindings)
        else:
            show_text(words, sys.stderr)
        return decision

    def keep(self, entry: RunDecision) -> None:
        """Record a decision in the history. If that fails, a hint is printed and the run continues."""
        self._entry = entry
        try:
            deciding.record(_place(self._arguments, self._config), entry)
        except (InputError, PlatformError, OSError) as error:
            tell_hint(f"the decision could not be recorded: {error}")

    def fail(self, error: Exception) -> None:
        """Record and report an error that stopped the decision or the run."""
        entry = self._entry
        if entry.outcome in ("", deciding.STARTED):
            run = entry.run if entry.outcome else ""
            entry = dataclasses.replace(entry, run=run, outcome=State.FAILED, reason=f"{entry.reason}; {error}")
        if not self._arguments.dry_run and (self._is_decided or self._arguments.target not in PLATFORMS):
            self.keep(entry)
        self._entry = entry
        self.write({}, lambda: RunFindings(error=str(error)))

    def write(self, links: Mapping[str, str], read: Callable[[], RunFindings], version: str = "") -> None:
        """Write the CI reports that the flags request.

        Args:
            links: URLs of the run and its logs by link text, for the Markdown report.
            read: Function that returns the findings of the run. It is called only if a report shows them.
            version: Registered version for the outputs of the CI job. Empty if no version was registered.
        """
        entry = self._entry
        name = self._config.name
        markdown, junit, outputs = self._arguments.markdown, self._arguments.junit, self._arguments.outputs
        if outputs:
            needed = "true" if entry.needed else "false"
            values = {"needed": needed, "outcome": entry.outcome, "run": entry.run, "version": version}
            append(outputs, render_outputs(values))
        findings = read() if markdown or junit else RunFindings()
        if markdown:
            append(markdown, render_markdown(name, self._decision, entry.outcome, links, findings))
        if junit:
            storage.write_bytes(junit, render_junit(name, entry.outcome, findings.reasons).encode())


def _price(
    config: Config, machines: Iterable[MachineSpec], platform: Platform | None, region: str, name: str
) -> float | None:
    """Return the price per hour of a machine on a platform.

    Return None if the price is unknown, or if `platform` is None because the run is on this machine.
    """
    machine = next((machine for machine in machines if machine.name == name), None)
    if platform is None or machine is None or platform.catalogue_name not in machine.slice.targets:
        return None
    price = place_training(config, machine, platform, region).paid.price
    return price.usd_per_hour if price else None


def _place(arguments: argparse.Namespace, config: Config) -> Location:
    """Return the folder in which decisions are stored: in the registry, otherwise in the bucket or workspace."""
    workspace = Location(arguments.workspace)
    if arguments.target not in PLATFORMS:
        return deciding.place_of(with_registry(config, arguments.workspace), workspace)
    return deciding.place_of(config, load_settings(os.environ, arguments.settings).bucket_location or workspace)


def _tell_history(arguments: argparse.Namespace, config: Config) -> int:
    place = _place(arguments, config)
    machines = config.machine.candidates if config.machine else ()
    settings = load_settings(os.environ, arguments.settings)
    platform = PLATFORMS.get(arguments.target)
    price = partial(_price, config, machines, platform, settings.region)
    ask = connect(platform, settings).get if platform else (lambda run: None)
    known = deciding.entries(place, ask, price, lambda name: tell_hint(f"ignored {name}, because it is not a decision"))
    if not known:
        tell_hint(f"looked for decisions about {config.name!r} in {place}")
    if arguments.output:
        deciding.write_page(known, config.name, arguments.output)
    table = deciding.as_table(known) if known else "No retraining decisions yet."
    show([dataclasses.asdict(entry) for entry in known], table, arguments.json)
    return DONE
