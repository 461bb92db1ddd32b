import base64
import dataclasses
import io
import json
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.generation import Alphabet
from tpu_components.core.examples.images import read_image
from tpu_components.core.examples.interface import CorpusInput, ImageInput, ImageRule
from tpu_components.serving.exported import ExportedModel, PromptReader
from tpu_components.serving.instances import TooLargeError, parse_infer, parse_request, render_predictions
from tpu_components.serving.params import ServeParams

LIMITS = ServeParams(max_instances=4, max_image_pixels=10_000)
GREY, COLOUR = (2, 3, 1), (2, 3, 3)
PIXELS = np.arange(6, dtype=np.uint8).reshape(GREY) * 40
MODEL = ExportedModel(
    "pets", ("cat", "dog", "rötel"), ImageInput(GREY, "raw"), lambda images: images, ImageInput(GREY, "raw")
)


def parse(*instances, shape=GREY, limits=LIMITS, **rest):
    body = instances[0] if instances and isinstance(instances[0], bytes) else {"instances": list(instances), **rest}
    return parse_request(
        body if isinstance(body, bytes) else json.dumps(body).encode(),
        ImageInput(shape, "raw"),
        limits,
    )


def b64(content):
    return {"b64": base64.b64encode(content).decode()}


@pytest.mark.parametrize(
    "instance",
    [PIXELS.tolist(), PIXELS[:, :, 0].tolist(), PIXELS.astype(float).tolist(), {"image": PIXELS.tolist()}],
    ids=["channels", "grey", "floating point", "named"],
)
def test_pixels_arrive_as_they_were_sent(instance):
    images = parse(instance).inputs
    assert images.dtype == np.uint8
    assert np.array_equal(images, PIXELS[None])


def test_colour_pixels_need_their_channels():
    pixels = np.arange(18, dtype=np.uint8).reshape(COLOUR)
    assert np.array_equal(parse(pixels.tolist(), shape=COLOUR).inputs[0], pixels)
    with pytest.raises(InputError, match=r"expected pixels \[2\]\[3\]\[3\], whole numbers.*Received: \[2\]\[3\]\."):
        parse(pixels[:, :, 0].tolist(), shape=COLOUR)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
@pytest.mark.parametrize("size", [(2, 3), (40, 31)])
@pytest.mark.parametrize("shape", [GREY, COLOUR])
def test_image_files_are_decoded_as_everywhere_else(encode, kind, size, shape):
    content = encode(size=size, kind=kind)
    expected = read_image(content, ImageRule(shape[:2], shape[2])).pixels
    for instance in (b64(content), {"image": b64(content)}, {"encoded": b64(content)}):
        assert np.array_equal(parse(instance, shape=shape).inputs[0], expected)


def test_instances_of_every_kind_keep_their_order(encode):
    images = parse(PIXELS.tolist(), b64(encode()), {"image": PIXELS.tolist()}).inputs
    assert images.shape == (3, *GREY)
    assert np.array_equal(images[0], images[2])
    assert not np.array_equal(images[0], images[1])


ROW = [0, 1, 2]


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        (None, r"expected {\"b64\": \"…\"}.* or pixels \[2\]\[3\]\[1\]\. Received: null\."),
        (True, "Received: a truth value"),
        (3, "Received: a number"),
        ("AAAA", "Received: a string"),
        ({}, "Received: an object with nothing in it"),
        ({"b64": 3}, "Received: an object with 'b64'"),
        ({"pixles": []}, "Received: an object with 'pixles'"),
        ({"image": None}, "Received: an object with 'image'"),
        ({"image": {"image": [ROW, ROW]}}, "Received: an object with 'image'"),
        ({"b64": "AAAA", "top": 1}, "Received: an object with 'b64', 'top'"),
        ({"b64": "no base64!"}, "expected Base64.*The received text is not valid: "),
        ({"b64": "ä"}, "expected Base64.*The received text is not valid: "),
        ({"b64": ""}, "Received: no bytes"),
        (b64(b"no image"), "expected a JPEG, PNG.*Received: not an image"),
        ([], r"Received: \[0\]"),
        ([ROW], r"Received: \[1\]\[3\]"),
        ([ROW, [0, 1]], "Received: lists of different lengths"),
        ([ROW, [0, 1, [2]]], "Received: lists of different lengths"),
        ([ROW, [0, 1, 256]], r"Received: 256\. Do not scale the pixels"),
        ([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0]], r"Received: only 0\.0 and 1\.0\. If the pixels are scaled"),
        ([ROW, [0, 1, -1]], "Received: -1"),
        ([ROW, [0, 1, 0.5]], r"Received: 0\.5"),
        ([ROW, [0, 1, 1e300]], r"Received: 1e\+300"),
        ([ROW, [0, 1, 10**30]], "Received: values that are not numbers"),
        ([ROW, [0, 1, "2"]], "Received: values that are not numbers"),
        ([ROW, [0, 1, None]], "Received: values that are not numbers"),
        ([[True] * 3] * 2, "Received: values that are not numbers"),
    ],
)
def test_bad_instance_is_named_with_what_was_expected_and_received(instance, message):
    with pytest.raises(InputError, match=rf"instances\[1\]: .*{message}"):
        parse(PIXELS.tolist(), instance)


@pytest.mark.parametrize("read", ["V1", "V2"])
def test_words_for_pixels_are_refused_before_they_take_memory(read):
    """An array of them would give each the room of the longest: 80 MB here."""
    words = ["x" * 200_000, *["a"] * 99]
    tensor = {"name": "image", "shape": [1, *GREY], "datatype": "UINT8", "data": words}
    body = json.dumps({"instances": [words]} if read == "V1" else {"inputs": [tensor]}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="expected"):
            parse_request(body, ImageInput(GREY, "raw"), LIMITS) if read == "V1" else parse_infer(body, MODEL, LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_truncated_image_is_refused(encode):
    with pytest.raises(InputError, match=r"instances\[0\]: .*damaged JPEG"):
        parse(b64(encode(kind="JPEG")[:-20]))


def test_image_with_too_many_pixels_is_refused():
    buffer = io.BytesIO()
    Image.new("1", (15_000, 10_000)).save(buffer, "PNG")
    assert len(buffer.getvalue()) < 100_000
    with pytest.raises(InputError, match="10000×15000 pixels: expected at most"):
        parse(b64(buffer.getvalue()))


def grey_png(size):
    buffer = io.BytesIO()
    Image.new("1", size).save(buffer, "PNG")
    return buffer.getvalue()


def test_images_with_too_many_pixels_in_all_are_refused_before_they_are_decoded():
    limits = ServeParams(max_request_pixels=4_000_000)
    body = json.dumps({"instances": [b64(grey_png((1024, 1024)))] * 4}).encode()
    with pytest.raises(TooLargeError, match=r"may have at most 4,000,000 pixels together \(--max-request-pixels\)"):
        parse_request(body, ImageInput(GREY, "raw"), limits)
    tiny, large = json.dumps({"instances": [b64(grey_png((1, 1)))] * 4}).encode(), ImageInput((1024, 1024, 1), "raw")
    with pytest.raises(TooLargeError, match="at least as many as the model's input"):
        parse_request(tiny, large, limits)


def test_large_images_are_decoded_one_by_one_after_parsing(encode):
    contents = [encode(size=(700, 700), kind="PNG") for _ in range(5)]
    asked = parse(*map(b64, contents), shape=COLOUR, limits=ServeParams())
    assert list(asked.waiting) == [0, 1, 2, 3, 4]
    assert asked.num_bytes == asked.inputs.nbytes + sum(map(len, contents))
    for number in range(5):
        asked.decode(number)
    assert asked.num_bytes == asked.inputs.nbytes
    expected = [read_image(content, ImageRule(COLOUR[:2], 3)).pixels for content in contents]
    assert np.array_equal(asked.inputs, expected)


def test_a_large_image_that_cannot_be_decoded_is_named(encode):
    broken = encode(size=(1200, 1200), kind="JPEG")
    asked = parse(b64(encode()), b64(broken[: len(broken) // 2]), limits=ServeParams())
    with pytest.raises(InputError, match=r"instances\[1\]: .*damaged JPEG"):
        asked.decode(1)


def test_a_jpeg_of_many_scans_is_refused_because_each_is_a_pass_over_all_pixels():
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16), np.uint8)).save(
        buffer, "JPEG", progressive=True
    )
    content = buffer.getvalue()
    assert len(parse(b64(content)).inputs) == 1
    end = content.rindex(b"\xff\xd9")
    scan = content[content.rindex(b"\xff\xda") : end]
    with pytest.raises(InputError, match=r"instances\[0\]: .*a JPEG file of 1,0\d\d scans: expected at most 32"):
        parse(b64(content[:end] + scan * 1000 + content[end:]))


def parse_file(content, top=None, content_type="image/png", reader=None):
    return parse_request(content, reader or ImageInput(COLOUR, "raw"), LIMITS, content_type, top)


def test_a_body_may_be_an_image_itself(encode):
    content = encode(size=(40, 31), kind="JPEG")
    asked = parse_file(bytearray(content), "2", "")
    assert asked.top == 2
    assert np.array_equal(asked.inputs, parse(b64(content), shape=COLOUR).inputs)
    assert parse_file(content).top is None
    with pytest.raises(InputError, match=r"expected a JPEG.*Received: not an image"):
        parse_file(b"no image")
    with pytest.raises(InputError, match=r'"top" must be a whole number of at least 1\. Received: x'):
        parse_file(content, "x")
    with pytest.raises(InputError, match=r'"top" must be a whole number of at least 1\. Received: 9{40}\.'):
        parse_file(content, "9" * 5000)
    with pytest.raises(InputError, match=r"The model takes a text\. Received: an image"):
        parse_file(content, reader=PromptReader(CorpusInput(8, 4), ("a",)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", r"must be JSON, such as {\"instances\": \[…\]}"),
        (b"{", "must be JSON"),
        (b"\xff\xfe\x00", "must be JSON"),
        (b'{"instances": [NaN]}', "must be JSON.*line 1 column 16"),
        (b"[" * 100_000, "must be JSON.*recursion limit"),
        (b'{"instances": [%s]}' % (b"9" * 5000), "must be JSON.*out of range"),
        (rb'{"instances": [1], "parameters": {"top": "\ud800"}}', "must be JSON.*hex escape"),
        (b'{"instances": ["\xed\xa0\x80"]}', "must be JSON.*invalid"),
        (b"[]", "The body must be a JSON object. Received: a list"),
        (b"{}", "at least one image. Received: null"),
        (b'{"instances": []}', "Received: an empty list"),
        (b'{"instances": {"b64": ""}}', "Received: an object with 'b64'"),
        (
            b'{"instance": [1]}',
            "may contain only instances and parameters. Received: 'instance'. Did you mean 'instances'",
        ),
        (b'{"instances": [1], "parameters": 3}', '"parameters" must be a JSON object. Received: a number'),
        (
            b'{"instances": [1], "parameters": {"topp": 3}}',
            "may contain only top. Received: 'topp'. Did you mean 'top'",
        ),
        *(
            (b'{"instances": [1], "parameters": {"top": %s}}' % top, '"top" must be a whole number of at least 1')
            for top in (b"0", b"-1", b"1.5", b"true", b'"3"', b"1e999", b"[]")
        ),
    ],
)
def test_bad_body_is_refused(body, message):
    with pytest.raises(InputError, match=message):
        parse(body)


def test_characters_beyond_the_first_plane_may_be_escaped():
    names = ("", "", "\N{GRINNING FACE}", "a")
    model = PromptReader(CorpusInput(8, 4), names)
    asked = [
        parse_request(json.dumps({"instances": ["\N{GRINNING FACE}a"]}, ensure_ascii=how).encode(), model, LIMITS)
        for how in (False, True)
    ]
    assert np.array_equal(asked[0].inputs, asked[1].inputs)
    assert asked[0].inputs[0, :2].tolist() == Alphabet(names).encode("\N{GRINNING FACE}a").tolist()


def test_too_many_instances_are_refused():
    with pytest.raises(TooLargeError, match=r"may contain at most 4 instances \(--max-instances\)\. Received: 5"):
        parse(*[PIXELS.tolist()] * 5)


@pytest.mark.parametrize(("parameters", "top"), [(None, None), ({}, None), ({"top": 2}, 2), ({"top": 2.0}, 2)])
def test_top_may_be_given(parameters, top):
    assert parse(PIXELS.tolist(), parameters=parameters).top == top


def test_messages_hold_no_content():
    """They are for logs as well."""
    for instance in ("secret", {"secret" * 20: 1}, [["secret"]], {"b64": "secret"}):
        with pytest.raises(InputError) as refused:
            parse(instance)
        assert len(str(refused.value)) < 200
        assert str(refused.value).count("secret") <= 6  # Of a key, which tells what is wrong, the first 40 letters.


@pytest.mark.parametrize(
    ("top", "names"), [(None, ["dog", "rötel", "cat"]), (1, ["dog"]), (9, ["dog", "rötel", "cat"])]
)
def test_predictions_name_the_class_and_the_likeliest_first(top, names):
    content = render_predictions(MODEL, np.array([[0, 0.75, 0.25]], np.float32), top)
    (prediction,) = json.loads(content)["predictions"]
    assert (prediction["class"], prediction["confidence"]) == ("dog", 0.75)
    assert list(prediction["probabilities"]) == names


def test_predictions_of_several_labels_name_those_above_a_half():
    model = dataclasses.replace(MODEL, task="multi_label")
    content = render_predictions(model, np.array([[0.75, 0.5, 0.875], [0.25, 0, 0]], np.float32), None)
    first, second = json.loads(content)["predictions"]
    assert first["labels"] == ["rötel", "cat"]
    assert list(first["probabilities"].values()) == [0.875, 0.75, 0.5]
    assert second["labels"] == []


def test_predictions_of_a_regression_are_numbers_with_names_and_top_is_refused():
    model = dataclasses.replace(MODEL, task="regression")
    outputs = np.array([[-1.5, 2000.25, 0]], np.float32)
    (prediction,) = json.loads(render_predictions(model, outputs, None))["predictions"]
    assert prediction == {"values": dict(zip(MODEL.class_names, (-1.5, 2000.25, 0.0), strict=True))}
    with pytest.raises(
        InputError, match=r'"top" applies only to classes. Received: "top": 2 for a model that predicts numbers'
    ):
        render_predictions(model, outputs, 2)
