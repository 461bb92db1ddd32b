"""Finds duplicates and near-duplicates among the images or texts of a data set.

Images are compared by perceptual hashes, which the code calls `looks`.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np

from tpu_components.core.examples.artifacts import SPLITS, TRAIN
from tpu_components.core.examples.example_ids import identify
from tpu_components.core.sources.listing import Listing
from tpu_components.create_tfrecords.splitting import LEFT_OUT, require_examples

LOOKED_AT_ONCE = 64  # Pictures per batch: enough for fast array operations, few enough for a processor's cache.
LOOK_SHAPE = (8, 9)  # Rows and columns of a perceptual hash; each element is the mean grey level of its part.
# JPEG's luma weights: JPEG keeps these grey levels and blurs colours.
_GREY_WEIGHTS = np.array([0.299, 0.587, 0.114], np.float32)
_LEAST_CONTRAST = 3.0  # Standard deviation of a hash. Pictures below it are plain, and would all be near-duplicates.
_LEAST_CORRELATION = 0.996
_MAX_BITS = 10  # Largest number of the 64 bits in which the hashes of near-duplicates differ.
_COMPARED_AT_ONCE = 1 << 14  # Pictures per block of comparisons, which bounds the memory for intermediate arrays.
_NEIGHBOURS = 16  # Each picture is compared with the next 16 pictures that have the same quarter of the bits.
_LISTED = 1000


def look_at(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Return a perceptual hash of each image: the mean grey levels of 8 x 9 equal parts.

    Args:
        pictures: Images of any sizes, uint8[height, width, channels] each.

    Returns:
        uint8[num_pictures, 8, 9].
    """
    looks = np.empty((len(pictures), *LOOK_SHAPE), np.uint8)
    shapes = [picture.shape for picture in pictures]
    for shape in set(shapes):
        places = [i for i, its in enumerate(shapes) if its == shape]
        joined = np.concatenate([pictures[i] for i in places], dtype=np.float32, casting="unsafe")
        grey = joined if shape[2] == 1 else joined.reshape(-1, 3) @ _GREY_WEIGHTS
        grey = grey.reshape(-1, *shape[:2])
        rows, columns = (_averages(size, count) for size, count in zip(shape[:2], LOOK_SHAPE, strict=True))
        looks[places] = np.round(rows @ grey @ columns.T)
    return looks


@functools.cache
def _averages(size: int, count: int) -> np.ndarray:
    """Return a matrix, float32[count, size], that averages a line of `size` points over `count` equal parts."""
    edges = np.linspace(0, size, count + 1)
    starts = edges[:-1, None]
    ends = edges[1:, None]
    points = np.arange(size)
    covered = np.clip(np.minimum(ends, points + 1) - np.maximum(starts, points), 0, None)
    return (covered / covered.sum(axis=1, keepdims=True)).astype(np.float32)


def find_alike(looks: np.ndarray) -> np.ndarray:
    """Find pairs of images that are near-duplicates, such as resized, recompressed or brightened copies.

    The 64 gradient bits of an image (see `_outlines`) are divided into four quarters of 16 bits. Two images are
    compared only if they have a quarter in common. For each quarter, an image is compared with at most 16 others, so
    some pairs in a long series of similar images are not found. Two images are near-duplicates if few of their bits
    differ and their hashes correlate. Images with little contrast are never near-duplicates.

    Args:
        looks: Perceptual hashes, uint8[num_pictures, 8, 9].

    Returns:
        The pairs, int[num_pairs, 2], as indices into `looks`.
    """
    shown, bits = _outlines(looks)
    pairs = [np.empty((0, 2), int)]
    for band in range(4):
        part = (bits >> np.uint64(16 * band)).astype(np.uint16)
        order = np.lexsort((bits, part))
        part, sorted_bits = part[order], bits[order]
        for distance in range(1, min(_NEIGHBOURS, len(order) - 1) + 1):
            for at in range(0, len(order) - distance, _COMPARED_AT_ONCE):
                end = min(at + _COMPARED_AT_ONCE, len(order) - distance)
                here = slice(at, end)
                there = slice(at + distance, end + distance)
                are_near = np.bitwise_count(sorted_bits[here] ^ sorted_bits[there]) <= _MAX_BITS
                near = at + np.flatnonzero((part[here] == part[there]) & are_near)
                both = shown[np.stack([order[near], order[near + distance]], axis=1)]
                values, others = (centred / length[:, None] for centred, length in map(_centred, looks[both.T]))
                pairs.append(both[np.einsum("ij,ij->i", values, others) >= _LEAST_CORRELATION])
    return np.concatenate(pairs)


def _outlines(looks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the images that have enough contrast, and the gradient bits of these images.

    A gradient bit says whether the right neighbour of a pixel in the perceptual hash is darker than the pixel.

    Returns:
        Indices into `looks`, int[num_shown]; and the 64 gradient bits of each of these images, uint64[num_shown].
    """
    shown = [np.empty(0, int)]
    bits = [np.empty(0, np.uint64)]
    for at in range(0, len(looks), _COMPARED_AT_ONCE):
        some = looks[at : at + _COMPARED_AT_ONCE]
        _, lengths = _centred(some)
        chosen = np.flatnonzero(lengths > _LEAST_CONTRAST * np.sqrt(math.prod(LOOK_SHAPE)))
        signed = some[chosen].astype(np.int16)
        darker = (signed[:, :, :-1] > signed[:, :, 1:] + 2).reshape(len(chosen), 64)
        shown.append(chosen + at)
        bits.append(np.packbits(darker, axis=1).view(">u8")[:, 0])
    return np.concatenate(shown), np.concatenate(bits)


def _centred(looks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Subtract its mean from each hash. Return the results, float32[num_looks, 72], and their Euclidean norms."""
    values = looks.reshape(len(looks), math.prod(LOOK_SHAPE)).astype(np.float32)
    values -= values.mean(axis=1, keepdims=True)
    return values, np.linalg.norm(values, axis=1)


def same_words(words: Iterable[bytes]) -> bytes:
    """Return a hash of 8 bytes for the words of a text. The same words in the same order have the same hash."""
    return identify(b" ".join(words))


def pairs_of_equal(values: np.ndarray) -> np.ndarray:
    """Pair each element with the next element that is equal to it. Return the indices, int[num_pairs, 2]."""
    order = np.argsort(values, kind="stable")
    equal = values[order[:-1]] == values[order[1:]]
    return np.stack([order[:-1][equal], order[1:][equal]], axis=1)


def connect(pairs: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Group the examples that are connected by pairs, directly or through other examples.

    The groups are the connected components of a graph with an edge for each pair. Examples without a pair are in no
    group.

    Args:
        pairs: Arrays of pairs of examples, int[num_pairs, 2] each.

    Returns:
        The sorted examples of each group, int[…]. The groups are ordered by their first example.
    """
    parent: dict[int, int] = {}

    def root(example: int) -> int:
        while (above := parent.setdefault(example, example)) != example:
            parent[example] = parent[above]
            example = above
        return example

    for left, other in np.concatenate([np.empty((0, 2), int), *pairs]).tolist():
        first, second = sorted((root(left), root(other)))
        parent[second] = first
    sets: dict[int, list[int]] = {}
    for example in sorted(parent):
        sets.setdefault(root(example), []).append(example)
    return [np.array(members) for members in sets.values()]


@dataclasses.dataclass(frozen=True)
class Copies:
    """The copies (duplicates and near-duplicates) among examples of a data set.

    Attributes:
        listing: The examples of the source.
        splits: Split of every example of the listing: int8[num_examples], indices into `SPLITS`, or LEFT_OUT.
        sets: Sets of examples that are copies of each other, directly or through other copies: int[…] each, indices
            into the listing.
        are_equal: For each set, whether all its examples are equal.
        num_exact: Number of examples that are equal to an earlier example.
        num_near: Number of examples that are near-duplicates of an earlier example, but not equal to any earlier
            example.
    """

    listing: Listing
    splits: np.ndarray
    sets: Sequence[np.ndarray]
    are_equal: Sequence[bool]
    num_exact: int
    num_near: int

    @classmethod
    def find(
        cls, listing: Listing, splits: np.ndarray, examples: np.ndarray, identities: np.ndarray, near: np.ndarray
    ) -> Self:
        """Find the copies among `examples`.

        Args:
            listing: The examples of the source.
            splits: Split of every example of the listing; see `Copies`.
            examples: Examples to search for copies: int[count], indices into the listing.
            identities: A hash of each example's content, uint64[count]. Examples with the same hash count as equal.
            near: Pairs of near-duplicates: int[num_pairs, 2], indices into `examples`.
        """
        equal = pairs_of_equal(identities)
        sets = connect([equal, near])
        are_equal = [len(set(identities[members].tolist())) == 1 for members in sets]
        num_near = sum(len(members) - 1 for members in sets) - len(equal)
        return cls(listing, splits, [examples[members] for members in sets], are_equal, len(equal), num_near)

    def without_leaks(self) -> np.ndarray:
        """Leave out copies so that each set of copies is in only one split. Return the resulting splits.

        Of each set of copies, only those in one split are kept: those in the test split if there are any, otherwise
        those in the validation split if there are any, otherwise those in the training split. The other copies are left
        out (LEFT_OUT). If the source defines splits, only examples of the source's training split are considered.

        No example moves to another split. So a test example does not become a training example when examples are added
        or more copies are found: only the hash of an example's key decides whether the example is in the test split,
        apart from the two rules of `assign_splits` for small classes and groups.

        Returns:
            int8[num_examples], like `splits`.

        Raises:
            InputError: If a split has no examples left.
        """
        splits = self.splits
        own = self.listing.splits
        result = splits.copy()
        is_free = splits != LEFT_OUT if own is None else (own == TRAIN) & (splits != LEFT_OUT)
        for members in self.sets:
            free = members[is_free[members]]
            # Test is the last of the splits, training the first.
            result[free[splits[free] < splits[free].max(initial=0)]] = LEFT_OUT
        require_examples(
            splits,
            result,
            "exact or near copies of held-out examples. Set data.group_column to a CSV column that groups related "
            "examples, remove the copies, or set data.join_copies=false to keep them.",
        )
        return result

    def in_training_too(self) -> np.ndarray:
        """Return a mask, bool[num_examples]: True for held-out examples that have a copy in the training split."""
        result = np.zeros(len(self.splits), bool)
        for members in self.sets:
            trains = self.splits[members] == SPLITS.index(TRAIN)
            result[members] = ~trains & trains.any()
        return result

    def summary(self) -> dict[str, Any]:
        """Return the content of `copies.json`: counts, and at most 1,000 sets of copies.

        Sets whose copies have different labels come first, then sets whose copies are in different splits.
        """
        labels = self.listing.labels
        splits = self.splits
        sets = [
            {
                "equal": equal,
                "contradictory": bool(np.any(labels[members] != labels[members[0]])),
                "across_splits": len(set(splits[members].tolist()) - {LEFT_OUT}) > 1,
                "examples": [self._describe(i) for i in members.tolist()],
            }
            for members, equal in zip(self.sets, self.are_equal, strict=True)
        ]
        sets.sort(key=lambda copies: (not copies["contradictory"], not copies["across_splits"]))
        return {
            "exact": self.num_exact,
            "near": self.num_near,
            "left_out": sum(int(np.count_nonzero(splits[members] == LEFT_OUT)) for members in self.sets),
            "contradictory": sum(bool(copies["contradictory"]) for copies in sets),
            "across_splits": sum(bool(copies["across_splits"]) for copies in sets),
            "sets": sets[:_LISTED],
        }

    def _describe(self, example: int) -> dict[str, Any]:
        label = self.listing.labels[example]
        split = self.splits[example]
        named = self.listing.class_names[label] if label.ndim == 0 else label.tolist()
        stands = "left out" if split == LEFT_OUT else SPLITS[split]
        return {"key": self.listing.keys[example], "split": stands, "label": named}
