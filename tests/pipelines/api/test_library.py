"""`import tpu_pipelines`: the commands as functions."""

import ast
import dataclasses
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import tpu_pipelines as tp
from tests.components.train_model.weights import weights_of
from tests.support.cli import PIPELINES, REPOSITORY
from tpu_components.core.base.states import State
from tpu_components.core.component.step_record import StepRecord
from tpu_components.core.examples.artifacts import HISTORY_FILE
from tpu_components.core.files import storage
from tpu_pipelines.api import library
from tpu_pipelines.api.library import Preflight
from tpu_pipelines.config.schema import settings
from tpu_pipelines.runs.summary import Summary

EXAMPLES = PIPELINES / "examples"


def test_importing_it_imports_no_framework():
    heavy = ("tensorflow", "keras", "jax", "kfp", "numpy")
    code = f"import sys, tpu_pipelines; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == "[]\n"


def test_the_readme_names_all_of_it():
    section = (PIPELINES / "api" / "README.md").read_text()
    assert {name for name in tp.__all__ if f"`{name}" not in section} == {"Checks"}
    for name in re.findall(r"tp\.(\w+)", section):
        assert name in tp.__all__


def test_every_name_is_documented_and_typed():
    for name in tp.__all__:
        assert getattr(tp, name).__doc__
    assert (PIPELINES / "py.typed").exists()


def test_help_lists_every_setting_with_its_meaning():
    listed = tp.train.__doc__
    assert "training.epochs = 10\n        Largest number of passes" in listed
    assert all(f"\n    {setting.name}" in listed for setting in settings())


@pytest.mark.heavy
def test_a_compiled_model_is_trained_with_what_it_is_compiled_with(tmp_path, capfd):
    import keras

    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (80, 8, 8, 1), np.uint8), np.arange(80) % 4
    inputs = keras.Input((8, 8, 1))
    body = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(4, activation="softmax")(body), name="mine")
    model.compile(keras.optimizers.SGD(0.05, momentum=0.8), keras.losses.CategoricalCrossentropy(label_smoothing=0.1))
    parts = {"train": slice(60), "validation": slice(60, 70), "test": slice(70, 80)}
    data = {
        f"{kind}_{name}": array[part]
        for kind, array in zip("xy", (images, labels), strict=True)
        for name, part in parts.items()
    }
    training = {"epochs": 2, "batch_size_per_replica": 60, "backend": "tensorflow", "precision": "float32"}
    run = tp.train(
        model, data, workspace=tmp_path, training=training, preflight=False, export=False, deploy=False, gate={}
    )
    assert "uses the model's own optimizer SGD, loss CategoricalCrossentropy" in capfd.readouterr().err
    model.fit(images[:60], np.eye(4)[labels[:60]], batch_size=60, epochs=2, verbose=0)
    received = weights_of(run.path / "model")
    for expected, name in zip(model.get_weights(), sorted(received), strict=True):
        assert np.allclose(received[name], expected, atol=1e-6)


def test_results_are_readable_in_a_console_a_notebook_and_pandas(image_folder, finished_run, tmp_path):
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    workspace, _, _ = finished_run
    run = tp.load_run(workspace / "digits")
    overview, report = tp.look(image_folder(), channels=1), Preflight.load(REPOSITORY / "tests/golden/preflight")
    for result, words in ((run, "gate: promoted"), (overview, "20 images"), (report, "4 of 4 machines pass")):
        assert words in repr(result) == str(result)
        assert words.removeprefix("gate: promoted") in result._repr_html_()
        assert isinstance(result.to_pandas(), pandas.DataFrame)
    assert list(overview.to_pandas()["examples"]) == [10, 10]
    assert len(run.to_pandas()) == len(run.history())
    assert list(report.to_pandas()["cost.usd_per_hour"]) == [machine.cost.usd_per_hour for machine in report.machines]
    found = tp.compare(run, shutil.copytree(run.path, tmp_path / "other"))
    assert repr(found).startswith("validation")
    assert found.to_pandas()["accuracy"][0] == run.metrics["accuracy"]


def test_look_and_check_say_what_the_commands_say(image_folder, quick_models, tmp_path):
    root = image_folder()
    assert tp.look(root, channels=1).class_examples == {"cat": 10, "dog": 10}
    assert tp.look(root).params.source == f"images:{root}"
    config = {"name": "mine", "data": {"source": f"images:{root}"}, "model": "cifar10_cnn"}
    found = tp.check(config, ["training.batch_size_per_replica=4"], workspace=tmp_path)
    assert found.is_sound
    assert "20 images" in str(found)
    assert "20 images" in found._repr_html_()
    assert not tp.check(config, workspace=tmp_path).is_sound
    assert "training" not in config
    with pytest.raises(tp.InputError, match="Unknown key 'modle'"):
        tp.check({**config, "modle": 1})


def test_a_finished_run_can_be_looked_at_and_asked(finished_run):
    workspace, summary, _ = finished_run
    run = tp.load_run(workspace / "digits")
    assert (run.name, run.status, run.metrics["accuracy"]) == ("digits", "succeeded", summary["metrics"]["accuracy"])
    assert run.report.is_file()
    assert len(run.history()) == summary["config"]["training"]["epochs"]
    images = np.zeros((2, 8, 8), np.uint8)
    assert [len(answer.classes) for answer in run.predict(images, top=4)] == [4, 4]
    assert tp.predict("digits", images, top=4, workspace=workspace) == run.predict(images, top=4)
    page = run._repr_html_()
    assert f"<td>{run.metrics['accuracy']:.4f}</td>" in page
    assert "<h4>digits: succeeded</h4>" in page


def test_what_data_say_is_escaped_in_a_notebook_and_what_is_no_number_left_out(tmp_path):
    summary = {"config": {"name": "x"}, "status": "rejected", "metrics": {"loss": None}, "steps": {}}
    run = tp.Run(
        tmp_path, Summary.parse({**summary, "gate": {"promote": False, "reasons": ["failed: <script>\x1b[2J\u202e"]}})
    )
    assert "loss" not in run._repr_html_()
    assert "<li>failed: &lt;script&gt;\\x1b[2J\\u202e</li>" in run._repr_html_()
    for status in ("rejected", State.REJECTED):  # Of a run that is loaded, and of one that has just ended.
        run = tp.Run(tmp_path, dataclasses.replace(run.facts, status=status))
        with pytest.raises(
            tp.InputError, match=r"the run's status is 'rejected', and it has no exported model\. Call `export\(\)`"
        ):
            run.predict("a.png")


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(tp.InputError, match=r"summary\.json.: there is no such file.*that the pipeline wrote"):
        tp.load_run(tmp_path)


def test_arrays_are_kept_by_their_content(tmp_path):
    x, y = np.zeros((4, 8, 8), np.uint8), np.arange(4)
    section = library.data_section((x, y), tmp_path)
    path = tmp_path / section["source"].removeprefix("npz:").rpartition("/")[2]
    first = path.stat()
    assert library.data_section({"x": x, "y": y, "task": "regression"}, tmp_path) == {**section, "task": "regression"}
    assert path.stat() == first
    assert library.data_section((x + 1, y), tmp_path) != section
    assert np.array_equal(np.load(path)["y"], y)
    assert library.data_section({"source": "images:x"}, tmp_path) == {"source": "images:x"}
    assert library.data_section((x.tolist(), y.tolist()), tmp_path)["source"].startswith("npz:")
    split = library.data_section(((x, y), (x + 1, y)), tmp_path)["source"].removeprefix("npz:")
    assert sorted(np.load(split)) == ["x_train", "x_validation", "y_train", "y_validation"]
    for wrong in (3, (x,), [x, y], ((x, y),), ((x, y), (x,)), ([[1], [1, 2]], y)):
        with pytest.raises(tp.InputError, match=r"Cannot (use|convert)"):
            library.data_section(wrong, tmp_path)


def test_strings_as_pandas_holds_them_are_strings(tmp_path):
    pandas = pytest.importorskip("pandas")
    x = np.zeros((3, 8, 8), np.uint8)
    for y in (pandas.Series(["a", "b", "a"]), np.array(["a", "b", "a"], object)):
        path = library.data_section((x, y), tmp_path)["source"].removeprefix("npz:")
        assert np.load(path)["y"].tolist() == ["a", "b", "a"]
    with pytest.raises(
        tp.InputError, match=r"Cannot use an array of NoneType, str: expected only numbers or only strings"
    ):
        library.data_section((x, np.array(["a", None, "b"], object)), tmp_path)


def test_what_is_predicted_may_be_lists(tmp_path):
    picture = Image.new("L", (8, 8))
    inputs = [["a.png", tmp_path / "b.png"], "c.png", [np.zeros((8, 8))] * 2, picture]
    paths = list(library.input_paths(inputs, tmp_path))
    assert paths[:3] == ["a.png", f"{tmp_path}/b.png", "c.png"]
    assert [np.load(path).shape for path in paths[3:]] == [(2, 8, 8), (8, 8)]


def test_arrays_are_looked_at(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    overview = tp.look((images, np.arange(20) % 2))
    assert overview.class_examples == {"0": 10, "1": 10}
    with pytest.raises(tp.InputError, match="Cannot use int as data"):
        tp.look(3)
    with pytest.raises(tp.InputError, match=r"A classifier needs at least two classes\. Received: no classes"):
        tp.look((images[:0], np.zeros(0, int)))


@pytest.mark.parametrize(("given", "batch"), [({}, 8), ({"batch_size_per_replica": 16}, 16)])
def test_few_arrays_have_small_batches_by_default(tmp_path, given, batch):
    x, y = np.zeros((90, 8, 8), np.uint8), np.arange(90) % 2
    sections = {"training": {"epochs": 3, **given}}
    config = library.training_config("digits_cnn", (x, y), tmp_path, sections=sections)
    assert config["training"] == {"epochs": 3, "batch_size_per_replica": batch}


# TensorFlow 2.20 and NumPy 2.
def test_a_model_is_kept_by_its_content(tmp_path):
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)], name="my_net")
    name = library.model_value(model, tmp_path)
    assert re.fullmatch(r".*/my_net-[0-9a-f]{12}\.keras", name)
    assert library.model_value(model, tmp_path) == name
    model.set_weights([weight + 1 for weight in model.get_weights()])
    assert library.model_value(model, tmp_path) != name
    assert keras.saving.load_model(name).name == "my_net"
    assert library.model_value("digits_cnn", tmp_path) == "digits_cnn"
    with pytest.raises(tp.InputError, match=r"expected a keras\.Model"):
        library.model_value(3, tmp_path)
    with pytest.raises(tp.InputError, match=r"Start it with keras\.Input"):
        library.model_value(keras.Sequential([keras.layers.Dense(2)]), tmp_path)


@pytest.mark.parametrize(("is_input_error", "error"), [(True, tp.InputError), (False, tp.RunFailedError)])
def test_a_run_that_failed_is_an_error(empty_steps, tmp_path, is_input_error, error):
    empty_steps.failure = StepRecord("create_tfrecords", "failed", error="no disk", is_input_error=is_input_error)
    with pytest.raises(error, match="create_tfrecords: no disk"):
        tp.run("digits", ["deploy=false", "preflight=false"], workspace=tmp_path)


def test_a_notebook_shows_pages_in_frames_of_their_own(tmp_path):
    history = [{"epoch": epoch, "loss": 1 / epoch, "accuracy": 0.5} for epoch in (1, 2)]
    storage.write_bytes(tmp_path / "model" / HISTORY_FILE, "\n".join(map(json.dumps, history)).encode())
    storage.write_bytes(tmp_path / "evaluation" / "report.html", b'<p class="good">&amp;</p>')
    run = tp.Run(tmp_path, Summary("succeeded", config={"name": "flowers"}))
    assert "training accuracy: accuracy by epoch" in run.plot().text
    assert run.plot().height == 505, "one row of charts"
    history = [{**row, "compute_seconds": 1.0} for row in history]
    storage.write_bytes(tmp_path / "model" / HISTORY_FILE, "\n".join(map(json.dumps, history)).encode())
    assert run.plot().height == 890, "two rows"
    assert 'srcdoc="&lt;p class=&quot;good&quot;&gt;&amp;amp;&lt;/p&gt;"' in run.show()._repr_html_()


def _cells(name):
    """The code of a notebook, without the cells that need Colab."""
    cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)
    return [
        "".join(cell["source"])
        for cell in cells
        if cell["cell_type"] == "code" and "colab" not in cell["metadata"].get("tags", ())
    ]


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.ipynb")))
def test_a_notebook_is_clean_and_uses_names_that_are_there(name):
    for node in ast.walk(ast.parse("\n".join(_cells(name)))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id not in ("tp", "run") or hasattr({"tp": tp, "run": tp.Run}[node.value.id], node.attr)


def _run_notebook(name, folder, last, *replaced):
    code = "\n".join([*_cells(name), last])
    for old, new in replaced:
        assert old in code
        code = code.replace(old, new)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=folder, check=False, timeout=550
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow  # A minute or two: the whole pipeline.
def test_the_first_notebook_runs_as_it_stands(tmp_path):
    last = "assert run.status == 'succeeded' and run.metrics['accuracy'] > 0.9, run.summary\n"
    last += "assert [answer.classes[0][0] for answer in answers] == [str(label) for label in digits.target[:5]]"
    _run_notebook("first_model", tmp_path, last)


@pytest.mark.slow  # A minute or two each: the whole pipeline.
@pytest.mark.parametrize(("name", "size"), [("mnist_cnn", 28), ("cifar10_cnn", 32), ("your_photos", 96)])
def test_a_notebook_of_pictures_runs_without_colab(name, size, tmp_path):
    rng = np.random.default_rng(0)
    shape = (size, size) if name == "mnist_cnn" else (size, size, 3)
    for label, low in (("dark", 0), ("light", 128)):
        (tmp_path / "flowers" / label).mkdir(parents=True)
        for i in range(60):
            image = Image.fromarray(rng.integers(low, low + 128, shape, np.uint8))
            image.save(tmp_path / "flowers" / label / f"{i}.png")
    settings = '"training.backend=jax"]'
    training = (settings, f'"data.source=images:flowers", "training.batch_size_per_replica=16", {settings}')
    replaced = [('"imagenet"', "None")] if name == "your_photos" else [training]
    replaced += [('"data.source=keras:cifar10", ', "")] if name == "cifar10_cnn" else []
    replaced += [("training.epochs=3", "training.epochs=12")] if name != "your_photos" else []
    _run_notebook(name, tmp_path, "assert run.status in ('succeeded', 'rejected')", *replaced)


@pytest.mark.slow  # A minute or two: the whole pipeline.
def test_the_notebook_of_texts_runs_without_colab(tmp_path):
    for label, word in (("neg", "dull"), ("pos", "bright")):
        (tmp_path / "reviews" / label).mkdir(parents=True)
        for i in range(60):
            (tmp_path / "reviews" / label / f"{i}.txt").write_text(f"a {word} film, number {i}")
    settings = '"training.backend=jax"]'
    last = "assert run.status == 'succeeded'"  # After epochs enough for two words.
    replaced = [(settings, f'"data.source=text:reviews", {settings}'), ("training.epochs=2", "training.epochs=20")]
    _run_notebook("imdb_lstm", tmp_path, last, *replaced)
