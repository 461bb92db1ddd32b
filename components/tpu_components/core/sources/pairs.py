"""Detection of pairs, such as images and their masks, in folders that should contain classes."""

import enum
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.images import has_image_suffix, read_image
from tpu_components.core.examples.interface import IMAGE, ImageRule, UnreadableError

NOT_SUPPORTED = "Segmentation and detection are not supported: a classifier needs a class for each image."
# Words that name the role of a folder or file: input, or answer.
_INPUT = re.compile(
    "(image|img|jpegimage|photo|picture|rgb|frame|original|input|source|text|document|article|sentence)s?"
)
_ANSWER = re.compile(
    "(mask|label|annotation|annot|ann|gt|groundtruth|truth|segmentation|seg|segment|target|output|semantic|matte|trimap|"
    "bbox|bboxe|translation|summary|summarie)s?"
)
# Words that do not affect the role, as in SegmentationClass, leftImg8bit, gtFine_labelIds and images_train.
_NEUTRAL = re.compile(
    "jpe?g|png|class|object|instance|fine|coarse|left|right|bit|binary|colou?r|ground|ids?|raw|prepped|train|training|"
    "val|valid|validation|test|testing|txt|xml|json"
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
_MASK_WORDS = ("mask", "seg", "gt", "label", "annot", "truth", "target", "matte", "trimap")  # In the names of masks.
_SEPARATORS = re.compile(r"[-_. ]+")
_PICTURE_STARTS = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*")
_PAIRED_SHARE = 0.9
_FEWEST_NAMED = 2  # Pairs that are enough if the folder names suggest inputs and answers.
_FEWEST_UNNAMED = 5  # Pairs that are enough if only the images suggest it.
_COMPARED_NAMES = 1000
_SEARCHED_AT_ONCE = 1 << 12
_COMPARED_PAIRS = 6
_MOST_COLOURS = 16  # Colours of a mask.
_FEWEST_COLOURS = 64  # Colours of a picture.


class _Role(enum.Enum):
    """Role of the files in a folder: inputs of a model, or its expected outputs."""

    INPUT = enum.auto()
    ANSWER = enum.auto()


def check_class_folders(
    names: Sequence[str],
    files_of: Callable[[str], Iterable[str]],
    depth: int,
    kind: str,
    location: str,
    read: Callable[[str], bytes],
) -> None:
    """Check that folders are classes, and do not separate examples from their masks or annotations.

    Files of different classes often have the same numbers as names, so equal file names alone do not prove that two
    folders contain pairs. In addition, the folder names must suggest inputs and expected outputs, or the images of one
    folder must look like masks.

    Args:
        names: Names of the class folders.
        files_of: Function that returns the sorted paths of a class folder's files, relative to the source.
        depth: Number of folders above a class folder.
        kind: `image` or `text`.
        location: The source.
        read: Function that returns the content of a file.

    Raises:
        InputError: If two folders contain pairs, or a folder whose name suggests expected outputs has no images.
    """
    inputs = [name for name in names if _role_of(name) is _Role.INPUT]
    answers = [name for name in names if _role_of(name) is _Role.ANSWER]
    for answer in answers:
        if kind == IMAGE and not any(map(has_image_suffix, files_of(answer))):
            _refuse(inputs[0] if inputs else "", answer, [], kind, location)
    for first, second in itertools.product(inputs, answers):
        if pairs := _find_pairs(files_of(first), files_of(second), depth, _FEWEST_NAMED):
            _refuse(first, second, pairs, kind, location)
    if kind == IMAGE and len(names) == 2 and not (inputs and answers):
        firsts, seconds = (itertools.islice(files_of(name), _COMPARED_NAMES) for name in names)
        pairs = _find_pairs(firsts, seconds, depth, _FEWEST_UNNAMED)
        compared = pairs[:: -(-len(pairs) // _COMPARED_PAIRS)] if pairs else []
        if compared and all(_are_picture_and_mask(read, *pair) for pair in compared):
            _refuse(names[0], names[1], pairs, kind, location)
        if compared and all(_are_picture_and_mask(read, *pair[::-1]) for pair in compared):
            _refuse(names[1], names[0], [pair[::-1] for pair in pairs], kind, location)


def check_inner_folders(inner: Mapping[str, Iterable[str]], location: str) -> None:
    """Check that the class folders do not divide their files into images and masks.

    Args:
        inner: Names of the folders in each class folder.
        location: The source.

    Raises:
        InputError: If every class folder has folders for images and for their masks or annotations.
    """
    for folders in inner.values():
        roles = [_role_of(folder) for folder in folders]
        if _Role.INPUT not in roles or _Role.ANSWER not in roles:
            return
    if inner:
        name, folders = next(iter(inner.items()))
        raise InputError(
            f"Every class folder in {location} contains folders of inputs and of their masks or annotations, for "
            f"example {name!r}: {', '.join(map(repr, sorted(folders)))}. {NOT_SUPPORTED} Remove the folders of masks, "
            "or list the classes in data.class_names to use all files."
        )


def find_masks(paths: Sequence[str]) -> list[str]:
    """Return the paths of files that are masks of other files, according to their names.

    For example, `0_mask.png` next to `0.png` is a mask.

    Example:
        >>> find_masks(["a/0.png", "a/0_mask.png", "b/with_mask.png", "0.jpg", "0.seg.png"])
        ['a/0_mask.png', '0.seg.png']
    """
    if not _have_word(_MASK_WORDS, paths):  # There are rarely masks.
        return []
    names = [(path, *_split_name(path)) for path in paths]
    pictures = {stem for _, stem, is_answer in names if not is_answer}
    return [path for path, stem, is_answer in names if is_answer and stem in pictures]


def _have_word(words: Sequence[str], paths: Iterable[str]) -> bool:
    """Return whether any file name contains one of the words. `words` must be in lower case."""
    names = (path.rpartition("/")[2] for path in paths)
    while joined := "\n".join(itertools.islice(names, _SEARCHED_AT_ONCE)).lower():
        if any(word in joined for word in words):
            return True
    return False


def is_picture(value: Any) -> bool:
    """Return whether a value is the bytes of an image file, or a Hugging Face image, `{bytes, path}`."""
    if isinstance(value, dict):
        return isinstance(value.get("bytes"), bytes)
    return isinstance(value, bytes) and value.startswith(_PICTURE_STARTS)


def _role_of(name: str) -> _Role | None:
    """Return the role that the words of a folder or file name suggest. Neutral words such as `train` are ignored.

    Return None if the name has only neutral words, or a word that is not neutral and suggests no role.
    """
    words = [word for word in map(str.lower, _WORD.findall(name)) if not _NEUTRAL.fullmatch(word)]
    if not words or not all(_INPUT.fullmatch(word) or _ANSWER.fullmatch(word) for word in words):
        return None
    return _Role.ANSWER if any(map(_ANSWER.fullmatch, words)) else _Role.INPUT


def _split_name(path: str) -> tuple[str, bool]:
    """Return a path without its extension and without the words that suggest a role.

    Also return whether one of the removed words suggests a mask or label.
    """
    folder, slash, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    if stem.isdigit() and suffix.isalnum():  # The names of most files.
        return f"{folder}{slash}{stem}", False
    words = _SEPARATORS.split(stem if dot and suffix.isalnum() else name)
    roles = [_role_of(word) for word in words]
    kept = [word for word, role in zip(words, roles, strict=True) if role is None] or words
    return f"{folder}{slash}{'_'.join(kept)}", len(kept) < len(words) and _Role.ANSWER in roles


def _find_pairs(firsts: Iterable[str], seconds: Iterable[str], depth: int, fewest: int) -> list[tuple[str, str]]:
    """Return pairs of files with the same name in two class folders.

    Return an empty list if there are fewer than `fewest` pairs, or if fewer than 90% of the files in the smaller folder
    are in a pair.
    """
    by_name: list[dict[str, str]] = [{}, {}]
    for known, paths in zip(by_name, (firsts, seconds), strict=True):
        for path in paths:
            parts = path.split("/")
            del parts[depth]
            known.setdefault(_split_name("/".join(parts))[0], path)
    pairs = [(path, by_name[1][name]) for name, path in by_name[0].items() if name in by_name[1]]
    return pairs if len(pairs) >= max(fewest, _PAIRED_SHARE * min(map(len, by_name))) else []


def _are_picture_and_mask(read: Callable[[str], bytes], picture: str, mask: str) -> bool:
    """Return whether two images have the same size, and only the second has as few colours as a mask."""
    try:
        arrays = [read_image(read(path), ImageRule(None, 0)).pixels for path in (picture, mask)]
    except (InputError, UnreadableError):
        return False
    if arrays[0].shape[:2] != arrays[1].shape[:2]:
        return False
    of_picture, of_mask = (len(np.unique(array.reshape(-1, array.shape[-1]), axis=0)) for array in arrays)
    return of_mask <= _MOST_COLOURS and of_picture >= _FEWEST_COLOURS


def _refuse(inputs: str, answers: str, pairs: Sequence[tuple[str, str]], kind: str, location: str) -> None:
    """Raise InputError because the folder `answers` contains the masks or labels of the folder `inputs`."""
    if kind == IMAGE:
        images = f"the images in {inputs!r}" if inputs else "images"
        reason = f"it contains masks or annotations of {images}. {NOT_SUPPORTED}"
    else:
        reason = (
            f"it contains the expected outputs for the texts in {inputs!r}. Expected a folder of texts for each class."
        )
    example = f" For example, {pairs[0][1]!r} belongs to {pairs[0][0]!r}." if pairs else ""
    raise InputError(
        f"The folder {answers!r} in {location} is not a class: {reason}{example} If it is a class, list all "
        "classes in data.class_names."
    )
