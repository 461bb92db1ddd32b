"""How many shards, and which examples in each."""

import dataclasses
import itertools


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """Half-open ranges of examples, one per shard, and the shards' file names."""

    boundaries: tuple[tuple[int, int], ...]
    names: tuple[str, ...]


def plan_shards(split: str, num_examples: int, total_bytes: int, target_shard_mib: int = 32) -> ShardPlan:
    """Split examples into shards of roughly equal size.

    Args:
        split: The split's name, the first part of the file names.
        num_examples: Examples to write. Must be positive.
        total_bytes: Their serialized size, in bytes; an estimate will do.
        target_shard_mib: Wanted shard size, in MiB.

    Returns:
        Half-open ranges that cover [0, num_examples) once; sizes differ by at most one.

    Raises:
        ValueError: If `num_examples` or `target_shard_mib` is not positive.

    Example:
        >>> plan_shards("train", num_examples=5, total_bytes=80 * 2**20).boundaries
        ((0, 1), (1, 3), (3, 5))
    """
    if num_examples <= 0 or target_shard_mib <= 0:
        raise ValueError(
            "Shards need examples and a positive size. Received: "
            f"num_examples={num_examples}, target_shard_mib={target_shard_mib}."
        )
    target_bytes = target_shard_mib << 20
    count = min(num_examples, max(1, -(-total_bytes // target_bytes)))
    edges = [i * num_examples // count for i in range(count + 1)]
    return ShardPlan(
        boundaries=tuple(itertools.pairwise(edges)),
        names=tuple(f"{split}-{i:05d}-of-{count:05d}.tfrecord" for i in range(count)),
    )
