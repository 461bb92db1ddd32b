"""`tpu-pipelines`: the command line. Imports what a command needs only when that command runs."""

import argparse
import dataclasses
import importlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from components.safe_path import leave_current_folder

# The same numbers as components.command_line, whose import `--help` does without.
DONE, FAILED, BAD_INPUT, REJECTED = 0, 1, 2, 3
HERE = "local"  # Where a run may be, beside the platforms.
_HEADLINES = (
    "bits_per_character",
    "accuracy",
    "micro_f1",
    "r2",
    "mean_absolute_error",
    "loss",
    "macro_f1",
    "mean_average_precision",
)
_SHOWN_CHARACTERS = 200  # Of an input that is itself a text.


def _show(text: str, stream: Any = None) -> None:
    """Print text that may hold names out of data or what a service says."""
    from components.table import printable

    print(printable(text), file=stream or sys.stdout, flush=True)


def _add_config(command: Any, default: str = "") -> None:
    command.add_argument(
        "config",
        nargs="?" if default else None,
        default=default,
        metavar="CONFIG",
        help="a ready example or a YAML file" + (f" (default: {default})" if default else ""),
    )
    command.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="overrides")


def _add_workspace(command: Any) -> None:
    command.add_argument(
        "--workspace", type=Path, default=Path("runs"), metavar="DIR", help="folder for runs (default: runs)"
    )


def _add_target(command: Any, required: bool = False, also: tuple[str, ...] = ()) -> None:
    from pipelines.settings import TARGET_SETTINGS

    targets, default = (*TARGET_SETTINGS, *also), None if required else "vertex"
    note = "" if required else f"(default: {default})"
    command.add_argument("--target", choices=targets, required=required, default=default, help=note)
    command.add_argument("--settings", type=Path, metavar="FILE", help="YAML; TPU_PIPELINES_… variables come first")


def _seconds(text: str) -> float:
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, received {text}")
    return float(text)


def _add_wait(command: Any) -> None:
    command.add_argument("--wait", action="store_true", help="until it ends; may be killed and started again at will")
    command.add_argument("--poll-seconds", type=_seconds, default=20.0, metavar="N", help="between looks (default: 20)")


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="run the whole pipeline on this machine",
        description="Run the whole pipeline on this machine. Unchanged steps are taken from the last run.",
    )
    _add_config(run, default="digits")
    _add_workspace(run)
    run.add_argument("--json", action="store_true", help="print the summary, and nothing else, on stdout")
    run.add_argument("--runner", choices=("subprocess", "docker"), default="subprocess")
    run.add_argument("--force", action="store_true", help="run every step, also those that are unchanged")
    run.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from pipelines.config import load_config
    from pipelines.run_local import run_local

    config = load_config(arguments.config, arguments.overrides)
    return _tell_outcome(run_local(config, arguments.workspace, arguments.runner, arguments.force), arguments.json)


def _tell_outcome(outcome: Any, as_json: bool, facts: Mapping[str, Any] = {}) -> int:
    """Print what became of a local run; the exit code that goes with it."""
    summary = outcome.summary
    if as_json:
        print(json.dumps({**summary, **facts}))
    else:
        _show(_describe(summary))
    if summary["status"] == "failed":
        _show(f"error: {summary['error']}", sys.stderr)
        return BAD_INPUT if outcome.is_input_error else FAILED
    if summary["status"] == "rejected":
        run_dir = os.path.relpath(Path(summary["artifacts"]["evaluation"]).parent)
        print(f"hint: to try the model all the same: tpu-pipelines export {run_dir}", file=sys.stderr)
    return DONE if summary["status"] == "succeeded" else REJECTED


def _describe(summary: dict[str, Any]) -> str:
    lines = [f"{summary['config']['name']}: {summary['status']} in {summary['seconds']:.1f} s", ""]
    for name, step in summary["steps"].items():
        time = "cached" if step["cached"] else f"{step['seconds']:.1f} s" if step["seconds"] else ""
        lines.append(f"  {name:<20}{step['state']:<11}{time:>8}")
    if preflight := summary["preflight"]:
        lines += ["", f"  preflight: {preflight['summary']}"]
    metrics = summary["metrics"]
    if metrics:
        shown = ", ".join(f"{name} {metrics[name]:.4f}" for name in _HEADLINES if name in metrics)
        lines += ["", f"  test: {shown} ({metrics['num_examples']:,} examples)"]
        lines += [f"  gate: {'promoted' if summary['gate']['promote'] else 'not promoted'}"]
        lines += [f"        {reason}" for reason in summary["gate"]["reasons"]]
    lines += _describe_export(summary["export"])
    if deployment := summary["deployment"]:
        line = f"  {deployment['model_name']} version {deployment['version']} is the {deployment['alias']}"
        lines += ["", line + (f", after {deployment['previous']}" if deployment["previous"] else "")]
    if summary["artifacts"]:
        lines += [""] + [f"  {name:<18}{os.path.relpath(path)}" for name, path in summary["artifacts"].items()]
    return "\n".join(lines)


def _describe_export(export: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, facts in export.get("formats", {}).items():
        judged = next((f"{figure} {facts[figure]:.4f}  " for figure in _HEADLINES if facts.get(figure) is not None), "")
        lines.append(
            f"  {name:<12}{facts['bytes'] / 2**20:8.2f} MiB  {judged}"
            f"{facts['latency_ms']:.2f} ms for one  {facts['examples_per_second']:,.0f}/s"
        )
    return lines + [f"  {name:<12}left out: {reason}" for name, reason in export.get("left_out", {}).items()]


def _add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        help="export a run's model whatever the gate says, to try it",
        description="Export the model that a run has trained, also one that the gate has rejected, to try it with "
        "`predict` and `serve`. Registers and promotes nothing; the next run of that name takes the export away.",
    )
    export.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, as runs/digits")
    export.add_argument("--set", action="append", default=[], metavar="EXPORT.KEY=VALUE", dest="overrides")
    export.add_argument("--output", type=Path, metavar="DIR", help="the export (default: RUN/export)")
    export.add_argument("--json", action="store_true", help="print export.json, and nothing else, on stdout")
    export.set_defaults(command=_export)


def _export(arguments: argparse.Namespace) -> int:
    from pipelines.export_run import export_run

    output = arguments.output or arguments.run / "export"
    export = export_run(arguments.run, arguments.overrides, output)
    print(json.dumps(export) if arguments.json else "\n".join([*_describe_export(export), "", os.path.relpath(output)]))
    return DONE


def _add_compare(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="several runs side by side",
        description="Show runs side by side: metrics, speed, sizes, and in what their configurations differ; and write "
        "a page that shows their training curves too.",
    )
    compare.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run, as runs/digits; others are left out"
    )
    compare.add_argument(
        "--output", type=Path, metavar="FILE", help="the page (default: comparison.html beside the first run)"
    )
    forms = compare.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    forms.add_argument("--markdown", action="store_true", help="print a Markdown table with a line for each run")
    compare.set_defaults(command=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from pipelines import comparison

    runs, others = comparison.select_runs(arguments.runs)
    path = arguments.output or runs[0].resolve().parent / "comparison.html"
    comparison.check_page(path)
    found = comparison.compare(runs)
    if others:
        _show(f"hint: left out, as no run that has ended: {', '.join(map(str, others))}", sys.stderr)
    comparison.write_page(found, path)
    if arguments.json:
        print(json.dumps(found.as_dict()))
    elif arguments.markdown:
        _show(comparison.as_markdown(found))
    else:
        _show(f"{comparison.as_text(found)}\n\n{os.path.relpath(path)}")
    return DONE


def _add_runs(commands: Any) -> None:
    runs = commands.add_parser(
        "runs",
        help="list the runs of a workspace, or delete earlier ones",
        description="list [NAME]: every run that is kept, of one name or of all: when it ended, what became of it, its "
        "figures and its size. clean [NAME]: delete earlier runs, and cached steps that no run is made of any more.",
    )
    runs.add_argument("action", nargs="?", choices=("list", "clean"), default="list", help="(default: list)")
    runs.add_argument("name", nargs="?", default="", metavar="NAME", help="of the configuration (default: all)")
    _add_workspace(runs)
    runs.add_argument("--keep", type=int, default=0, metavar="N", help="clean: earlier runs to keep (default: 0)")
    runs.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    runs.set_defaults(command=_runs)


def _runs(arguments: argparse.Namespace) -> int:
    from components.errors import InputError
    from pipelines import history

    if arguments.action == "list":
        rows = history.as_rows(arguments.workspace, arguments.name)
        _show(json.dumps(rows) if arguments.json else history.as_table(rows))
        return DONE
    from pipelines.run_local import clean_runs

    if arguments.keep < 0:
        raise InputError(f"Expected --keep of 0 or more. Received: {arguments.keep}.")
    names = [arguments.name] if arguments.name else history.names(arguments.workspace)
    dropped = [str(path) for name in names for path in clean_runs(arguments.workspace, name, arguments.keep)]
    _show(json.dumps(dropped) if arguments.json else "\n".join([f"deleted: {len(dropped)} earlier runs", *dropped]))
    return DONE


def _add_model(command: Any) -> None:
    command.add_argument(
        "model",
        metavar="MODEL",
        help="an export folder, local or on gs://, a run's folder, or a registered model: NAME, NAME@ALIAS or "
        "NAME@VERSION",
    )
    _add_workspace(command)


def _add_predict(commands: Any) -> None:
    predict = commands.add_parser(
        "predict",
        help="answer images or texts, or continue a text, on CPU with an exported model",
        description="Answer images or texts on CPU with an exported model: the likeliest classes, the labels above a "
        "probability of 0.5, or the numbers of a regression; or continue a text. Needs no TensorFlow and no training "
        "code.",
    )
    _add_model(predict)
    predict.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="image files, folders of them, or .npy/.npz arrays; for a model of texts files, folders of them, "
        ".csv files, .npy/.npz arrays of strings, or texts themselves; - reads an image, or a line for each instance, "
        "from stdin: a text, or JSON as the server takes it",
    )
    predict.add_argument("--lines", action="store_true", help="a file holds a text a line")
    predict.add_argument("--column", default="text", metavar="NAME", help="of a .csv file (default: text)")
    predict.add_argument("--top", type=int, default=3, metavar="K", help="classes to name per input (default: 3)")
    predict.add_argument("--json", action="store_true", help="one JSON line per input")
    predict.add_argument("--int8", action="store_true", help="use the int8 model")
    writing = predict.add_argument_group("language models", "INPUT is a text to continue, as 'ROMEO:'")
    writing.add_argument("--length", type=int, default=200, metavar="N", help="characters to write (default: 200)")
    writing.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="1 draws by the probabilities, less prefers the likely, 0 takes the likeliest (default: 0.8)",
    )
    writing.add_argument("--seed", type=int, default=0, metavar="N", help="equal ones write equal texts (default: 0)")
    predict.set_defaults(command=_predict)


_ANSWERS = {"classification": "classes", "multi_label": "labels", "regression": "values"}


def _predict(arguments: argparse.Namespace) -> int:
    from components.registry import fetch_folder
    from pipelines.exports import find_export

    with tempfile.TemporaryDirectory(prefix="predict-") as scratch:
        uri = find_export(arguments.model, arguments.workspace)
        return _predict_with(fetch_folder(uri, Path(scratch)), arguments)


def _predict_with(export_dir: Path, arguments: argparse.Namespace) -> int:
    from components.prediction import continue_texts, is_language_model, predict_inputs

    if is_language_model(export_dir):
        how = (arguments.length, arguments.temperature, arguments.seed, arguments.int8)
        for written in continue_texts(export_dir, arguments.inputs, *how):
            shown = {"input": written.prompt, "continuation": written.text}
            if arguments.json:
                print(json.dumps(shown, ensure_ascii=False))
            else:
                _show(written.prompt + written.text)
        return DONE
    predictions = predict_inputs(
        export_dir, arguments.inputs, arguments.top, arguments.int8, arguments.lines, arguments.column
    )
    for one in predictions:
        if arguments.json:
            print(json.dumps({"input": one.name, _ANSWERS[one.task]: dict(one.classes)}))
        elif one.task == "regression":
            _show(f"{one.name}  " + "  ".join(f"{name} {value:.6g}" for name, value in one.classes))
        else:
            named = "  ".join(f"{name} {probability:.1%}" for name, probability in one.classes)
            _show(f"{_one_line(one.name)}  {named or 'no label'}")
    return DONE


def _one_line(name: str) -> str:
    plain = " ".join(name.split())
    return plain if len(plain) <= _SHOWN_CHARACTERS else f"{plain[:_SHOWN_CHARACTERS]}…"


def _add_serve(commands: Any) -> None:
    from components.command_line import add_params
    from components.serving.params import ServeParams

    serve = commands.add_parser(
        "serve",
        help="answer predictions over HTTP with an exported model",
        description="Answer predictions over HTTP on CPU with an exported model, by Vertex AI's contract for custom "
        "containers. Needs no TensorFlow and no training code. Ctrl-C ends it.",
    )
    _add_model(serve)
    add_params(serve, ServeParams)
    serve.set_defaults(command=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from components.command_line import params_from
    from components.serving.params import ServeParams
    from components.serving.server import serve
    from pipelines.exports import find_export

    serve(find_export(arguments.model, arguments.workspace), params_from(arguments, ServeParams))
    return DONE


def _add_preflight(commands: Any) -> None:
    preflight = commands.add_parser(
        "preflight",
        help="compile the training step for a TPU, without one: fit, time, price",
        description="Compile the training step with the real TPU compiler on this machine, which needs no TPU, and say "
        "whether it fits, how long a step and an epoch take, what a run costs and how long the device waits for data.",
    )
    _add_config(preflight)
    machines = preflight.add_mutually_exclusive_group()
    machines.add_argument(
        "--machine", metavar="NAME", help="a TPU slice, as v5e-4 (default: the configuration's, and its fallbacks)"
    )
    machines.add_argument("--compare", metavar="NAME,NAME…", help="several slices, side by side")
    _add_workspace(preflight)
    preflight.add_argument("--json", action="store_true", help="print the report, and nothing else, on stdout")
    preflight.set_defaults(command=_preflight)


def _preflight(arguments: argparse.Namespace) -> int:
    from components.artifacts import PREFLIGHT_FILE, PREFLIGHT_REPORT_FILE
    from components.preflight_training.report import as_text
    from pipelines.config import load_config
    from pipelines.preflight import preflight

    names = [name.strip() for name in (arguments.compare or arguments.machine or "").split(",") if name.strip()]
    config = load_config(arguments.config, arguments.overrides)
    directory = arguments.workspace / f"{config.name}-preflight"
    report = preflight(config, names, directory)
    if arguments.json:
        print((directory / PREFLIGHT_FILE).read_text())
    else:
        _show(as_text(report))
        print(f"\n{os.path.relpath(directory / PREFLIGHT_REPORT_FILE)}")
    enough = any if arguments.compare else all  # One of those to choose from; all that a run may get.
    return DONE if enough(machine.passed for machine in report.machines) else REJECTED


def _add_machines(commands: Any) -> None:
    machines = commands.add_parser(
        "machines",
        help="list the TPU machines that a configuration can name",
        description="List every TPU slice that Vertex trains on: its fields, its chips, its list price, its regions.",
    )
    machines.add_argument("--generation", default="", metavar="NAME", help="only of this one, as v5e")
    machines.add_argument("--region", default="", metavar="NAME", help="only what trains there, as us-west1")
    machines.add_argument("--json", action="store_true", help="print a JSON list, with the source of every value")
    machines.set_defaults(command=_machines)


def _machines(arguments: argparse.Namespace) -> int:
    from pipelines.machines import as_rows, as_table, select_slices

    slices = select_slices(arguments.generation, arguments.region)
    if arguments.json:
        print(json.dumps(as_rows(slices, arguments.region)))
    else:
        print(as_table(slices, arguments.region))
    return DONE


def _add_compile(commands: Any) -> None:
    compile_ = commands.add_parser(
        "compile",
        help="write the pipeline as a file for a cloud platform",
        description="Write the pipeline as a file for a cloud platform, training on the machine of the configuration. "
        "Needs no account; settings that are known by now go into the file.",
    )
    _add_config(compile_)
    _add_target(compile_, required=True)
    compile_.add_argument("--output", type=Path, required=True, metavar="FILE", help="as pipeline.yaml")
    compile_.set_defaults(command=_compile)


def _compile(arguments: argparse.Namespace) -> int:
    from pipelines.compile import compile_pipeline
    from pipelines.config import load_config
    from pipelines.settings import load_settings

    config = load_config(arguments.config, arguments.overrides)
    settings = load_settings(os.environ, arguments.settings)
    compiled = compile_pipeline(config, arguments.target, arguments.output, settings)
    _hint_at_tag(compiled.image)
    for place, content in compiled.carried.items():
        path = compiled.path.parent / Path(place).name
        path.write_bytes(content)
        print(f"hint: the model travels beside the pipeline: gcloud storage cp {path} {place}", file=sys.stderr)
    print(f"{compiled.path}: {config.name} for {arguments.target}, to train on {compiled.machine.slice}")
    print(compiled.timeout.reason)
    return DONE


def _check_data(config: Any) -> None:
    """Refuse what would fail once it costs money. Data that would have to be downloaded first are left to the steps."""
    from pipelines.model_check import check_model_works, needs_check
    from pipelines.run_local import check_data

    if not config.data.source.startswith(("keras:", "tfds:")):
        plan = check_data(config)
        if needs_check(config):
            check_model_works(config, plan)


def _hint_at_tag(image: str) -> None:
    from components.container import LOCAL_IMAGE, is_pinned

    if image == LOCAL_IMAGE:
        print(
            f"hint: no platform can fetch the image {image!r}: it is the one that `make image` builds here. Push it, "
            "and set TPU_PIPELINES_IMAGE; `submit`, `schedule` and `retrain` ask for that",
            file=sys.stderr,
        )
        return
    if not is_pinned(image):
        print(
            f"hint: the image {image!r} is named by a tag. When the tag moves, cached steps give stale results. Set "
            "TPU_PIPELINES_IMAGE=…@sha256:…",
            file=sys.stderr,
        )


def _connect(arguments: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The settings, the platform, and how to wait out its outages. Settings that are missing are named first."""
    from pipelines.settings import TARGET_SETTINGS, load_settings

    settings = load_settings(os.environ, arguments.settings)
    settings.require(*TARGET_SETTINGS[arguments.target])
    from components.outages import Backoff

    backoff = Backoff(report=lambda text: _show(f"hint: {text}", sys.stderr))
    return settings, importlib.import_module(f"pipelines.{arguments.target}").connect(settings), backoff


def _add_submit(commands: Any) -> None:
    submit = commands.add_parser(
        "submit",
        help="run the pipeline on a cloud platform",
        description="Compile the pipeline and start it on a cloud platform. The same configuration, data and code are "
        "the same run: it is started once, and found when it is submitted again. Where its machine cannot be had, the "
        "fallbacks are tried.",
    )
    _add_config(submit)
    _add_target(submit)
    _add_wait(submit)
    submit.add_argument("--again", action="store_true", help="start it once more if it has ended")
    submit.add_argument("--dry-run", action="store_true", help="print what would be sent, and send nothing")
    submit.add_argument("--json", action="store_true", help="print the run as JSON, and nothing else, on stdout")
    submit.set_defaults(command=_submit)


def _plan(arguments: argparse.Namespace) -> tuple[Any, Any, Any]:
    """A run as it would be sent, the platform, and the same with its outages waited out."""
    settings, platform, backoff = _connect(arguments)
    from pipelines.compile import require_step_image
    from pipelines.config import load_config
    from pipelines.submission import Retrying, plan_submission

    config = load_config(arguments.config, arguments.overrides)
    plan = plan_submission(config, arguments.target, settings)
    _check_data(config)
    if not arguments.dry_run:
        require_step_image(plan.image, arguments.target)
    _hint_at_tag(plan.image)
    return plan, platform, Retrying(platform, backoff)


def _submit(arguments: argparse.Namespace) -> int:
    plan, platform, submitter = _plan(arguments)
    from pipelines.submission import submit

    print(f"hint: {plan.timeout}", file=sys.stderr)
    if arguments.dry_run:
        _describe_dry_run(arguments, plan)
        print(json.dumps([platform.describe(job) for job in plan.jobs], indent=2))
        return DONE
    return _follow(arguments, plan, submit(plan, submitter, arguments.again), submitter)


def _describe_dry_run(arguments: argparse.Namespace, plan: Any) -> None:
    """Say on stderr, before the specification on stdout, what the run would be and what is missing."""
    from pipelines.config import load_config
    from pipelines.dry_run import describe
    from pipelines.settings import load_settings

    config = load_config(arguments.config, arguments.overrides)
    settings = load_settings(os.environ, arguments.settings)
    said = describe(config, plan, arguments.target, settings)
    print(f"{config.name} for {arguments.target}, not sent (dry run)\n\n{said}\n", file=sys.stderr)


def _follow(
    arguments: argparse.Namespace, plan: Any, submission: Any, submitter: Any, facts: Mapping[str, Any] = {}
) -> int:
    """Wait for a run if that is asked for, and tell what is known of it, and `facts` beside."""
    from pipelines.submission import wait

    if arguments.wait:
        submission = wait(plan, submission, submitter, _Progress(), arguments.poll_seconds)
    return _tell(submission, arguments.json, facts)


def _add_retrain(commands: Any) -> None:
    retrain = commands.add_parser(
        "retrain",
        help="run again what has changed: for CI",
        description="Run the pipeline if its data, configuration or code have changed since the last run of its name, "
        "and say which. What was run before is not run again, unless it failed. May be started as often as there is "
        "reason to look, on a platform also several times at once, and again after it was killed.",
    )
    _add_config(retrain)
    _add_target(retrain, also=(HERE,))
    _add_workspace(retrain)
    _add_wait(retrain)
    retrain.add_argument("--dry-run", action="store_true", help="say whether a run is needed, and why; start none")
    retrain.add_argument("--force", action="store_true", help="run every step, though nothing has changed")
    retrain.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    retrain.set_defaults(command=_retrain)


def _retrain(arguments: argparse.Namespace) -> int:
    from pipelines.retrain import decide, decide_here, last_summary

    if arguments.target == HERE:
        from pipelines.config import load_config
        from pipelines.run_local import RunOutcome, run_local

        config = load_config(arguments.config, arguments.overrides)
        decision = _forced(decide_here(config, arguments.workspace), arguments.force)
        if not (facts := _announce(decision, arguments)):
            return DONE
        last = None if decision.needed else last_summary(config, arguments.workspace)
        outcome = RunOutcome(last) if last else run_local(config, arguments.workspace, force=arguments.force)
        return _tell_outcome(outcome, arguments.json, facts)
    from pipelines.submission import submit, without_cache

    plan, _, submitter = _plan(arguments)
    decision = _forced(decide(plan, submitter), arguments.force)
    plan = without_cache(plan) if arguments.force else plan
    if not (facts := _announce(decision, arguments)):
        return DONE
    if not decision.needed and not plan.has(decision.since):  # A schedule has started it.
        return _tell(submitter.get(decision.since), arguments.json, facts)
    return _follow(arguments, plan, submit(plan, submitter, again=decision.needed), submitter, facts)


def _forced(decision: Any, force: bool) -> Any:
    """The decision, or that a run is needed because it is asked for."""
    if not force or decision.needed:
        return decision
    return dataclasses.replace(decision, needed=True, reason=f"--force, though {decision.reason}")


def _announce(decision: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Say whether a run is needed; what JSON output says of it, or nothing if that is all that was asked."""
    words = f"{'needed' if decision.needed else 'not needed'}: {decision.reason}"
    facts = {"retrain": dataclasses.asdict(decision)}
    if arguments.dry_run:
        print(json.dumps(facts) if arguments.json else words)
        return {}
    print(words, file=sys.stderr, flush=True)
    return facts


class _Progress:
    """Prints what is new of a run."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, submission: Any) -> None:
        lines = [f"{submission.job_id}: {submission.state} on {submission.machine}, {submission.url}"]
        lines += [f"[{step}] {state}" for step, state in submission.steps.items()]
        for line in lines:
            if (key := f"{submission.job_id} {line}") not in self._known:
                self._known.add(key)
                _show(line, sys.stderr)


def _tell(submission: Any, as_json: bool, facts: Mapping[str, Any] = {}) -> int:
    """Print what is known of a run; the exit code that goes with it."""
    from pipelines.submission import State

    if as_json:
        print(json.dumps({**dataclasses.asdict(submission), "promoted": submission.promoted, **facts}))
    else:
        print(f"{submission.job_id}: {submission.state}, to train on {submission.machine}\n")
        for step, state in submission.steps.items():
            print(f"  {step:<20}{state}")
        print(f"\n  run   {submission.url}\n  logs  {submission.logs_url}")
    if submission.state in (State.FAILED, State.CANCELLED):
        _show(f"error: {submission.error or submission.state}", sys.stderr)
        print("hint: `tpu-pipelines submit … --again` starts it once more", file=sys.stderr)
        return FAILED
    return REJECTED if submission.state is State.SUCCEEDED and not submission.promoted else DONE


def _add_status(commands: Any) -> None:
    status = commands.add_parser(
        "status",
        help="what became of a run on a cloud platform",
        description="Say what became of the newest run of a name; exits as `submit --wait` does.",
    )
    status.add_argument("name", metavar="NAME", help="of the configuration, or the id of a job")
    _add_target(status)
    status.add_argument("--json", action="store_true", help="print the run as JSON, and nothing else, on stdout")
    status.set_defaults(command=lambda arguments: _tell(_latest(arguments)[1], arguments.json))


def _add_cancel(commands: Any) -> None:
    cancel = commands.add_parser("cancel", help="stop a run on a cloud platform", description="Stop the newest run.")
    cancel.add_argument("name", metavar="NAME", help="of the configuration, or the id of a job")
    _add_target(cancel)
    cancel.set_defaults(command=_cancel)


def _cancel(arguments: argparse.Namespace) -> int:
    submitter, submission = _latest(arguments)
    if submission.state.is_final:
        print(f"{submission.job_id}: {submission.state} already")
        return DONE
    submitter.cancel(submission.job_id)
    print(f"{submission.job_id}: being cancelled")
    return DONE


def _latest(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The platform, and the newest run of a name."""
    settings, platform, backoff = _connect(arguments)
    from components.errors import InputError
    from pipelines.submission import Retrying

    submitter = Retrying(platform, backoff)
    if (submission := submitter.latest(arguments.name)) is None:
        where = f"in {settings.project}, {settings.region}"
        if arguments.target == "kubeflow":
            from pipelines.settings import hide_credentials

            where = f"at {hide_credentials(settings.kfp_host)}"
        raise InputError(
            f"There is no run {arguments.name!r} {where}: expected the name of a configuration that was submitted, or "
            "the id of a job. Check the name and the settings."
        )
    return submitter, submission


def _add_schedule(commands: Any) -> None:
    schedule = commands.add_parser(
        "schedule",
        help="run the pipeline on a cloud platform at certain times",
        description="Create the schedule of a configuration or change it, and print what changes; there is one for "
        "each name. The platform starts its runs on the configuration's machine; it knows no fallbacks.",
    )
    _add_config(schedule)
    actions = schedule.add_mutually_exclusive_group(required=True)
    actions.add_argument("--cron", metavar="EXPRESSION", help="as '0 3 * * *' or 'TZ=Europe/Berlin 0 3 * * 1-5'")
    for action, text in (("pause", "start no more runs"), ("resume", "start runs again"), ("delete", "forget it")):
        actions.add_argument(f"--{action}", action="store_const", const=action, dest="action", help=text)
    _add_target(schedule)
    schedule.add_argument("--dry-run", action="store_true", help="print what would change, and change nothing")
    schedule.set_defaults(command=_schedule)


def _schedule(arguments: argparse.Namespace) -> int:
    settings, platform, backoff = _connect(arguments)
    from pipelines.compile import require_step_image
    from pipelines.config import load_config
    from pipelines.schedule import change_state, check_cron, upsert
    from pipelines.submission import plan_submission, put_carried

    config = load_config(arguments.config, arguments.overrides)
    dry = " (dry run)" if arguments.dry_run else ""
    if arguments.action:
        done = {"pause": "paused", "resume": "active", "delete": "deleted"}[arguments.action] + dry
        for one in change_state(platform, config.name, arguments.action, backoff, arguments.dry_run):
            print(f"{config.name}: {done}, schedule {one.schedule_id} at {one.cron!r}")
        return DONE
    check_cron(arguments.cron)
    plan = plan_submission(config, arguments.target, settings)
    _check_data(config)
    if not arguments.dry_run:
        require_step_image(plan.image, arguments.target)
    _hint_at_tag(plan.image)
    if not arguments.dry_run:
        put_carried(plan)
    change = upsert(platform, plan.jobs[0], arguments.cron, backoff, arguments.dry_run)
    if change.difference:
        _show(change.difference)
    state = "paused" if change.schedule.is_paused else f"next run {change.schedule.next_run or 'not known yet'}"
    print(f"{config.name}: {change.action}{dry}, {state}\n{change.schedule.url}")
    if change.duplicates:
        print(
            f"hint: other schedules have this name and run beside it: {', '.join(change.duplicates)}. `--delete` "
            "deletes all of them",
            file=sys.stderr,
        )
    return DONE


def _add_registry(commands: Any) -> None:
    registry = commands.add_parser(
        "registry",
        help="list registered models, show one, promote one by hand or roll back",
        description="list [NAME]: the versions of every model, or of one. show NAME [VERSION]: all that is recorded of "
        "the champion, or of a version. promote NAME VERSION: make it the champion, whatever the gate says. "
        "rollback NAME: return to the champion before; runs do not undo that.",
    )
    registry.add_argument("action", choices=("list", "show", "promote", "rollback"))
    registry.add_argument("name", nargs="?", default="", metavar="NAME", help="the model, as the run that made it")
    registry.add_argument("version", nargs="?", default="", metavar="VERSION", help="as 0001")
    _add_workspace(registry)
    registry.add_argument("--registry", type=Path, metavar="DIR", help="a registry elsewhere than in the workspace")
    registry.add_argument("--reason", default="", metavar="TEXT", help="goes into the history")
    registry.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    registry.set_defaults(command=_registry)


def _registry(arguments: argparse.Namespace) -> int:
    from components.errors import InputError
    from pipelines import registry

    root, action = arguments.registry or arguments.workspace / "registry", arguments.action
    name, version = arguments.name, arguments.version
    least, most = {"list": (0, 1), "show": (1, 2), "promote": (2, 2), "rollback": (1, 1)}[action]
    if not least <= bool(name) + bool(version) <= most:
        words = {"list": "[NAME]", "show": "NAME [VERSION]", "promote": "NAME VERSION", "rollback": "NAME"}[action]
        raise InputError(f"Expected registry {action} {words}. Received: registry {action} {name} {version}".rstrip())
    answer: Any
    if action == "list":
        answer = registry.as_rows(root, name)
        text = registry.as_table(answer)
    elif action == "show":
        answer = registry.describe(root, name, version)
        text = registry.as_text(answer)
    else:
        move = registry.promote(root, name, version, arguments.reason) if action == "promote" else None
        answer = dataclasses.asdict(move or registry.roll_back(root, name, arguments.reason))
        text = f"{name} version {answer['version']} is the champion, after {answer['previous'] or 'none'}"
    if arguments.json:
        print(json.dumps(answer))
    else:
        _show(text)
    return DONE


_COMMANDS: tuple[Callable[[Any], None], ...] = (
    _add_run,
    _add_compare,
    _add_export,
    _add_runs,
    _add_predict,
    _add_serve,
    _add_registry,
    _add_preflight,
    _add_machines,
    _add_compile,
    _add_submit,
    _add_retrain,
    _add_status,
    _add_cancel,
    _add_schedule,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 failed, 2 wrong arguments or data, 3 the gate said no."""
    leave_current_folder()
    parser = argparse.ArgumentParser(
        prog="tpu-pipelines",
        description="Labelled data to a Keras model trained on a Cloud TPU and served on CPU.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments, configuration or data, 3 the gate said no.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in _COMMANDS:
        add(commands)
    arguments = parser.parse_args(argv)
    from components.errors import InputError

    try:
        return int(arguments.command(arguments))
    except InputError as error:
        _show(f"error: {error}", sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # Whoever read the output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        print("error: interrupted; run the same command again to continue", file=sys.stderr)
        return FAILED
    except _platform_error() as error:
        _show(f"error: {error}", sys.stderr)
        return FAILED


def _platform_error() -> type[Exception]:
    """Asked for only when something was raised."""
    from components.outages import PlatformError

    return PlatformError


if __name__ == "__main__":
    sys.exit(main())
