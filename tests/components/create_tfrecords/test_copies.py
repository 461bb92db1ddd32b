"""Claims about copies: found, counted, listed, and kept out of two splits."""

import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.components.create_tfrecords.engines.cases import same_files
from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.measuring import thin_out
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.example_ids import load_copied, load_identities
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.create_tfrecords.copies import connect, find_alike, look_at


def _photo(seed: int, size: tuple[int, int] = (96, 128)) -> Image.Image:
    """Smooth noise, as a blurred photo."""
    noise = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), np.uint8)
    return Image.fromarray(noise).resize((size[1], size[0]), Image.Resampling.BICUBIC)


def _jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(io.BytesIO(buffer.getvalue()))


def _alike(images) -> set[tuple[int, int]]:
    pairs = find_alike(look_at([thin_out(np.asarray(image)) for image in images]))
    return {tuple(sorted(pair)) for pair in pairs.tolist()}


@pytest.mark.parametrize(
    "change",
    [
        lambda image: _jpeg(image, 60),
        lambda image: image.resize((80, 60)),
        lambda image: Image.eval(image, lambda value: value * 0.8 + 20),
    ],
    ids=["recompressed", "resized", "paler"],
)
def test_a_picture_is_found_again_after(change):
    images = [_photo(seed) for seed in range(100)]
    found, expected = _alike([*images, *map(change, images[:50])]), {(i, 100 + i) for i in range(50)}
    assert found <= expected
    assert len(found) >= 48


def test_plain_pictures_are_not_alike():
    assert _alike([Image.new("RGB", (32, 32), (10 * i, 0, 0)) for i in range(20)]) == set()


def test_pairs_connect_to_sets():
    sets = connect([np.array([[5, 3], [7, 8]]), np.array([[3, 1]])])
    assert [members.tolist() for members in sets] == [[1, 3, 5], [7, 8]]


def _write(tmp_path, images, labels, **params):
    np.savez(tmp_path / "x.npz", x=images, y=labels)
    write_records(WriteParams(f"npz:{tmp_path}/x.npz", **params), tmp_path / "out")
    return Manifest.load(tmp_path / "out"), json.loads((tmp_path / "out" / "copies.json").read_text())


@pytest.fixture
def pictures() -> np.ndarray:
    return np.stack([np.asarray(_photo(seed, (24, 32))) for seed in range(120)])


def test_a_copy_of_a_tested_picture_is_tested_or_left_out_and_so_is_one_of_a_validated_one(tmp_path, pictures, capsys):
    near = np.stack([np.asarray(_jpeg(Image.fromarray(picture), 80)) for picture in pictures[60:]])
    labels = np.arange(120) % 3
    alone, _ = _write(tmp_path, pictures, labels)
    stands_alone = _split_of(tmp_path, alone)
    shutil.rmtree(tmp_path / "out")
    manifest, copies = _write(
        tmp_path, np.concatenate([pictures, pictures[:60], near]), np.concatenate([labels, labels])
    )
    assert (copies["exact"], copies["near"], copies["across_splits"], copies["contradictory"]) == (60, 60, 0, 0)
    assert [len(one["examples"]) for one in copies["sets"]] == [2] * 120
    stands = _split_of(tmp_path, manifest)
    left_out = {key for one in copies["sets"] for key in _keys(one, "left out")}
    assert len(left_out) == copies["left_out"] == manifest.num_left_out == 240 - len(stands)
    assert 5 < len(left_out) < 60
    # A tested one stays, whatever comes; and equal ones are drawn together.
    assert all(stands[key] == "test" for key, split in stands_alone.items() if split == "test")
    assert not any(int(key.split("/")[1]) % 120 < 60 for key in left_out)
    for one in copies["sets"]:
        splits = [example["split"] for example in one["examples"]]
        assert len(set(splits)) == 1 or (splits.count("left out") == 1 and "train" not in splits)
    for name, split in manifest.splits.items():
        examples = records.load_split(tmp_path / "out", manifest, name, with_keys=True)
        assert split.num_examples == len(examples.labels) == len(load_identities(tmp_path / "out", name))
        assert not load_copied(tmp_path / "out", name).any()
        for key, label, image in zip(examples.keys, examples.labels, examples.inputs, strict=True):
            place = int(key.split("/")[1])
            assert label == place % 120 % 3
            if place < 180:
                assert np.array_equal(image, pictures[place % 120])
    told = capsys.readouterr().err
    assert "60 images are exact copies of other images, 60 are near copies. copies.json lists them" in told
    assert f"left out {len(left_out)} images with a copy in test or validation" in told


def test_a_long_series_takes_no_picture_out_of_the_test_split(tmp_path, pictures):
    series = [np.asarray(Image.eval(Image.fromarray(pictures[0]), lambda v, i=i: v * 0.9 + i)) for i in range(20)]
    drawn, _ = _write(tmp_path, np.stack([*pictures, *series]), np.arange(140) % 3, join_copies=False)
    before = _split_of(tmp_path, drawn)
    shutil.rmtree(tmp_path / "out")
    kept, copies = _write(tmp_path, np.stack([*pictures, *series]), np.arange(140) % 3)
    after = _split_of(tmp_path, kept)
    (one,) = copies["sets"]
    assert len(one["examples"]) == 21
    tested = [key for key, split in before.items() if split == "test"]
    assert sum(key >= "all/00000120" for key in tested) > 1
    assert [key for key, split in after.items() if split == "test"] == tested
    assert not _keys(one, "train")
    assert len(_keys(one, "left out")) == 140 - len(after) > 10


def test_data_of_which_nothing_is_left_to_train_on_are_refused(tmp_path, pictures):
    series = [np.asarray(Image.eval(Image.fromarray(pictures[0]), lambda v, i=i: v * 0.8 + i)) for i in range(40)]
    with pytest.raises(InputError, match=r"'train' split has no examples left: all \d+ .* data.group_column"):
        _write(tmp_path, np.stack(series), np.arange(40) % 2)


def _keys(one, split) -> list[str]:
    return [example["key"] for example in one["examples"] if example["split"] == split]


def _split_of(tmp_path, manifest) -> dict[str, str]:
    return {
        key: name
        for name in manifest.splits
        for key in records.load_split(tmp_path / "out", manifest, name, with_keys=True).keys
    }


def _twice(folder, **options):
    """Write 40 photos, each under two names: two classes' folders of files."""
    for i in range(40):
        for name in ("first", "second"):
            path = folder / str(i % 2) / f"{name}-{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            _photo(i, (16, 16)).save(path, **options)


def test_turned_photos_are_counted_where_copies_were_joined_too(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    _twice(tmp_path / "photos", exif=exif)
    write_records(WriteParams(f"images:{tmp_path}/photos"), tmp_path / "out")
    manifest = Manifest.load(tmp_path / "out")
    assert {name: split.statistics["num_turned"] for name, split in manifest.splits.items()} == {
        name: split.num_examples for name, split in manifest.splits.items()
    }


def test_a_damaged_picture_of_a_group_that_is_joined_is_set_aside(tmp_path):
    _twice(tmp_path)
    rows = [f"{i % 2}/{name}-{i}.jpg,{i % 2},{name}{i // 4}" for i in range(40) for name in ("first", "second")]
    (tmp_path / "0" / "first-0.jpg").write_bytes(b"no image")
    (tmp_path / "table.csv").write_text("\n".join(["path,label,group", *rows]))
    params = WriteParams(f"csv:{tmp_path}/table.csv", group_column="group", max_bad_fraction=0.1)
    write_records(params, tmp_path / "out")
    copies = json.loads((tmp_path / "out" / "copies.json").read_text())
    assert (copies["exact"], copies["across_splits"]) == (39, 0)
    assert [item.key for item in Manifest.load(tmp_path / "out").quarantined] == ["0/first-0.jpg"]


def test_copies_may_stay_apart_and_are_counted(tmp_path, pictures, capsys):
    labels = np.arange(120) % 3
    manifest, copies = _write(
        tmp_path, np.concatenate([pictures, pictures]), np.concatenate([labels, labels]), join_copies=False
    )
    in_train = int(load_copied(tmp_path / "out", "test").sum())
    assert in_train > 20
    assert manifest.splits["test"].statistics["num_also_in_train"] == in_train
    assert copies["across_splits"] >= in_train - 1
    assert (
        f"{in_train:,} of {manifest.splits['test'].num_examples} images in test have an exact or near copy in train"
        in (capsys.readouterr().err)
    )


def test_splits_of_the_sources_own_are_left_and_copies_across_them_told_with_their_labels(tmp_path, pictures, capsys):
    np.savez(
        tmp_path / "x.npz",
        x_train=pictures,
        y_train=np.arange(120) % 3,
        x_test=pictures[:60],
        y_test=np.arange(60) % 2,
    )
    write_records(WriteParams(f"npz:{tmp_path}/x.npz"), tmp_path / "out")
    manifest = Manifest.load(tmp_path / "out")
    copies = json.loads((tmp_path / "out" / "copies.json").read_text())
    assert manifest.splits["test"].num_examples == 60
    assert copies["contradictory"] == sum(i % 3 != i % 2 for i in range(60))
    told = capsys.readouterr().err
    trained = manifest.splits["test"].statistics["num_also_in_train"]
    assert 40 < trained < 60
    assert f"{trained} of 60 images in test have an exact or near copy in train" in told
    assert f"{copies['contradictory']} sets of copies have several labels. The first: 'train/" in told


def test_texts_of_the_same_words_are_in_no_two_splits(tmp_path):
    rows = [f"word{i} and more of it" for i in range(100)]
    rows += [f"Word{i}, AND more  of it!" for i in range(50)]
    (tmp_path / "x.csv").write_text("text,label\n" + "".join(f'"{row}",{"ab"[i % 2]}\n' for i, row in enumerate(rows)))
    write_records(WriteParams(f"csv:{tmp_path}/x.csv"), tmp_path / "out")
    copies = json.loads((tmp_path / "out" / "copies.json").read_text())
    assert (copies["exact"], copies["near"], copies["across_splits"]) == (0, 50, 0)


def test_files_that_hold_one_picture_are_in_no_two_splits_and_one_and_two_workers_agree(image_folder, tmp_path):
    folder = image_folder(per_class=40, size=(65, 64))
    for i in range(20):
        (folder / "cat" / f"copy-{i}.png").write_bytes((folder / "cat" / f"{i:04d}.png").read_bytes())
    for workers in (1, 2):
        write_records(WriteParams(f"images:{folder}", num_workers=workers), tmp_path / str(workers))
    assert same_files(tmp_path / "1", tmp_path / "2")
    copies = json.loads((tmp_path / "1" / "copies.json").read_text())
    assert (copies["exact"], copies["across_splits"]) == (20, 0)


def test_the_vocabulary_is_of_the_texts_that_train_once_copies_are_joined(tmp_path):
    rows = [f"word{i} and more of it" for i in range(100)]
    rows += [f"Word{i}, AND more  of it!" for i in range(100)]
    (tmp_path / "x.csv").write_text("text,label\n" + "".join(f'"{row}",{"ab"[i % 2]}\n' for i, row in enumerate(rows)))
    write_records(WriteParams(f"csv:{tmp_path}/x.csv"), tmp_path / "out")
    copies = json.loads((tmp_path / "out" / "copies.json").read_text())
    firsts = [one["examples"][0] for one in copies["sets"]]
    trained = {f"word{(int(first['key'].split('/')[1]) - 2) % 100}" for first in firsts if first["split"] == "train"}
    words = set((tmp_path / "out" / "vocabulary.txt").read_text().split())
    assert words - {"[PAD]", "[UNK]", "and", "more", "of", "it"} == trained
    assert 40 < len(trained) < 100


def test_a_class_that_loses_all_training_examples_is_refused(tmp_path):
    """All texts of the class are copies of one text, whose ids lie in several splits."""
    rows = [f"This account has been suspended.,suspended,s{i}" for i in range(15)]
    rows += [f"text number {i} of {name},{name},{name}{i}" for name in ("ham", "spam") for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label,id", *rows]) + "\n")
    source = f"csv:{tmp_path}/t.csv"
    message = r"have no training examples: 'suspended' \(of 15 examples\)\. Copies of test and validation examples"
    with pytest.raises(InputError, match=message):
        write_records(WriteParams(source, num_workers=1), tmp_path / "out")
    named = WriteParams(source, num_workers=1, class_names=("ham", "spam", "suspended"))
    write_records(named, tmp_path / "out")
    assert Manifest.load(tmp_path / "out").splits["train"].class_counts[2] == 0
