"""Estimates the size of the data from their listing, and the memory and disk that steps need for the data."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping

from tpu_components.core.base.formatting import byte_size
from tpu_components.core.examples.artifacts import TEST, TRAIN, VALIDATION
from tpu_components.core.examples.interface import IMAGE
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.params import WriteParams
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.steps import StepResources, gib
from tpu_pipelines.platforms.platform import Platform
from tpu_pipelines.platforms.resources import BASE_GIB, STEP_GIB, resources_of

_DECODED = 10  # Bytes of pixels per byte of a JPEG file of good quality; used if no image size is set.
_SMALL_FILE_BYTES = 16 << 10  # Images in smaller files may be stored as pixels.
_TOKEN_BYTES = 4


@dataclasses.dataclass(frozen=True)
class DataSize:
    """Size of a data set in bytes, estimated from its listing.

    Attributes:
        held: Size of the texts or arrays that create_tfrecords reads into memory at once. 0 if it reads files one by
            one.
        records: Largest possible size of the records.
        splits: Size of the decoded inputs in memory, by split.
    """

    held: int
    records: int
    splits: Mapping[str, int]


def measure(listing: Listing, params: WriteParams) -> DataSize:
    """Estimate the size of a data set from its listing.

    Args:
        listing: Examples of the data set.
        params: Parameters of create_tfrecords.
    """
    count = max(len(listing.keys), 1)
    files = listing.num_bytes
    decoded: float
    stored: float
    if listing.kind != IMAGE:
        held = sum(map(len, listing.texts or ()))
        decoded = params.num_tokens * _TOKEN_BYTES
        stored = decoded + files / count
    elif listing.images is not None:
        held = listing.images.nbytes
        decoded = stored = held / count
    else:
        held = 0
        size = params.image_size
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
    """Estimate the number of examples by split.

    The estimate uses the splits of the source or, if there are none, the held-out fractions.
    """
    count = len(listing.keys)
    own = Counter(listing.splits.tolist()) if listing.splits is not None else Counter[str]()
    held_out = {VALIDATION: params.validation_fraction, TEST: params.test_fraction}
    counts = {name: own[name] or math.ceil(share * count) for name, share in held_out.items()}
    return {TRAIN: own[TRAIN] or count - sum(counts.values()), **counts}


def with_sizes(config: Config, size: DataSize, platform: Platform) -> tuple[Config, str]:
    """Add the resources that the data's size requires, unless the configuration sets them.

    Args:
        config: Configuration to run.
        size: Size of the data set.
        platform: The platform, which determines what a step can request.

    Returns:
        The configuration, and a message about added resources and about a disk that may be too small. The message may
        be empty.
    """
    resources = dict(config.resources)
    words = []
    for step, need_gib in _needs(config, size):
        requested = config.resources.get(step, StepResources())
        usual = resources_of(config, step)
        request_gib = platform.memory_request(config, step, need_gib)
        if request_gib is None or requested.memory:
            continue
        memory = f"{math.ceil(max(request_gib, STEP_GIB))}Gi"
        if gib(memory) != gib(usual.memory):
            resources[step] = dataclasses.replace(requested, memory=memory)
            words.append(f"{step} {memory} of memory")
    requested = resources.get("create_tfrecords", StepResources())
    disk = platform.disk_request(2 * size.records)  # Staged and final files are on the same disk.
    if disk and not requested.disk:
        resources["create_tfrecords"] = dataclasses.replace(requested, disk=disk)
        words.append(f"create_tfrecords {disk} of disk")
    messages = [f"for up to {byte_size(size.records)} of records: {', '.join(words)}"] if words else []
    if warning := platform.disk_warning(size.records):
        messages.append(warning)
    return dataclasses.replace(config, resources=resources), "; ".join(messages)


def _needs(config: Config, size: DataSize) -> Iterator[tuple[str, float]]:
    """Yield each step with the memory that it needs for the data, in GiB.

    While inputs are read, they take twice their size in memory.
    """

    def split_gib(name: str) -> float:
        return size.splits.get(name, 0) / 2**30

    yield "create_tfrecords", BASE_GIB + 2 * size.held / 2**30
    yield "evaluate_model", BASE_GIB + 2 * split_gib(config.gate.split)
    if config.export:
        yield "export_model", BASE_GIB + 2 * split_gib(config.export.split)
    most = config.training.in_memory_mib / 2**10
    yield "train_model", BASE_GIB + 2 * (min(split_gib(TRAIN), most) + min(split_gib(VALIDATION), most))
