"""Resources that steps request, also by the size of the data, and the time limit of the training."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import byte_size
from tpu_components.core.examples.artifacts import TEST, TRAIN, VALIDATION
from tpu_components.core.examples.interface import IMAGE
from tpu_components.core.machines.machine_spec import VERTEX, VERTEX_ONLY, MachineSpec, PaidMachine
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.params import FAN_OUT, WriteParams
from tpu_components.preflight_training.params import TIMEOUT_FACTOR, TIMEOUT_FLOOR_SECONDS, VERTEX_TASK_SECONDS
from tpu_pipelines.config.configuration import Config, preflight_params
from tpu_pipelines.config.steps import StepResources, gib

# A node of 4 CPUs keeps some of them for itself. Vertex AI's own default is a machine of 4 and 16 GB; how it rounds
# what is asked for is not said there, and taken to be up: https://cloud.google.com/vertex-ai/docs/pipelines/machine-types
_CPU = 3


BASE_GIB = 4  # Python and TensorFlow take 1.


_STEP_GIB = 12  # Arrays and models are held whole.


# Of the 16 GB of its default machine Vertex AI's own agents take up to 40%, and of larger ones little:
# https://cloud.google.com/vertex-ai/docs/training/understanding-training-service
_VERTEX_FREE_GIB, _VERTEX_AGENTS_GIB, _VERTEX_AGENTS_SHARE = 9, 6, 0.1


# Retries of a training whose pod may be preempted, or only follows the hosts of a slice.
_RETRIES = 5


# https://cloud.google.com/vertex-ai/docs/training/configure-compute#boot_disk_options: what every job has.
VERTEX_DISK_GIB = 100


# A task has 100 artifacts: https://cloud.google.com/vertex-ai/docs/quotas#pipelines. The step that merges has two more.
_MOST_FAN_OUT_TASKS = 90


# Time limit of a training without an estimate and without a budget when its job is written.
TIMEOUT_WITHOUT_ESTIMATE_SECONDS = 24 * 3600

_DECODED = 10  # Bytes of pixels for each byte of a photo's file: a JPEG of good quality; taken where no size is set.
_SMALL_FILE_BYTES = 16 << 10  # Below, images may be small enough to be stored as pixels.
_TOKEN_BYTES = 4
_POD_DISK_GIB = 10  # Disk of a pod without a request.


def resources_of(config: Config, step: str, target: str = "") -> StepResources:
    """Return a step's resources: those that the configuration sets, and defaults for the others.

    Preflight gets the memory limit of a compilation, training the memory for the split. On Kubeflow, a pod on a spot
    machine, or one that follows several hosts, is retried; a custom job on Vertex AI need not be.
    """
    asked = config.resources.get(step, StepResources())
    held = {
        "preflight_training": BASE_GIB + (config.preflight.compile_memory_mib if config.preflight else 0) / 2**10,
        "train_model": BASE_GIB + 2 * config.training.in_memory_mib / 2**10,  # Twice while it is read.
    }
    machine = config.machine if step == "train_model" and target == "kubeflow" else None
    is_retried = machine is not None and (machine.spot or machine.slice.hosts > 1)
    return dataclasses.replace(
        asked,
        cpu=asked.cpu or _CPU,
        memory=asked.memory or f"{math.ceil(max(held.get(step, 0), _STEP_GIB))}Gi",
        retries=asked.retries if asked.retries >= 0 else _RETRIES * is_retried,
    )


def with_agents(gib: float, target: str) -> float:
    """Return the memory to request from a platform, in GiB, so that a step can use `gib` of it."""
    if target != "vertex" or gib <= _VERTEX_FREE_GIB:
        return gib
    return gib * (1 + _VERTEX_AGENTS_SHARE) + _VERTEX_AGENTS_GIB


def check_target(config: Config, target: str) -> None:
    """Check that a platform supports all requested resources.

    Raises:
        InputError: If it would ignore one.
    """
    training = config.resources.get("train_model", StepResources())
    if training.timeout:
        raise InputError(
            f"The training's time is the machine's. Received: resources.train_model.timeout={training.timeout}. Set "
            "machine.timeout_seconds."
        )
    if target != "vertex":
        for machine in config.machine.candidates if config.machine else ():
            for name in VERTEX_ONLY:
                if value := getattr(machine, name):
                    raise InputError(
                        f"Only Vertex AI has machine.{name}. Received: {value!r} with --target {target}. Leave it out; "
                        "on Kubeflow, TPU_PIPELINES_VOLUMES mounts claims, and kubectl exec opens a shell."
                    )
        return
    times = {f"resources.{step}.timeout": asked.timeout for step, asked in config.resources.items()}
    times["machine.timeout_seconds"] = config.machine.timeout_seconds if config.machine else 0
    for name, seconds in times.items():
        if seconds > VERTEX_TASK_SECONDS:
            raise InputError(
                f"Vertex AI cancels a pipeline's task after 7 days: expected {name} of at most {VERTEX_TASK_SECONDS}. "
                f"Received: {seconds}. Take a larger machine or fewer epochs, or run it on Kubeflow."
            )
    if config.data.engine == FAN_OUT and config.data.engine_tasks > _MOST_FAN_OUT_TASKS:
        raise InputError(
            f"On Vertex AI a step reads and writes 100 artifacts at most, and one step puts the parts of all others "
            f"together: expected data.engine_tasks from 1 to {_MOST_FAN_OUT_TASKS} with data.engine=fan_out. "
            f"Received: {config.data.engine_tasks}."
        )
    on_tpu = [step for step, asked in config.resources.items() if step == "train_model" or asked.machine]
    for step, name in itertools.product(on_tpu, ("cpu", "memory", "disk")):
        if value := getattr(config.resources[step], name):
            is_disk = name == "disk" and step == "train_model"
            raise InputError(
                f"On Vertex AI a step with a machine uses the whole host, so cpu, memory and disk cannot be set. "
                f"Received: resources.{step}.{name}={value!r}. Leave it out"
                + ("; machine.boot_disk_size_gb sets the disk." if is_disk else ".")
            )
    for step, asked in config.resources.items():
        if asked.disk and gib(asked.disk) > VERTEX_DISK_GIB:
            raise InputError(
                f"A step on Vertex AI has a disk of {VERTEX_DISK_GIB} GB, and its pipelines can ask for no other. "
                f"Received: resources.{step}.disk={asked.disk!r}. Leave it out, or run it on Kubeflow."
            )


def apply(task: Any, asked: StepResources) -> Any:
    """Set a step's CPUs, memory and retries."""
    task.set_cpu_limit(str(asked.cpu)).set_memory_limit(asked.memory)
    return apply_retries(task, asked)


def apply_retries(task: Any, asked: StepResources, timeout_seconds: int = 0, is_of_all: bool = False) -> Any:
    """Set the retries of a step.

    Argo counts `maxDuration` from the start of the first attempt (argo-workflows, workflow/controller/operator.go), and
    KFP's default for it is an hour: a pod that is taken away after that would not be started again. After which
    failures, the cluster decides: KFP has no word for Argo's `retryPolicy`, and `doctor` looks at the cluster's own.

    Args:
        task: The step.
        asked: Number of retries, among the other resources.
        timeout_seconds: Seconds of one attempt.
        is_of_all: Whether these are the seconds of all attempts together.
    """
    if not asked.retries:
        return task
    seconds = timeout_seconds or asked.timeout or TIMEOUT_WITHOUT_ESTIMATE_SECONDS
    longest = seconds if is_of_all else (asked.retries + 1) * (seconds + 3600)  # And to get a machine.
    return task.set_retry(asked.retries, "60s", 2.0, f"{longest}s")


def as_root(task: Any) -> Any:
    """Run a step's pod on Kubeflow as root, who alone may write to a fresh disk: KFP cannot set `fsGroup`.

    This root has no capabilities (kubeflow/pipelines backend/src/v2/driver/k8s.go, at 7b70c7b). Servers before 2.16
    ignore the setting and run as the image's user.
    """
    from kfp import kubernetes

    return kubernetes.set_security_context(task, run_as_user=0)


def place_on(target: str, task: Any, asked: StepResources) -> Any:
    """Set a step's disk and time limit, which differ by platform."""
    if target == "kubeflow":
        from kfp import kubernetes

        if asked.timeout:
            kubernetes.set_timeout(task, asked.timeout)
        if asked.disk:
            # Steps stage what they write in the folder for temporary files.
            kubernetes.add_ephemeral_volume(
                task, volume_name="scratch", mount_path="/tmp", access_modes=["ReadWriteOnce"], size=asked.disk
            )
            as_root(task)
    elif asked.timeout:  # Vertex AI has no time limit for a task, so the container has one.
        command = ["timeout", "--kill-after=60", str(asked.timeout)]
        task.container_spec.command = [*command, *task.container_spec.command]
    return task


@dataclasses.dataclass(frozen=True)
class TrainingTimeout:
    """The time limit of a training, and its reason.

    Attributes:
        seconds: Time limit in seconds, if there is no estimate.
        is_estimated: Whether preflight's estimate replaces it while the pipeline runs.
        reason: Reason as text.
    """

    seconds: int
    is_estimated: bool
    reason: str


def training_timeout(config: Config, machine: MachineSpec, target: str) -> TrainingTimeout:
    """Return the time limit of a configuration's training on a machine.

    1. As the machine says. 2. By preflight's estimate, as `preflight_training.params.timeout_seconds` makes it; that is
    known while the pipeline runs, when only Vertex AI still takes a time. 3. By what the budget pays for, which
    preflight holds the run to. 4. After a day.
    """
    hours, floor = "{:g} h".format, TIMEOUT_FLOOR_SECONDS / 3600
    if machine.timeout_seconds:
        reason = f"training is stopped after {hours(machine.timeout_seconds / 3600)}, as machine.timeout_seconds says"
        return TrainingTimeout(machine.timeout_seconds, False, reason)
    seconds, why = TIMEOUT_WITHOUT_ESTIMATE_SECONDS, "nothing is estimated before it starts"
    price = dataclasses.replace(machine.paid, target=target).price
    if config.preflight and config.preflight.max_price_usd and price:
        paid = config.preflight.max_price_usd / price.usd_per_hour * 3600
        seconds = max(math.ceil(TIMEOUT_FACTOR * paid), TIMEOUT_FLOOR_SECONDS)
        why = f"{TIMEOUT_FACTOR} times what preflight.max_price_usd pays for, at least {hours(floor)}"
        if machine.slice.is_gpu:  # Without an estimate, the time limit alone keeps the budget.
            seconds, why = max(int(paid), 1), "as long as preflight.max_price_usd pays for, without an estimate"
        seconds = min(seconds, VERTEX_TASK_SECONDS) if target == "vertex" else seconds
    if config.preflight and target == "vertex" and not machine.slice.is_gpu:
        why = f"{TIMEOUT_FACTOR} times preflight's estimate, at least {hours(floor)}"
        return TrainingTimeout(seconds, True, f"training is stopped after {why}; machine.timeout_seconds sets another")
    reason = f"training is stopped after {hours(seconds / 3600)}: {why}; machine.timeout_seconds sets another"
    return TrainingTimeout(seconds, False, reason)


def paid_on(config: Config, machine: MachineSpec, target: str) -> PaidMachine:
    """Return a machine with the target's price, the training's time limit and its number of attempts."""
    timeout = training_timeout(config, machine, target)
    return dataclasses.replace(
        machine.paid,
        target=target,
        timeout_seconds=0 if timeout.is_estimated else timeout.seconds,
        attempts=resources_of(config, "train_model", target).retries + 1,
    )


def on_machine(config: Config, machine: MachineSpec, target: str = VERTEX) -> Config:
    """Return the configuration with another machine, and a preflight of this machine with the target's prices.

    Raises:
        InputError: If the machine does not run the training's backend.
    """
    config = dataclasses.replace(config, machine=machine)
    if config.preflight is None:
        return config
    return dataclasses.replace(config, preflight=preflight_params(config, paid_on(config, machine, target)))


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
    """Estimate the examples of each split: as the source divides them, else by the fractions that are held out."""
    count = len(listing.keys)
    own = Counter(listing.splits.tolist()) if listing.splits is not None else Counter[str]()
    held_out = {VALIDATION: params.validation_fraction, TEST: params.test_fraction}
    counts = {name: own[name] or math.ceil(share * count) for name, share in held_out.items()}
    return {TRAIN: own[TRAIN] or count - sum(counts.values()), **counts}


def with_sizes(config: Config, size: DataSize, target: str) -> tuple[Config, str]:
    """Return the configuration with resources by the data's size, for steps without their own, and a message on them.

    Args:
        config: Configuration to run.
        size: Size of its data.
        target: The platform: on Vertex AI the training has its host to itself, and a step's disk cannot be set.
    """
    resources, words = dict(config.resources), []
    for step, memory_gib in _needs(config, size, target):
        asked, usual = config.resources.get(step, StepResources()), resources_of(config, step, target)
        memory = f"{math.ceil(max(with_agents(memory_gib, target), _STEP_GIB))}Gi"
        if not asked.memory and gib(memory) != gib(usual.memory):
            resources[step] = dataclasses.replace(asked, memory=memory)
            words.append(f"{step} {memory} of memory")
    disk_gib = math.ceil(2 * size.records / 2**30)  # Staged and final files are on the same disk.
    asked = resources.get("create_tfrecords", StepResources())
    if target == "kubeflow" and disk_gib > _POD_DISK_GIB and not asked.disk:
        resources["create_tfrecords"] = dataclasses.replace(asked, disk=f"{disk_gib}Gi")
        words.append(f"create_tfrecords {disk_gib}Gi of disk")
    text = f"by {byte_size(size.records)} of records at most: {', '.join(words)}" if words else ""
    if target == "vertex" and size.records > VERTEX_DISK_GIB * 10**9:
        text += f"{'; ' if text else ''}records of that size may not fit a step's disk there, {VERTEX_DISK_GIB} GB"
    return dataclasses.replace(config, resources=resources), text


def _needs(config: Config, size: DataSize, target: str) -> Iterator[tuple[str, float]]:
    """Yield the memory that each step needs for the data, in GiB: inputs are held twice while they are read."""

    def split_gib(name: str) -> float:
        return size.splits.get(name, 0) / 2**30

    yield "create_tfrecords", BASE_GIB + 2 * size.held / 2**30
    if target != "vertex" or config.evaluation_machine is None:
        yield "evaluate_model", BASE_GIB + 2 * split_gib(config.gate.split)
    if config.export:
        yield "export_model", BASE_GIB + 2 * split_gib(config.export.split)
    if target == "kubeflow":
        most = config.training.in_memory_mib / 2**10
        yield "train_model", BASE_GIB + 2 * (min(split_gib(TRAIN), most) + min(split_gib(VALIDATION), most))
