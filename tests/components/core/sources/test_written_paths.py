"""Paths in tables that do not exist as they are written."""

import numpy as np
import pytest
from PIL import Image

from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.kinds import list_examples, list_unlabelled
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords import write_records


def _pictures(folder, *names):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 20 * number, np.uint8)).save(folder / name)


def _params(folder, paths, **params):
    rows = "".join(f'"{path}",{"ab"[i % 2]}\n' for i, path in enumerate(paths))
    (folder / "list.csv").write_text(f"path,label\n{rows}")
    return WriteParams(f"csv:{folder / 'list.csv'}", **params)


@pytest.mark.parametrize(
    ("written", "existing"),
    [
        (r"images\a.png", "images/a.png"),
        (r".\images\more\a.png", "images/more/a.png"),
        ("./images/a.png", "images/a.png"),
        ("images/my%20cat.png", "images/my cat.png"),
        (r"images\my%20cat.png", "images/my cat.png"),
        ("images/a", "images/a.png"),
        (r"images\a", "images/a.png"),
        ("images/img.001", "images/img.001.png"),
        ("images/a.PNG", "images/a.png"),
        ("images/A.png", "images/a.png"),
    ],
)
def test_a_path_that_means_one_file_is_read(tmp_path, written, existing):
    _pictures(tmp_path, existing, "b.png")
    params = _params(tmp_path, [written, "b.png"])
    for listing in (list_examples(params), list_unlabelled(params)):
        assert sorted(listing.keys) == sorted([existing, "b.png"])
        assert listing.files.sizes.all()
    if written == f"./{existing}":
        assert listing.notes == ()
    else:
        name = written.removeprefix("./")
        assert listing.notes == (
            f"1 of 2 paths do not exist as written. For example, {existing!r} is read for {name!r}",
        )


@pytest.mark.parametrize(
    ("written", "existing", "nearest"),
    [
        (r"C:\Users\ann\images\a.png", ("images/a.png", "other/a.png"), "images/a.png"),
        ("images/a", ("images/a.png", "images/a.jpg"), "images/a.png"),
        ("images/A.png", ("images/a.png", "images/a.PNG"), "images/a.png"),
        ("image/a.png", ("images/a.png",), "images/a.png"),
        ("images/flower_12.png", ("images/flower_012.png",), "images/flower_012.png"),
        ("/home/ann/images/a.png", ("images/a.png",), "images/a.png"),
    ],
)
def test_the_nearest_file_is_named_where_a_path_does_not_mean_one(tmp_path, written, existing, nearest):
    _pictures(tmp_path, *existing)
    second = "/home/ann/images/zz.png" if written.startswith("/") else existing[0]
    (note,) = list_examples(_params(tmp_path, [written, second])).notes
    name = written.removeprefix("/home/ann/images/")
    assert f"files do not exist, for example {name!r} (the nearest existing file is {nearest!r})" in note


def test_files_that_no_path_resembles_are_not_named(tmp_path):
    _pictures(tmp_path, "xyz.png")
    assert list_examples(_params(tmp_path, ["flower/1.png", "flower/2.png"])).notes == ()


def test_two_paths_of_one_file_are_refused(tmp_path):
    _pictures(tmp_path, "images/a.png", "b.png")
    with pytest.raises(InputError, match=r"Duplicate paths in .*'images/a\.png'"):
        list_examples(_params(tmp_path, [r"images\a.png", "images/a.png", "b.png"]))


def test_a_path_never_leaves_the_folder(tmp_path):
    _pictures(tmp_path, "a.png", "data/b.png")
    for written in (r"..\a.png", "%2e%2e/a.png", "%2Fetc%2Fpasswd"):
        listing = list_examples(_params(tmp_path / "data", [written, "b.png"]))
        assert sorted(listing.files.sizes.astype(bool).tolist()) == [False, True]


def test_other_rows_keep_what_identifies_them(tmp_path):
    _pictures(tmp_path, "images/a.png", "images/b.png")
    rows = [f"{tmp_path}/images/./a.png", f"{tmp_path}/images/b"]
    listing = list_examples(_params(tmp_path, rows))
    assert list(listing.identities) == [rows[0], f"{tmp_path}/images/b.png"]


def test_create_tfrecords_writes_them_and_names_the_nearest_file_of_the_others(tmp_path, capsys):
    fractions = {"validation_fraction": 0, "test_fraction": 0, "num_workers": 1}
    _pictures(tmp_path, "images/a.png", "images/b.png")
    write_records(_params(tmp_path, [r"images\a.png", "images/b"], **fractions), tmp_path / "out")
    with pytest.raises(InputError, match=r"Found no readable image .*nearest existing file is 'images/a\.png'"):
        write_records(_params(tmp_path, [r"C:\a.png", r"C:\b.png"], **fractions), tmp_path / "none")
