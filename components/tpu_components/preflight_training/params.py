"""Parameters and result of preflight."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

from tpu_components.core.base.typed_values import Amount, NotNegative, Positive, Range, check_fields
from tpu_components.core.machines.machine_spec import PaidMachine
from tpu_components.core.models.training_step.hyperparameters import TrainParams

# The time limit of a training run is a multiple of the estimate, because the estimate may be wrong and leaves out
# start-up, validation and checkpoints. It is rounded up to the floor times a power of two, so that equal work has equal
# limits.
TIMEOUT_FACTOR = 3
TIMEOUT_FLOOR_SECONDS = 4 * 3600
# Time after which Vertex AI cancels a task of a pipeline: https://cloud.google.com/vertex-ai/docs/quotas#pipelines
VERTEX_TASK_SECONDS = 7 * 24 * 3600


def timeout_seconds(run_seconds: float) -> int:
    """Return the time limit of a training run, in seconds.

    The limit is the smallest of 4, 8, 16, 32, … hours that is at least three times the estimate, but at most 7 days.

    Args:
        run_seconds: Estimated time of all epochs, in seconds.

    Example:
        >>> timeout_seconds(60) / 3600, timeout_seconds(3 * 3600) / 3600
        (4.0, 16.0)
    """
    doublings = math.log2(max(TIMEOUT_FACTOR * run_seconds / TIMEOUT_FLOOR_SECONDS, 1))
    return min(int(TIMEOUT_FLOOR_SECONDS * 2 ** math.ceil(doublings)), VERTEX_TASK_SECONDS)


@dataclasses.dataclass(frozen=True)
class PreflightParams:
    """Parameters of preflight: the training run to compile, the machine, and the budgets.

    Each field is an input of the component.

    Attributes:
        training: Parameters of train_model: model, hyper-parameters, backend, precision, and input pipeline. With the
            `jax` backend, the step of all replicas is compiled. With `tensorflow`, the step of one replica is compiled.
            The backend `auto` means jax. The precision `auto` means mixed_bfloat16 for a TPU and float32 for a GPU.
        epochs: Number of epochs for which the time and price of a run are computed. 0 means the number of epochs in
            `training`.
        paid: Machine on which the training runs, and the settings that determine its price: `machine` is its name, and
            `region`, `spot` and `target` (the platform) select the price. `timeout_seconds` is the time limit of
            each attempt at training; 0 means a limit that is derived from the estimate. `attempts` is the largest
            number of attempts.
        find_largest_batch: Find the largest batch per replica that fits, by compiling the step for several batch sizes.
            If false, preflight computes only an upper bound. If the configured batch does not fit, preflight searches
            for the largest batch even if this is false.
        max_step_ms: Reject a training run whose step takes longer than this on the device, in milliseconds. 0 means no
            limit.
        max_price_usd: Reject a run whose expected price on the platform is above this number of US dollars. 0 means no
            limit. On Kubeflow and for GPUs, this number also determines the time limit of training, unless
            `machine.timeout_seconds` is set. A run may cost more: see the highest price in preflight's report.
        max_host_wait: Reject a run in which the device would wait for data for more than this share of the time, from 0
            to 1. 0 means no limit.
        compile_timeout_seconds: Time limit of one compilation, in seconds. The time that the compiler waits for a CPU
            on a busy machine does not count.
        compile_memory_mib: Memory limit of a compilation, in MiB.
    """

    training: TrainParams
    epochs: NotNegative = 0
    paid: PaidMachine = dataclasses.field(default_factory=PaidMachine)
    find_largest_batch: bool = False
    max_step_ms: Amount = 0.0
    max_price_usd: Amount = 0.0
    max_host_wait: Annotated[float, Range(0, below=1)] = 0.0
    compile_timeout_seconds: Annotated[float, Range(above=0, below=math.inf)] = 900.0
    compile_memory_mib: Positive = 16_384

    def __post_init__(self) -> None:
        check_fields(self)
        self.paid.slice.require_backend(self.training.backend)

    @property
    def run_epochs(self) -> int:
        """Number of epochs for which the time and price of a run are computed."""
        return self.epochs or self.training.epochs


@dataclasses.dataclass(frozen=True)
class PreflightResult:
    """Result of preflight for the machine that will train the model.

    Attributes:
        passed: Whether the training step compiles for the machine, fits its memory and stays within all limits on time,
            price and waiting, and whether train_model would accept the parameters. For a GPU, the
            step is not compiled, and it also passes if it may fit.
        machine: The machine's short name.
        verdict: `fits`, `may_fit`, `does_not_fit`, `does_not_compile`, `timed_out`, `out_of_memory`, `crashed`.
        reasons: Reasons why the training run did not pass. Empty if it passed.
        step_ms: Time of a step on the device, in milliseconds, or 0 if unknown.
        epoch_seconds: Time of an epoch, including waiting for data, in seconds, or 0 if unknown.
        usd_per_run: Expected price of a run, in US dollars, or 0 if no price is known.
        timeout_seconds: Time limit of training, in seconds, or 0 if it is unknown.
        footprint: Estimated memory, step time and price, as the fields of a `Footprint`. They are stored with a
            registered version. Empty if the training step does not fit.
        prediction: Predicted time, memory and price, as the fields of a `Prediction`. evaluate_model compares them with
            the finished run. Empty if the time is unknown.
    """

    passed: bool
    machine: str
    verdict: str
    reasons: tuple[str, ...]
    step_ms: float
    epoch_seconds: float
    usd_per_run: float
    timeout_seconds: int = 0
    footprint: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    prediction: Mapping[str, Any] = dataclasses.field(default_factory=dict)
