"""An export as it is loaded, and its answers to arrays and files of any shape."""

import json
import shutil

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from PIL import Image

from tpu_components.core.base.errors import InputError
from tpu_components.serving.exported import load_model
from tpu_components.serving.inputs import predict_inputs


@pytest.mark.parametrize(("use_int8", "file"), [(False, "model.tflite"), (True, "model_int8.tflite")])
def test_model_answers_as_the_interpreter_of_its_file(export_dir, digits, use_int8, file):
    interpreter = Interpreter(str(export_dir / file))
    tensor, answer = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    interpreter.allocate_tensors()
    expected = []
    for image in digits[:40]:
        interpreter.set_tensor(tensor["index"], image[None].astype(tensor["dtype"]))
        interpreter.invoke()
        expected.append(interpreter.get_tensor(answer["index"]))
    assert np.array_equal(load_model(export_dir, use_int8).predict(digits[:40]), np.concatenate(expected))


@pytest.mark.parametrize("use_int8", [False, True])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_answer_does_not_depend_on_its_company(export_dir, digits, use_int8, num_threads):
    model = load_model(export_dir, use_int8, num_threads)
    alone = np.concatenate([model.predict(image[None]) for image in digits[:40]])
    for size in (2, 7, 40):
        parts = [model.predict(digits[i : i + size]) for i in range(0, 40, size)]
        assert np.array_equal(np.concatenate(parts)[:40], alone)


def test_model_knows_what_it_is(export_dir):
    model = load_model(export_dir)
    assert (model.name, model.input.image_shape, len(model.class_names)) == ("digits_cnn", (8, 8, 1), 10)


def test_rank_puts_the_likeliest_first_and_names_all_by_default(export_dir):
    model = load_model(export_dir)
    probabilities = np.array([0, 0.25, 0.5, 0.25, 0, 0, 0, 0, 0, 0], np.float32)
    assert model.rank(probabilities, 3) == (("2", 0.5), ("1", 0.25), ("3", 0.25))
    assert len(model.rank(probabilities)) == 10


def _damage(export_dir, how):
    facts = json.loads((export_dir / "export.json").read_text())
    if how == "json":
        (export_dir / "export.json").write_text("{")
    elif how == "no input":
        (export_dir / "export.json").write_text(json.dumps({**facts, "input": {}}))
    elif how == "class names":
        (export_dir / "export.json").write_text(json.dumps({**facts, "class_names": ["cat", "dog"]}))
    elif how == "cut":
        file = export_dir / "model.tflite"
        file.write_bytes(file.read_bytes()[:1000])
    elif how == "shape":
        facts["input"]["image_shape"] = [9, 7, 1]
        (export_dir / "export.json").write_text(json.dumps(facts))
    else:
        (export_dir / "model.tflite").unlink()


@pytest.mark.parametrize("how", ["json", "no input", "class names", "cut", "shape", "no model"])
def test_damaged_export_is_refused_by_path(export_dir, tmp_path, how):
    copy = tmp_path / "export"
    shutil.copytree(export_dir, copy, ignore=shutil.ignore_patterns("saved_model"))
    _damage(copy, how)
    with pytest.raises(InputError, match=f"{copy}.*(Export the model|Run export_model) again"):
        load_model(copy)


def test_a_folder_is_answered_but_for_what_cannot_be_read(export_dir, tmp_path, capsys):
    for name in ("a.png", "c.PNG"):
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / name)
    (tmp_path / "b.jpg").write_bytes(b"no picture")
    (tmp_path / "Thumbs.db").write_bytes(b"of the system")
    other = tmp_path / "elsewhere" / "d.png"
    other.parent.mkdir()
    shutil.copy(tmp_path / "a.png", other)
    predictions = predict_inputs(export_dir, [str(tmp_path), str(other)])
    answered = [next(predictions).name.removeprefix(f"{tmp_path}/") for _ in range(4)]
    assert answered == ["a.png", "c.PNG", "elsewhere/d.png", "elsewhere/d.png"]
    with pytest.raises(
        InputError, match=rf"1 inputs cannot be predicted; the first is {tmp_path}/b.jpg. The lines above"
    ):
        next(predictions)
    assert f"left out: Cannot read {tmp_path}/b.jpg: not an image" in capsys.readouterr().err


def test_an_encrypted_archive_of_arrays_is_refused_in_words(export_dir, tmp_path):
    np.savez(tmp_path / "secret.npz", x=np.zeros((2, 9, 8), np.uint8))
    content = bytearray((tmp_path / "secret.npz").read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # Both headers' flags say so.
        content[content.index(signature) + offset] |= 1
    (tmp_path / "secret.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"Cannot read .*secret.npz: .*encrypted.*Expected an array file"):
        list(predict_inputs(export_dir, [str(tmp_path / "secret.npz")]))


def test_arrays_are_read_in_every_form_in_which_a_model_is_trained_on_them(export_dir, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), np.uint8)
    forms = {"pixels": pixels, "first": np.moveaxis(pixels, 3, 1), "shares": (pixels / 255).astype(np.float32)[..., 0]}
    answers = {}
    for name, array in forms.items():
        np.save(tmp_path / f"{name}.npy", array)
        answers[name] = [answer.classes for answer in predict_inputs(export_dir, [str(tmp_path / f"{name}.npy")])]
    assert len(answers["pixels"]) == 3
    assert answers["first"] == answers["shares"] == answers["pixels"]


def test_an_array_of_another_shape_is_named_as_it_is(export_dir, tmp_path):
    np.save(tmp_path / "three.NPY.npy", np.zeros((3, 9, 8), np.uint8))
    with pytest.raises(InputError, match=r"expected uint8\[N, 8, 8, 1\] in \[0, 255\], received uint8\[3, 9, 8\]"):
        list(predict_inputs(export_dir, [str(tmp_path / "three.NPY.npy")]))


def test_a_parquet_file_is_refused_with_the_way_to_read_it(export_dir, tmp_path):
    file = tmp_path / "a.parquet"
    file.write_bytes(b"PAR1")
    message = rf"Pass the source parquet:{file} and an output file to .*, or use the step predict_batch"
    with pytest.raises(InputError, match=message):
        list(predict_inputs(export_dir, [str(file)]))


def test_folder_that_is_no_export_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"it does not contain export\.json"):
        load_model(tmp_path)
