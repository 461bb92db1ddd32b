"""How large a listed data set is, and what the steps that hold it in memory or on disk ask for because of that."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping

from tpu_components.core.examples.artifacts import TEST, TRAIN, VALIDATION
from tpu_components.core.examples.interface import IMAGE
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.params import WriteParams
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.resources import BASE_GIB, VERTEX_DISK_GIB, resources_of, with_agents
from tpu_pipelines.config.step_resources import StepResources, gib

_DECODED = 10  # Bytes of pixels for each byte of a photo's file: a JPEG of good quality; taken where no size is set.
_SMALL_FILE_BYTES = 16 << 10  # Below, images may be small enough to be stored as pixels.
_TOKEN_BYTES = 4
_POD_DISK_GIB = 10  # What a pod has of its node's disk without asking.


@dataclasses.dataclass(frozen=True)
class DataSize:
    """The size of a data set, in bytes, as far as its listing says.

    Attributes:
        held: Memory that create_tfrecords holds at once: sources of one file are read whole.
        records: Records that it writes, at most.
        splits: The inputs of each split, decoded in memory.
    """

    held: int
    records: int
    splits: Mapping[str, int]


def measure(listing: Listing, params: WriteParams) -> DataSize:
    """Return the size of a listed data set.

    Args:
        listing: Its examples.
        params: Parameters by which it is written.
    """
    count = max(len(listing.keys), 1)
    files = listing.num_bytes
    decoded: float
    stored: float
    if listing.kind != IMAGE:
        held = sum(map(len, listing.texts or ()))
        decoded, stored = params.num_tokens * _TOKEN_BYTES, params.num_tokens * _TOKEN_BYTES + files / count
    elif listing.images is not None:
        held = listing.images.nbytes
        decoded = stored = held / count
    else:
        held, size = 0, params.image_size
        margin = (1 + params.crop_margin) ** 2
        decoded = math.prod(size) * margin * (params.channels or 3) if size else _DECODED * files / count
        is_small = files / count < _SMALL_FILE_BYTES
        stored = max(files / count, decoded if size or is_small else 0)
    return DataSize(
        held,
        math.ceil(stored * count),
        {name: math.ceil(decoded * n) for name, n in _count_splits(listing, params).items()},
    )


def _count_splits(listing: Listing, params: WriteParams) -> dict[str, int]:
    """Return about how many examples each split will have: those of the source, or the share that is held out."""
    count = len(listing.keys)
    own = Counter(listing.splits.tolist()) if listing.splits is not None else Counter[str]()
    held_out = {VALIDATION: params.validation_fraction, TEST: params.test_fraction}
    counts = {name: own[name] or math.ceil(share * count) for name, share in held_out.items()}
    return {TRAIN: own[TRAIN] or count - sum(counts.values()), **counts}


def with_sizes(config: Config, size: DataSize, target: str) -> tuple[Config, str]:
    """Return the configuration with what follows from its data's size for steps that say nothing, and that in words.

    Args:
        config: Configuration to run.
        size: Size of its data.
        target: The platform: on Vertex AI the training has its host to itself, and a step's disk cannot be set.
    """
    resources, words = dict(config.resources), []
    for step, memory_gib in _needs(config, size, target):
        asked, usual = config.resources.get(step, StepResources()), resources_of(config, step, target)
        memory = f"{math.ceil(max(with_agents(memory_gib, target), _least(config, step, target)))}Gi"
        if not asked.memory and gib(memory) != gib(usual.memory):
            resources[step] = dataclasses.replace(asked, memory=memory)
            words.append(f"{step} {memory} of memory")
    disk_gib = math.ceil(2 * size.records / 2**30)  # Staged, and in its place: the same disk.
    asked = resources.get("create_tfrecords", StepResources())
    if target == "kubeflow" and disk_gib > _POD_DISK_GIB and not asked.disk:
        resources["create_tfrecords"] = dataclasses.replace(asked, disk=f"{disk_gib}Gi")
        words.append(f"create_tfrecords {disk_gib}Gi of disk")
    text = f"by {size.records / 2**30:,.1f} GiB of records at most: {', '.join(words)}" if words else ""
    if target == "vertex" and size.records > VERTEX_DISK_GIB * 10**9:
        text += f"{'; ' if text else ''}records of that size may not fit a step's disk there, {VERTEX_DISK_GIB} GB"
    return dataclasses.replace(config, resources=resources), text


def _needs(config: Config, size: DataSize, target: str) -> Iterator[tuple[str, float]]:
    """Yield the memory that each step takes for the data, in GiB: inputs are held once, and once more while read."""

    def split_gib(name: str) -> float:
        return size.splits.get(name, 0) / 2**30

    yield "create_tfrecords", BASE_GIB + 2 * size.held / 2**30
    yield "evaluate_model", BASE_GIB + 2 * split_gib(config.gate.split)
    if config.export:
        yield "export_model", BASE_GIB + 2 * split_gib(config.export.split)
    if target == "kubeflow":
        most = config.training.in_memory_mib / 2**10
        yield "train_model", BASE_GIB + 2 * (min(split_gib(TRAIN), most) + min(split_gib(VALIDATION), most))


def _least(config: Config, step: str, target: str) -> float:
    """Return the memory that a step has whatever the data are, in GiB."""
    without_data = dataclasses.replace(
        config, resources={}, training=dataclasses.replace(config.training, in_memory_mib=0)
    )
    return gib(resources_of(without_data, step, target).memory)
