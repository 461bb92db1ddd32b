"""Build every image, look into it, run digits in containers and beside them, serve, end steps at any time, and push.

Exit code 0 where all of that holds, 1 where some of it does not, and 5 where containers cannot run here: no pass.
"""

import argparse
import functools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.evidence.images.engine import CannotRunError, Engine, tagged
from tests.evidence.images.pods import InCluster, WithEngine
from tests.evidence.images.registry import Registry
from tests.evidence.kills.outcome import differences, outcome
from tests.evidence.licences import KNOWN
from tests.support.cli import REPOSITORY
from tests.support.fakes import kfp_launcher
from tests.support.fakes.kfp_driver import Driver, StepFailedError
from tpu_components.core.base.container_images import is_pinned
from tpu_components.export_model.component import export_model
from tpu_components.train_model.component import train_model
from tpu_pipelines.config.steps import STEPS

NO_CONTAINERS = 5
# Bytes. In `train`, TensorFlow weighs 0.9 GB, libtpu 0.7, compiled modules 0.3, jaxlib 0.35, the base 0.15.
BUDGETS = {"serving": 350e6, "steps": 2.2e9, "train": 3.0e9}
USERS = {"serving": 1000, "steps": 1000, "train": 0}  # The user IDs in docker/README.md.
_STARTUP_SECONDS = 3.0  # A step in its container beside the plain process, and the server's first answer.
_COMPARED = ("records", "preflight", "model", "evaluation")
# What a step on Kubeflow leaves, and where a run on this machine has the same.
_ON_KUBEFLOW = {
    "create-tfrecords/records": "records",
    "preflight-training/preflight": "preflight",
    "train-model/trained": "model",
    "evaluate-model/evaluation": "evaluation",
    "export-model/export": "export",
}
_PORT = 8089
# Where anyone may write in any image: emptied, or mounted over, when a container starts.
_FOR_ALL = ("tmp", "var/tmp", "run/lock", "dev/shm")
_SECRETS = re.compile(r"(^|/)(\.git|\.netrc|\.ssh|\.aws|\.env|pip\.conf|id_rsa|credentials[^/]*\.json|[^/]*\.key)(/|$)")
_DEB = "pkg:deb/"
_USER_AND_TOOLS = "id -u; for tool in cc gcc g++ make git curl wget; do command -v $tool; done; true"
_TESTS = re.compile(r"^opt/.*/tests(/|$)")
_Result = TypeVar("_Result")


class _Report:
    """What was seen, a line each, and whether all of it is as it should be."""

    def __init__(self) -> None:
        self.failed = False

    def timed(self, what: str, call: Callable[[], _Result]) -> _Result:
        """Return what a call gives, and say how long it took."""
        start = time.monotonic()
        result = call()
        print(f"      {time.monotonic() - start:7.1f} s  {what}", flush=True)
        return result

    def check(self, holds: bool, what: str) -> None:
        """Say whether something holds."""
        self.failed |= not holds
        print(f"{'  ok' if holds else 'FAIL'}             {what}", flush=True)


def _tag(name: str) -> str:
    return f"localhost/tpu-pipelines-{name}:test"


def _build(engine: Engine, base: str, name: str, report: _Report) -> None:
    report.timed(f"built {name}", lambda: engine.build(name, _tag(name), base))
    size, budget = engine.size(_tag(name)), BUDGETS[name]
    report.check(size <= budget, f"{name} is {size / 1e6:,.0f} MB, at most {budget / 1e6:,.0f} wanted")
    unwanted = [entry.name for entry in engine.files(_tag(name)) if _is_unwanted(entry)]
    report.check(not unwanted, f"{name} has no tests, no secrets, nothing that all may write to: {unwanted[:5]}")
    labels = {key.rpartition(".")[2]: value for key, value in engine.labels(_tag(name)).items()}
    is_told = re.match("[0-9a-f]{40}", labels.get("revision", "")) and labels.get("version")
    report.check(bool(is_told), f"{name} says what it is: {labels}")
    user, *tools = engine.run(_tag(name), ["-c", _USER_AND_TOOLS], "--entrypoint", "sh").stdout.split()
    report.check(int(user) == USERS[name], f"{name} runs as user {user}, expected {USERS[name]}")
    report.check(not tools, f"{name} has no compiler, Git or download tool: {tools}")


def _bill(engine: Engine, name: str, report: _Report) -> None:
    """Read an image's bill of materials, and compare it with the lock that it was filled from."""
    engine.make(f"sbom-{name}", tagged(name, _tag(name)))
    bill = json.loads((REPOSITORY / "build" / "sbom" / f"{name}.cdx.json").read_text())
    debian = {part["name"]: part for part in bill["components"] if _DEB in part.get("purl", "")}
    rest = [part for part in bill["components"] if _DEB not in part.get("purl", "")]
    python = {part["name"].lower().replace("_", "-").replace(".", "-"): part for part in rest}
    lock = (REPOSITORY / "docker" / f"{name}.lock").read_text()
    # What is for another system stands behind a condition; none of ours is for another Python.
    locked = set(re.findall(r"^([a-z0-9][^ =\[]*)==\S+ \\$", lock, re.MULTILINE))
    report.check(
        bill["bomFormat"] == "CycloneDX" and locked <= python.keys(),
        f"the bill of {name} has {len(python)} packages of Python's: {sorted(locked - python.keys())[:5]} are missing",
    )
    without = sorted(name for name, part in python.items() if not part.get("licenses") and name not in KNOWN)
    report.check(not without, f"each with its licence: {without}")
    words = ["--show", "--showformat", "${Package} ${Version}\n"]
    said = engine.run(_tag(name), words, "--entrypoint", "dpkg-query").stdout
    installed = dict(line.split() for line in said.splitlines())
    told = {name: part["version"] for name, part in debian.items()}
    with_licence = sum("licenses" in part for part in debian.values())
    report.check(told == installed, f"and all {len(installed)} of Debian's, {with_licence} with licences")
    _say_updates(installed)


def _say_updates(installed: Mapping[str, str]) -> None:
    """Say which of an image's Debian packages have a newer version, as those have that mend a vulnerability.

    Debian's advisories end in a version of its security suite, and that is all this machine's package manager can say
    of them. The base is its maker's: a newer one, and not the image, is what mends it.
    """
    if not shutil.which("apt-cache"):
        return
    said = subprocess.run(["apt-cache", "policy", *installed], capture_output=True, text=True, check=True).stdout
    candidates = re.findall(r"^(\S+):\n.*\n  Candidate: (\S+)$", said, re.MULTILINE)
    compare = ["dpkg", "--compare-versions"]
    newer = [name for name, to in candidates if not subprocess.run([*compare, installed[name], "lt", to]).returncode]
    print(
        f"                 a newer version here: of {len(candidates)} Debian packages {len(newer)} {newer}", flush=True
    )


def _again(engine: Engine, base: str, name: str, report: _Report) -> None:
    """Build an image a second time, from nothing, and compare the two file by file."""
    report.timed(f"built {name} again", lambda: engine.build(name, f"{_tag(name)}-again", base, afresh=True))
    first, second = (engine.contents(tag) for tag in (_tag(name), f"{_tag(name)}-again"))
    apart = sorted(path for path in {*first, *second} if first.get(path) != second.get(path))
    report.check(not apart, f"{name} built twice: {len(first):,} files alike but {len(apart)}: {apart[:10]}")
    engine.call("rmi", f"{_tag(name)}-again")


def _is_unwanted(entry: tarfile.TarInfo) -> bool:
    name = entry.name.removeprefix("./").rstrip("/")
    anyone_writes = bool(entry.mode & stat.S_IWOTH) and (entry.isfile() or entry.isdir()) and name not in _FOR_ALL
    return anyone_writes or bool(_SECRETS.search(name) or _TESTS.search(name))


def _digits(engine: Engine, work: Path, report: _Report) -> None:
    """Run digits in containers, freely and as a careful cluster does, and compare with what the processes left."""
    for name, module in {"containers": "tpu_pipelines.cli", "restricted": "tests.evidence.images.restricted"}.items():
        _run_digits(engine, work, name, ["-m", module, "run", "digits", "--runner", "docker"], report)
        for part in _COMPARED:
            runs = [work / of / "digits" / part for of in (name, "processes")]
            if part == "preflight" and not _used_one_compiler(*runs):
                continue
            left = {of: outcome(work / of / "digits", work / of) for of in ("processes", name)}
            theirs, ours = ({k: v for k, v in of.items() if k.startswith(part)} for of in left.values())
            apart = differences(ours, theirs)
            report.check(bool(theirs) and not apart, f"{part} of the {name}: the same {len(theirs)} files {apart}")
        lines = (work / name / "digits" / "run.log").read_text().splitlines()
        homeless = [line for line in lines if re.search("(?i)cache directory|not writable|read-only file system", line)]
        report.check(not homeless, f"no word of a missing home in {len(lines)} lines of the {name}' log {homeless[:2]}")


def _run_digits(engine: Engine, work: Path, name: str, words: Sequence[str], report: _Report) -> None:
    command = [sys.executable, *words, "--workspace", str(work / name)]
    with engine.socket() as address:
        said = {**os.environ, **address, "TPU_PIPELINES_IMAGE": _tag("train")}
        done = report.timed(
            f"digits in {name}",
            lambda: subprocess.run(command, env=said, cwd=REPOSITORY, capture_output=True, text=True),
        )
    report.check(done.returncode == 0, f"digits in {name}: exit code {done.returncode}")
    if done.returncode:
        print(done.stderr[-2000:])


def _kubeflow(engine: Engine, work: Path, report: _Report, kubeconfig: Path | None = None) -> None:
    """Run the compiled Kubeflow pipeline, a pod for each step, and compare with what the processes left.

    The training asks for a TPU: a cluster must have a node that says it has one, and the step is told to use the CPU.
    """
    compiled, store = work / "digits.yaml", work / "object-store"
    images = {"TPU_PIPELINES_IMAGE": _tag("train"), "TPU_PIPELINES_STEPS_IMAGE": _tag("steps")}
    compile_ = [sys.executable, "-P", "-m", "tpu_pipelines.cli", "compile", "digits", "--target", "kubeflow"]
    room = ", ".join(f"{step}: {{cpu: 2, memory: 8Gi}}" for step in STEPS if step != "deploy_model")
    compile_ += ["--set", "machine=v5e-1", "--set", f"resources={{{room}}}", "--output", str(compiled)]
    subprocess.run(compile_, check=True, capture_output=True, text=True, cwd=REPOSITORY, env={**os.environ, **images})
    store.mkdir()
    store.chmod(0o777)  # A bucket knows no owners.
    pods = InCluster(kubeconfig) if kubeconfig else WithEngine(engine)
    driver = Driver(
        compiled.read_text(), store, Path(kfp_launcher.__file__), pods.start, {"train-model": {"accelerator": "cpu"}}
    )
    try:
        report.timed(f"the compiled Kubeflow pipeline, each step in a pod {pods}", driver.run)
    except StepFailedError as error:
        report.check(False, f"{error}\n{list(pods.logs.values())[-1][-2000:]}")
        return
    report.check(not driver.skipped, f"{len(pods.logs)} pods, and nothing skipped {driver.skipped}")
    # A run on this machine has a registry, whose champion it met; this pipeline has none.
    alone = shutil.copytree(work / "processes" / "digits", work / "alone")
    evaluation = json.loads((alone / "evaluation" / "evaluation.json").read_text())
    for reason in evaluation["gate"]["reasons"]:
        if reason["text"] == "there is no other champion to beat":
            reason["text"] = "no champion was given to compare with"
    (alone / "evaluation" / "evaluation.json").write_text(json.dumps({**evaluation, "registered_champion": None}))
    for output, part in _ON_KUBEFLOW.items():
        ours = store / driver.places[output].removeprefix("s3://")
        if part == "preflight" and not _used_one_compiler(ours, alone / part):
            continue
        received, expected = outcome(ours, Path("/s3")), outcome(alone / part, work / "processes")
        apart = differences(received, expected)
        report.check(bool(expected) and not apart, f"{output}: the same {len(expected)} files as a process's {apart}")


def _used_one_compiler(ours: Path, theirs: Path) -> bool:
    """Return whether two preflights used the same compiler; print the versions if they did not."""
    used = [json.loads((folder / "preflight.json").read_text())["compiler"] for folder in (ours, theirs)]
    image, here = (f"JAX {compiler['jax']} and libtpu {compiler['libtpu']}" for compiler in used)
    if image != here:
        print(f"                 preflight is not compared: {image} in the image, {here} here (needs Python 3.12)")
    return image == here


def _serve(engine: Engine, work: Path, report: _Report) -> None:
    export = work / "processes" / "digits" / "export"
    start = time.monotonic()
    options = ["--detach", "--volume", f"{export}:/export:ro", "--env", f"AIP_HTTP_PORT={_PORT}"]
    options += ["--network", "host"] if engine.name == "podman" else ["--publish", f"{_PORT}:{_PORT}"]
    container = engine.call("run", *options, _tag("serving"), "/export").stdout.strip()
    try:
        answer = _first_answer()
        seconds = time.monotonic() - start
        report.check(b"predictions" in answer, f"the server's answer: {answer[:80]!r}")
        report.check(seconds <= _STARTUP_SECONDS, f"its first prediction after {seconds:.1f} s")
    finally:
        engine.call("rm", "--force", container)


def _first_answer() -> bytes:
    blank = "[" + ",".join(["[" + ",".join(["0"] * 8) + "]"] * 8) + "]"
    body = f'{{"instances": [{blank}]}}'.encode()
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/predict", body, timeout=5) as answer:
                return answer.read()
        except OSError:
            time.sleep(0.1)
    return b""


def _start_up(engine: Engine, work: Path, report: _Report) -> None:
    step = ["-P", "-m", "tpu_components.create_tfrecords", "--help"]

    def seconds(call: Callable[[], object]) -> float:
        times = []
        for _ in range(3):
            start = time.monotonic()
            call()
            times.append(time.monotonic() - start)
        return min(times)

    here = seconds(lambda: subprocess.run([sys.executable, *step], check=True, capture_output=True, cwd=REPOSITORY))
    there = seconds(lambda: engine.run(_tag("steps"), ["python3", *step]))
    report.check(there <= here + _STARTUP_SECONDS, f"a step starts in {there:.1f} s, as a plain process in {here:.1f}")


def _as_platforms_call(component: Any, inputs: Mapping[str, Path], output: Path, **parameters: Any) -> list[str]:
    """Return the command by which a platform runs a step in its container: KFP's shell, and all else as JSON."""
    (written,) = (name for name, kind in component.python_func.__annotations__.items() if "Output" in str(kind))

    def artifact(name: str, path: Path) -> dict[str, Any]:
        return {"artifacts": [{"name": name, "type": {"schemaTitle": "system.Artifact"}, "uri": str(path)}]}

    executor_input = {
        "inputs": {
            "parameterValues": parameters,
            "artifacts": {name: artifact(name, path) for name, path in inputs.items()},
        },
        "outputs": {
            "artifacts": {written: artifact(written, output)},
            "outputFile": str(output.with_name("executor_output.json")),
        },
    }
    function = ["--function_to_execute", component.python_func.__name__]
    command = component.component_spec.implementation.container.command
    return [*command, "--executor_input", json.dumps(executor_input), *function]


def _ended(
    engine: Engine, command: Sequence[str], options: Sequence[str], signal: str, is_time: Callable[[], bool]
) -> str:
    """Start a container, send it a signal when it is time, and return how it ended: exit code, seconds, last words."""
    container = engine.call("run", "--detach", *options, _tag("train"), *command).stdout.strip()
    for _ in range(1200):
        if is_time():
            break
        time.sleep(0.05)
    start = time.monotonic()
    engine.call("kill", "--signal", signal, container)
    code = engine.call("wait", container).stdout.strip()
    logs = engine.call("logs", container)
    engine.call("rm", "--force", container)
    last = (logs.stdout + logs.stderr).strip().rpartition("\n")[2]
    return f"exit code {code} after {time.monotonic() - start:.1f} s: {last!r}"


def _on_gpu_image(engine: Engine, base: str, work: Path, report: _Report) -> None:
    """Build the image for a GPU, and train in it on the CPU as in the TPU's image: the same weights."""
    report.timed("built train-gpu", lambda: engine.build("train-gpu", _tag("train-gpu"), base))
    report.check(True, f"train-gpu is {engine.size(_tag('train-gpu')) / 1e6:,.0f} MB")
    records, left = work / "processes" / "digits" / "records", {}
    params = {"model": "digits_cnn", "epochs": 5, "backend": "jax", "accelerator": "cpu", "num_replicas": 1}
    for name in ("train", "train-gpu"):
        output = work / f"jax-in-{name}" / "model"
        call = _as_platforms_call(train_model, {"records": records}, output, **params)
        run = functools.partial(engine.run, _tag(name), call, *_mounted(work))
        report.timed(f"5 epochs with JAX in {name}", run)
        left[name] = {file: digest for file, digest in outcome(output).items() if file.endswith(".h5")}
    apart = differences(left["train-gpu"], left["train"])
    report.check(bool(left["train"]) and not apart, f"the same weights in both {apart}")


def _mounted(work: Path) -> list[str]:
    return ["--volume", f"{work}:{work}", "--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"]


def _kills(engine: Engine, work: Path, report: _Report) -> None:
    """End the container of a training, start it again, and compare the weights with an undisturbed one's."""
    mounted = _mounted(work)
    records = work / "processes" / "digits" / "records"
    for backend, signals in {"tensorflow": ("TERM", "KILL"), "jax": ("TERM",)}.items():
        params = {"model": "digits_cnn", "epochs": 20, "backend": backend, "num_replicas": 1}

        def command(output: Path, params: Mapping[str, Any] = params) -> list[str]:
            return _as_platforms_call(train_model, {"records": records}, output, **params)

        whole = work / f"{backend}-whole" / "model"
        engine.run(_tag("train"), command(whole), *mounted)
        for signal in signals:
            output = work / f"{backend}-{signal}" / "model"
            checkpoint = output.with_name("model-checkpoints") / "checkpoint.npz"
            ended = _ended(engine, command(output), mounted, signal, checkpoint.is_file)
            report.check(not output.exists(), f"SIG{signal} in a training with {backend}: {ended}")
            if signal == "TERM":
                report.check(ended.startswith("exit code 143") and "checkpoint was saved" in ended, "143, and it saved")
            said = engine.run(_tag("train"), command(output), *mounted)
            apart = [name for name in differences(outcome(output), outcome(whole)) if name.endswith(".h5")]
            goes_on = "continuing at epoch" in said.stdout + said.stderr
            report.check(goes_on and not apart, f"and started again, it goes on to the same weights {apart}")
    model, output = work / "processes" / "digits" / "model", work / "ended" / "export"
    command_line = _as_platforms_call(export_model, {"records": records, "model": model}, output)
    staged = output.parent.glob
    ended = _ended(engine, command_line, mounted, "TERM", lambda: any(staged(".export.*")))
    left = sorted(path.name for path in output.parent.iterdir() if path.name != "step.json")
    report.check(ended.startswith("exit code 143") and not left, f"SIGTERM in an export: {ended}, leaves {left}")


def _push(engine: Engine, work: Path, report: _Report) -> None:
    """Push a small image to a registry, and fetch it by the name that is printed."""
    (work / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    insecure = ["--tls-verify=false"] if engine.name == "podman" else []
    with Registry() as registry:
        image = f"{registry.host}/tpu-pipelines/steps:1"
        engine.call("build", "--tag", image, work)
        name = engine.make("push", f"IMAGE={image}", f"PUSH_FLAGS={' '.join(insecure)}").strip()
        pushed = {f"{registry.host}/{repository}@{tag}" for repository, tag in registry.manifests if ":" in tag}
        report.check({name} == pushed and is_pinned(name), f"pushed, and named by its digest: {name}")
        engine.call("rmi", image)
        engine.call("pull", *insecure, name)
        engine.call("rmi", name)
        report.check(True, "and pulled by that name")


_PARTS: Mapping[str, Callable[[Engine, Path, _Report], None]] = {
    "digits": _digits,
    "kubeflow": _kubeflow,
    "serve": _serve,
    "start": _start_up,
    "kills": _kills,
    "push": _push,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and try all; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.images", description=__doc__)
    parser.add_argument("--base", default="", help="What to build on; else docker/Dockerfile's, or Debian's own.")
    parser.add_argument("--parts", nargs="*", default=list(_PARTS), choices=_PARTS, help="What to try; all of it.")
    parser.add_argument("--twice", nargs="*", default=[], choices=BUDGETS, help="Images to build twice and to compare.")
    parser.add_argument("--gpu", action="store_true", help="Build train-gpu too: gigabytes of CUDA's libraries.")
    parser.add_argument("--kubeconfig", type=Path, help="A cluster for the pods, on this machine and with the images.")
    asked = parser.parse_args(arguments)
    parts = {**_PARTS, "kubeflow": functools.partial(_kubeflow, kubeconfig=asked.kubeconfig)}
    report = _Report()
    with tempfile.TemporaryDirectory(prefix="images-") as folder:
        work = Path(folder)
        work.chmod(0o755)
        try:
            engine = Engine(work)
            base = report.timed("a base", lambda: engine.find_base(asked.base))
            for name in BUDGETS:
                _build(engine, base, name, report)
                _bill(engine, name, report)
            for name in asked.twice:
                _again(engine, base, name, report)
            if asked.parts != ["push"]:
                _run_digits(engine, work, "processes", ["-P", "-m", "tpu_pipelines.cli", "run", "digits"], report)
            for part in asked.parts:
                parts[part](engine, work, report)
            if asked.gpu:
                _on_gpu_image(engine, base, work, report)
        except CannotRunError as error:
            print(f"skipped, which is no pass: {error}")
            return NO_CONTAINERS
        except subprocess.CalledProcessError as error:
            print(f"FAIL {' '.join(error.cmd)}:\n{error.stdout[-2000:]}{error.stderr[-4000:]}")
            return 1
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
