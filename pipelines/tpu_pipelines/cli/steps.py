"""The command `preflight`. It compiles a step that `jax.jit` accepts; for a configuration, it calls `cli.start`."""

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any

from tpu_components.core.base.errors import DONE, REJECTED, InputError
from tpu_components.preflight_training.jax_steps.named import find_step, is_step, parse_inputs
from tpu_pipelines.cli.output import show

# Flags that preflight supports only for a configuration.
_OF_CONFIGURATIONS = ("against", "examples", "image_bytes", "quick", "slower", "dearer", "overrides")
# Flags that preflight supports only for a step.
_OF_STEPS = ("inputs", "items", "spot")


def preflight(arguments: argparse.Namespace) -> int:
    """Compile a step, or the training step of a configuration, for a TPU. Return the exit code."""
    if is_step(arguments.config):
        return _preflight_step(arguments)
    _refuse(arguments, _OF_STEPS, "a step, such as mymodule:step")
    from tpu_pipelines.cli import start

    return start.preflight(arguments)


def _preflight_step(arguments: argparse.Namespace) -> int:
    from tpu_components.preflight_training.compiling.stablehlo import COMPILER_ENVIRONMENT
    from tpu_pipelines.api.steps import StepCase, compare_steps

    for variable, value in COMPILER_ENVIRONMENT.items():  # Before the step's module imports JAX.
        os.environ.setdefault(variable, value)
    _refuse(arguments, _OF_CONFIGURATIONS, "a configuration")
    names = [name.strip() for name in (arguments.compare or arguments.machine or "").split(",") if name.strip()]
    if not names:
        raise InputError("The machine of the step is missing. Add --machine v5e-8, or --compare v5e-8,v6e-8.")
    with contextlib.redirect_stdout(sys.stderr):  # What the step's module prints is not part of the result.
        step = find_step(arguments.config)
        inputs: Sequence[Any] = parse_inputs(arguments.inputs) if arguments.inputs else ()
        cases = [
            StepCase(step, inputs, name, name="" if callable(step) else step, platform=platform, spot=arguments.spot)
            for name in names
            for platform in arguments.target
        ]
        items = 1 if arguments.items is None else arguments.items
        comparison = compare_steps(cases, items=items, total=1e6, unit="items" if arguments.items else "steps")
    report = comparison.reports[0]
    is_one = len(cases) == 1
    content = dataclasses.asdict(report) if is_one else {"steps": comparison.rows()}
    shown = report if is_one else comparison
    text = str(shown)
    if is_one and arguments.items and report.step_seconds:
        text += f"\n\n{comparison.work_text}"
    show(content, text, arguments.json)
    if arguments.markdown:
        from tpu_pipelines.retraining.job_summary import append

        append(arguments.markdown, shown.markdown())
    return DONE if comparison.best else REJECTED


def _refuse(arguments: argparse.Namespace, names: Sequence[str], subject: str) -> None:
    """Check that none of these flags is set.

    Raises:
        InputError: If a flag is set. The message says that only preflight of `subject` supports it.
    """
    used = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name, None)]
    if used:
        shown = ", ".join("--set" if flag == "--overrides" else flag for flag in used)
        raise InputError(
            f"Cannot use {shown} with {arguments.config}: only preflight of {subject} supports this. Remove {shown}."
        )
