"""`retrain`: run again where there is reason to, and tell what was decided before."""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from tpu_pipelines.cli.options import (
    DONE,
    HERE,
    add_config,
    add_markdown,
    add_target,
    add_wait,
    add_workspace,
    added_to,
    output_file,
    show_text,
    tell_hint,
)
from tpu_pipelines.cli.platforms import Progress, add_no_doctor, ask_first, connect, plan_checked, tell_submission
from tpu_pipelines.cli.runs import tell_outcome

# Options that an action has no use for.
_ALONE = {"history": ("when", "wait", "force", "markdown", "junit", "outputs"), "dry_run": ("junit",)}


def _add_retrain(commands: Any) -> None:
    retrain = commands.add_parser(
        "retrain",
        epilog="Example: tpu-pipelines retrain digits --target local --when changed,older-than=30d",
        help="run again what has changed: for CI",
        description="Run the pipeline if its data, configuration or code have changed since the last run of its name, "
        "and say which. What was run before is not run again, unless it failed. May be started as often as there is "
        "reason to look, on a platform also several times at once, and again after it was killed. Every decision is "
        "kept beside the registry, or in the bucket or workspace where there is none.",
    )
    add_config(retrain)
    add_target(retrain, also=(HERE,))
    add_workspace(retrain)
    add_wait(retrain)
    retrain.add_argument(
        "--when",
        metavar="OCCASIONS",
        help="any of changed, drifted (the data, from those of the champion), older-than=30d (or 12h) and always, with "
        "commas between (default: changed)",
    )
    actions = retrain.add_mutually_exclusive_group()
    actions.add_argument("--dry-run", action="store_true", help="say whether a run is needed, and why; start none")
    actions.add_argument("--history", action="store_true", help="list what was decided, and what became of it")
    add_no_doctor(retrain)
    retrain.add_argument("--force", action="store_true", help="run every step, though nothing has changed")
    retrain.add_argument(
        "--output", type=output_file, metavar="FILE", help="page that --history writes, as retrain.html"
    )
    add_markdown(retrain)
    retrain.add_argument("--junit", type=output_file, metavar="FILE", help="write the gate's rules as JUnit XML")
    retrain.add_argument(
        "--outputs",
        type=added_to,
        metavar="FILE",
        help="add needed=, outcome=, run= and version= to a file, as $GITHUB_OUTPUT",
    )
    retrain.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    retrain.set_defaults(command=_retrain)


def _retrain(arguments: argparse.Namespace) -> int:
    from tpu_components.core.base.errors import InputError
    from tpu_pipelines.config.configuration import load_config
    from tpu_pipelines.retraining.retrain import Occasion

    occasion = Occasion.parse("changed" if arguments.when is None else arguments.when)
    if arguments.output and not arguments.history:
        raise InputError("--output FILE is the page of --history. Received: no --history. Add it, or leave both out.")
    for action, others in _ALONE.items():
        idle = [f"--{other}" for other in others if getattr(arguments, other) not in (None, False)]
        if idle and getattr(arguments, action):
            action = action.replace("_", "-")
            raise InputError(f"--{action} does nothing with {' and '.join(idle)}. Leave out the one or the other.")
    config = load_config(arguments.config, arguments.overrides)
    if arguments.history:
        return _tell_history(arguments, config)
    told = _Told(arguments, config)
    try:
        return (_retrain_here if arguments.target == HERE else _retrain_there)(arguments, config, occasion, told)
    except InputError as error:
        told.fail(error)
        raise


def _retrain_here(arguments: argparse.Namespace, config: Any, occasion: Any, told: "_Told") -> int:
    from tpu_components.core.base.states import result_of
    from tpu_pipelines.retraining.retrain import decide_here, last_summary
    from tpu_pipelines.retraining.retrain_history import STARTED
    from tpu_pipelines.runs.run_local import RunOutcome, run_local

    decision = _forced(decide_here(config, arguments.workspace, occasion), arguments.force)
    if not (facts := _announce(decision, arguments)):
        return told.dry(decision)
    run_dir = arguments.workspace / config.name
    entry = dataclasses.replace(told.decided(decision), run=str(run_dir), outcome=STARTED)
    last = None if decision.needed else last_summary(config, arguments.workspace)
    if not last:
        told.keep(entry)  # First that it begins, since it may be killed.
    outcome = RunOutcome(last) if last else run_local(config, arguments.workspace, force=arguments.force)
    told.keep(dataclasses.replace(entry, outcome=result_of(outcome.summary.status)))
    deployment = outcome.summary.deployment
    told.write({}, lambda findings: findings.of_folder(run_dir), deployment.version if deployment else "")
    return tell_outcome(outcome, arguments.json, facts)


def _retrain_there(arguments: argparse.Namespace, config: Any, occasion: Any, told: "_Told") -> int:
    from tpu_pipelines.retraining.retrain import decide
    from tpu_pipelines.runs.data_drift import find_drift
    from tpu_pipelines.submission.submit import submit, wait, without_cache

    settings, submitter = connect(arguments)
    plan = plan_checked(arguments, config, settings)
    decision = decide(plan, submitter, occasion, lambda: find_drift(config, settings))
    decision = _forced(decision, arguments.force)
    plan = without_cache(plan) if arguments.force else plan
    if not (facts := _announce(decision, arguments)):
        return told.dry(decision)
    entry = told.decided(decision)
    if not decision.needed and not plan.has(decision.since):  # Another has started it, as a schedule.
        submission = submitter.get(decision.since)
    else:
        if decision.needed:
            ask_first(arguments, config, settings, plan.image)
        submission = submit(plan, submitter, again=decision.needed)
    price = partial(_price, [job.machine for job in plan.jobs], target=arguments.target)
    told.keep(entry.with_run(submission, price(submission.machine)))  # First: who waits may be killed.
    if arguments.wait and plan.has(submission.job_id):
        submission = wait(plan, submission, submitter, Progress(), arguments.poll_seconds)
        told.keep(entry.with_run(submission, price(submission.machine)))
    links = {submission.job_id: submission.url, "logs": submission.logs_url}
    told.write(links, lambda findings: findings.of_job(submission, submitter, config, settings))
    return tell_submission(submission, arguments.json, facts)


class _Told:
    """A decision as it is kept, and as CI shows it."""

    def __init__(self, arguments: argparse.Namespace, config: Any) -> None:
        self._arguments, self._config = arguments, config
        self._decision: Any = None
        self._entry: Any = None

    def decided(self, decision: Any) -> Any:
        """Return a decision's entry, which is kept once its run begins or is refused."""
        from tpu_pipelines.retraining.retrain_history import Entry

        self._decision, self._entry = decision, Entry.make(decision)
        return self._entry

    def keep(self, entry: Any) -> None:
        """Keep what is known by now; what keeps it from being kept is no reason against the run."""
        from tpu_components.core.base.errors import InputError
        from tpu_components.core.base.retries import PlatformError
        from tpu_pipelines.retraining import retrain_history as history

        self._entry = entry
        try:
            history.record(_place(self._arguments, self._config), entry)
        except (InputError, PlatformError, OSError) as error:
            tell_hint(f"the decision is not kept: {error}")

    def dry(self, decision: Any) -> int:
        """Write of a dry run what was decided, and keep nothing."""
        words = "needed (dry run)" if decision.needed else "dry run"
        self._entry = dataclasses.replace(self.decided(decision), outcome=words)
        self.write({}, lambda findings: findings())
        return DONE

    def fail(self, error: Exception) -> None:
        """Keep and write that a run was refused, or that none could be decided on."""
        from tpu_components.core.base.states import State
        from tpu_pipelines.retraining.retrain import RunDecision
        from tpu_pipelines.retraining.retrain_history import STARTED

        is_decided = self._entry is not None
        entry = self._entry or self.decided(RunDecision(True, "", (), "it could not be decided"))
        if entry.outcome in ("", STARTED):
            run = entry.run if entry.outcome else ""
            entry = dataclasses.replace(entry, run=run, outcome=State.FAILED, reason=f"{entry.reason}; {error}")
        if not self._arguments.dry_run and (is_decided or self._arguments.target == HERE):
            self.keep(entry)
        self._entry = entry
        self.write({}, lambda findings: findings(error=str(error)))

    def write(self, links: Mapping[str, str], read: Callable[[Any], Any], version: str = "") -> None:
        """Write what CI shows, where that is asked for; only then does `read` have `RunFindings` read the run's."""
        from tpu_components.core.files import storage
        from tpu_pipelines.retraining.job_summary import append, render_junit, render_markdown, render_outputs
        from tpu_pipelines.runs.run_findings import RunFindings

        entry, markdown, junit = self._entry, self._arguments.markdown, self._arguments.junit
        if self._arguments.outputs:
            needed = "true" if entry.needed else "false"
            values = {"needed": needed, "outcome": entry.outcome, "run": entry.run, "version": version}
            append(self._arguments.outputs, render_outputs(values))
        if not markdown and not junit:
            return
        name, outcome, findings = self._config.name, entry.outcome, read(RunFindings)
        if markdown:
            append(markdown, render_markdown(name, self._decision, outcome, links, findings))
        if junit:
            storage.write_bytes(junit, render_junit(name, outcome, findings.reasons).encode())


def _price(machines: Iterable[Any], name: str, target: str) -> float | None:
    """Return the target's price of an hour of one of several machines; None where none is known."""
    machine = next((machine for machine in machines if machine.name == name), None)
    price = machine and machine.slice.price(machine.region, machine.spot, target)
    return price.usd_per_hour if price else None


def _place(arguments: argparse.Namespace, config: Any) -> str:
    """Return the folder of the decisions: beside the registry, else in the bucket or the workspace."""
    from tpu_pipelines.checking.workspace import with_registry
    from tpu_pipelines.config.settings import load_settings
    from tpu_pipelines.retraining import retrain_history as history

    workspace = str(arguments.workspace)
    if arguments.target == HERE:
        return history.place_of(with_registry(config, arguments.workspace), workspace)
    return history.place_of(config, load_settings(os.environ, arguments.settings).bucket or workspace)


def _tell_history(arguments: argparse.Namespace, config: Any) -> int:
    from tpu_pipelines.retraining import retrain_history as history

    place = _place(arguments, config)
    machines = config.machine.candidates if config.machine else ()
    price = partial(_price, machines, target=arguments.target)
    known = history.entries(
        place, _asker(arguments), price, lambda name: tell_hint(f"left out, as no decision: {name}")
    )
    if not known:
        tell_hint(f"looked for decisions about {config.name!r} in {place}")
    if arguments.output:
        history.write_page(known, config.name, arguments.output)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(entry) for entry in known]))
    else:
        show_text(history.as_table(known) if known else "No retraining decisions yet.")
    return DONE


def _asker(arguments: argparse.Namespace) -> Callable[[str], Any]:
    """Return a function that asks for a run by its id."""
    if arguments.target == HERE:
        return lambda run: None
    return connect(arguments)[1].get


def _forced(decision: Any, force: bool) -> Any:
    """Return the decision, or that a run is needed because it is asked for."""
    if not force or decision.needed:
        return decision
    return dataclasses.replace(decision, needed=True, reason=f"--force, though {decision.reason}")


def _announce(decision: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Say whether a run is needed; what JSON output says of it, or nothing if that is all that was asked."""
    from tpu_components.core.base.terminal import in_one_line

    words = in_one_line(f"{'needed' if decision.needed else 'not needed'}: {decision.reason}")
    facts = {"retrain": dataclasses.asdict(decision)}
    if arguments.dry_run:
        if arguments.json:
            print(json.dumps(facts))
        else:
            show_text(words)
        return {}
    show_text(words, sys.stderr)
    return facts


COMMANDS: tuple[Callable[[Any], None], ...] = (_add_retrain,)
