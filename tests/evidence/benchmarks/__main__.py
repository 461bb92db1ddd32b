"""`make bench`: every figure beside its baseline, measured in turn in the same run; medians, since machines are noisy.

The data are CIFAR-10's JPEG files from ../shared/data where they are, else noise of the same shape.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tests.evidence.benchmarks import baselines, photos, predicting
from tests.evidence.benchmarks.loop import write_noise
from tests.evidence.benchmarks.serving import load_server
from tests.support.cli import DATA
from tpu_components.core.machines.device import cpu_flags

NUM_IMAGES = 20_000
TRAIN_IMAGES = 12_800
# Sizes like those of a network of 8 million weights: trained twice (best and last), and in three formats.
VERSION_OF_100_MB = {
    "model/best.weights.h5": 32_000_000,
    "model/last.weights.h5": 32_000_000,
    "export/saved_model/variables": 18_000_000,
    "export/model.tflite": 16_000_000,
    "export/model_int8.tflite": 2_000_000,
}
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
Measure = Callable[[], float]


def make_images(folder: Path) -> Path:
    """NUM_IMAGES JPEG files of 32×32, in a folder per class."""
    images = folder / "images"
    archive = DATA / "cifar10.tar.xz"
    if archive.is_file():
        per_class = NUM_IMAGES // 10
        with tarfile.open(archive) as tar:
            for member in tar:
                parts = member.name.split("/")
                if len(parts) == 4 and parts[1] == "train" and int(Path(parts[3]).stem) <= per_class:
                    path = images / parts[2] / parts[3]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    content = tar.extractfile(member)
                    assert content is not None
                    path.write_bytes(content.read())
        return images
    from PIL import Image

    print(f"{archive} is not there: using noise")
    noise = np.random.default_rng(0)
    for i in range(NUM_IMAGES):
        path = images / str(i % 10) / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (32, 32, 3), np.uint8)).save(path)
    return images


def in_turn(rounds: int, *measures: Measure) -> list[float]:
    """Every measure's median, the measures taken in turn."""
    taken = [[measure() for measure in measures] for _ in range(rounds)]
    return [statistics.median(row[i] for row in taken) for i in range(len(measures))]


def report(name: str, ours: float, baseline: float, unit: str, target: str, ratio: float | None = None) -> None:
    """One line of the table."""
    ratio = ours / baseline if ratio is None else ratio
    print(f"{name:<58}{ours:>12,.2f}{baseline:>12,.2f} {unit:<10}{ratio:>7.2f}×  target {target}", flush=True)


def run_json(*command: str) -> dict:
    """A process's last line of output."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def bench_write(images: Path, work: Path) -> None:
    """Records written per second."""
    from tpu_components.create_tfrecords import WriteParams, write_records

    params = WriteParams(f"images:{images}", validation_fraction=0, test_fraction=0)
    count = 0

    def ours() -> float:
        nonlocal count
        count += 1
        start = time.perf_counter()
        result = write_records(params, work / f"records-{count}")
        return result.num_examples / (time.perf_counter() - start)

    files = sorted(images.rglob("*.jpg"))
    ours()  # Starts the worker processes.
    rates = in_turn(
        5,
        ours,
        lambda: baselines.write_plain(files, work / "plain.tfrecord"),
        lambda: baselines.write_decoded(files, work / "decoded.tfrecord"),
    )
    report("write records/s, against a loop that keeps the JPEG bytes", rates[0], rates[1], "records/s", "none")
    report("write records/s, against a loop that writes these records", rates[0], rates[2], "records/s", "≥ 4")


def bench_read(work: Path) -> None:
    """Records read per second."""
    from tpu_components.core.examples import records
    from tpu_components.core.examples.artifacts import TRAIN, Manifest

    directory = work / "records-1"
    manifest = Manifest.load(directory)

    def ours() -> float:
        start = time.perf_counter()
        count = sum(len(fields["label"]) for fields in records.read_batches(directory, manifest, TRAIN))
        return count / (time.perf_counter() - start)

    rates = in_turn(5, ours, lambda: baselines.read_one_by_one(work / "plain.tfrecord"))
    report("read records/s, against parse one, decode one", rates[0], rates[1], "records/s", "≥ 8")


def _compare_photos(rounds: int, unit: str, ours: Sequence[tuple[str, str, photos.Work]], plain: photos.Work) -> None:
    """Report works, of (name, target, work), against a plain one in turn: by the clock and by CPU time."""
    works = [*(work for _, _, work in ours), plain]
    taken = np.array([[photos.rates(work) for work in works] for _ in range(rounds)])
    *rates, baseline = np.median(taken, axis=0).tolist()
    for (name, target, _), rate in zip(ours, rates, strict=True):
        report(name, rate[0], baseline[0], unit, target)
        report("  by CPU time", rate[1], baseline[1], "a CPU s", target)


def bench_photos(work: Path) -> None:
    """Photos of 500×375, written and fed at 224×224."""
    files = photos.make_photos(work / "photos")
    ours = photos.Photos(work / "photos", work)
    ours.write("resized", "warm")  # Starts the worker processes.
    _compare_photos(
        3,
        "records/s",
        [("write photos/s, against a loop that decodes, resizes", "≥ 1.5", lambda: ours.write("resized", "resized"))],
        lambda: photos.write_plain(files, work / "plain-photos.tfrecord"),
    )
    for encoding in ("encoded", "raw"):
        ours.write(encoding, encoding)
    readers = {name: ours.reader(name) for name in ("resized", "raw", "encoded")}
    whole = [str(path) for path in sorted((work / "encoded").glob("*.tfrecord"))]
    plain = photos.plain_pipeline(photos.TIMES * whole)
    feeds: dict[str, photos.Work] = {name: functools.partial(photos.feed, reader) for name, reader in readers.items()}
    for feed in feeds.values():
        feed()  # Builds its pipeline, as a training's first epoch does.
    _compare_photos(
        5,
        "images/s",
        [
            (f"feed photos/s from {name} records, against plain tf.data", target, feeds[key])
            for key, name, target in (
                ("resized", "resized", "≥ 3"),
                ("raw", "raw", "≥ 3"),
                ("encoded", "full-size", "≥ 1"),
            )
        ],
        lambda: sum(len(labels) for _, labels in plain),
    )
    before = photos.resident_mib()
    for _ in range(3):
        feeds["resized"]()
    print(f"  memory after three more epochs: {photos.resident_mib() - before:+} MiB of {before:,}")


def bench_train(images: Path, work: Path) -> None:
    """Images trained per second, CIFAR-10 network, batch 128."""
    from tpu_components.core.examples import records
    from tpu_components.core.examples.artifacts import TRAIN, Manifest
    from tpu_components.create_tfrecords import WriteParams, write_records

    held = 1 - TRAIN_IMAGES / NUM_IMAGES
    directory = work / "train"
    write_records(WriteParams(f"images:{images}", validation_fraction=0, test_fraction=held), directory)
    examples = records.load_split(directory, Manifest.load(directory), TRAIN)
    np.savez(work / "train.npz", images=examples.inputs, labels=examples.labels)
    number = 0

    def ours() -> float:
        nonlocal number
        number += 1
        arguments = ["--model", "cifar10_cnn", "--epochs", "3", "--records", str(directory)]
        result = run_json("-m", "tpu_components.train_model", *arguments, "--output", str(work / f"model-{number}"))
        return result["examples_per_second"]

    rates = in_turn(
        3,
        ours,
        lambda: run_json("-m", "tests.evidence.benchmarks.baselines", str(work / "train.npz"))["examples_per_second"],
    )
    report("train images/s, against Model.fit, float32, arrays in RAM", rates[0], rates[1], "images/s", "≥ 3.3")
    flags = {"amx_bf16", "avx512_bf16"} & set(cpu_flags())
    print(f"  (this processor's bf16 units: {', '.join(sorted(flags)) or 'none'})")


def bench_loop(work: Path) -> None:
    """Steps per second of the loop itself and of a network, and a second start, on JAX."""
    records, few = str(write_noise(work / "noise", 100_000)), str(write_noise(work / "few", 9_600))

    def rate(way: str, model: str, records: str, **options: object) -> float:
        return run_json("-m", "tests.evidence.benchmarks.loop", way, records, model, json.dumps(options))["rate"]

    rates = in_turn(
        3,
        lambda: rate("train", "dense", records),
        lambda: rate("fit", "dense", records),
        lambda: rate("train", "dense", records, steps_per_execution=100),
        lambda: rate("train", "dense", records, residency="host"),
    )
    report("train_model on JAX, a Dense layer, against fit", rates[0], rates[1], "steps/s", "≥ 12,000")
    report("  100 steps in one program, against fit", rates[2], rates[1], "steps/s", "—")
    report("  handed over by the host, against fit", rates[3], rates[1], "steps/s", "—")
    rates = in_turn(3, lambda: rate("train", "digits_cnn", few), lambda: rate("fit", "digits_cnn", few))
    report("train_model on JAX, the digits' network, against fit", *rates, "steps/s", "≥ 1×")
    kept = iter(range(100))

    def started() -> tuple[float, float]:
        options = json.dumps({"checkpoints": str(work / f"kept-{next(kept)}")})
        words = ["-m", "tests.evidence.benchmarks.loop", "start", few, "cifar10_resnet", options]
        return run_json(*words)["seconds"], run_json(*words)["seconds"]

    firsts, seconds = zip(*(started() for _ in range(3)), strict=True)
    again, first = statistics.median(seconds), statistics.median(firsts)
    report("to the first step, started again, against at first", again, first, "s", "—", first / again)


def bench_overhead(work: Path) -> None:
    """The whole local run against its steps, each run alone as a process."""
    number = 0

    def whole() -> float:
        nonlocal number
        number += 1
        start = time.perf_counter()
        folder = str(work / f"run-{number}")
        same_steps = ["--set", "preflight=false", "--set", "deploy=false"]
        run_json("-m", "tpu_pipelines.cli", "run", "digits", "--workspace", folder, "--json", *same_steps)
        return time.perf_counter() - start

    def steps() -> float:
        from tpu_pipelines.config.configuration import load_config

        config = load_config("digits").as_dict()
        root = work / f"steps-{number}"
        training = {key.replace("_", "-"): value for key, value in config["training"].items()}
        common = ["--records", str(root / "records")]
        start = time.perf_counter()
        run_json("-m", "tpu_components.create_tfrecords", "--source", config["data"]["source"], "--output", common[1])
        flags = [text for key in ("epochs", "batch-size-per-replica", "learning-rate", "learning-rate-schedule",
                                  "warmup-epochs") for text in (f"--{key}", str(training[key]))]  # fmt: skip
        model = ["--model", str(root / "model")]
        run_json("-m", "tpu_components.train_model", "--model", "digits_cnn", *flags, *common, "--output", model[1])
        run_json("-m", "tpu_components.evaluate_model", *common, *model, "--output", str(root / "evaluation"))
        run_json("-m", "tpu_components.export_model", *common, *model, "--output", str(root / "export"))
        return time.perf_counter() - start

    seconds = in_turn(3, whole, steps)
    report("whole run of digits, against its four steps one by one", *seconds, "s", "≤ 1.10 or ≤ 4 s more")


def bench_serve(work: Path) -> None:
    """The server with 32 requests at a time, against a loop over `model.predict`."""
    options = ["--set", "preflight=false", "--set", "deploy=false", "--set", "training.epochs=4", "--set", "gate={}"]
    run_json("-m", "tpu_pipelines.cli", "run", "digits", "--workspace", str(work / "served"), "--json", *options)
    images = np.random.default_rng(0).integers(0, 256, (200, 8, 8, 1), np.uint8)
    np.save(work / "images.npy", images)
    run = work / "served" / "digits"
    loop = ["-m", "tests.evidence.benchmarks.serving", str(run / "model"), str(work / "images.npy")]
    rounds = [(load_server(run / "export", images), run_json(*loop)) for _ in range(3)]
    served, looped = zip(*rounds, strict=True)
    median = statistics.median
    rates = median(rate for rate, _ in served), median(one["rate"] for one in looped)
    times = median(p99 for _, p99 in served), median(one["p99_ms"] for one in looped)
    report("serve images/s, 32 at a time, against model.predict in a loop", *rates, "images/s", "—")
    report("  99th percentile of an answer's time", *times, "ms", "—")


def bench_predict(work: Path) -> None:
    """predict_batch, against a loop over `model.predict`, processes from their start to their end."""
    from tpu_components.create_tfrecords import WriteParams, write_records

    pictures = predicting.make_pictures(work / "pictures")
    some = predicting.make_pictures(work / "some", 1000)  # Enough for a model that answers, however well.
    for path in list(some.rglob("*.jpg")):
        target = some / path.name[-5] / path.name
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
    write_records(WriteParams(f"images:{some}"), work / "some-records")
    steps = {"model": work / "model", "export": work / "export"}
    of_model = ("--records", str(work / "some-records"), "--model", "cifar10_cnn", "--epochs", "1")
    run_json("-m", "tpu_components.train_model", *of_model, "--accelerator", "cpu", "--output", str(steps["model"]))
    words = ("--records", str(work / "some-records"), "--model", str(steps["model"]))
    run_json(
        "-m", "tpu_components.export_model", *words, "--calibration-examples", "10", "--output", str(steps["export"])
    )

    def ours() -> float:
        start = time.perf_counter()
        words = ("--export", str(steps["export"]), "--source", f"images:{pictures}", "--output", str(work / "answers"))
        done = run_json("-m", "tpu_components.predict_batch", *words)
        return done["num_predicted"] / (time.perf_counter() - start)

    loop = ("-m", "tests.evidence.benchmarks.predicting", str(steps["model"]), str(pictures), str(work / "loop.jsonl"))
    rates = in_turn(predicting.ROUNDS, ours, lambda: run_json(*loop)["per_second"])
    report("predict images/s of 100,000, against model.predict in a loop", *rates, "images/s", "—")


def bench_checks(work: Path) -> None:
    """What it costs to believe nothing unchecked: of a version of 100 MB, and of a run whose steps are all cached."""
    from unittest import mock

    from tests.support.cli import QUICK, tpu_pipelines_here
    from tpu_components.core.files import storage
    from tpu_components.core.registry.versions import VERSION_FILE, Version, describe_file, digest_listing

    version_dir = work / "registry" / "large" / "versions" / "0001"
    draw = np.random.default_rng(0)
    for name, num_bytes in VERSION_OF_100_MB.items():
        path = version_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.bytes(num_bytes))
    files = {name: describe_file(version_dir / name) for name in VERSION_OF_100_MB}
    described = {
        "created": "",
        "parent": "",
        "metrics": {},
        "reasons": [],
        "lineage": {},
        "model_digest": "",
        "files": files,
    }
    storage.write_json(version_dir / VERSION_FILE, {"digest": digest_listing(files), "content_digest": "", **described})
    version = Version.load(version_dir)
    number = 0

    def timed_ms(function: Callable[[], object]) -> float:
        start = time.perf_counter()
        function()
        return (time.perf_counter() - start) * 1e3

    def copied(copy: Callable[[Path, Path], None]) -> float:
        nonlocal number
        number += 1
        return timed_ms(lambda: copy(version_dir, work / f"copy-{number}"))

    times = in_turn(
        7,
        lambda: timed_ms(version.check_files),
        lambda: timed_ms(lambda: [path.read_bytes() for path in version_dir.rglob("*") if path.is_file()]),
    )
    report("check a version of 100 MB, against reading its files", *times, "ms", "—")
    times = in_turn(5, lambda: copied(storage.copy_tree), lambda: copied(storage.link_tree))
    report("register 100 MB by copies, against hard links", *times, "ms", "—")
    words = ["run", "digits", *QUICK, "--workspace", str(work / "cached"), "--set", "preflight=false"]
    run_json("-m", "tpu_pipelines.cli", *words, "--json")

    def cached() -> float:
        return timed_ms(lambda: tpu_pipelines_here(*words))

    def unchecked() -> float:
        with mock.patch.object(Version, "damage", return_value=()):
            return cached()

    cached()
    times = in_turn(9, cached, unchecked)
    report("cached run of digits, against one that checks no version", *times, "ms", "—")


def bench_help() -> None:
    """The time of --help, against starting Python."""

    def timed(*command: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], capture_output=True, check=True)
        return time.perf_counter() - start

    seconds = in_turn(9, lambda: timed("-m", "tpu_pipelines.cli", "--help"), lambda: timed("-c", "pass"))
    report("tpu-pipelines --help, against starting Python", *seconds, "s", "< 0.3 s")


# Google's own runs of ResNet-50 on ImageNet, 128 images a core, in ms a step: https://github.com/mlcommons
MLPERF_STEP_MS = {"v2-8": 228.9, "v3-8": 137.3, "v3-32": 125.7}  # v0.5, v0.5, v0.7 (TF2/Keras).
TUTORIAL_EPOCH_SECONDS = 6.0  # CIFAR-10 on a v2-8, as the tutorial reports it.


def bench_preflight(work: Path) -> None:
    """Times estimated without a TPU, against times measured on one."""
    from tpu_components.core.examples.interface import ImageInput, Interface
    from tpu_components.core.machines.machine_spec import PaidMachine
    from tpu_components.preflight_training import PreflightParams
    from tpu_components.preflight_training.data import DataFacts, HostRate
    from tpu_components.preflight_training.examining import Examination
    from tpu_components.train_model import TrainParams

    def step_ms(backend: str, names: list[str], tuned: bool) -> list[float]:
        params = PreflightParams(
            TrainParams(
                model=str(Path(__file__).parent / "resnet50.py"),
                model_parameters={"tuned": tuned},
                optimizer="sgd",
                backend=backend,
            ),
            compile_timeout_seconds=1800,
        )
        host = HostRate(1e9, 1e9, in_memory=False, cpus=1)
        imagenet = DataFacts(
            Interface(ImageInput((224, 224, 3), "encoded"), 1000), 1_281_167, 1_281_167 * 224 * 224 * 3, host
        )
        found = Examination(params, [PaidMachine(name) for name in names], work / "compilations").report(imagenet)
        return [machine.step.total_ms if machine.step else float("nan") for machine in found.machines]

    for backend, tuned, target in (("tensorflow", False, "≤ 1.5"), ("tensorflow", True, "≤ 1.2"), ("jax", False, "")):
        names = list(MLPERF_STEP_MS)
        for name, ours in zip(names, step_ms(backend, names, tuned), strict=True):
            what = f"ResNet-50 {'tuned' if tuned else 'plain'}, {backend}, {name}, against MLPerf"
            report(what, ours, MLPERF_STEP_MS[name], "ms a step", target)
    _time_preflight(work)
    _explain_tutorial(work)


def _time_preflight(work: Path) -> None:
    """The whole command, with nothing kept and then once more."""
    source = f"data.source=images:{make_images(work)}"
    command = [
        sys.executable,
        "-m",
        "tpu_pipelines.cli",
        "preflight",
        "cifar10_cnn",
        "--machine",
        "v5e-8",
        "--set",
        source,
    ]
    environment = os.environ | {"TPU_PIPELINES_CACHE_DIR": str(work / "kept")}
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        subprocess.run([*command, "--workspace", str(work)], env=environment, capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    report("preflight of CIFAR-10 on v5e-8: kept, against compiled", seconds[1], seconds[0], "s", "≤ 3 against ≤ 40")


def _explain_tutorial(work: Path) -> None:
    """Why the tutorial's epoch took 6 s on a v2-8."""
    from tpu_pipelines.config.configuration import load_config
    from tpu_pipelines.sizing.preflight import preflight

    config = load_config("cifar10_cnn", [f"data.source=images:{make_images(work)}", "training.residency=host"])
    found = preflight(config, ["v2-8"], work / "preflight")
    machine = found.machines[0]
    assert machine.epoch is not None
    assert found.data.host is not None
    device = machine.epoch.device_seconds * 50_000 / found.data.num_examples
    report(
        "CIFAR-10 epoch on v2-8: device alone, against the tutorial", device, TUTORIAL_EPOCH_SECONDS, "s", "explained"
    )
    rate = 50_000 / TUTORIAL_EPOCH_SECONDS
    print(
        f"  the device takes {machine.epoch.needed_per_second:,.0f} images/s, the tutorial's host gave {rate:,.0f}: it "
        f"waited {1 - device / TUTORIAL_EPOCH_SECONDS:.0%} of the time; this machine feeds "
        f"{found.data.host.feed_per_second:,.0f}, and it would wait {machine.epoch.host_wait:.0%}"
    )


def main() -> None:
    """Run all benchmarks, or those named."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks", description=__doc__)
    names = ("help", "write", "read", "photos", "train", "loop", "overhead", "serve", "predict", "checks", "preflight")
    parser.add_argument("names", nargs="*", choices=[[], *names], help=f"default: all of {', '.join(names)}")
    wanted = parser.parse_args().names or names
    print(f"{os.cpu_count()} cores\n{'':<58}{'ours':>12}{'baseline':>12}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        work = Path(folder)
        images = make_images(work) if {"write", "read", "train"} & set(wanted) else work
        if "help" in wanted:
            bench_help()
        if {"write", "read"} & set(wanted):
            bench_write(images, work)
        if "read" in wanted:
            bench_read(work)
        if "photos" in wanted:
            bench_photos(work)
        if "train" in wanted:
            bench_train(images, work)
        if "loop" in wanted:
            bench_loop(work)
        if "overhead" in wanted:
            bench_overhead(work)
        if "serve" in wanted:
            bench_serve(work)
        if "predict" in wanted:
            bench_predict(work)
        if "checks" in wanted:
            bench_checks(work)
        if "preflight" in wanted:
            bench_preflight(work)


if __name__ == "__main__":
    main()
