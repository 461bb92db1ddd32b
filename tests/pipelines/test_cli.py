import base64
import io
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.support.cli import assert_user_error, tpu_pipelines_here

HEAVY = ("tensorflow", "keras", "jax", "kfp", "numpy", "yaml", "sklearn", "PIL")
HEAVY += ("google.protobuf", "google.auth", "google.api_core")


def test_help_imports_nothing_heavy():
    code = (
        "import sys, tpu_pipelines.cli as cli\n"
        "try: cli.main(['--help'])\n"
        f"except SystemExit: print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "run the whole pipeline on this machine" in done.stdout


def test_wrong_arguments_give_exit_code_2():
    assert tpu_pipelines_here("rnu").returncode == 2
    assert tpu_pipelines_here().returncode == 2


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Three test digits as PNG files, and as an array."""
    from sklearn.datasets import load_digits

    root = tmp_path_factory.mktemp("pictures")
    digits = load_digits()
    images = np.round(digits.images[:3] * (255 / 16)).astype(np.uint8)
    for i, image in enumerate(images):
        Image.fromarray(image).save(root / f"{i}.png")
    np.save(root / "all.npy", images)
    return root, digits.target[:3].tolist()


def answers(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("flags", [(), ("--int8",)])
def test_predict_names_classes_for_files_folders_and_arrays(finished_run, pictures, flags):
    export = str(finished_run[0] / "digits" / "export")
    root, labels = pictures
    files = answers(
        tpu_pipelines_here("predict", export, *(str(root / f"{i}.png") for i in range(3)), "--json", *flags)
    )
    arrays = answers(tpu_pipelines_here("predict", export, str(root / "all.npy"), "--json", "--top", "10", *flags))
    assert [next(iter(one["classes"])) for one in files] == [next(iter(one["classes"])) for one in arrays]
    assert [int(next(iter(one["classes"]))) for one in files] == labels
    assert sum(arrays[0]["classes"].values()) == pytest.approx(1, abs=0.02)
    assert arrays[1]["input"].endswith("all.npy[1]")


def test_predict_leaves_out_the_labels_of_the_arrays_that_were_trained_on(finished_run, pictures, tmp_path):
    images, labels = np.load(pictures[0] / "all.npy"), np.array(pictures[1])
    np.savez(tmp_path / "data.npz", x_test=images, y_test=labels)
    found = answers(
        tpu_pipelines_here("predict", str(finished_run[0] / "digits/export"), str(tmp_path / "data.npz"), "--json")
    )
    assert [one["input"] for one in found] == [f"{tmp_path}/data.npz:x_test[{i}]" for i in range(3)]
    assert [int(next(iter(one["classes"]))) for one in found] == labels.tolist()


def test_predict_imports_no_tensorflow(finished_run, pictures):
    code = (
        "import sys, tpu_pipelines.cli as cli\n"
        f"cli.main(['predict', {str(finished_run[0] / 'digits' / 'export')!r}, {str(pictures[0] / '0.png')!r}])\n"
        "print([m for m in ('tensorflow', 'keras', 'jax', 'kfp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_predict_takes_an_image_or_lines_of_json_from_stdin_by_the_models_name(finished_run, pictures, monkeypatch):
    def piped(content):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))

    content = (pictures[0] / "0.png").read_bytes()
    words = ["predict", "digits", "-", "--workspace", str(finished_run[0]), "--json"]
    done = subprocess.run([sys.executable, "-m", "tpu_pipelines.cli", *words], input=content, capture_output=True)
    assert done.stderr == b""  # LiteRT had written of its delegate.
    expected = json.loads(done.stdout)
    assert expected["input"] == "-"
    line = json.dumps({"b64": base64.b64encode(content).decode()})
    words = ("predict", "digits", "-", "--workspace", str(finished_run[0]))
    piped(f"{line}\n\n{line}\n".encode())
    lines = answers(tpu_pipelines_here(*words, "--json"))
    assert lines == [{**expected, "input": f"-:{number}"} for number in (1, 3)]
    for content, message in ((b"no image", "Cannot read stdin: not an image"), (b"{}", "Cannot read line 1 of stdin")):
        piped(content)
        assert_user_error(tpu_pipelines_here(*words), message)


def test_predict_refuses_what_it_cannot_read(finished_run, tmp_path):
    export = str(finished_run[0] / "digits" / "export")
    (tmp_path / "text.png").write_text("no image")
    np.save(tmp_path / "floats.npy", np.full((1, 8, 8), 1.5))  # Neither whole numbers nor shares of 255.
    assert_user_error(tpu_pipelines_here("predict", str(tmp_path), "x.png"), "a folder without export.json")
    assert_user_error(tpu_pipelines_here("predict", export, str(tmp_path / "text.png")), "not an image")
    assert_user_error(tpu_pipelines_here("predict", export, str(tmp_path / "none.png")), "there is no such file")
    assert_user_error(tpu_pipelines_here("predict", export, str(tmp_path / "floats.npy")), "received float64[1, 8, 8")
    assert_user_error(tpu_pipelines_here("predict", export, "x.png", "--top", "0"), "top must be at least 1")


def test_predict_refuses_damaged_files(finished_run, tmp_path):
    export = str(finished_run[0] / "digits" / "export")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    np.savez(tmp_path / "empty.npz")
    assert_user_error(tpu_pipelines_here("predict", export, str(tmp_path / "cut.npz")), "Cannot read")
    assert_user_error(tpu_pipelines_here("predict", export, str(tmp_path / "empty.npz")), "the file is empty")
    (tmp_path / "export.json").write_text("{}")
    assert_user_error(tpu_pipelines_here("predict", str(tmp_path), "x.png"), "export.json: it is not")


def test_export_of_what_is_no_run_says_what_is_missing(tmp_path):
    assert_user_error(
        tpu_pipelines_here("export", str(tmp_path)), "summary.json': there is no such file. Check the path."
    )
