import os
import platform
import re
import subprocess
import sys

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.machines import device


@pytest.mark.parametrize(
    ("accelerator", "backend", "flags", "expected"),
    [
        ("tpu", "jax", (), "mixed_bfloat16"),
        ("tpu", "tensorflow", (), "mixed_bfloat16"),
        ("cpu", "tensorflow", ("avx2", "avx512_bf16"), "mixed_bfloat16"),
        ("cpu", "tensorflow", ("amx_bf16",), "mixed_bfloat16"),
        ("cpu", "tensorflow", ("avx2", "avx512f"), "float32"),
        ("cpu", "tensorflow", (), "float32"),
        ("cpu", "jax", ("amx_bf16", "avx512_bf16"), "float32"),
        ("gpu", "tensorflow", ("amx_bf16",), "float32"),
        ("gpu", "jax", (), "float32"),
    ],
)
def test_precision_is_bfloat16_where_the_hardware_gains_from_it(accelerator, backend, flags, expected):
    assert device.choose_precision(accelerator, backend, flags) == expected


def test_one_cpu_is_the_default():
    chosen = device.prepare("auto", "cpu", 0, "float32")
    assert chosen == device.Device("tensorflow", "cpu", 1, "float32")
    assert not chosen.jit_compile
    import keras

    assert keras.config.dtype_policy().name == "float32"
    with chosen.scope():
        assert keras.Variable(1.0).dtype == "float32"


def test_only_jax_compiles_with_xla():
    assert device.Device("jax", "cpu", 1, "float32").jit_compile
    assert not device.Device("tensorflow", "cpu", 1, "float32").jit_compile


def test_attention_is_that_of_a_cpu_on_every_device():
    import keras

    device.prepare("auto", "cpu", 0, "float32")
    assert keras.config.is_flash_attention_enabled() is False


def test_backend_that_keras_does_not_run_is_refused():
    device.prepare("tensorflow", "cpu", 1, "float32")
    with pytest.raises(InputError, match=r"Cannot use the jax backend: Keras already uses tensorflow"):
        device.prepare("jax", "cpu", 1, "float32")
    import os

    assert os.environ["KERAS_BACKEND"] == "tensorflow"


def test_replicas_cannot_be_added_once_tensorflow_has_started():
    import tensorflow as tf

    device.prepare("tensorflow", "cpu", 1, "float32")
    tf.constant(1)
    with pytest.raises(InputError, match=r"Cannot simulate 3 replicas.*Start a new process"):
        device.prepare("tensorflow", "cpu", 3, "float32")


def test_missing_gpu_is_refused():
    with pytest.raises(InputError, match=r"TensorFlow finds no GPU\. Set backend to jax"):
        device.prepare("tensorflow", "gpu", 0, "float32")


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow)])  # 5 s a process.
def test_missing_tpu_fails_loudly_with_exit_code_2(backend, digits_records, tmp_path, quick, run_step, run_step_here):
    run = run_step_here  # Which has TensorFlow.
    if backend == "jax":
        pytest.importorskip("jax", reason="needs the jax extra")
        run = run_step
    params = {"model": quick.model, "backend": backend, "accelerator": "tpu"}
    done = run("train_model", params, records=digits_records, output=tmp_path / "model")
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: Cannot use a ")
    assert "accelerator to auto" in last
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # A process per backend, since a process has one: 10 s.
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_eight_replicas_are_simulated_on_one_cpu(backend):
    program = (
        "from tpu_components.core.machines import device\n"
        f"chosen = device.prepare({backend!r}, 'cpu', 8, 'auto')\n"
        "assert (chosen.accelerator, chosen.num_replicas) == ('cpu', 8), chosen\n"
        f"assert device.prepare({backend!r}, 'cpu', 8, 'auto') == chosen\n"
        f"assert chosen.jit_compile == ({backend!r} == 'jax')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_host_is_named_by_its_cores_and_their_make(monkeypatch):
    assert re.fullmatch(rf"{os.cpu_count()} × \S.*", device.describe_host())
    monkeypatch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    assert device.describe_host() == f"{os.cpu_count()} × {platform.machine()}"


def test_a_training_may_lock_all_the_memory_that_it_is_allowed_to():
    """A TPU's driver asks for it; the soft limit that a container begins with may be 64 KiB."""
    code = (
        "import resource\n"
        "from tpu_components.core.machines.device import raise_locked_memory\n"
        "_, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, most))\n"
        "raise_locked_memory()\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)\n"
        "print(soft == hard, hard >= most or hard == -1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
