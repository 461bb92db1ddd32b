"""An example's ID depends on what the source holds, and on nothing else."""

import csv
import io
import itertools
import shutil
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.support.pictures import encoded
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import SPLITS
from tpu_components.core.examples.example_ids import (
    ID_TYPE,
    are_among,
    as_ids,
    identify_bands,
    identify_pixels,
    identify_text,
    join_ids,
    load_identities,
    load_trained_on,
    save_trained_on,
)
from tpu_components.core.examples.images import original_pixels, read_image
from tpu_components.core.examples.interface import ImageRule
from tpu_components.create_tfrecords import WriteParams, write_records

_SETTINGS = [
    dict(image_size=size, channels=channels, encoding=encoding, crop_margin=margin, **others)
    for size, channels, (encoding, margin, others) in itertools.product(
        [(16, 16), (24, 20)],
        [1, 3],
        [
            ("raw", 0.0, {"seed": 3}),
            ("resized", 0.1, {"jpeg_quality": 60, "apply_rotation": False}),
            ("encoded", 0.0, {"num_workers": 2, "test_fraction": 0.3}),
        ],
    )
]


def _ids(tmp_path, source, **settings) -> set[int]:
    """IDs of scheme 2 of all examples."""
    shutil.rmtree(tmp_path / "records", ignore_errors=True)
    params = WriteParams(source, join_copies=False, **{"num_workers": 1, **settings})
    write_records(params, tmp_path / "records")
    by_split = [load_identities(tmp_path / "records", split) for split in SPLITS]
    return set(np.concatenate([ids for ids in by_split if ids is not None])["scheme2"].tolist())


def _pictures(count):
    """Pictures of 20×18, grey and in colour, some with a transparent part."""
    random = np.random.default_rng(0)
    for number in range(count):
        channels = (1, 3, 3, 4)[number % 4]
        pixels = random.integers(0, 256, (20, 18, channels), np.uint8)
        yield Image.fromarray(pixels[..., 0] if channels == 1 else pixels)


def test_200_pictures_of_eight_formats_have_the_same_ids_with_any_settings(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # To be rotated.
    kinds = ["png", "bmp", "gif", "ppm", "tif", "webp", "jpg", "jpeg"]
    for number, picture in enumerate(_pictures(200)):
        kind = kinds[number % 8]
        folder = tmp_path / "data" / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        options = {"webp": {"lossless": number % 16 < 8}, "jpg": {"exif": exif}, "png": {"exif": exif}}.get(kind, {})
        if kind in ("ppm", "jpg", "jpeg"):
            picture = picture.convert("RGB")
        picture.save(folder / f"{number}.{kind}", **options)
    found = [_ids(tmp_path, f"images:{tmp_path}/data", **settings) for settings in _SETTINGS]
    assert len(found) == 12
    assert len(found[0]) == 200
    assert all(each == found[0] for each in found)


def test_a_picture_has_one_id_in_an_array_and_in_every_lossless_format(tmp_path):
    random = np.random.default_rng(1)
    for channels in (1, 3):
        pixels = random.integers(0, 256, (40, 9, 7, channels), np.uint8)
        np.savez(tmp_path / "arrays.npz", images=pixels, labels=np.arange(40) % 2)
        expected = _ids(tmp_path, f"npz:{tmp_path}/arrays.npz")
        for kind, options in (
            ("png", {}),
            ("bmp", {}),
            ("ppm" if channels == 3 else "pgm", {}),
            ("tif", {}),
            ("tif", {"compression": "tiff_lzw"}),
            *([("webp", {"lossless": True})] if channels == 3 else [("gif", {})]),
        ):
            for number, picture in enumerate(pixels):
                path = tmp_path / f"{kind}{channels}{len(options)}" / f"c{number % 2}" / f"{number}.{kind}"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture[..., 0] if channels == 1 else picture).save(path, **options)
            source = f"images:{tmp_path}/{kind}{channels}{len(options)}"
            assert _ids(tmp_path, source) == expected, (kind, options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("WEBP", {"lossless": True, "icc_profile": b"profile"}),
        ("WEBP", {"lossless": True, "exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}),
        ("TIFF", {"compression": "lzma"}),
        ("TIFF", {"compression": "zstd"}),
    ],
)
def test_metadata_and_rare_compressions_leave_a_lossless_picture_its_id(kind, options):
    pixels = np.random.default_rng(1).integers(0, 256, (9, 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    picture = read_image(file.getvalue(), ImageRule((4, 4), 0))
    assert identify_bands(original_pixels(file.getvalue(), picture)) == identify_pixels(pixels)


def test_a_lossy_or_animated_webp_file_with_more_chunks_is_known_by_its_bytes():
    noise = Image.effect_noise((9, 7), 90)
    transparent = Image.merge("LA", (noise, noise)).convert("RGBA")
    animation = {"lossless": True, "save_all": True, "append_images": [noise.rotate(180).convert("RGB")]}
    for picture, options in ((noise, {"icc_profile": b"profile"}), (transparent, {}), (noise, animation)):
        file = io.BytesIO()
        picture.save(file, "WEBP", **options)
        content = file.getvalue()
        assert content[12:16] == b"VP8X"
        assert not list(original_pixels(content, read_image(content, ImageRule(None, 0))))


def test_an_array_is_known_by_shape_and_pixels_whatever_its_form(tmp_path):
    pixels = np.random.default_rng(2).integers(0, 256, (40, 12, 12), np.uint8)
    forms = {
        "uint8": pixels,
        "floats": pixels.astype(np.float64) / 255,
        "int64": pixels.astype(np.int64),
        "one channel": pixels[..., None],
        "channels first": pixels[:, None],
    }
    found = []
    for images in forms.values():
        np.savez(tmp_path / "arrays.npz", images=images, labels=np.arange(40) % 2)
        found.append(_ids(tmp_path, f"npz:{tmp_path}/arrays.npz"))
    assert all(each == found[0] for each in found)
    np.savez(tmp_path / "arrays.npz", images=pixels.reshape(40, 6, 24), labels=np.arange(40) % 2)
    assert not found[0] & _ids(tmp_path, f"npz:{tmp_path}/arrays.npz"), "the same bytes of another shape"


def test_16_bits_count_whole(tmp_path):
    """Pillow's pixels of a file, cut to eight bits for the records, are equal; the files are not."""
    ids = set()
    for value in (512, 513):
        content = encoded(np.full((4, 4), value, np.uint16))
        picture = read_image(content, ImageRule(None, 0))
        (pixels,) = original_pixels(content, picture)
        assert (pixels.dtype, pixels.shape, pixels.max()) == (np.uint16, (4, 4, 1), value)
        ids.add(identify_pixels(pixels))
    assert len(ids) == 2


def test_palettes_and_one_bit_are_known_by_their_colours():
    grey = np.random.default_rng(0).integers(0, 2, (6, 6), np.uint8) * 255
    colour = Image.fromarray(np.stack([grey, 255 - grey, grey], -1))
    for image, as_held in ((Image.fromarray(grey).convert("1"), grey[..., None]), (colour.quantize(4), colour)):
        content = encoded(image)
        picture = read_image(content, ImageRule(None, 0))
        (pixels,) = original_pixels(content, picture)
        assert np.array_equal(pixels, np.asarray(as_held))


def test_a_large_image_is_identified_in_bands_as_it_is_whole():
    """Of 16 million pixels, four at a time, which are too many to convert at once."""
    pixels = np.random.default_rng(0).integers(0, 4, (4096, 4096), np.uint8)
    image = Image.fromarray(pixels)
    image.putpalette([0, 0, 0, 9, 8, 7, 1, 2, 3, 200, 100, 0])
    content = encoded(image, compress_level=1)
    picture = read_image(content, ImageRule((8, 8), 3))
    bands = list(original_pixels(content, picture))
    assert len(bands) == 4
    assert identify_bands(bands) == identify_pixels(np.asarray(image.convert("RGB")))


def test_a_text_has_one_id_in_every_source_form_and_setting(tmp_path):
    texts = [f"Café Übergröße number{i}, fine\u00a0day and\r\n more of it" for i in range(60)]
    labels = [("no", "yes")[i % 2] for i in range(60)]
    for form in ("NFC", "NFD"):
        folder = tmp_path / form
        for i, (text, label) in enumerate(zip(texts, labels, strict=True)):
            (folder / "texts" / label).mkdir(parents=True, exist_ok=True)
            content = ("\ufeff" if form == "NFD" else "") + unicodedata.normalize(form, text) + "\n"
            (folder / "texts" / label / f"{i}.txt").write_bytes(content.encode())
        with open(folder / "texts.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [("text", "label"), *zip([unicodedata.normalize(form, text) for text in texts], labels, strict=True)]
            )
        pq.write_table(pa.table({"text": texts, "label": labels}), folder / "texts.parquet")
    found = [
        _ids(tmp_path, f"{kind}:{tmp_path}/{form}/{name}", num_tokens=num_tokens, truncate=truncate)
        for form in ("NFC", "NFD")
        for kind, name in (("csv", "texts.csv"), ("text", "texts"), ("parquet", "texts.parquet"))
        for num_tokens, truncate in ((4, "start"), (50, "end"))
    ]
    assert len(found[0]) == 60
    assert all(each == found[0] for each in found)


def test_texts_that_differ_in_a_letter_a_mark_or_a_capital_are_different():
    texts = ["Cafe", "Café", "cafe", "Cafe.", "Ca fe", "Cafè", "ﬁn", "fin"]
    assert len({identify_text(text.encode()) for text in texts}) == len(texts)


def _pairs(*pairs):
    return np.array(list(pairs), ID_TYPE)


def test_ids_are_compared_by_the_newest_scheme_that_both_have():
    ids = _pairs((1, 10), (2, 20), (3, 30), (4, 0))
    assert are_among(ids, _pairs((9, 10), (2, 99))).tolist() == [True, False, False, False]
    assert are_among(ids, as_ids(np.array([2, 4], np.uint64))).tolist() == [False, True, False, True]
    assert are_among(ids, _pairs((4, 77))).tolist() == [False, False, False, True]
    assert are_among(ids, _pairs()).tolist() == [False] * 4
    assert are_among(_pairs(), ids).tolist() == []


def test_an_example_is_listed_once_with_all_that_is_known_of_it():
    old = as_ids(np.array([1, 2, 2, 5], np.uint64))
    assert join_ids(old, _pairs((2, 20), (3, 30), (2, 20))).tolist() == [(1, 0), (5, 0), (2, 20), (3, 30)]
    assert join_ids(_pairs()).tolist() == []


@pytest.mark.parametrize(
    "array", [np.zeros(2), np.zeros((2, 2), np.uint64), np.zeros(2, [("scheme3", "<u8")])], ids=["f8", "table", "later"]
)
def test_what_holds_no_ids_of_a_known_scheme_is_refused(array):
    with pytest.raises(ValueError, match="instead of example IDs"):
        as_ids(array)


def test_a_model_knows_the_examples_of_its_initial_model_of_an_earlier_version(tmp_path):
    records, initial, model = (tmp_path / name for name in ("records", "initial", "model"))
    for folder in (records, initial, model):
        folder.mkdir()
    np.savez(records / "examples.npz", train=_pairs((1, 10), (2, 20)), test=_pairs((3, 30)))
    np.save(initial / "trained_on.npy", np.array([2, 3], np.uint64))
    save_trained_on(records, model, initial)
    assert load_trained_on(model).tolist() == [(3, 0), (1, 10), (2, 20)]
    assert are_among(load_identities(records, "test"), load_trained_on(model)).tolist() == [True]


def test_records_of_an_earlier_version_have_ids_of_scheme_1(tmp_path):
    np.savez(tmp_path / "examples.npz", train=np.array([1, 2], np.uint64))
    assert load_identities(tmp_path, "train").tolist() == [(1, 0), (2, 0)]
    assert load_identities(tmp_path, "test") is None
    np.savez(tmp_path / "examples.npz", train=np.zeros(3))
    with pytest.raises(InputError, match=r"examples\.npz: expected example IDs, received an array of float64"):
        load_identities(tmp_path, "train")
