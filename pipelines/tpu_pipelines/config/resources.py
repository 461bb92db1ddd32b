"""Resources that steps request, which depend on the size of the data, and the time limit of the training."""

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

# A node with 4 CPUs reserves part of them. Vertex AI's default machine has 4 CPUs and 16 GB. Its documentation does not
# say how it rounds a request; this code assumes that it rounds up: https://cloud.google.com/vertex-ai/docs/pipelines/machine-types
_CPU = 3


BASE_GIB = 4  # Python and TensorFlow use 1 GiB of it.


_STEP_GIB = 12  # A step keeps arrays and models in memory.


# Vertex AI's own agents use up to 40% of the 16 GB of the default machine, and a smaller share of larger machines:
# https://cloud.google.com/vertex-ai/docs/training/understanding-training-service
_VERTEX_FREE_GIB, _VERTEX_AGENTS_GIB, _VERTEX_AGENTS_SHARE = 9, 6, 0.1


# Retries of a training whose pod may be preempted, or only waits for the JobSet of several hosts.
_RETRIES = 5


# https://cloud.google.com/vertex-ai/docs/training/configure-compute#boot_disk_options: the disk of every job.
VERTEX_DISK_GIB = 100


# A step's disk on Kubeflow. Steps write their outputs to the folder for temporary files first.
SCRATCH_VOLUME = "scratch"
SCRATCH_FOLDER = "/tmp"


# A task has at most 100 artifacts: https://cloud.google.com/vertex-ai/docs/quotas#pipelines. Merging needs two more.
_MOST_FAN_OUT_TASKS = 90


# Time limit of a training for which neither an estimate nor a budget is known when its job is written.
TIMEOUT_WITHOUT_ESTIMATE_SECONDS = 24 * 3600

_DECODED = 10  # Bytes of pixels per byte of a JPEG file of good quality; used if no image size is set.
_SMALL_FILE_BYTES = 16 << 10  # Images in smaller files may be stored as pixels.
_TOKEN_BYTES = 4
_POD_DISK_GIB = 10  # Disk of a pod without a request.


def resources_of(config: Config, step: str, target: str = "") -> StepResources:
    """Return a step's resources: those that the configuration sets, and defaults for the others.

    By default, preflight requests memory for its compilation limit, and training for twice `training.in_memory_mib`. On
    Kubeflow, a training on a spot machine or on several hosts is retried; a custom job on Vertex AI needs no retries.
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
        InputError: If the platform would ignore or refuse a resource.
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
    """Set the CPUs, memory and retries of a task; returns the task."""
    task.set_cpu_limit(str(asked.cpu)).set_memory_limit(asked.memory)
    return apply_retries(task, asked)


def apply_retries(task: Any, asked: StepResources, timeout_seconds: int = 0, is_of_all: bool = False) -> Any:
    """Set the retries of a task; returns the task.

    Argo counts `maxDuration` from the start of the first attempt (argo-workflows, workflow/controller/operator.go).
    KFP's default is one hour, after which a preempted pod would not be started again. KFP cannot set Argo's
    `retryPolicy`, which decides the failures to retry; `doctor` checks the cluster's policy.

    Args:
        task: Task of the step.
        asked: Resources of the step, with the number of retries.
        timeout_seconds: Time limit of one attempt; 0 means `asked.timeout`, or else a day.
        is_of_all: Whether this is the time limit of all attempts together.
    """
    if not asked.retries:
        return task
    seconds = timeout_seconds or asked.timeout or TIMEOUT_WITHOUT_ESTIMATE_SECONDS
    longest = seconds if is_of_all else (asked.retries + 1) * (seconds + 3600)  # Up to an hour to get a machine.
    return task.set_retry(asked.retries, "60s", 2.0, f"{longest}s")


def as_root(task: Any) -> Any:
    """Run a task's pod on Kubeflow as root; returns the task.

    Only root may write to a new disk, because KFP cannot set `fsGroup`. The root user has no capabilities
    (kubeflow/pipelines backend/src/v2/driver/k8s.go, at 7b70c7b). Servers before 2.16 ignore the setting and run as the
    image's user.
    """
    from kfp import kubernetes

    return kubernetes.set_security_context(task, run_as_user=0)


def place_on(target: str, task: Any, asked: StepResources) -> Any:
    """Set the disk and time limit of a task on a platform; returns the task."""
    if target == "kubeflow":
        from kfp import kubernetes

        if asked.timeout:
            kubernetes.set_timeout(task, asked.timeout)
        if asked.disk:
            kubernetes.add_ephemeral_volume(
                task,
                volume_name=SCRATCH_VOLUME,
                mount_path=SCRATCH_FOLDER,
                access_modes=["ReadWriteOnce"],
                size=asked.disk,
            )
            as_root(task)
    elif asked.timeout:  # Vertex AI has no time limit for a task, so the container has one.
        command = ["timeout", "--kill-after=60", str(asked.timeout)]
        task.container_spec.command = [*command, *task.container_spec.command]
    return task


@dataclasses.dataclass(frozen=True)
class TrainingTimeout:
    """Time limit of a training, with its reason.

    Attributes:
        seconds: Time limit in seconds, if there is no estimate.
        is_estimated: Whether preflight's estimate replaces `seconds` while the pipeline runs.
        reason: Reason for the time limit, as text.
    """

    seconds: int
    is_estimated: bool
    reason: str


def training_timeout(config: Config, target: str) -> TrainingTimeout:
    """Return the time limit of the training on the configuration's machine, which it must have.

    The first that exists: 1. `machine.timeout_seconds`. 2. Preflight's estimate for a TPU on Vertex AI, from
    `preflight_training.params.timeout_seconds`; Kubeflow accepts no time limit while the pipeline runs. 3. The time
    that `preflight.max_price_usd` pays for, with a margin for TPUs. 4. A day.
    """
    machine = config.machine
    assert machine is not None
    hours, floor = "{:g} h".format, TIMEOUT_FLOOR_SECONDS / 3600
    if machine.timeout_seconds:
        reason = f"training is stopped after {hours(machine.timeout_seconds / 3600)}, as machine.timeout_seconds says"
        return TrainingTimeout(machine.timeout_seconds, False, reason)
    seconds, why = TIMEOUT_WITHOUT_ESTIMATE_SECONDS, "nothing is estimated before it starts"
    price = machine.slice.price(machine.region, machine.spot, target)
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


def paid_on(config: Config, machine: MachineSpec, target: str, region: str = "") -> PaidMachine:
    """Return a machine with the target's price, and the training's time limit and number of attempts.

    All commands get time limits and prices from this function, so they all show the same for the same run, whether the
    machine is named by the configuration, by `--set machine=…` or by `--compare`.

    Args:
        config: Configuration of the training; its own machine is ignored.
        machine: The machine.
        target: The platform, for example `vertex`.
        region: Region from the settings, which Vertex AI uses for a machine without its own region. Ignored if the
            machine is not available there.

    Raises:
        InputError: If the target does not offer the machine.
    """
    if target == VERTEX and not machine.region and region in machine.slice.regions:
        machine = dataclasses.replace(machine, region=region)
    config = config.with_machine(machine)
    timeout = training_timeout(config, target)
    return PaidMachine(
        machine.name,
        machine.region,
        machine.spot,
        target,
        timeout_seconds=0 if timeout.is_estimated else timeout.seconds,
        attempts=resources_of(config, "train_model", target).retries + 1,
    )


def on_machine(config: Config, machine: MachineSpec, target: str = VERTEX, region: str = "") -> Config:
    """Return the configuration with another machine; preflight then uses this machine, with the price from `paid_on`.

    Raises:
        InputError: If the machine does not run the training's backend.
    """
    config = config.with_machine(machine)
    if config.preflight is None:
        return config
    return dataclasses.replace(config, preflight=preflight_params(config, paid_on(config, machine, target, region)))


@dataclasses.dataclass(frozen=True)
class DataSize:
    """Size of a data set in bytes, estimated from its listing.

    Attributes:
        held: Size of the inputs that create_tfrecords reads into memory at once: texts and arrays; 0 for image files.
        records: Largest possible size of the records.
        splits: Size of the decoded inputs in memory, by split.
    """

    held: int
    records: int
    splits: Mapping[str, int]


def measure(listing: Listing, params: WriteParams) -> DataSize:
    """Return the size of a listed data set.

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
    """Estimate the number of examples by split, from the source's own splits or else the held-out fractions."""
    count = len(listing.keys)
    own = Counter(listing.splits.tolist()) if listing.splits is not None else Counter[str]()
    held_out = {VALIDATION: params.validation_fraction, TEST: params.test_fraction}
    counts = {name: own[name] or math.ceil(share * count) for name, share in held_out.items()}
    return {TRAIN: own[TRAIN] or count - sum(counts.values()), **counts}


def with_sizes(config: Config, size: DataSize, target: str) -> tuple[Config, str]:
    """Add the resources that the data's size requires, unless the configuration sets them.

    Args:
        config: Configuration to run.
        size: Size of the data set.
        target: The platform. On Vertex AI, the training uses a whole host, and the disk of a step cannot be set.

    Returns:
        The configuration, and a message about the added resources; empty if there are none.
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
    """Yield each step with the memory that it needs for the data, in GiB. Reading holds the inputs in memory twice."""

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
