"""Masks, annotations and other answers that are no classes."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from tests.support.pictures import encoded
from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.kinds import list_examples, list_unlabelled
from tpu_components.core.sources.params import WriteParams

_NOT_SUPPORTED = "Segmentation and detection are not supported: a classifier needs a class for each image"


def _picture(seed=0, side=16):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8))


def _mask(seed=0, side=16):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 3, (side, side), np.uint8))


def _write(folder, **files):
    """Write 20 files of each kind: a function of a seed, or a text, by a path with the number as {}."""
    for path, content in files.items():
        for number in range(20):
            target = folder / path.format(number)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(encoded(content(number)) if callable(content) else content.encode())


@pytest.mark.parametrize(
    ("pictures", "masks"),
    [
        ("image/{}.png", "label/{}.png"),
        ("images/{}.jpg", "masks/{}.png"),
        ("img/{}.png", "gt/{}.png"),
        ("JPEGImages/{}.jpg", "SegmentationClass/{}.png"),
        ("images/{}.png", "masks/{}_mask.png"),
        ("images/image_{}.png", "labels/mask_{}.png"),
        ("leftImg8bit/berlin/{}_leftImg8bit.png", "gtFine/berlin/{}_gtFine_labelIds.png"),
        ("images/train/{}.png", "masks/train/{}.png"),
        ("Photos/{}.png", "Ground Truth/{}.png"),
        ("inputs/{}.png", "targets/{}.png"),
    ],
)
def test_pictures_and_their_masks_are_not_classes(tmp_path, pictures, masks):
    _write(tmp_path, **{pictures: _picture, masks: _picture})
    folder = masks.partition("/")[0]
    with pytest.raises(InputError, match=rf"The folder '{folder}' in .* is not a class: .*{_NOT_SUPPORTED}") as caught:
        list_examples(WriteParams(f"images:{tmp_path}"))
    assert masks.format(0) in str(caught.value)
    assert len(list_unlabelled(WriteParams(f"images:{tmp_path}")).keys) == 40


def test_two_pairs_are_enough_if_the_folders_say_what_they_hold(tmp_path):
    for i, name in enumerate(("images/1.png", "images/2.png", "masks/1.png", "masks/2.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(encoded(_picture(i)))
    with pytest.raises(InputError, match=rf"The folder 'masks' in .* is not a class: .*{_NOT_SUPPORTED}"):
        list_examples(WriteParams(f"images:{tmp_path}"))


def test_masks_in_split_folders_are_not_classes(tmp_path):
    for split in ("train", "test"):
        _write(tmp_path, **{f"{split}/images/{{}}.png": _picture, f"{split}/masks/{{}}.png": _mask})
    with pytest.raises(InputError, match=r"'masks' .*'test/masks/0\.png' belongs to 'test/images/0\.png'"):
        list_examples(WriteParams(f"images:{tmp_path}"))


@pytest.mark.parametrize(
    ("folder", "content"),
    [("labels/{}.txt", "0 0.5 0.5 1 1"), ("Annotations/{}.xml", "<annotation/>"), ("annotations/all.json", "{}")],
)
def test_annotation_files_of_detection_are_not_a_class(tmp_path, folder, content):
    _write(tmp_path, **{"images/{}.png": _picture, folder: content})
    with pytest.raises(InputError, match=rf"'{folder.partition('/')[0]}' .* the images in 'images'\. {_NOT_SUPPORTED}"):
        list_examples(WriteParams(f"images:{tmp_path}"))


@pytest.mark.parametrize("first", ["a", "b"])
def test_masks_are_recognised_by_their_pixels_in_folders_of_any_name(tmp_path, first):
    second = "ab".replace(first, "")
    _write(tmp_path, **{f"{first}/{{}}.png": _picture, f"{second}/{{}}.png": _mask})
    with pytest.raises(InputError, match=rf"The folder '{second}' .* the images in '{first}'"):
        list_examples(WriteParams(f"images:{tmp_path}"))


@pytest.mark.parametrize(
    ("one", "other", "content"),
    [
        ("0/{}.png", "1/{}.png", (_mask, _mask)),
        ("cat/{}.png", "dog/{}.png", (_picture, _picture)),
        ("with_mask/{}.png", "without_mask/{}.png", (_picture, _picture)),
        ("image/photo-{}a.png", "label/tag-{}b.png", (_picture, _picture)),
        ("photo/{}.png", "drawing/{}.png", (_picture, lambda seed: _mask(seed, side=12))),
        ("x/{}.png", "y/{}.png", (_picture, _picture)),
        ("photo/{}.png", "logo/{}.png", (_picture, lambda seed: _mask(seed) if seed else _picture(seed))),
        ("animal/{}.png", "logo/{}.png", (_picture, lambda seed: _mask(seed) if seed else _picture(seed))),
    ],
)
def test_classes_that_are_numbered_alike_are_classes(tmp_path, one, other, content):
    _write(tmp_path, **dict(zip((one, other), content, strict=True)))
    assert len(list_examples(WriteParams(f"images:{tmp_path}")).class_names) == 2


def test_folders_that_are_classes_can_be_named(tmp_path):
    _write(tmp_path, **{"image/{}.png": _picture, "label/{}.png": _mask})
    listing = list_examples(WriteParams(f"images:{tmp_path}", class_names=("image", "label")))
    assert listing.class_names == ("image", "label")


def test_masks_inside_each_class_folder_are_not_examples(tmp_path):
    for name in ("cat", "dog"):
        _write(tmp_path, **{f"{name}/images/{{}}.png": _picture, f"{name}/masks/{{}}.png": _mask})
    with pytest.raises(InputError, match=rf"'cat': 'images', 'masks'.*{_NOT_SUPPORTED}"):
        list_examples(WriteParams(f"images:{tmp_path}"))


def test_masks_beside_their_pictures_are_named(tmp_path):
    _write(tmp_path, **{"benign/b ({}).png": _picture, "benign/b ({})_mask.png": _mask, "normal/n ({}).png": _picture})
    notes = list_examples(WriteParams(f"images:{tmp_path}")).notes
    assert any(
        note.startswith("20 files are named like masks of other files, 'benign/b (0)_mask.png'") for note in notes
    )


def test_texts_and_their_answers_are_not_classes(tmp_path):
    _write(tmp_path, **{"articles/{}.txt": "a long text", "summaries/{}.txt": "a text"})
    with pytest.raises(
        InputError, match=r"'summaries' .* is not a class: it contains the expected outputs for the texts in 'articles'"
    ):
        list_examples(WriteParams(f"text:{tmp_path}"))


def test_labels_that_are_paths_of_images_are_refused(tmp_path):
    rows = "".join(f"images/{i}.png,masks/{i}.png\n" for i in range(4))
    (tmp_path / "list.csv").write_text(f"path,label\n{rows}")
    with pytest.raises(InputError, match=rf"labels of .* are paths of images: 'masks/0\.png', .*{_NOT_SUPPORTED}"):
        list_examples(WriteParams(f"csv:{tmp_path / 'list.csv'}"))


@pytest.mark.parametrize(("count", "noted"), [(9, False), (10, True)])
def test_labels_that_each_occur_once_are_noted(tmp_path, count, noted):
    (tmp_path / "list.csv").write_text("text,label\n" + "".join(f"text {i},caption {i}\n" for i in range(count)))
    notes = list_examples(WriteParams(f"csv:{tmp_path / 'list.csv'}")).notes
    note = "every example has a different label, such as 'caption 0'. A model needs several examples of each class"
    assert notes == ((note,) if noted else ())


def test_masks_in_an_archive_are_left_out(tmp_path):
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        for number in range(6):
            label = "ab"[number % 2].encode()
            for suffix, content in (
                ("jpg", encoded(_picture(number))),
                ("seg.png", encoded(_mask(number))),
                ("cls", label),
            ):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    listing = list_examples(WriteParams(f"webdataset:{tmp_path / 'all.tar'}"))
    assert list(listing.keys) == [f"{number}.jpg" for number in range(6)]
    assert listing.notes == (f"left out 6 masks, such as '0.seg.png'. {_NOT_SUPPORTED}.",)


@pytest.mark.parametrize("is_struct", [True, False])
def test_a_column_of_masks_is_no_label(tmp_path, is_struct):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {}
    for name, draw in (("image", _picture), ("label", _mask)):
        pngs = [encoded(draw(seed)) for seed in range(4)]
        columns[name] = [{"bytes": png, "path": None} for png in pngs] if is_struct else pngs
    parquet.write_table(pyarrow.table(columns), tmp_path / "all.parquet")
    with pytest.raises(InputError, match=rf"Cannot use 'label' of .* it contains images\. {_NOT_SUPPORTED}"):
        list_examples(WriteParams(f"parquet:{tmp_path / 'all.parquet'}"))


@pytest.mark.parametrize("task", ["classification", "multi_label", "regression"])
@pytest.mark.parametrize("shape", [(6, 8, 8), (6, 8, 8, 1)])
def test_arrays_of_masks_are_no_labels(tmp_path, shape, task):
    np.savez(tmp_path / "all.npz", images=np.zeros((6, 8, 8), np.uint8), labels=np.zeros(shape, np.uint8))
    with pytest.raises(InputError, match=rf"Cannot use the labels .*received masks, uint8.*{_NOT_SUPPORTED}"):
        list_examples(WriteParams(f"npz:{tmp_path / 'all.npz'}", task=task))


def test_boxes_of_annotation_tools_are_no_labels(tmp_path):
    box = {"from_name": "box", "type": "rectanglelabels", "value": {"x": 1, "rectanglelabels": ["car"]}}
    tasks = [{"id": i, "data": {"image": f"{i}.png"}, "annotations": [{"result": [box]}]} for i in range(4)]
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    with pytest.raises(InputError, match=rf"only annotations of the types 'rectanglelabels'\. {_NOT_SUPPORTED}"):
        list_examples(WriteParams(f"labelstudio:{tmp_path / 'export.json'}"))
    image = '<image id="0" name="a.png"><box label="car"/><polygon label="car"/></image>'
    (tmp_path / "annotations.xml").write_text(f"<annotations>{image}</annotations>")
    with pytest.raises(InputError, match=rf"only annotations of the types 'box', 'polygon'\. {_NOT_SUPPORTED}"):
        list_examples(WriteParams(f"cvat:{tmp_path / 'annotations.xml'}"))


def _archive(path, **files):
    """Write 6 files of each kind, as `_write` does, to an archive."""
    with tarfile.open(path, "w") as archive:
        for number in range(6):
            for name, content in files.items():
                member = tarfile.TarInfo(name.format(number))
                written = encoded(content(number)) if callable(content) else content.encode()
                member.size = len(written)
                archive.addfile(member, io.BytesIO(written))
    return f"webdataset:{path}"


@pytest.mark.parametrize(
    ("pictures", "masks"),
    [
        ("images/{}.png", "masks/{}.png"),
        ("image/{}.jpg", "label/{}.png"),
        ("data/images/{}.png", "data/masks/{}.png"),
        ("a/{}.png", "b/{}.png"),
    ],
)
def test_folders_of_masks_in_an_archive_are_not_classes(tmp_path, pictures, masks):
    source = _archive(tmp_path / "all.tar", **{pictures: _picture, masks: _mask})
    with pytest.raises(InputError, match=rf"is not a class: it contains masks.*{_NOT_SUPPORTED}.*data\.class_names"):
        list_examples(WriteParams(source))
    folders = sorted(name.split("/")[-2] for name in (pictures, masks))
    assert list_examples(WriteParams(source, class_names=tuple(folders))).class_names == tuple(folders)


@pytest.mark.parametrize("folders", [("mask", "no_mask"), ("with_mask", "without_mask"), ("label_0", "label_1")])
def test_folders_of_an_archive_that_are_numbered_alike_are_classes(tmp_path, folders):
    files = {f"{folder}/{{}}.png": lambda number, add=add: _picture(number + add) for add, folder in enumerate(folders)}
    assert list_examples(WriteParams(_archive(tmp_path / "all.tar", **files))).class_names == folders


def test_an_image_of_an_archive_with_a_label_of_its_own_is_no_mask(tmp_path):
    files = {"{}.jpg": _picture, "{}.cls": "bare", "{}_mask.jpg": _picture, "{}_mask.cls": "masked"}
    listing = list_examples(WriteParams(_archive(tmp_path / "all.tar", **files)))
    assert (len(listing.keys), listing.class_names, listing.notes) == (12, ("bare", "masked"), ())
    del files["{}.cls"], files["{}_mask.cls"]
    assert len(list_unlabelled(WriteParams(_archive(tmp_path / "new.tar", **files))).keys) == 12


def test_a_label_file_in_utf_16_is_read(tmp_path):
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        for number in range(4):
            label = f"caf\u00e9 {number % 2}\r\n".encode("utf-16")
            for suffix, content in (("png", encoded(_picture(number))), ("cls", label)):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    assert list_examples(WriteParams(f"webdataset:{tmp_path}")).class_names == ("caf\u00e9 0", "caf\u00e9 1")
