"""`tpu-pipelines`: the command line. Imports what a command needs only when that command runs."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# The same numbers as components.command_line, whose import `--help` does without.
DONE, FAILED, BAD_INPUT, REJECTED = 0, 1, 2, 3


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="run the whole pipeline on this machine",
        description="Run the whole pipeline on this machine. Unchanged steps are taken from the last run.",
    )
    run.add_argument("config", nargs="?", default="digits", help="a ready example or a YAML file (default: digits)")
    run.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="overrides")
    run.add_argument(
        "--workspace", type=Path, default=Path("runs"), metavar="DIR", help="folder for runs (default: runs)"
    )
    run.add_argument("--json", action="store_true", help="print the summary, and nothing else, on stdout")
    run.add_argument("--runner", choices=("subprocess", "docker"), default="subprocess")
    run.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from pipelines.config import load_config
    from pipelines.run_local import run_local

    config = load_config(arguments.config, arguments.overrides)
    outcome = run_local(config, arguments.workspace, arguments.runner)
    summary = outcome.summary
    if arguments.json:
        print(json.dumps(summary))
    else:
        print(_describe(summary))
    if summary["status"] == "failed":
        print(f"error: {summary['error']}", file=sys.stderr)
        return BAD_INPUT if outcome.is_input_error else FAILED
    return DONE if summary["status"] == "succeeded" else REJECTED


def _describe(summary: dict[str, Any]) -> str:
    lines = [f"{summary['config']['name']}: {summary['status']} in {summary['seconds']:.1f} s", ""]
    for name, step in summary["steps"].items():
        time = "cached" if step["cached"] else f"{step['seconds']:.1f} s" if step["seconds"] else ""
        lines.append(f"  {name:<18}{step['state']:<11}{time:>8}")
    metrics = summary["metrics"]
    if metrics:
        shown = ", ".join(f"{name} {metrics[name]:.4f}" for name in ("accuracy", "loss", "macro_f1") if name in metrics)
        lines += ["", f"  test: {shown} ({metrics['num_examples']:,} examples)"]
        lines += [f"  gate: {'promoted' if summary['gate']['promote'] else 'not promoted'}"]
        lines += [f"        {reason}" for reason in summary["gate"]["reasons"]]
    for name, facts in summary["export"].get("formats", {}).items():
        lines.append(
            f"  {name:<12}{facts['bytes'] / 2**20:8.2f} MiB  accuracy {facts['accuracy']:.4f}  "
            f"{facts['latency_ms']:.2f} ms an image  {facts['images_per_second']:,.0f} images/s"
        )
    if summary["artifacts"]:
        lines += [""] + [f"  {name:<12}{os.path.relpath(path)}" for name, path in summary["artifacts"].items()]
    return "\n".join(lines)


def _add_predict(commands: Any) -> None:
    predict = commands.add_parser(
        "predict",
        help="classify images on CPU with an exported model",
        description="Classify images on CPU with an exported model. Needs no TensorFlow and no training code.",
    )
    predict.add_argument("export_dir", type=Path, metavar="EXPORT_DIR", help="the export folder of a run")
    predict.add_argument("inputs", nargs="+", metavar="INPUT", help="image files, folders of them, or .npy/.npz arrays")
    predict.add_argument("--top", type=int, default=3, metavar="K", help="classes to name per image (default: 3)")
    predict.add_argument("--json", action="store_true", help="one JSON line per image")
    predict.add_argument("--int8", action="store_true", help="use the int8 model")
    predict.set_defaults(command=_predict)


def _predict(arguments: argparse.Namespace) -> int:
    from components.export_model.prediction import predict_inputs

    for one in predict_inputs(arguments.export_dir, arguments.inputs, arguments.top, arguments.int8):
        if arguments.json:
            print(json.dumps({"input": one.name, "classes": dict(one.classes)}))
        else:
            print(f"{one.name}  " + "  ".join(f"{name} {probability:.1%}" for name, probability in one.classes))
    return DONE


_COMMANDS: tuple[Callable[[Any], None], ...] = (_add_run, _add_predict)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 failed, 2 wrong arguments or data, 3 the gate said no."""
    parser = argparse.ArgumentParser(
        prog="tpu-pipelines",
        description="Labelled data to a Keras model trained on a Cloud TPU and served on CPU.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments, configuration or data, 3 the gate said no.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in _COMMANDS:
        add(commands)
    arguments = parser.parse_args(argv)
    sys.path.append(os.getcwd())  # A model's module may stand there, as it may for the steps' processes.
    from components.errors import InputError

    try:
        return int(arguments.command(arguments))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # Whoever read the output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        print("error: interrupted; run the same command again to continue", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
