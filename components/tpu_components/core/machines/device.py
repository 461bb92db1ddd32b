"""Choice of the device for a model: backend, replicas, precision and compilation.

All code for TPUs, GPUs and simulated replicas is in this module. Call `prepare` before anything imports Keras, because
Keras reads the name of its backend only once.
"""

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import jax, keras, tf
from tpu_components.core.machines.hosts import ALONE, Hosts, connect

BACKENDS = ("auto", "tensorflow", "jax")
ACCELERATORS = ("auto", "cpu", "gpu", "tpu")
_LOCKED_BYTES = 68_719_476_736_000  # From use-tpu#custom_container; `ulimit -l` counts in KiB.
_KEPT_FROM_SECONDS = 0.3  # Shortest compilation to cache; reading shorter ones from a bucket is no faster.
PRECISIONS = ("auto", "float32", "mixed_bfloat16")


@dataclasses.dataclass(frozen=True)
class Device:
    """The device, precision and kind of compilation that `prepare` has chosen.

    Attributes:
        backend: `tensorflow` or `jax`.
        accelerator: `cpu`, `gpu` or `tpu`.
        num_replicas: Number of devices that share a batch.
        precision: Keras dtype policy.
        distribution: Distribution strategy (TensorFlow) or Keras DataParallel (JAX). None if there is only one replica.
    """

    backend: str
    accelerator: str
    num_replicas: int
    precision: str
    distribution: Any = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def jit_compile(self) -> bool:
        """Whether `Model.compile` uses XLA: true for JAX, false for TensorFlow.

        XLA makes TensorFlow's convolutions on a CPU three times slower.
        """
        return self.backend == "jax"

    @property
    def mesh(self) -> Any:
        """Mesh of the devices that share a batch, a `jax.sharding.Mesh`.

        None if there is only one replica or the backend is TensorFlow.
        """
        is_shared = self.backend == "jax" and self.distribution is not None
        return self.distribution.device_mesh.backend_mesh if is_shared else None

    @property
    def name(self) -> str:
        """Number and kind of the devices, such as `8 × TPU v5 lite`. For a CPU, the kind is the processor's model."""
        kind = describe_host() if self.accelerator == "cpu" else self.kind or self.accelerator
        return f"{self.num_replicas} × {kind}"

    @property
    def kind(self) -> str:
        """JAX's name for the devices, such as `TPU v5 lite`. Empty on a CPU or if the backend is TensorFlow."""
        has_name = self.backend == "jax" and self.accelerator != "cpu"
        return str(jax.devices()[0].device_kind) if has_name else ""

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context manager for a `with` block in which models are built and run."""
        if self.backend == "tensorflow" and self.distribution is not None:
            return self.distribution.scope()
        return contextlib.nullcontext()


def cpu_flags() -> Sequence[str]:
    """Return the instruction sets of this machine's processor, or an empty sequence if they are unknown."""
    return _processor("flags", "Features").split()


def describe_host() -> str:
    """Describe this machine: number of cores, and model of the processor if it is known."""
    make = _processor("model name") or platform.machine()
    return f"{os.cpu_count()} × {' '.join(make.split())}"


def _processor(*names: str) -> str:
    """Return the first value in /proc/cpuinfo that has one of these names, or an empty string if there is none."""
    try:
        with open("/proc/cpuinfo") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith(names)), "")
    except OSError:
        return ""


def choose_precision(accelerator: str, backend: str, flags: Sequence[str]) -> str:
    """Return the precision for a device, `mixed_bfloat16` or `float32`.

    The precision is mixed_bfloat16 on a TPU and, with TensorFlow, on a CPU with bf16 units. Bf16 units of a CPU
    accelerate oneDNN, which TensorFlow uses, but not XLA, which JAX uses.

    Example:
        >>> choose_precision("cpu", "tensorflow", ["avx2"]), choose_precision("tpu", "jax", [])
        ('float32', 'mixed_bfloat16')
    """
    if accelerator == "tpu":
        return "mixed_bfloat16"
    if accelerator == "cpu" and backend == "tensorflow" and {"amx_bf16", "avx512_bf16"} & set(flags):
        return "mixed_bfloat16"
    return "float32"


def prepare(
    backend: str = "auto",
    accelerator: str = "auto",
    num_replicas: int = 0,
    precision: str = "auto",
    hosts: Hosts = ALONE,
) -> Device:
    """Choose a device, configure Keras for it, connect the hosts, and return the device.

    Args:
        backend: `tensorflow`, `jax`, or `auto`: jax if a TPU or GPU is requested, otherwise tensorflow.
        accelerator: `cpu`, `gpu`, `tpu` or `auto`. `auto` is a GPU if there is one, otherwise the CPU. It is never a
            TPU. With jax, it is always the CPU if `num_replicas` is more than one per host.
        num_replicas: Number of devices of all hosts together. 0 means all devices, or one per host on a CPU. On a CPU,
            any number of devices can be simulated.
        precision: Keras dtype policy; `auto` uses `choose_precision`.
        hosts: Hosts that train together.

    Raises:
        InputError: If the device is missing, Keras already uses another backend, or the backend does not support
            several hosts.
        Terminated: If another host does not connect in time.
    """
    if backend == "auto":
        backend = "jax" if accelerator in ("tpu", "gpu") else "tensorflow"
    if hosts.count > 1 and backend != "jax":
        raise InputError(
            f"Cannot train on {hosts.count} hosts with the {backend} backend: it supports only one host. Set "
            "training.backend=jax."
        )
    _claim_backend(backend)
    if backend == "tensorflow":
        accelerator, num_replicas, distribution = _prepare_tensorflow(accelerator, num_replicas)
    else:
        accelerator, num_replicas, distribution = _prepare_jax(accelerator, num_replicas, hosts)
    if precision == "auto":
        precision = choose_precision(accelerator, backend, cpu_flags())
    keras.config.set_dtype_policy(precision)
    # Keras 3.15's flash attention on a TPU is causal without a mask, unscaled, and cannot be sharded over replicas.
    keras.config.disable_flash_attention()
    return Device(backend, accelerator, num_replicas, precision, distribution)


def keep_programs(directory: Path) -> None:
    """Set the folder of JAX's compile cache, unless JAX_COMPILATION_CACHE_DIR is set.

    Call this before anything is compiled. The content of the folder must be trusted like code.
    """
    from jax.experimental.compilation_cache import compilation_cache

    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _KEPT_FROM_SECONDS)
    compilation_cache.reset_cache()  # Forget an earlier folder of this process.


def raise_locked_memory() -> None:
    """Raise the limit of locked memory, which the TPU driver needs, as far as the platform allows.

    The limit that Google recommends may need privileges that the container does not have.
    https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/use-tpu#custom_container
    """
    try:
        import resource
    except ImportError:  # On Windows, which has no TPU.
        return
    _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    for limit in (_LOCKED_BYTES, most):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
            return


def _claim_backend(backend: str) -> None:
    loaded = sys.modules.get("keras")
    current = loaded.backend.backend() if loaded is not None else backend
    if current != backend:
        raise InputError(
            f"Cannot use the {backend} backend: Keras already uses {current} in this process. Start a new process, or "
            f"set KERAS_BACKEND={backend} before importing keras."
        )
    os.environ["KERAS_BACKEND"] = backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if backend == "jax":
        import jax  # noqa: F401 (before Keras, whose own error would not say what to install)


def _prepare_tensorflow(accelerator: str, num_replicas: int) -> tuple[str, int, Any]:
    if accelerator == "tpu":
        return _connect_tensorflow_tpu(num_replicas)
    gpus = tf.config.list_physical_devices("GPU")
    if accelerator == "gpu" and not gpus:
        raise InputError(
            "Cannot use a GPU with the tensorflow backend: TensorFlow finds no GPU. Set backend to jax, install "
            "TensorFlow with CUDA, or set accelerator to auto or cpu."
        )
    if gpus and accelerator != "cpu":
        if num_replicas > len(gpus):
            raise InputError(
                f"Cannot use {num_replicas} replicas: TensorFlow finds only {len(gpus)} GPUs. Lower num_replicas."
            )
        names = [f"GPU:{i}" for i in range(num_replicas or len(gpus))]
        return "gpu", len(names), tf.distribute.MirroredStrategy(names) if len(names) > 1 else None
    num_replicas = num_replicas or 1
    if num_replicas == 1:
        return "cpu", 1, None
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_replicas)
    except RuntimeError as error:  # TensorFlow is initialised; its devices can no longer be changed.
        if len(tf.config.list_logical_devices("CPU")) < num_replicas:
            raise InputError(
                f"Cannot simulate {num_replicas} replicas: TensorFlow has already started with fewer devices. Start a "
                "new process."
            ) from error
    names = [f"CPU:{i}" for i in range(num_replicas)]
    # Explicit, because the default would need NCCL.
    strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice("CPU:0"))
    return "cpu", num_replicas, strategy


def _connect_tensorflow_tpu(num_replicas: int) -> tuple[str, int, Any]:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu="local")
        strategy = tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # TensorFlow raises many types here, and lists its kernels below the reason.
        reason = str(error).partition("\n")[0] or repr(error)
        raise InputError(
            f"Cannot use a TPU with the tensorflow backend: {reason}. Run on a TPU VM with tensorflow-tpu, use the jax "
            "backend, or set accelerator to auto."
        ) from error
    _check_all_cores(num_replicas, strategy.num_replicas_in_sync)
    return "tpu", strategy.num_replicas_in_sync, strategy


def _check_all_cores(num_replicas: int, available: int) -> None:
    if num_replicas not in (0, available):
        raise InputError(
            f"A training run must use the whole TPU slice: expected num_replicas={available} or 0, received "
            f"{num_replicas}. Set num_replicas=0, or choose another machine."
        )


def _prepare_jax(accelerator: str, num_replicas: int, hosts: Hosts) -> tuple[str, int, Any]:
    tf.config.set_visible_devices([], "GPU")  # Leave GPU memory to JAX; tf.data needs none.
    # Search for a TPU only on request: with libtpu installed (for preflight) this takes seconds and prints errors.
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    has_gpu_plugin = any("cuda" in plugin.name or "rocm" in plugin.name for plugin in plugins)
    if num_replicas % hosts.count:
        raise InputError(
            f"Cannot divide {num_replicas} replicas among {hosts.count} hosts: expected num_replicas=0, or a multiple "
            "of the number of hosts."
        )
    own_replicas = num_replicas // hosts.count
    if accelerator == "cpu" or (accelerator == "auto" and (own_replicas > 1 or not has_gpu_plugin)):
        jax.config.update("jax_platforms", "cpu")
        # With one device, run programs in this thread: a switch of threads takes as long as a small step.
        jax.config.update("jax_cpu_enable_async_dispatch", own_replicas > 1)
    if own_replicas > 1 and accelerator in ("auto", "cpu"):
        with contextlib.suppress(RuntimeError):  # JAX is initialised; its devices are counted below.
            jax.config.update("jax_num_cpu_devices", own_replicas)
    if accelerator == "tpu":
        jax.config.update("jax_platforms", "tpu,cpu")
    connect(hosts)
    try:
        # Devices of a host must be adjacent, because a host passes its part of a batch as one block.
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    except RuntimeError as error:
        raise InputError(f"Cannot use a {accelerator} with JAX: {error}. Set accelerator to auto or cpu.") from error
    if (jax.process_index(), jax.process_count()) != (hosts.index, hosts.count):  # On a TPU, libtpu sets both.
        raise InputError(
            f"Cannot train as host {hosts.index} of {hosts.count}: JAX reports that this is host {jax.process_index()} "
            f"of {jax.process_count()}. Start each host with --hosts INDEX/COUNT@ADDRESS."
        )
    platform = devices[0].platform
    if accelerator not in ("auto", platform):
        raise InputError(
            f"Cannot use a {accelerator}: JAX finds only {platform} devices. Run on a machine with a {accelerator}, or "
            "set accelerator to auto."
        )
    if platform == "tpu":
        _check_all_cores(num_replicas, len(devices))
    num_replicas = num_replicas or (hosts.count if platform == "cpu" else len(devices))
    if num_replicas > len(devices):
        raise InputError(
            f"Cannot use {num_replicas} replicas: JAX finds only {len(devices)} devices. Lower num_replicas."
        )
    distribution = None
    if num_replicas > 1:
        distribution = keras.distribution.DataParallel(
            devices=[f"{platform}:{device.id}" for device in devices[:num_replicas]]
        )
    keras.distribution.set_distribution(distribution)
    return platform, num_replicas, distribution
