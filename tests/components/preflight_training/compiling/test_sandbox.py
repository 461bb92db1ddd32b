"""Children that compile, crash, hang and take memory; each start of one takes two or three seconds.

Tests that do not ask about the process itself have `warm_compiler` in its place.
"""

import dataclasses
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.components.preflight_training.conftest import SMALL, compile_all, compile_one, make_compilation
from tpu_components.core.base.errors import InputError
from tpu_components.preflight_training.compiling import sandbox
from tpu_components.preflight_training.compiling.outcome import DOES_NOT_COMPILE, DOES_NOT_FIT, FITS, Outcome

_MODEL = """
def build_model(image_shape, num_classes):
    import keras
    from keras import layers

    {before}
    return keras.Sequential([
        keras.Input(image_shape, dtype="uint8"),
        layers.Flatten(),
        layers.Dense(num_classes, activation="softmax", dtype="float32"),
    ])
"""


@pytest.fixture
def model_file(tmp_path):
    """Write a small model of the user's own, with something to happen before it is built."""

    def write(before="", name="model.py"):
        (tmp_path / "code").mkdir(exist_ok=True)
        path = tmp_path / "code" / name
        path.write_text(_MODEL.replace("{before}", before or "pass"))
        return str(path)

    return write


def _no_child_may_start(monkeypatch):
    def refuse(*_):
        raise ChildProcessError("a child was started")

    monkeypatch.setattr(sandbox.Sandbox, "run_child", refuse)


@pytest.mark.heavy  # Two processes that import the compiler: 5 s.
def test_crash_is_a_verdict_and_the_next_child_takes_up_the_rest(model_file, tmp_path, monkeypatch):
    """It aborts while it builds for 16 images, as libtpu does on an internal error, and not for others."""
    before = "import os, sys\n    if not os.path.exists({0!r}):\n        open({0!r}, 'w').close()\n        os.abort()"
    model = model_file(before.format(str(tmp_path / "crashed")))
    compilations = [make_compilation(model, batch_size=size) for size in (16, 8)]
    crashed, fits = compile_all(compilations, tmp_path)
    assert crashed.verdict == sandbox.CRASHED
    assert "SIGABRT" in crashed.reason
    assert fits.verdict == FITS
    # What is not known for certain is tried anew.
    _no_child_may_start(monkeypatch)
    assert compile_one(compilations[1], tmp_path) == fits
    with pytest.raises(ChildProcessError):
        compile_one(compilations[0], tmp_path)


@pytest.mark.heavy  # A process that imports the compiler: 3 s.
def test_a_child_that_takes_too_much_memory_is_a_verdict(model_file, tmp_path):
    compilation = make_compilation(model_file("held = b'1' * (1 << 30); import time; time.sleep(600)"))
    outcome = compile_one(compilation, tmp_path, memory_mib=1000)
    assert outcome.verdict == sandbox.OUT_OF_MEMORY
    assert "1,000 MiB" in outcome.reason
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.heavy  # A process that imports the compiler: 3 s.
def test_a_child_finds_the_module_of_an_import_path_and_its_exit_is_a_verdict(tmp_path, monkeypatch):
    """It sees what this process can import: else it would say that there is no such module."""
    (tmp_path / "my_package_model.py").write_text("def build_model(**_):\n    raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    outcome = compile_one(make_compilation("my_package_model:build_model"), tmp_path / "cache")
    assert (outcome.verdict, "exit code 0" in outcome.reason) == (sandbox.CRASHED, True)
    assert not list((tmp_path / "cache").glob("*.json"))


@pytest.mark.heavy  # A process that imports the compiler, and waiting: 5 s.
def test_a_long_compilation_says_now_and_then_that_it_goes_on_and_is_given_up(model_file, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sandbox, "SAY_EVERY_SECONDS", 0.5)
    compilation = make_compilation(model_file("import time; time.sleep(600)"))
    outcome = compile_one(compilation, tmp_path, timeout_seconds=3)
    assert outcome.verdict == sandbox.TIMED_OUT
    assert "not compiled after 3 s" in outcome.reason
    assert not list(tmp_path.glob("*.json"))
    said = capfd.readouterr().err
    assert re.search(r"\[preflight_training\] v5e-1: still compiling after \d s, \d s without waiting", said)


@pytest.mark.parametrize(
    ("states", "cpu", "expected"),
    [
        ("S", 0, 60),  # It hangs.
        ("R", 60, 60),
        ("R", 15, 15),  # Other processes have the CPU three quarters of the time.
        ("SRR", 20, 60),  # Three threads of 20 s each: a minute of CPU time in a minute.
        ("SRR", 60, 60),  # On three CPUs, the wall time counts.
    ],
)
def test_time_without_a_cpu_does_not_count_for_the_limit_and_sleep_does(states, cpu, expected, tmp_path):
    """A minute of a process; `cpu` is the CPU time of each of its threads."""
    minute = iter([0.0, 60.0])

    def write(seconds):
        for i, state in enumerate(states):
            (tmp_path / str(i)).mkdir(exist_ok=True)
            ticks = seconds * os.sysconf("SC_CLK_TCK")
            fields = [state, *["0"] * 10, str(ticks // 2), str(ticks - ticks // 2), *["0"] * 30]
            (tmp_path / str(i) / "stat").write_text(f"{i} (a ) name) {' '.join(fields)}")

    write(7)
    clock = sandbox.Clock(tmp_path, now=lambda: next(minute))
    write(7 + cpu)
    assert clock.read() == expected


def test_a_line_at_most_every_half_minute_says_that_a_compilation_goes_on():
    assert sandbox.SAY_EVERY_SECONDS >= 30


@pytest.mark.usefixtures("warm_compiler")
@pytest.mark.parametrize(
    ("compilation", "unknown"),
    [(make_compilation("no_such_model"), "no_such_model"), (make_compilation("digits_cnn", {"filterz": 4}), "filterz")],
)
def test_an_unknown_model_or_parameter_is_a_mistake_of_the_user(tmp_path, compilation, unknown):
    with pytest.raises(InputError, match=unknown):
        compile_one(compilation, tmp_path)


@pytest.mark.usefixtures("warm_compiler")
def test_known_outcome_starts_no_process(tmp_path, monkeypatch):
    first = compile_one(make_compilation(), tmp_path)
    assert first.verdict == FITS
    assert not first.is_cached
    _no_child_may_start(monkeypatch)
    second = compile_one(make_compilation(), tmp_path)
    assert (second, second.is_cached) == (first, True)
    # What decides the outcome is part of its key.
    for compilation in (
        make_compilation(batch_size=9),
        make_compilation(machine="v6e-1"),
        make_compilation(parameters={**SMALL, "units": 9}),
        make_compilation(precision="float32"),
        dataclasses.replace(make_compilation(), num_examples=99),
    ):
        with pytest.raises(ChildProcessError):
            compile_one(compilation, tmp_path)


@pytest.mark.usefixtures("warm_compiler")
def test_comment_in_the_model_compiles_nothing_again_and_a_changed_layer_does(model_file, tmp_path):
    compilation = make_compilation(model_file())
    first = compile_one(compilation, tmp_path)
    model_file("# A comment.")
    same = compile_one(compilation, tmp_path)
    assert not same.is_cached  # A child has lowered it,
    assert same == first  # and found the very program compiled, with the time that took.
    model_file("layers.Flatten = layers.GlobalAveragePooling2D")
    assert compile_one(compilation, tmp_path).parameters == 20 != first.parameters


def test_a_child_that_has_answered_and_does_not_end_is_not_waited_for(monkeypatch, tmp_path):
    """After a large program the compiler may take minutes to end."""
    code = (
        "import pickle, sys, time; from multiprocessing.connection import Connection; "
        "pipe = Connection(int(sys.argv[-1]), readable=False); "
        f"pipe.send(pickle.loads({pickle.dumps(Outcome(DOES_NOT_FIT, 'too large'))!r})); time.sleep(600)"
    )
    run = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: run([words[0], "-c", code, words[-1]], **how))
    monkeypatch.setattr(sandbox, "SAY_EVERY_SECONDS", 0.0)
    assert compile_one(make_compilation(), tmp_path).reason == "too large"


# A child that answers every request with its number.
_NUMBERED = f"""
import os, pickle, sys
from multiprocessing.connection import Connection
pipe, answer = Connection(int(sys.argv[-1]), readable=False), {pickle.dumps(Outcome(DOES_NOT_FIT))!r}
pickle.load(sys.stdin.buffer)
while pickle.load(sys.stdin.buffer):
    outcome = pickle.loads(answer)
    object.__setattr__(outcome, "reason", str(os.getpid()))
    pipe.send(outcome)
"""


def test_one_child_compiles_all_programs_of_a_block_and_ends_with_it(monkeypatch, tmp_path):
    """Its imports take longer than most compilations."""
    run = subprocess.Popen
    box = sandbox.Sandbox(60, 8192, tmp_path)
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: run([words[0], "-c", _NUMBERED, words[-1]], **how))
    with box:
        first, second, third = (
            outcome.reason
            for sizes in ([8, 16], [32])
            for outcome in box.compile_all([make_compilation(batch_size=size) for size in sizes])
        )
        assert first == second == third
        assert _is_running(first)
    assert not _is_running(first)
    (other,) = box.compile_all([make_compilation(batch_size=64)])
    assert other.reason != first
    assert not _is_running(other.reason)


@pytest.mark.slow  # Two compilers in processes of their own: 10 s.
def test_two_at_once_do_not_lock_each_other_out(tmp_path):
    """Without ALLOW_MULTIPLE_LIBTPU_LOAD the second ends with `ABORTED: … multi-process lockfile`.

    What the compiler says is soonest told of a batch that does not fit.
    """

    def compile_in(name):
        return compile_one(make_compilation(parameters={}, batch_size=4_000_000), tmp_path / name)

    with ThreadPoolExecutor(2) as both:
        assert [outcome.verdict for outcome in both.map(compile_in, ("one", "two"))] == [DOES_NOT_FIT, DOES_NOT_FIT]


def test_missing_compiler_says_what_to_install(tmp_path):
    """In a process whose packages are ours without libtpu."""
    site = tmp_path / "site"
    site.mkdir()
    # A path on which everything but libtpu is found.
    (packages,) = [path for path in map(Path, sys.path) if (path / "libtpu").is_dir()]
    for entry in packages.iterdir():
        if not entry.name.startswith("libtpu"):
            (site / entry.name).symlink_to(entry)
    script = (
        f"import sys; sys.path = [p for p in sys.path if p != {str(packages)!r}] + [{str(site)!r}, {os.getcwd()!r}]\n"
        "from tpu_components.preflight_training.compiling.sandbox import require_compiler\n"
        "from tpu_components.core.base.errors import InputError\n"
        "from tpu_components.core.machines.machine_spec import load_catalogue\n"
        "require_compiler([load_catalogue().find('l4-1')])\n"  # A GPU needs JAX alone.
        "try:\n    require_compiler([load_catalogue().find('v5e-1')])\nexcept InputError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'tpu-pipelines[preflight]'" in done.stdout


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


@pytest.mark.heavy  # A process that imports the compiler: 3 s.
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_child_ends_when_its_parent_is_killed(model_file, tmp_path):
    marker = tmp_path / "building"  # Renamed to its name, so that it is never seen without the child's number in it.
    compilation = make_compilation(
        model_file(
            "import os, time\n"
            f"    open({str(marker)!r} + '~', 'w').write(str(os.getpid()))\n"
            f"    os.rename({str(marker)!r} + '~', {str(marker)!r})\n"
            "    time.sleep(600)"
        )
    )
    code = (
        "import sys, json, pathlib\n"
        "from tests.components.preflight_training.conftest import compile_one, make_compilation\n"
        "compile_one(make_compilation(sys.argv[1]), pathlib.Path(sys.argv[2]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, compilation.training.model, str(tmp_path / "cache")]) as parent:
        try:
            assert _wait_for(marker.exists, 60)
        finally:
            parent.kill()
    child = int(marker.read_text())
    try:
        assert _wait_for(lambda: not _is_running(child))
    finally:
        if _is_running(child):
            os.kill(child, signal.SIGKILL)


@pytest.mark.usefixtures("warm_compiler")
def test_kept_outcomes_are_whole_json_files(model_file, tmp_path):
    outcome = compile_one(make_compilation(model_file("raise NotImplementedError('no connection')")), tmp_path)
    assert (outcome.verdict, outcome.reason) == (DOES_NOT_COMPILE, "no connection")
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} <= {".json"}
    for path in tmp_path.glob("*.json"):
        json.loads(path.read_text())


def test_cache_is_the_users_own_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv(sandbox.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/.cache")
    assert sandbox.default_cache_dir() == Path("/home/me/.cache/tpu-pipelines/preflight")
    monkeypatch.setenv(sandbox.CACHE_VARIABLE, "/elsewhere")
    assert sandbox.default_cache_dir() == Path("/elsewhere/preflight")
