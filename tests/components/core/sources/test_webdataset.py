"""Archives as other programs write them: links, files out of order, several views, splits inside."""

import io
import tarfile

import pytest

from tests.support.pictures import encode_picture
from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.kinds import list_examples
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords.planning import plan_dataset


def _archive(path, files, links=()):
    """Write files, {name: content}, and then links, (name, type, target). Return the source."""
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, kind, target in links:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = target
            archive.addfile(info)
    return WriteParams(f"webdataset:{path}")


def _pictures(*names):
    return {name: encode_picture(i) for i, name in enumerate(names)}


def _labels(listing):
    return {key: listing.class_names[label] for key, label in zip(listing.keys, listing.labels.tolist(), strict=True)}


def test_links_to_files_of_the_archive_are_images(tmp_path):
    """As GNU tar stores a second name of a file."""
    files = {**_pictures("./cat/1.png", "dog/1.png", "dog/2.png"), "cat/notes.md": b"no image"}
    links = [
        ("cat/2.png", tarfile.LNKTYPE, "dog/2.png"),
        ("cat/3.png", tarfile.SYMTYPE, "../dog/4.png"),
        ("dog/4.png", tarfile.SYMTYPE, "./1.png"),
    ]
    listing = list_examples(_archive(tmp_path / "a.tar", files, links))
    assert listing.bad == ()
    names = {"cat": ("1", "2", "3"), "dog": ("1", "2", "4")}
    assert _labels(listing) == {f"{folder}/{i}.png": folder for folder, several in names.items() for i in several}
    contents = {key: listing.read(i) for i, key in enumerate(listing.keys)}
    assert contents["cat/2.png"] == files["dog/2.png"]
    assert contents["cat/3.png"] == contents["dog/4.png"] == files["dog/1.png"]


def test_labels_may_be_links(tmp_path):
    files = {"0.png": encode_picture(0), "0.cls": b"cat", "1.png": encode_picture(1), "1.cls": b"dog"}
    files |= {"2.png": encode_picture(2)}
    listing = list_examples(_archive(tmp_path / "a.tar", files, [("2.cls", tarfile.LNKTYPE, "0.cls")]))
    assert _labels(listing) == {"0.png": "cat", "1.png": "dog", "2.png": "cat"}


@pytest.mark.parametrize("target", ["/data/pool.jpg", "../elsewhere/1.png", "dog/9.png", "9.png"])
def test_a_link_to_a_file_that_is_not_in_the_archive_is_quarantined(tmp_path, target):
    files = _pictures(*(f"{folder}/{i}.png" for folder in ("cat", "dog") for i in range(9)))
    params = _archive(tmp_path / "a.tar", files, [("dog/9.png", tarfile.SYMTYPE, target)])
    (bad,) = list_examples(params).bad
    assert bad.key == "dog/9.png"
    assert "which is not in the archive" in bad.reason


def test_a_link_to_a_name_that_is_not_utf_8_is_refused(tmp_path):
    files = _pictures("cat/1.png", "dog/1.png")
    with pytest.raises(InputError, match="UTF-8"):
        list_examples(_archive(tmp_path / "a.tar", files, [("cat/2.png", tarfile.LNKTYPE, "dog/\udcff.png")]))


def test_label_files_that_are_not_next_to_their_images_are_refused(tmp_path):
    """All images first, then all labels: the folders of the images are no classes."""
    files = _pictures(*(f"site_{'ab'[i % 2]}/{i:03}.png" for i in range(12)))
    files |= {name.replace(".png", ".cls"): str(i % 3).encode() for i, name in enumerate(files)}
    with pytest.raises(InputError, match=r"label files in .* have no image next to them: 'site_a/000.cls'"):
        list_examples(_archive(tmp_path / "a.tar", files))


def test_a_label_file_whose_image_was_deleted_is_told(tmp_path):
    files = {"0.cls": b"cat", "1.png": encode_picture(1), "1.cls": b"dog", "2.png": encode_picture(2), "2.cls": b"cat"}
    assert list_examples(_archive(tmp_path / "a.tar", files)).notes == (
        "left out 1 label files without an image, such as '0.cls'",
    )


def test_folders_are_classes_beside_json_without_a_label_only_with_a_note(tmp_path):
    files = {}
    for i, name in enumerate(("a/0", "a/1", "b/0", "b/1")):
        files |= {f"{name}.png": encode_picture(i), f"{name}.json": b'{"species": 2}'}
    params = _archive(tmp_path / "a.tar", files)
    listing = list_examples(params)
    assert listing.class_names == ("a", "b")
    assert any("the JSON files have no label field, only 'species'" in note for note in listing.notes)


def test_views_of_one_example_stay_in_one_split(tmp_path):
    files = {}
    for i in range(60):
        files |= {f"{i:04}.left.png": encode_picture(2 * i), f"{i:04}.right.png": encode_picture(2 * i + 1)}
        files[f"{i:04}.cls"] = str(i % 2).encode()
    plan = plan_dataset(_archive(tmp_path / "a.tar", files))
    splits = dict(zip(plan.listing.keys, plan.splits.tolist(), strict=True))
    assert len(set(splits.values())) == 3
    assert all(splits[f"{i:04}.left.png"] == splits[f"{i:04}.right.png"] for i in range(60))


def test_folders_of_splits_in_an_archive_are_splits(tmp_path):
    names = [
        f"data/{split}/{folder}/{i}.png" for split in ("train", "val") for folder in ("cat", "dog") for i in range(4)
    ]
    listing = list_examples(_archive(tmp_path / "a.tar", _pictures(*names)))
    assert listing.class_names == ("cat", "dog")
    assert listing.splits.tolist() == ["train"] * 8 + ["validation"] * 8
    with pytest.raises(InputError, match=r"are not in a split folder: 'more/cat/0.png'"):
        list_examples(_archive(tmp_path / "a.tar", _pictures(*names, "more/cat/0.png")))


def test_a_class_may_have_the_name_of_a_split(tmp_path):
    listing = list_examples(
        _archive(tmp_path / "a.tar", _pictures("train/0.png", "train/1.png", "bus/0.png", "bus/1.png"))
    )
    assert (listing.class_names, listing.splits) == (("bus", "train"), None)
