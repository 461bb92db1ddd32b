"""Lists the images and labels in NumPy arrays, for all kinds of source that contain arrays."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.class_names import class_name, missing_labels, text_of
from tpu_components.core.examples.example_ids import identify_each
from tpu_components.core.examples.images import are_other_pixels, to_pixels
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, REGRESSION
from tpu_components.core.sources.columns import Names
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.pairs import NOT_SUPPORTED
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.targets import Targets, check_hot, index_labels, read_numbers, without_label

_UNLABELLED = -1
Arrays = dict[str, tuple[np.ndarray, np.ndarray]]


def list_arrays(arrays: Arrays, version: str, params: WriteParams) -> Listing:
    """Return a `Listing` of the images and labels in arrays.

    Args:
        arrays: The images and labels of each split, as {split: (images, labels)}. The key `""` means that the source
            has no splits.
        version: Digest of the content of the arrays.
        params: Parameters of the records.
    """
    for images, labels in arrays.values():
        if labels.ndim > 2 and labels.size > len(images):
            raise InputError(
                f"Cannot use the labels in {params.source}: expected one label for each image, received masks, "
                f"{labels.dtype}{list(labels.shape)}. {NOT_SUPPORTED}"
            )
    arrays, notes = _convert(arrays, params) if params.convert_arrays else (arrays, [])
    for split, (images, _) in arrays.items():
        _check_images(split, images, params.source)
    keys = [f"{split or 'all'}/{i:08d}" for split, (images, _) in arrays.items() for i in range(len(images))]
    labels, classes, unusable = _ARRAY_TARGETS[params.task](arrays, keys, params)
    shapes = {images.shape[1:] for images, _ in arrays.values()}
    if len(shapes) > 1:
        raise InputError(
            f"The images in {params.source} have different shapes: {sorted(shapes)}. Resize them to one shape."
        )
    # Example IDs are hashes of contiguous bytes. Keras returns CIFAR-10 as a transposed view.
    images = np.ascontiguousarray(np.concatenate([images for images, _ in arrays.values()]))
    if images.ndim == 3:
        images = images[..., None]
    hashes = identify_each(images)
    splits = None
    if "" not in arrays:
        splits = np.concatenate([np.full(len(images), split, "<U10") for split, (images, _) in arrays.items()])
    listing = Listing(
        keys=tuple(keys),
        labels=labels,
        class_names=classes,
        splits=splits,
        images=images,
        version=version,
        identities=Names.of_hashes(hashes),
        hashes=hashes,
        notes=tuple(notes),
    )
    return listing.without(unusable)


def _convert(arrays: Arrays, params: WriteParams) -> tuple[Arrays, list[str]]:
    """Convert arrays to the format of `params.task`. Also return a note on each conversion.

    Three forms are converted if the arrays of all splits have them: channels before height and width, pixels that are
    not uint8, and one-hot labels.
    """
    images, labels = ([pair[i] for pair in arrays.values()] for i in range(2))
    notes = []
    if all(array.ndim == 4 and array.shape[1] in (1, 3) and array.shape[3] not in (1, 3) for array in images):
        images = [np.ascontiguousarray(np.moveaxis(array, 1, 3)) for array in images]
        notes.append("the arrays have the channels first, which are moved to the last axis")
    if all(map(are_other_pixels, images)):
        pixels = "floats in [0, 1]" if images[0].dtype.kind == "f" else f"{images[0].dtype} in [0, 255]"
        images = list(map(to_pixels, images))
        notes.append(f"the arrays contain {pixels}, which are converted to uint8 in [0, 255], as models expect")
    if params.task == CLASSIFICATION and all(map(_is_one_hot, labels)):
        labels = [array.argmax(1) for array in labels]
        notes.append("the labels have one column for each class, so the column number is used as the class")
    notes = [f"{note}. data.convert_arrays=false rejects these arrays" for note in notes]
    return dict(zip(arrays, zip(images, labels, strict=True), strict=True)), notes


def _is_one_hot(labels: np.ndarray) -> bool:
    is_table = labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "biuf"
    return is_table and bool(np.isin(labels, (0, 1)).all() and (labels.sum(1) == 1).all())


def _check_images(split: str, images: np.ndarray, source: str) -> None:
    fits = images.ndim == 3 or (images.ndim == 4 and images.shape[-1] in (1, 3))
    if not fits or images.dtype != np.uint8 or 0 in images.shape[1:]:
        how = ""
        if images.dtype.kind == "f" and are_other_pixels(images):
            how = ": (images * 255).round().astype('uint8')"
        elif images.dtype.kind in "iu" and images.size and images.min() >= 0 and images.max() > 255:
            num_bits = int(images.max()).bit_length()
            how = f": for {num_bits}-bit values, (images >> {num_bits - 8}).astype('uint8') in all splits"
        raise InputError(
            f"Cannot use {_images_of(split)} in {source}: expected uint8[N, height, width] or uint8[N, height, width, "
            f"1|3] in [0, 255], received {images.dtype}{list(images.shape)}. Convert them before saving{how}."
        )


def _images_of(split: str) -> str:
    return f"the images of the {split!r} split" if split else "the images"


def _class_arrays(arrays: Arrays, keys: Sequence[str], params: WriteParams) -> Targets:
    for split, (images, labels) in arrays.items():
        if labels.size != len(images) or labels.dtype.kind not in "biufSU":
            advice = "Correct them."
            if labels.ndim == 2 and len(labels) == len(images):
                advice = (
                    "If the labels have one column per class, save labels.argmax(1), or set data.task to multi_label."
                )
            raise InputError(
                f"Cannot use the labels of {_images_of(split)} in {params.source}: expected {len(images)} whole "
                f"numbers or strings, received {labels.dtype}{list(labels.shape)}. {advice}"
            )
    values = np.concatenate([labels.reshape(-1) for _, labels in arrays.values()])
    try:
        distinct, firsts, places = np.unique(values, return_index=True, return_inverse=True)
        texts, garbled = _texts_of(distinct)
    except (UnicodeError, SystemError) as error:  # SystemError: a number beyond Unicode.
        raise InputError(
            f"Cannot use the labels of {params.source}: {error}. Expected whole numbers, or text that UTF-8 can "
            "encode. Correct the labels."
        ) from error
    named = {text if text is None else class_name(text) for text in texts} - {None, *missing_labels(params.class_names)}
    if values.dtype.kind in "biuf" and params.class_names:
        numbers = values.astype(np.float64)
        numbers[np.isnan(numbers)] = _UNLABELLED
        if not named <= set(params.class_names):
            return _named(numbers, params.class_names, keys)
        if named != set(params.class_names):
            _check_meaning(np.unique(numbers), params)
    labels, classes, unusable = index_labels(texts, params.class_names, [keys[i] for i in firsts.tolist()])
    reasons = {**unusable, **garbled}
    return Targets(labels[places], classes, {i: reasons[k] for i, k in enumerate(places.tolist()) if k in reasons})


def _check_meaning(numbers: np.ndarray, params: WriteParams) -> None:
    """Check that numeric labels cannot be read both as names of classes and as indices of other classes.

    Raises:
        InputError: If both readings are possible and differ, as for the labels 1 to 4 and the classes 1 to 5.
    """
    indices = numbers[numbers != _UNLABELLED]
    if not len(indices) or indices.max() >= len(params.class_names):
        return
    differing = [int(i) for i in indices.tolist() if class_name(text_of(i) or "") != params.class_names[int(i)]]
    if differing:
        raise InputError(
            f"The label {differing[0]} in {params.source!r} is ambiguous: it may be the class {str(differing[0])!r}, "
            f"or the class at index {differing[0]}, which is {params.class_names[differing[0]]!r}. Remove "
            "data.class_names to use the numbers as names, or list names that are not numbers."
        )


def _texts_of(labels: np.ndarray) -> tuple[list[str | None], dict[int, str]]:
    """Convert labels to texts. Also return {index: reason} for labels that are not UTF-8.

    Raises:
        UnicodeError: If a text contains half of a surrogate pair, which UTF-8 cannot encode.
    """
    texts: list[str | None] = []
    garbled: dict[int, str] = {}
    for i, label in enumerate(labels.tolist()):
        try:
            texts.append(text_of(label))
        except UnicodeDecodeError:
            texts.append(None)
            garbled[i] = f"its label is not UTF-8: {label!r}"
    "".join(text for text in texts if text).encode()
    return texts, garbled


def _named(values: np.ndarray, class_names: Sequence[str], keys: Sequence[str]) -> Targets:
    """Convert labels that are indices into `class_names`, or -1 if missing. Raise InputError for other labels."""
    outside = np.flatnonzero((values < _UNLABELLED) | (values >= len(class_names)) | (values != np.floor(values)))
    if len(outside):
        raise InputError(
            f"Labels outside the class list: {values[outside[0]]:g} (first at {keys[outside[0]]}). Expected "
            f"whole numbers from 0 to {len(class_names) - 1}, the indices of {list(class_names)}. Correct the labels "
            "or data.class_names."
        )
    missing = np.flatnonzero(values == _UNLABELLED).tolist()
    return Targets(values.astype(np.int32), tuple(class_names), dict.fromkeys(missing, without_label("-1")))


def _hot_arrays(arrays: Arrays, keys: Sequence[str], params: WriteParams) -> Targets:
    parts = [check_hot(labels, len(images), params.source) for images, labels in arrays.values()]
    sizes = {part.shape[1] for part in parts}
    names = params.class_names or tuple(map(str, range(max(sizes))))
    if sizes != {len(names)}:
        raise InputError(
            f"Cannot use the labels in {params.source}: expected one column for each of {list(names)}, received "
            f"{' and '.join(map(str, sorted(sizes)))} columns. Correct data.class_names or the arrays."
        )
    return Targets(np.concatenate(parts), names, {})


def _number_arrays(arrays: Arrays, keys: Sequence[str], params: WriteParams) -> Targets:
    for images, targets in arrays.values():
        if targets.dtype.kind not in "fiu" or targets.ndim not in (1, 2) or len(targets) != len(images):
            raise InputError(
                f"Cannot use the targets in {params.source}: expected numbers of shape [{len(images)}] or "
                f"[{len(images)}, targets], received {targets.dtype}{list(targets.shape)}. Correct the arrays."
            )
    parts = [targets if targets.ndim == 2 else targets[:, None] for _, targets in arrays.values()]
    sizes = {part.shape[1] for part in parts}
    count = max(sizes)
    names = params.target_columns or (("target",) if count == 1 else tuple(f"target_{i}" for i in range(count)))
    if sizes != {len(names)} or not count:
        raise InputError(
            f"Cannot use the targets in {params.source}: expected one column for each of {list(names)}, received "
            f"{' and '.join(map(str, sorted(sizes)))} columns. Correct data.target_columns or the arrays."
        )
    return read_numbers(np.concatenate(parts).astype(np.float64), names, keys)


_ARRAY_TARGETS: Mapping[str, Callable[[Arrays, Sequence[str], WriteParams], Targets]] = {
    CLASSIFICATION: _class_arrays,
    MULTI_LABEL: _hot_arrays,
    REGRESSION: _number_arrays,
}
