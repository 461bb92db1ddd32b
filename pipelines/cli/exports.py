"""Commands that use an exported model: predict, serve, verify."""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_pipelines.cli.options import DONE, add_workspace, show_text

_SHOWN_CHARACTERS = 200  # Of an input that is itself a text.


def _add_model(command: Any) -> None:
    command.add_argument(
        "model",
        metavar="MODEL",
        help="an export folder, local or on gs://, a run's folder, or a registered model: NAME, NAME@ALIAS or "
        "NAME@VERSION",
    )
    add_workspace(command)


def _add_predict(commands: Any) -> None:
    from tpu_components.core.step.command_line import json_object

    predict = commands.add_parser(
        "predict",
        epilog="Example: tpu-pipelines predict runs/digits digit.png",
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
    predict.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write an answer for every example of INPUT, a folder, a table or any source as csv:FILE, to a .jsonl or "
        ".parquet file: with progress, each once, and where the command was ended it goes on. What cannot be read is "
        "set aside with the reason, in a file beside it",
    )
    predict.add_argument("--lines", action="store_true", help="a file holds a text a line")
    predict.add_argument("--column", default="text", metavar="NAME", help="of a .csv file (default: text)")
    predict.add_argument(
        "--columns",
        type=json_object,
        metavar="JSON",
        help='with --output: columns of a table that have other names, as {"path": "filename", "id": "customer"} '
        "(default: those of the run that trained the model, where MODEL is its folder)",
    )
    predict.add_argument(
        "--keep",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="with --output: columns whose values stand beside each answer; the id does anyway",
    )
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
    from tpu_components.core.registry.versions import fetch_folder
    from tpu_pipelines.runs.exports import columns_of_training, find_export

    with tempfile.TemporaryDirectory(prefix="predict-") as scratch:
        uri = find_export(arguments.model, arguments.workspace)
        if arguments.output is not None and arguments.columns is None:
            arguments.columns = columns_of_training(uri)
        return _predict_with(fetch_folder(uri, Path(scratch)), arguments)


def _predict_with(export_dir: Path, arguments: argparse.Namespace) -> int:
    from tpu_components.core.base.terminal import in_one_line
    from tpu_components.serving.inputs import continue_texts, is_language_model, predict_inputs

    if arguments.output is not None:
        return _predict_to_file(export_dir, arguments)
    if arguments.columns or arguments.keep:
        raise InputError(
            "--columns and --keep are for answers in a file. Received: no --output. Set it, as answers.jsonl."
        )
    if is_language_model(export_dir):
        how = (arguments.length, arguments.temperature, arguments.seed, arguments.int8)
        for written in continue_texts(export_dir, arguments.inputs, *how):
            shown = {"input": written.prompt, "continuation": written.text}
            if arguments.json:
                print(json.dumps(shown, ensure_ascii=False))
            else:
                show_text(written.prompt + written.text)
        return DONE
    predictions = predict_inputs(
        export_dir, arguments.inputs, arguments.top, arguments.int8, arguments.lines, arguments.column
    )
    for prediction in predictions:
        if arguments.json:
            print(json.dumps({"input": prediction.name, _ANSWERS[prediction.task]: dict(prediction.classes)}))
        elif prediction.task == "regression":
            named = "  ".join(f"{name} {value:.6g}" for name, value in prediction.classes)
            show_text(in_one_line(f"{prediction.name}  {named}"))
        else:
            named = "  ".join(f"{name} {probability:.1%}" for name, probability in prediction.classes)
            show_text(in_one_line(f"{_shorten(prediction.name)}  {named or 'no label'}"))
    return DONE


def _predict_to_file(export_dir: Path, arguments: argparse.Namespace) -> int:
    from tpu_components.predict_batch import PredictParams
    from tpu_components.predict_batch.predicting import form_of, predict_to_file
    from tpu_pipelines.runs.exports import source_to_answer

    source = source_to_answer(arguments.inputs)
    columns = {**({"text": arguments.column} if arguments.column != "text" else {}), **arguments.columns}
    params = PredictParams(source, columns, tuple(arguments.keep), form_of(arguments.output), arguments.int8)
    result, aside = predict_to_file(params, export_dir, arguments.output)
    files = {"output": str(arguments.output), "set_aside": str(aside) if aside else None}
    if arguments.json:
        print(json.dumps({**files, "num_predicted": result.num_predicted, "num_set_aside": result.num_set_aside}))
    else:
        more = f"; {result.num_set_aside:,} set aside, see {aside}" if aside else ""
        show_text(f"{result.num_predicted:,} answers in {arguments.output}{more}")
    return DONE


def _shorten(name: str) -> str:
    plain = " ".join(name.split())
    return plain if len(plain) <= _SHOWN_CHARACTERS else f"{plain[:_SHOWN_CHARACTERS]}…"


def _add_serve(commands: Any) -> None:
    from tpu_components.core.step.command_line import add_params
    from tpu_components.serving.params import ServeParams

    serve = commands.add_parser(
        "serve",
        epilog="Example: tpu-pipelines serve runs/digits --port 8080",
        help="answer predictions over HTTP with an exported model",
        description="Answer predictions over HTTP on CPU with an exported model, by Vertex AI's contract for custom "
        "containers. Needs no TensorFlow and no training code. Ctrl-C ends it.",
    )
    _add_model(serve)
    add_params(serve, ServeParams)
    serve.set_defaults(command=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from tpu_components.core.step.command_line import params_from
    from tpu_components.serving.params import ServeParams, key_to_verify
    from tpu_components.serving.server import serve
    from tpu_pipelines.runs.exports import find_export, name_on_vertex

    arguments.verify = key_to_verify(getattr(arguments, "verify", None), os.environ)
    uri, version = find_export(arguments.model, arguments.workspace), name_on_vertex(arguments.model)
    serve(uri, params_from(arguments, ServeParams), version)
    return DONE


def _add_verify(commands: Any) -> None:
    verify = commands.add_parser(
        "verify",
        epilog="Example: tpu-pipelines verify digits@champion --key signing.pub",
        help="verify the signatures of a registered version, or of an export",
        description="Verify the signatures of a registered version, or of an export: every file is as it was signed, "
        "and there is no other. Exit code 2 where it is not, or the signature is missing or another key's.",
    )
    _add_model(verify)
    verify.add_argument("--key", required=True, metavar="FILE", help="the public key in PEM, here or on gs://")
    verify.set_defaults(command=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    from tpu_components.core.registry.signing import verify_export
    from tpu_pipelines.runs.exports import find_export, name_on_vertex

    uri = find_export(arguments.model, arguments.workspace)
    checked = verify_export(uri, arguments.key, name_on_vertex(arguments.model))
    show_text(f"{arguments.key} verifies {checked}: every file is as it was signed")
    return DONE


COMMANDS: tuple[Callable[[Any], None], ...] = (
    _add_predict,
    _add_serve,
    _add_verify,
)
