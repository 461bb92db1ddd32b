import functools
import gc
import inspect
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.fakes.storage import bucket, s3_server, storage_server  # noqa: F401 (fixtures)

if TYPE_CHECKING:
    from tests.components.preflight_training.warm import WarmCompiler

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # Tests judge numbers on the CPU, also where there is a GPU.
sys.dont_write_bytecode = False  # Until the tests are listed: a hundred processes would compile all of our code anew.
gc.set_threshold(100_000, 20, 20)  # Imports make no garbage, and looking for it takes a fourth of their time.
if "PYTEST_XDIST_WORKER" not in os.environ:  # Whose processes inherit what is set here.
    # Compilations are kept between tests, and apart from the user's own; deleted when the tests end.
    _cache = tempfile.TemporaryDirectory(prefix="tpu-pipelines-tests-", ignore_cleanup_errors=True)
    os.environ["TPU_PIPELINES_CACHE_DIR"] = _cache.name
    # So is what processes leave in the folder for temporary files when they are killed. pytest's own stays outside.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tmp-", dir=_cache.name)
    os.environ.setdefault("TPU_LOG_DIR", f"{tempfile.tempdir}/tpu_logs")
    os.environ["TPU_PIPELINES_TESTS_SOCKET"] = f"{_cache.name}/warm"

# What tests.components.preflight_training.warm does, which is imported only when somebody asks.
_WAIT = """
import select, socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
if listener in select.select([listener, sys.stdin], [], [])[0]:
    from tests.components.preflight_training.warm import serve
    serve(listener)
"""


def pytest_configure(config: pytest.Config) -> None:
    """Let a process wait for whoever wants what needs JAX, which takes seconds to import."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.environ["TPU_PIPELINES_TESTS_SOCKET"])
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-c", _WAIT, str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(config.rootpath), *sys.path])},
        )
    config.add_cleanup(process.communicate)  # The end of stdin is its end.


def pytest_collection_finish() -> None:
    """Compile the code of the tests' own models as the environment says, and pass over all that was imported."""
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    gc.freeze()  # Nearly all of it stays: looking for the rest takes a second.


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Pass over what a file's tests have left: training looks through all there is, each time."""
    yield
    if nextitem is None or nextitem.path != item.path:
        _pass_over_what_stays()


def _pass_over_what_stays() -> None:
    """Leave what is there, and is no garbage, out of every later collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def measured_briefly() -> Iterator[None]:
    """How fast this machine reads is measured in a tenth of the time; on all its cores it takes a second, twice."""
    from tpu_components.preflight_training import data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "_MEASURED_SECONDS", 0.1)
        yield


@pytest.fixture(scope="session", autouse=True)
def digits_parsed_once() -> Iterator[None]:
    """The table of the bundled digits is parsed once for each way to ask for it; nobody writes to it."""
    import numpy as np

    def load(file: Any, **how: Any) -> Any:
        return parsed_once(file, **how) if str(file).endswith("digits.csv.gz") else parse(file, **how)

    @functools.cache
    def parsed_once(file: Any, **how: Any) -> Any:
        table = parse(file, **how)
        table.flags.writeable = False
        return table

    with pytest.MonkeyPatch.context() as patch:
        parse = np.loadtxt
        patch.setattr(np, "loadtxt", load)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_compiler() -> Iterator[None]:
    """KFP compiles as ever, but reads and writes YAML in C, and reads its caller's name from the caller alone.

    It asks for the whole stack at every limit that a step is given, and the stack looks for every frame's source among
    all modules: under pytest, as long as all the rest of compiling.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)
        patch.setattr(yaml, "SafeDumper", yaml.CSafeDumper)
        patch.setattr(yaml, "dump_all", functools.partial(yaml.dump_all, Dumper=yaml.CDumper))
        patch.setattr(inspect, "stack", _stack_without_source)
        yield


@pytest.fixture(scope="session", autouse=True)
def outlines() -> Iterator[None]:
    """Pages have empty pictures in place of plots, where a test does not ask for `drawings`."""
    from tests.support.drawings import drawn, outline

    with drawn(outline):
        yield


@pytest.fixture
def drawings() -> Iterator[None]:
    """Plots of pages are drawn."""
    from tests.support.drawings import drawn

    with drawn():
        yield


@pytest.fixture(scope="session")
def warm() -> Iterator["WarmCompiler"]:
    """The process that has imported JAX; its copies compile for TPUs and run code."""
    from tests.components.preflight_training.warm import WarmCompiler

    warm = WarmCompiler()
    yield warm
    warm.leave()


@pytest.fixture
def tiny_disk(tmp_path):
    """A real file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a file system: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def _stack_without_source(context: int = 1) -> list[inspect.FrameInfo]:
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))  # noqa: SLF001
    return [
        inspect.FrameInfo(frame, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, None, None)
        for frame in frames
    ]
