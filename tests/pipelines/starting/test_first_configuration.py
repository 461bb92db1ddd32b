"""What `tpu-pipelines init` finds in data, and the files that it writes for them."""

import dataclasses
import io
import json
import re
import tarfile
import zipfile
from pathlib import PurePosixPath

import keras
import numpy as np
import pytest
import yaml
from PIL import Image

from tests.support.cli import DATA, assert_user_error, tpu_pipelines_here
from tpu_components.core.examples.artifacts import load_history
from tpu_components.core.examples.interface import TASKS, CorpusInput, ImageInput, Interface, TextInput
from tpu_components.core.sources.params import WriteParams
from tpu_pipelines.checks.check_list import first_checks
from tpu_pipelines.config.configuration import load_config, read_data
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.findings import ask_all, errors_in
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.starting.data_overview import DataOverview, guess_task, look_at, source_of
from tpu_pipelines.starting.first_configuration import WORKFLOW_FILE, name_of, plan_start


@pytest.fixture
def photos(tmp_path, encode):
    """Photos of mixed sizes and kinds, in three classes of which one is small; a file of them is no image."""
    for number, (name, count) in enumerate({"rose": 30, "tulip": 30, "weed": 2}.items()):
        (tmp_path / "My photos" / name).mkdir(parents=True)
        for i in range(count):
            picture = encode(100 * number + i, (40 + i, 70), "L" if i % 10 == 0 else "RGB", "JPEG" if i % 2 else "PNG")
            (tmp_path / "My photos" / name / f"{i}.jpg").write_bytes(picture)
    (tmp_path / "My photos" / "rose" / "3.jpg").write_bytes(b"\xff\xd8\xffno image")
    return tmp_path / "My photos"


def test_a_look_tells_sizes_classes_splits_and_damaged_files(photos):
    overview = look_at(WriteParams(source_of(str(photos))))
    assert overview.class_examples == {"rose": 30, "tulip": 30, "weed": 2}
    splits = [row["train"] + row["validation"] + row["test"] for row in overview.rows()]
    assert splits == [row["examples"] for row in overview.rows()] == [30, 30, 2]
    assert (min(overview.sizes), max(overview.sizes), overview.channels) == ((40, 70), (69, 70), (1, 3))
    assert list(overview.damaged) == ["rose/3.jpg"]
    assert sum(overview.split_examples.values()) == overview.num_looked_at == 62
    said = "\n".join(overview.lines())
    assert "from 40×70 to 69×70 pixels, grey and colour" in said
    assert "1 of 62 examples that were read are damaged: rose/3.jpg: " in said


def test_a_look_tells_which_images_lose_their_content(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(10):
            values = np.random.default_rng(i).integers(0, 4096, (8, 8), np.uint16)
            Image.fromarray(values if name == "a" else values.astype(np.uint8)).save(tmp_path / name / f"{i}.png")
    said = "\n".join(look_at(WriteParams(f"images:{tmp_path}", join_copies=False)).lines())
    assert "10 of 20 16-bit images keep at most 64 of 256 grey levels" in said


def test_init_writes_a_configuration_with_reasons_a_model_and_a_workflow(photos):
    done = tpu_pipelines_here("init", "My photos", "--workflow", "--set", "training.epochs=3", cwd=photos.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("next: tpu-pipelines check My-photos.yaml\n")
    assert "hint: the classes differ greatly in size" in done.stderr
    text = (photos.parent / "My-photos.yaml").read_text()
    assert "  image_size: [48, 48]    # Height and width of all images." in text
    assert "# 1 of 62 examples that were read are damaged" in text
    assert "|| 'My-photos.yaml' }}" in (photos.parent / ".github/workflows/retrain.yml").read_text()
    again = tpu_pipelines_here("init", "My photos", cwd=photos.parent)
    assert_user_error_after_hint(again, "Cannot overwrite My-photos.yaml, My_photos_model.py", "--force")
    wrong = tpu_pipelines_here("init", "My photos", "--name", "wrong", "--set", "training=5", cwd=photos.parent)
    assert_user_error_after_hint(wrong, "training is 5, expected a mapping of epochs")


def assert_user_error_after_hint(done, *words):
    assert done.returncode == 2
    for word in words:
        assert word in done.stderr.splitlines()[-1]


def test_the_configuration_is_what_was_chosen(photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    start = plan_start(look_at(WriteParams("images:My photos")), "mine", overrides=["gate.minimum.accuracy=0.7"])
    start.write()
    config = load_config("mine.yaml")
    assert (config.data.image_size, config.data.channels, config.training.model) == ((48, 48), 3, "mine_model.py")
    assert config.gate.minimum == {"macro_f1": 0.43, "accuracy": 0.7}
    assert config.training.balance_classes
    assert not config.gate.beat_baseline
    assert config.data.max_bad_fraction == 0.04
    assert config.training.early_stopping_epochs > 0
    config.training.check_batch_fits(40)


def test_names_out_of_data_stay_in_their_comment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overview = DataOverview(
        WriteParams("images:x"), "image", {"train": 9, "test": 9}, {"a\nmodel: evil": 9}, False, (), 0
    )
    (text,) = (content for path, content in plan_start(overview, "x").files.items() if path.suffix == ".yaml")
    assert all(line.startswith("#") for line in text.splitlines() if "evil" in line)


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        (("cat|dog", "cat", ""), "multi_label"),
        (("1.5", "2.25", "3"), "regression"),
        (tuple(map(str, range(30))), "regression"),
        (("1", "2", "3"), "classification"),
        (("0.0", "1.0", "0.0"), "classification"),
        (("1.0", "2", ""), "classification"),
        (("cat", "dog", "cat"), "classification"),
    ],
)
def test_the_task_is_guessed_from_the_labels(tmp_path, labels, task):
    rows = [f"words number {i},{label}" for i, label in enumerate(labels)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows]))
    params, listing, reason = guess_task(WriteParams(f"csv:{tmp_path}/t.csv"))
    assert params.task == task
    assert f"the task is {task}, because " in reason
    assert (listing is not None) == (task == "classification"), "it is listed again for another task alone"


@pytest.mark.parametrize(
    ("header", "cells", "task"),
    [
        ("text;labels", ("80,50", "81,25", "7"), "regression"),
        ("text;labels", ("a,b", "b", "a"), None),
        ("text;labels", ("cat|dog", "cat", "dog"), "multi_label"),
        ("text;cat;dog", ("1;1", "0;1", "0;0"), "multi_label"),
        ("text;cat;dog", ("1;0", "0;1", "0;1"), "classification"),
    ],
)
def test_the_task_of_a_spreadsheet_is_guessed(tmp_path, header, cells, task):
    rows = [f"words number {i};{cell}" for i, cell in enumerate(cells)]
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]))
    params, _, _ = guess_task(WriteParams(f"csv:{tmp_path}/t.csv"))
    assert params.task == (task or "classification")


def test_texts_get_a_length_that_nine_in_ten_do_not_exceed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{'word ' * (10 + i % 50)}{i},{'pos' if i % 2 else 'neg'}" for i in range(100)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *rows]))
    done = tpu_pipelines_here("init", "reviews.csv", "--name", "said")
    assert done.returncode == 0, done.stderr
    config = load_config("said.yaml")
    assert (config.data.num_tokens, config.training.learning_rate) == (64, 0.003)
    assert not config.training.balance_classes


def test_rows_that_cannot_be_used_are_told_with_the_share_that_lets_them_be_set_aside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"a text of number {i},{'ab'[i % 2]}" for i in range(199)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows, "a text,"]))
    done = tpu_pipelines_here("init", "t.csv")
    assert done.returncode == 0, done.stderr
    assert "# 1 of 200 inputs cannot be used: line/00000201: 'label' is empty" in (tmp_path / "t.yaml").read_text()
    assert load_config("t.yaml").data.max_bad_fraction == 0.01


@pytest.mark.parametrize(
    ("asked", "tokens", "context"),
    [(["num_tokens=64"], 64, 32), (["context_tokens=130"], 260, 130), ([], 128, 64), (["num_tokens=250"], 250, 64)],
)
def test_the_passages_of_a_corpus_give_way_to_what_is_set(tmp_path, monkeypatch, asked, tokens, context):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plays.txt").write_text("To be, or not to be: that is the question.\n" * 200)
    done = tpu_pipelines_here("init", "plays.txt", *(word for one in asked for word in ("--set", f"data.{one}")))
    assert done.returncode == 0, done.stderr
    config = load_config("plays.yaml")
    assert (config.data.num_tokens, config.data.context_tokens) == (tokens, context)


def test_a_folder_of_any_name_is_written_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plays.txt").write_text("To be, or not to be: that is the question.\n" * 200)
    done = tpu_pipelines_here("init", "plays.txt", "--output", "o #x", "--workflow")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("next: tpu-pipelines check 'o #x/plays.yaml'\n")
    assert "TPU_PIPELINES_COMMIT" in done.stderr
    assert load_config("o #x/plays.yaml").training.model == "o #x/plays_model.py"
    workflow = yaml.safe_load((tmp_path / ".github/workflows/retrain.yml").read_text())
    assert workflow["env"]["CONFIG"].endswith("|| 'o #x/plays.yaml' }}")


def test_a_model_of_ones_own_is_taken_with_the_size_that_it_says(photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    with zipfile.ZipFile("net.keras", "w") as archive:
        archive.writestr("config.json", json.dumps({"config": {"batch_shape": [None, 24, 32, 3]}}))
    done = tpu_pipelines_here("init", "net.keras", "--from", "model", "--data", "My photos", "--name", "net")
    assert done.returncode == 0, done.stderr
    assert load_config("net.yaml").data.image_size == (24, 32)
    assert load_config("net.yaml").training.model == "net.keras"
    assert load_config("net.yaml").training.learning_rate_schedule == "cosine"
    (photos.parent / "net.py").write_text(
        "def build_model(image_shape, num_classes):\n    model.compile(keras.optimizers.Lion())\n"
    )
    done = tpu_pipelines_here("init", "net.py", "--from", "model", "--data", "My photos", "--name", "compiled")
    assert done.returncode == 0, done.stderr
    assert not load_config("compiled.yaml").training.of_optimizer


@pytest.mark.parametrize(("mode", "side"), [("L", 40), ("RGB", 16), ("L", 16)])
def test_a_ready_model_gets_images_that_it_takes(tmp_path, monkeypatch, encode, mode, side):
    """Small or grey images were left as they are, and the `check` that `init` prints refused them."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(20):
            (tmp_path / "photos" / name / f"{i}.png").write_bytes(encode(i, (side, side + 4), mode, "PNG"))
    done = tpu_pipelines_here("init", "photos", "--model", "mobilenet_v2")
    assert done.returncode == 0, done.stderr
    shape = next(iter(look_at(load_config("photos.yaml").data).sizes))
    data = load_config("photos.yaml").data
    height, width = data.image_size or shape
    assert (height, width, data.channels or 3) == (max(side, 32), max(side + 4, 32), 3)


def _saved(path, *layers):
    keras.Sequential([*layers, keras.layers.Dense(3, activation="softmax")]).save(path)


@pytest.mark.parametrize("shape", [(24, 32, 1), (24, 32, 3), (70, 70, 1)])
def test_the_check_after_init_passes_with_a_saved_model_of_images(photos, models_here, monkeypatch, shape):
    """The height and width came from the file, but not the channels: colour for a model of grey images."""
    monkeypatch.chdir(photos.parent)
    _saved("net.keras", keras.Input(shape), keras.layers.Rescaling(1 / 255), keras.layers.Flatten())
    done = tpu_pipelines_here("init", "net.keras", "--from", "model", "--data", "My photos", "--name", "net")
    assert done.returncode == 0, done.stderr
    data = load_config("net.yaml").data
    assert (*data.image_size, data.channels) == shape
    assert model_of("net.yaml") == "ok"
    other = model_of("net.yaml", "--set", f"data.channels={4 - shape[2]}")
    assert other.endswith(f"Set data.image_size={shape[0]},{shape[1]} and data.channels={shape[2]}.")


def test_the_check_after_init_passes_with_a_saved_model_of_texts(models_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"a text of number {i},{'abc'[i % 3]}" for i in range(90)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows]))
    pooled = keras.layers.GlobalAveragePooling1D()
    _saved("net.keras", keras.Input((20,)), keras.layers.Embedding(50, 4), pooled)
    done = tpu_pipelines_here("init", "net.keras", "--from", "model", "--data", "t.csv")
    assert done.returncode == 0, done.stderr
    data = load_config("t.yaml").data
    assert (data.num_tokens, data.vocabulary_size) == (20, 50)
    assert model_of("t.yaml") == "ok"
    assert model_of("t.yaml", "--set", "data.num_tokens=16").endswith("Set data.num_tokens=20.")


def model_of(*arguments):
    """What `check` says about the model: `ok`, or the error."""
    done = tpu_pipelines_here("check", *arguments, "--json")
    (finding,) = (one for one in json.loads(done.stdout) if one["about"] == "model" and one["state"] != "hint")
    return "ok" if finding["state"] == "ok" else finding["said"]


def test_what_cannot_be_begun_with_is_said(tmp_path):
    assert_user_error(tpu_pipelines_here("init", cwd=tmp_path), "The data location is missing")
    assert_user_error(tpu_pipelines_here("init", "none", cwd=tmp_path), "there is no such file or folder")
    (tmp_path / "empty").mkdir()
    assert_user_error(
        tpu_pipelines_here("init", "empty", cwd=tmp_path),
        "Cannot detect the kind of data in 'empty'",
        "name their kind: images",
    )
    assert_user_error(tpu_pipelines_here("init", "m.py", cwd=tmp_path), "The data location is missing", "--data")


def test_a_configuration_that_is_refused_is_not_left_in_the_way(photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    words = ("init", "My photos", "--name", "first", "--set")
    assert_user_error(tpu_pipelines_here(*words, "training.epoch=3"), "Unknown key 'epoch' in training")
    assert not list(photos.parent.glob("first*"))
    assert tpu_pipelines_here(*words, "training.epochs=3").returncode == 0


def test_places_and_names():
    assert source_of("gs://b/photos", "images") == "images:gs://b/photos"
    assert source_of("keras:mnist") == "keras:mnist"
    assert source_of("/data/plays.txt") == "corpus:/data/plays.txt"
    assert name_of("csv:../$(x).csv") == "x"
    assert read_data("images:x", ["data.channels=3", "training.epochs=1"]) == WriteParams("images:x", channels=3)


def test_what_is_not_said_is_asked_on_a_terminal(photos, monkeypatch):
    terminal = io.StringIO("My photos\n\n\ny\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    done = tpu_pipelines_here("init", cwd=photos.parent)
    assert done.returncode == 0, done.stderr
    assert "A name for the runs [My-photos]: " in done.stdout
    for name in ("My-photos.yaml", "My_photos_model.py", WORKFLOW_FILE):
        assert (photos.parent / name).is_file()


_IMAGES, _TEXTS = ImageInput((48, 40, 3), "raw"), TextInput(32, 90, "0" * 64, "words", "start")
_STARTS = [("image", _IMAGES, "classification"), ("image", _IMAGES, "multi_label"), ("image", _IMAGES, "regression")]
_STARTS += [("text", _TEXTS, "classification"), ("corpus", CorpusInput(16, 9), "language_model")]


@pytest.mark.parametrize(("kind", "given", "task"), _STARTS)
def test_the_model_that_is_written_fits_its_data(kind, given, task, tmp_path):
    from tpu_components.core.models.lookup import build_model

    source = "corpus:x" if kind == "corpus" else "csv:x"
    params = WriteParams(source, task=task if kind != "corpus" else "classification")
    start = plan_start(DataOverview(params, kind, {"train": 90}, {}, False, (), 0), "my-first", folder=tmp_path)
    start.write()
    path = tmp_path / "my_first_model.py"
    numbers = {"mean": (0.0,) * 4, "std": (1.0,) * 4} if task == "regression" else {}
    model = build_model(str(path), Interface(given, 9 if kind == "corpus" else 4, task, **numbers), {})
    answers = model.predict(np.zeros((2, *given.shape), given.dtype), verbose=0)
    assert np.isfinite(answers).all()
    assert TASKS[task].activation in ("linear", "sigmoid") or np.allclose(answers.sum(-1), 1)
    assert "my-first.yaml" in path.read_text()


@pytest.mark.slow  # A minute: two runs, on pictures of ../shared/data.
@pytest.mark.skipif(not (DATA / "cifar10.tar.xz").exists(), reason="needs cifar10.tar.xz in ../shared/data")
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_short_trial_of_the_model_that_is_written_learns(tmp_path, mode):
    wanted = {"airplane": 150, "automobile": 150}
    with tarfile.open(DATA / "cifar10.tar.xz") as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if member.isfile() and wanted.get(path.parent.name):
                wanted[path.parent.name] -= 1
                (folder := tmp_path / "photos" / path.parent.name).mkdir(parents=True, exist_ok=True)
                Image.open(archive.extractfile(member)).convert(mode).save(folder / f"{path.stem}.png")
            if not any(wanted.values()):
                break
    for command in (("init", "photos"), ("run", "photos.yaml", "--set", "training.epochs=3")):
        done = tpu_pipelines_here(*command, cwd=tmp_path)
        assert done.returncode in (0, 3), done.stderr  # Whether it passes the gate is decided on 30 pictures.
    history = load_history(tmp_path / "runs" / "photos" / "model")
    assert history[-1]["validation_accuracy"] >= 0.6, "of two classes of one size"


def test_exports_of_annotation_tools_are_recognised_and_several_choices_are_a_task(tmp_path):
    def annotated(number, *choices):
        result = [{"from_name": "q", "type": "choices", "value": {"choices": list(choices)}}]
        return {"id": number, "data": {"text": f"text {number}"}, "annotations": [{"result": result}]}

    path = tmp_path / "export.json"
    path.write_text(json.dumps([annotated(1, "good", "short"), annotated(2, "short"), *map(annotated, range(3, 40))]))
    overview = look_at(WriteParams(source_of(str(path))))
    assert (overview.params.source, overview.params.task) == (f"labelstudio:{path}", "multi_label")
    path.write_text(json.dumps([annotated(number, "ab|c"[number % 2 :]) for number in range(40)]))
    overview = look_at(WriteParams(f"labelstudio:{path}"))
    assert (overview.params.task, set(overview.class_examples)) == ("classification", {"ab|c", "b|c"})
    assert source_of("annotations.xml") == "cvat:annotations.xml"


def test_what_a_workflow_needs_is_said_in_it_and_on_the_terminal_in_order_of_doing(photos, monkeypatch):
    """The configuration beside it had no machine and local data: the workflow's command always failed."""
    monkeypatch.chdir(photos.parent)
    done = tpu_pipelines_here("init", "My photos", "--workflow")
    assert done.returncode == 0, done.stderr
    said = [line.removeprefix("hint: ") for line in done.stderr.splitlines() if "before retraining" in line]
    written = (photos.parent / WORKFLOW_FILE).read_text().splitlines()
    assert [line.removeprefix("# ") for line in written[: len(said)]] == said
    copy, push, variables, commit = said
    assert "step 1 of 4: copy the data to a bucket, gcloud storage rsync --recursive 'My photos'" in copy
    assert "`tpu-pipelines check My-photos.yaml --target vertex` lists what is missing" in push
    assert "TPU_PIPELINES_REPOSITORY" in variables
    for name in ("My-photos.yaml", "My_photos_model.py", "tpu-pipelines.schema.json", str(WORKFLOW_FILE)):
        assert name in commit
    source = re.search(r"set (data\.source=\S.*) in ", copy)[1]
    config = load_config("My-photos.yaml", [source])
    settings = Settings(project="my-project", region="us-west1", bucket="gs://my-bucket")
    errors = errors_in(ask_all(first_checks(config, PLATFORMS["vertex"], settings)))
    assert [error.about for error in errors] == ["image"]


def test_a_workflow_for_data_in_a_bucket_needs_no_copy_and_keeps_a_machine_of_the_command(photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    overview = look_at(WriteParams("images:My photos"))
    far = dataclasses.replace(overview, params=dataclasses.replace(overview.params, source="images:gs://b/photos"))
    start = plan_start(far, "far", overrides=["machine=v5e-4"], workflow=True)
    assert not any("copy the data" in hint for hint in start.hints)
    assert "\nmachine: v5e-4 " in start.files[start.config_path]
