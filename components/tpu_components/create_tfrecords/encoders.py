"""Checks and encodes examples: images, texts and passages of a corpus."""

import contextlib
import dataclasses
import functools
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.measuring import MOST_COUNTED, MOST_MEASURED, is_measured, thin_out
from tpu_components.core.examples.artifacts import TEXT_FEATURE
from tpu_components.core.examples.example_ids import identify, identify_bands, identify_pixels, identify_text
from tpu_components.core.examples.images import (
    Picture,
    UnreadableImageError,
    check_encoded,
    is_lossless,
    open_image,
    original_pixels,
    read_image,
)
from tpu_components.core.examples.interface import CorpusInput, ImageInput, ImageRule, TextInput, UnreadableError
from tpu_components.core.examples.records import ENCODED, RAW, RESIZED
from tpu_components.core.examples.resizing import check_resized
from tpu_components.core.examples.text import Tokenizer, build_vocabulary, vocabulary_bytes
from tpu_components.create_tfrecords.planning import DatasetPlan

_MAX_RAW_BYTES = 64 * 64 * 3
_RESIZE_FROM = 1.1  # Images up to this factor larger than wanted are stored as they are, without a second compression.
_SURVEYED = 9  # Number of photos whose sizes represent those of all photos.
_JPEG_SHARE = 0.15  # Estimated ratio of a JPEG file's bytes to its pixel bytes at the default quality.
# Framing, field names and the key; estimates, for sizing shards.
_RECORD_OVERHEAD_BYTES, _PASSAGE_OVERHEAD_BYTES = 80, 100


class EncodedExample(NamedTuple):
    """An example in the form in which a record stores it, and its measurements.

    Attributes:
        fields: Fields of the record, without label and key.
        counts: Counts that are summed over the split for its statistics, in the order of `measuring.COUNTS`.
        identity: IDs of the example in both schemes (see `example_ids`): an element of `ID_TYPE` as 16 bytes.
        picture: Small version of an image, from which its perceptual hash and grey levels are computed. None for other
            inputs.
        figures: Measurements that are not computed from `picture`, in the order of `measuring.FIGURES`. For images:
            height and width. For texts: number of words, share of unknown words in thousandths, and bytes per word in
            tenths. None if the example is not measured.
        num_pixels: Number of pixels in an image's file, before it is resized.
    """

    fields: Mapping[str, bytes | int]
    identity: bytes
    picture: np.ndarray | None = None
    counts: tuple[int, ...] = ()
    figures: tuple[int, ...] | None = None
    num_pixels: int = 0


@dataclasses.dataclass(frozen=True)
class ImageEncoder:
    """Encodes images as raw pixels, as JPEG files of the same shape, or as their original files.

    Attributes:
        image: Size and channels that images are converted to.
        input: Description of the examples in the manifest.
        jpeg_quality: Quality of the JPEG files, if images are stored as JPEG files of the same shape.
        measured_share: Share of the images for which `EncodedExample.figures` are computed.
        keeps_bytes: Whether the images stay in existing records of another program. If so, they cannot be converted.
    """

    image: ImageRule
    input: ImageInput
    jpeg_quality: int
    measured_share: float = 1.0
    keeps_bytes: bool = False

    def store(self, key: str, content: Any, known: bytes | None) -> EncodedExample:
        """Check and encode an image: the bytes of an image file, or an element of an array.

        Args:
            key: Key of the example, for messages.
            content: Bytes of the file, or element of the array.
            known: Result of `example_ids.identify` for `content`, or None if the caller does not have it.

        Raises:
            UnreadableError: If the example must be quarantined.
            InputError: If the shape of the image differs from that of the first image. In that case, no records are
                written.
        """
        if self.input.encoding == ENCODED:
            payload, shape, picture = check_encoded(content, self.image)
        elif self.input.encoding == RESIZED:
            payload, shape, picture = check_resized(content, self.image, self.jpeg_quality)
        else:
            picture = read_image(content, self.image)
            payload = picture.pixels.tobytes()
            shape = picture.pixels.shape
        if shape != self.input.fed_shape:
            raise _odd_shape_error(self.input.fed_shape, key, shape)
        if self.keeps_bytes and not content.endswith(payload):
            turned = "a photo that its EXIF orientation rotates (data.apply_rotation=false accepts it unrotated)"
            received = turned if picture.was_turned else "another format or colour space"
            raise UnreadableError(
                f"training cannot read it as it is stored: expected a greyscale or RGB JPEG or PNG, received {received}"
            )
        # If files stay encoded, only the perceptual hash shows that two files have the same pixels.
        stored = known if known and picture.pixels is content else identify(payload)
        height, width = picture.size
        sides = min(height, MOST_COUNTED), min(width, MOST_COUNTED)
        return EncodedExample(
            {ImageInput.feature: payload},
            stored + self._identify(content, picture, known, stored),
            thin_out(picture.pixels),
            (picture.was_turned, picture.has_few_levels, picture.is_only_alpha),
            sides if is_measured(stored, self.measured_share) else None,
            height * width,
        )

    def _identify(self, content: Any, picture: Picture, known: bytes | None, stored: bytes) -> bytes:
        """Return the example ID of an image in scheme 2, which the module `example_ids` describes.

        Args:
            content: Bytes of the file, or element of the array.
            picture: The image that was read from `content`.
            known: Result of `identify` for an element of an array, or None if the caller does not have it.
            stored: Result of `identify` for the stored image.
        """
        if not isinstance(content, bytes):
            return identify_pixels(content, known)
        if picture.loaded is not None:
            if picture.is_original and self.input.encoding == RAW and is_lossless(content, picture.loaded):
                return identify_pixels(picture.pixels, stored)
            if identity := identify_bands(original_pixels(content, picture)):
                return identity
        is_kept = self.input.encoding == ENCODED and picture.jpeg and not picture.was_turned
        return stored if is_kept else identify(content)


@dataclasses.dataclass(frozen=True)
class TextEncoder:
    """Encodes texts as token IDs, and also stores the original texts. See `ImageEncoder`."""

    input: TextInput
    vocabulary: tuple[bytes, ...] = dataclasses.field(repr=False)

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer(self.input, self.vocabulary)

    def store(self, key: str, content: Any, known: bytes | None) -> EncodedExample:
        """Check and encode the bytes of a text. See `ImageEncoder.store`."""
        encoded = self._tokenizer.encode_stored(content)
        ids = encoded.ids.astype(np.dtype(self.input.stored_dtype).newbyteorder("<")).tobytes()
        wanted = self.input.num_tokens
        kept = min(encoded.num_tokens, wanted)
        word_length = round(10 * len(content) / encoded.num_tokens)
        hashed = known or identify(content)
        return EncodedExample(
            {TextInput.feature: ids, TEXT_FEATURE: content},
            hashed + identify_text(content, hashed),
            None,
            (encoded.num_tokens > wanted, encoded.num_tokens < wanted, kept, encoded.num_unknown),
            (
                min(encoded.num_tokens, MOST_COUNTED),
                round(1000 * encoded.num_unknown / kept),
                min(word_length, MOST_COUNTED),
            ),
        )


@dataclasses.dataclass(frozen=True)
class CorpusEncoder:
    """Encodes passages of a corpus as IDs of characters. See `ImageEncoder`."""

    input: CorpusInput

    def store(self, key: str, content: bytes, known: bytes | None) -> EncodedExample:
        """Return a passage in its stored form. `content` is the result of `Corpus.passage`, as bytes."""
        hashed = identify(content)
        return EncodedExample({CorpusInput.feature: content}, hashed + hashed)  # The IDs of passages are not saved.


Encoder = ImageEncoder | TextEncoder | CorpusEncoder
"""An object that checks and encodes examples. It is sent to the worker processes."""


def _odd_shape_error(expected: tuple[int, int, int], key: str, shape: Sequence[int]) -> InputError:
    if tuple(shape[:2]) == expected[:2]:
        kinds = {1: "grey", 3: "colour"}
        return InputError(
            f"Grey and colour images are mixed: expected {kinds[expected[2]]} images like the first image, received "
            f"the {kinds[shape[2]]} image {key!r}. Set data.channels to 1 or 3 to convert all of them."
        )
    return InputError(
        f"Images differ in size: expected {expected[0]}×{expected[1]} like the first image, received "
        f"{shape[0]}×{shape[1]} for {key!r}. Set data.image_size to [height, width] to resize all of them."
    )


def choose_encoder(plan: DatasetPlan, counts: Counter[bytes] | None) -> tuple[Encoder, int]:
    """Choose how to encode the examples of a plan. Return the encoder and the estimated size of a record in bytes.

    Args:
        plan: Examples to encode.
        counts: For texts, the number of times that each word occurs in the training split; otherwise None.

    Raises:
        InputError: If no example can be encoded with the plan's parameters.
    """
    if plan.listing.corpus is not None:
        inputs = plan.listing.corpus.input
        num_bytes = inputs.stored_tokens * np.dtype(inputs.stored_dtype).itemsize
        return CorpusEncoder(inputs), num_bytes + _PASSAGE_OVERHEAD_BYTES
    if counts is not None:
        return _choose_text_encoder(plan, counts)
    return _choose_image_encoder(plan)


def _choose_text_encoder(plan: DatasetPlan, counts: Counter[bytes]) -> tuple[TextEncoder, int]:
    """Return an encoder for texts, and the estimated size of a record in bytes.

    The encoder's vocabulary consists of the most frequent words of the training split.
    """
    params, listing = plan.params, plan.listing
    if not counts:
        raise InputError(
            f"Found no word in the training texts of {params.source!r}: expected text in UTF-8. Check the source."
        )
    vocabulary = build_vocabulary(counts, params.vocabulary_size)
    tokens = TextInput(
        num_tokens=params.num_tokens,
        vocabulary_size=params.vocabulary_size,
        vocabulary_sha256=hashlib.sha256(vocabulary_bytes(vocabulary)).hexdigest(),
        tokenization=params.tokenization,
        truncate=params.truncate,
    )
    num_bytes = sum(map(len, listing.texts)) if listing.texts else listing.num_bytes
    payload = num_bytes // len(listing.keys) + params.num_tokens * np.dtype(tokens.stored_dtype).itemsize
    return TextEncoder(tokens, vocabulary), payload + _RECORD_OVERHEAD_BYTES


def _choose_image_encoder(plan: DatasetPlan) -> tuple[ImageEncoder, int]:
    """Return an encoder for images, and the estimated size of a record in bytes.

    The first readable image determines the shape of all images, unless the parameters or an array determine it.
    """
    params, listing = plan.params, plan.listing
    size = (params.image_size[0], params.image_size[1]) if params.image_size else None
    margin = _margin(size, params.crop_margin)
    if size:  # Stored pictures include the margin.
        size = size[0] + margin[0], size[1] + margin[1]
    image = dataclasses.replace(params.image_rule, image_size=size, reduced=listing.images is None)
    if listing.images is not None:
        height, width, channels = listing.images.shape[1:]
        shape = (*(size or (height, width)), params.channels or channels)
    else:
        shape = _first_shape(plan, image)
    raw_bytes = math.prod(shape)
    encoding = params.encoding
    if listing.stored is not None:
        encoding = listing.stored.encoding
        if encoding == RAW and (size or params.channels):
            raise InputError(
                "With data.rewrite=false, training reads raw pixels as they are stored, so data.image_size and "
                "data.channels cannot be used. Remove these settings, or set data.rewrite to true."
            )
    if listing.images is not None:
        if encoding not in ("auto", RAW) or any(margin):
            raise InputError(
                "Arrays are stored raw and without a margin, because other encodings need image files. Received: "
                f"encoding={encoding!r} and crop_margin={params.crop_margin} with {params.source!r}. Set "
                "data.encoding to auto, and data.crop_margin to 0."
            )
        encoding = RAW
    elif encoding == "auto" and any(margin):
        encoding = RESIZED
    elif encoding == "auto":
        encoding = RAW if raw_bytes <= _MAX_RAW_BYTES else _for_photos(plan, image)
    if encoding == ENCODED:
        payload = listing.num_bytes // len(listing.keys)
    else:
        payload = raw_bytes if encoding == RAW else math.ceil(raw_bytes * _JPEG_SHARE)
    of_model = shape[0] - margin[0], shape[1] - margin[1], shape[2]
    inputs = ImageInput(of_model, encoding, image.upright, image.reduced, margin)
    measured_share = min(1.0, MOST_MEASURED / len(listing.keys))
    encoder = ImageEncoder(image, inputs, params.jpeg_quality, measured_share, listing.stored is not None)
    return encoder, payload + _RECORD_OVERHEAD_BYTES


def _margin(size: tuple[int, int] | None, share: float) -> tuple[int, int]:
    """Return how many rows and columns stored images have in addition to `size`, half of them on each side.

    Return (0, 0) if `size` is None.
    """
    height, width = (2 * round(side * share / 2) for side in size or (0, 0))
    return height, width


def _for_photos(plan: DatasetPlan, image: ImageRule) -> str:
    """Return the encoding for photos: RESIZED if a few sampled photos are larger than needed, otherwise ENCODED."""
    if image.image_size is None:
        return ENCODED
    count = len(plan.listing.keys)
    areas = []
    for place in np.linspace(0, count - 1, min(_SURVEYED, count)).astype(int).tolist():
        with contextlib.suppress(UnreadableImageError, InputError):
            file = open_image(plan.listing.read(place), image)
            areas.append(file.num_pixels)
    return RESIZED if areas and np.median(areas) > _RESIZE_FROM**2 * math.prod(image.image_size) else ENCODED


def _first_shape(plan: DatasetPlan, image: ImageRule) -> tuple[int, int, int]:
    listing = plan.listing
    reason = ""
    for place, key in enumerate(listing.keys):
        try:
            height, width, channels = read_image(listing.read(place), image).pixels.shape
            return height, width, channels
        except (UnreadableImageError, InputError) as error:
            reason = reason or f"{key!r}: {error}"
    raise InputError(
        (
            f"Found no readable image in {plan.params.source!r}: expected JPEG, PNG or another image format. "
            f"Received: {len(listing.keys)} files that cannot be read as images (the first: {reason}). Check the "
            "source."
        )
        + (f" Notes about the source: {'; '.join(listing.notes)}." if listing.notes else "")
    )
