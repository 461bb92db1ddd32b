"""Commands about exported models and drift of the data: predict, serve, verify, drift."""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tpu_components.core.base.errors import DONE, REJECTED, InputError
from tpu_components.core.base.formatting import percent
from tpu_components.core.base.terminal import in_one_line
from tpu_components.core.component.step_inputs import params_from
from tpu_components.core.drift.shifts import Shift, as_dict, find_shifts, say_power, say_rule, say_verdict
from tpu_components.core.pages.blocks import Table, cut
from tpu_components.core.registry.signing import verify_export
from tpu_components.core.registry.versions import fetch_folder
from tpu_components.predict_batch.params import PredictParams
from tpu_components.predict_batch.predicting import form_of, predict_to_file
from tpu_components.serving import inputs
from tpu_components.serving.params import ServeParams, key_to_verify
from tpu_pipelines.cli.output import show, show_text
from tpu_pipelines.runs import exports
from tpu_pipelines.runs.data_drift import sketch_place

_COLUMNS = {"figure": "<", "now": ">", "before": ">", "effect": ">", "threshold": ">", "by luck": ">", "": "<"}
_SHOWN_CHARACTERS = 200  # Number of characters of a text input that are printed.


def predict(arguments: argparse.Namespace) -> int:
    """Print or write a model's predictions, or print the texts of a language model. Return the exit code."""
    if arguments.output is None and (arguments.columns or arguments.keep):
        raise InputError(
            "--columns and --keep require --output, which is missing. Add it, for example --output answers.jsonl."
        )
    if arguments.output is None and (source := next(filter(exports.is_source, arguments.inputs), "")):
        named = exports.source_to_answer([source])
        raise InputError(f"The source {source!r} requires --output. Use {named} --output answers.jsonl.")
    with tempfile.TemporaryDirectory(prefix="predict-") as scratch:
        export_dir = fetch_folder(exports.find_export(arguments.model, arguments.workspace), Path(scratch))
        if arguments.output is not None:
            _predict_to_file(export_dir, arguments)
        elif inputs.is_language_model(export_dir):
            _continue_texts(export_dir, arguments)
        else:
            _predict_each(export_dir, arguments)
    return DONE


def _predict_to_file(export_dir: Path, arguments: argparse.Namespace) -> None:
    source = exports.source_to_answer(arguments.inputs)
    columns = {**({"text": arguments.column} if arguments.column != "text" else {}), **arguments.columns}
    params = PredictParams(source, columns, tuple(arguments.keep), form_of(arguments.output), arguments.int8)
    result, aside = predict_to_file(params, export_dir, arguments.output)
    files = {"output": str(arguments.output), "set_aside": str(aside) if aside else None}
    counts = {"num_predicted": result.num_predicted, "num_set_aside": result.num_set_aside}
    more = f"; {result.num_set_aside:,} could not be read, see {aside}" if aside else ""
    show(files | counts, f"{result.num_predicted:,} predictions in {arguments.output}{more}", arguments.json)


def _continue_texts(export_dir: Path, arguments: argparse.Namespace) -> None:
    how = (arguments.length, arguments.temperature, arguments.seed, arguments.int8)
    for written in inputs.continue_texts(export_dir, arguments.inputs, *how):
        if arguments.json:
            print(json.dumps({"input": written.prompt, "continuation": written.text}, ensure_ascii=False))
        else:
            show_text(written.prompt + written.text)


def _predict_each(export_dir: Path, arguments: argparse.Namespace) -> None:
    predictions = inputs.predict_inputs(
        export_dir, arguments.inputs, arguments.top, arguments.int8, arguments.lines, arguments.column
    )
    for prediction in predictions:
        name = prediction.name
        form = "{:.6g}".format
        if prediction.task != "regression":
            name = cut(" ".join(name.split()), _SHOWN_CHARACTERS)
            form = partial(percent, digits=1)
        named = "  ".join(f"{label} {form(number)}" for label, number in prediction.classes)
        show(prediction.as_dict(), in_one_line(f"{name}  {named or 'no label'}"), arguments.json)


def serve(arguments: argparse.Namespace) -> int:
    """Serve predictions over HTTP and return the exit code."""
    from tpu_components.serving.server import serve  # Its libraries are not needed to predict.

    arguments.verify = key_to_verify(getattr(arguments, "verify", None), os.environ)
    params = params_from(vars(arguments), ServeParams)
    uri = exports.find_export(arguments.model, arguments.workspace)
    version = exports.name_on_vertex(arguments.model)
    serve(uri, params, version)
    return DONE


def verify(arguments: argparse.Namespace) -> int:
    """Verify the signatures of a version or an export and return the exit code."""
    uri = exports.find_export(arguments.model, arguments.workspace)
    checked = verify_export(uri, arguments.key, exports.name_on_vertex(arguments.model))
    show_text(f"{checked} is signed with {arguments.key}, and no file has changed since")
    return DONE


def drift(arguments: argparse.Namespace) -> int:
    """Compare the statistics of records with those of other records. Return 3 if they have drifted, else 0."""
    against = exports.find_compared(arguments.against, arguments.workspace, "a folder of records, local or in a bucket")
    new, old = (sketch_place(place) for place in (arguments.records, against))
    shifts = find_shifts(new, old, arguments.confidence)
    if arguments.output:
        from tpu_components.find_drift.finding import write_page  # Its charts take a second to import.

        write_page(new, old, shifts, arguments.output, (arguments.records, against))
    show(as_dict(shifts), _as_table(shifts, say_power(new, old, shifts, "examples")), arguments.json)
    return REJECTED if any(shift.drifted for shift in shifts) else DONE


def _as_table(shifts: Sequence[Shift], power: str) -> str:
    """Return the verdict, a table of all statistics, the decision rule, and the power of the test, as text."""
    rows = [
        (
            shift.figure,
            shift.now,
            shift.before,
            f"{shift.effect:.3f}",
            f"{shift.threshold:g}",
            f"{shift.luck:.2g}",
            "drifted" if shift.drifted else "",
        )
        for shift in shifts
    ]
    return "\n".join([say_verdict(shifts), *Table(_COLUMNS, rows).lines(), say_rule(shifts), power])
