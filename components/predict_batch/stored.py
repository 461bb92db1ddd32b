"""Records that create_tfrecords wrote: named by their shards' numbers of examples, found once they are read."""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Shard
from tpu_components.core.examples.records import DamagedRecordError, find_records
from tpu_components.core.files import storage


class Places(Sequence[str]):
    """Places of all records of some shards, in their order; no more is in memory than the shards.

    Args:
        shards: The shards.

    Example:
        >>> places = Places([Shard("train-0", 2, 0, ""), Shard("train-1", 3, 0, "")])
        >>> len(places), places[1], places[4]
        (5, 'train-0[1]', 'train-1[2]')
    """

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = tuple(shards)
        self._ends = list(itertools.accumulate(shard.num_examples for shard in self._shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, place: Any) -> Any:
        shard = self._shards[number := bisect.bisect_right(self._ends, place)]
        return f"{shard.name}[{place - self._ends[number] + shard.num_examples}]"


def read_frames(root: str, places: Iterable[str]) -> Iterator[bytes]:
    """Yield the records at some places, each with its frame; of a shard some megabytes at a time are in memory.

    Args:
        root: Folder of the shards, here or in a bucket.
        places: Places as `Places` has them, in its order.

    Raises:
        InputError: If a shard is missing, damaged, or has fewer records than its manifest says.
    """
    split = ((name, int(number)) for name, _, number in (place[:-1].rpartition("[") for place in places))
    for name, group in itertools.groupby(split, key=lambda place: place[0]):
        yield from _read(f"{root}/{name}", [number for _, number in group])


def _read(path: str, numbers: Sequence[int]) -> Iterator[bytes]:
    """Yield the records of a shard that have some numbers, which grow."""
    with storage.open_file(path) as file:
        spans, following = find_records(file), 0
        for number in numbers:
            try:
                offset, num_bytes = next(itertools.islice(spans, number - following, None))
            except StopIteration:
                raise InputError(
                    f"Cannot read {path}: expected {numbers[-1] + 1:,} records or more, as its manifest says, received "
                    "fewer. Write the records again."
                ) from None
            except DamagedRecordError as error:
                raise InputError(f"Cannot read {path}: {error}. Write the records again.") from error
            file.seek(offset)
            yield file.read(num_bytes)
            following = number + 1
