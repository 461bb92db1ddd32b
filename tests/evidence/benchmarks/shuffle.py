"""How well a streamed split is shuffled: `python -m tests.evidence.benchmarks.shuffle`.

Records are stored in the order of a hash, so every shard, and any run of examples within it, is a fair sample of the
data before anything is shuffled. What a shuffle adds is that examples meet others in the next epoch. Two figures say
how well, for the order of shards drawn anew and a buffer of so many examples: the share of an example's companions in
a batch that are its companions again in the next epoch, beside that after a full shuffle; and the rank correlation of
the examples' places in one epoch and in the next, which is 0 after a full shuffle.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import scipy.stats

from tpu_components.core.examples.artifacts import TRAIN, Manifest
from tpu_components.core.examples.feeding import Cut, StreamingReader
from tpu_components.core.pages.blocks import Table
from tpu_components.create_tfrecords import WriteParams, write_records

_SIDE = 16  # Of the pictures, whose first four pixels are their number.
_COLUMNS = {"buffer": ">", "of the split": ">", "together again": ">", "fully shuffled": ">", "rank correlation": ">"}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks.shuffle", description=__doc__)
    parser.add_argument("--examples", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--buffers", type=int, nargs="+", default=[1, 2_000, 20_000, 200_000])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shuffle-") as name:
        manifest = _write(arguments.examples, Path(name))
        print(f"{arguments.examples:,} examples in {len(manifest.split(TRAIN).shards)} shards, batch {arguments.batch}")
        rows, by_chance = [], (arguments.batch - 1) / (arguments.examples - 1)
        for buffer in arguments.buffers:
            reader = StreamingReader(
                Path(name) / "records",
                manifest,
                Cut(arguments.examples, arguments.batch),
                seed=0,
                shuffle_buffer=buffer,
            )
            again, correlation = _compare(*(_places(reader, epoch, arguments.examples) for epoch in (0, 1)), arguments)
            share = min(buffer / arguments.examples, 1)
            rows.append((f"{buffer:,}", f"{share:.0%}", f"{again:.2%}", f"{by_chance:.2%}", f"{correlation:+.3f}"))
        print("\n".join(Table(_COLUMNS, rows).lines()))


def _write(num_examples: int, folder: Path) -> Manifest:
    images = np.random.default_rng(0).integers(0, 256, (num_examples, _SIDE * _SIDE), np.uint8)
    images[:, :4] = np.arange(num_examples, dtype="<u4").view(np.uint8).reshape(-1, 4)
    labels = np.arange(num_examples) % 2
    np.savez(folder / "data.npz", x_train=images.reshape(-1, _SIDE, _SIDE), y_train=labels)
    source = WriteParams(f"npz:{folder / 'data.npz'}", validation_fraction=0, test_fraction=0, target_shard_mib=1)
    write_records(source, folder / "records")
    return Manifest.load(folder / "records", verify=False)


def _places(reader: StreamingReader, epoch: int, num_examples: int) -> np.ndarray:
    """int[num_examples]: the place of each in an epoch."""
    batches = [images.reshape(len(images), -1)[:, :4] for images, _, _ in reader.batches(epoch, 0).as_numpy_iterator()]
    numbers = np.concatenate(batches).view("<u4").ravel()[:num_examples]
    places = np.full(num_examples, -1)
    places[numbers] = np.arange(num_examples)
    assert (places >= 0).all()
    return places


def _compare(one: np.ndarray, other: np.ndarray, arguments: argparse.Namespace) -> tuple[float, float]:
    batches = np.stack([one // arguments.batch, other // arguments.batch])
    _, cells = np.unique(batches, axis=1, return_counts=True)
    _, sizes = np.unique(batches[0], return_counts=True)
    again = (cells * (cells - 1)).sum() / (sizes * (sizes - 1)).sum()
    return float(again), float(scipy.stats.spearmanr(one, other).statistic)


if __name__ == "__main__":
    main()
