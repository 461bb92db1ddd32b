"""Preflight's estimates beside step times that others published: `python -m tests.benchmarks.truth`.

What is compared. Where the network can be compiled here, the step is preflight's own: the compiled program's cycles
and the ring's sum of gradients. The networks that are too large are stacks of equal blocks: preflight compiles the
larger part of one, and the share of the peak that it reaches is what the whole is expected to reach, for the arithmetic
that the source counts, and for what of the forward pass was computed once more.

What follows. A compiled program on a generation gives one ratio of measured to estimated time, the geometric mean of
its rows: what such rows have in common may be the program's own. The logarithms are taken as a mean of all, a deviation
of the generation, one of the program and one of the row; generations are taken to differ as much as the programs of one
do. A generation's factor is what that expects of another program there: the mean of its own, drawn to that of all the
more the fewer it has. The interval is to hold nine of ten steps, by Student's distribution. In the cross-validation a
program's rows are judged by what follows without them.
"""

import argparse
import dataclasses
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import scipy.stats

from tests.benchmarks import rates
from tpu_components.core.machines.machine_spec import GPU, Generation, load_catalogue
from tpu_components.core.pages.blocks import Table
from tpu_components.preflight_training.estimate import Accuracy

PUBLISHED = Path(__file__).parent / "published_blocks.json"
PROGRAMS = Path(__file__).parent / "compiled_blocks.json"
_FORWARD = 1 / 3  # Of a step's arithmetic: the backward pass costs two forward passes.
_BLOCK = "decoder"
_STEP = ("ms", "flops", "parameters")
_EXAMPLES = 1_281_167  # ImageNet's; a schedule's length is no part of the program.
_COLUMNS = {
    "network": "<",
    "machine": "<",
    "by": "<",
    "unit": "<",
    "measured": ">",
    "estimated": ">",
    "measured/estimated": ">",
    "without its row": ">",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A published step time and our estimate of it.

    Attributes:
        network: Its name.
        program: What was compiled for it.
        generation: Of the chips.
        machine: The slice or slices.
        way: `step` where all of it was compiled, `block` where a block of such networks was.
        unit: `ms` a step, or `TFLOP/s` a chip.
        measured: In that unit.
        estimated: In that unit.
        ratio: Measured time over estimated time.
        is_fitted: Whether the correction follows from it too.
        source: Where it was published.
    """

    network: str
    program: str
    generation: str
    machine: str
    way: str
    unit: str
    measured: float
    estimated: float
    ratio: float
    is_fitted: bool
    source: str


def load_rows() -> list[Row]:
    """Every published step time whose program has been compiled."""
    published, programs = (json.loads(path.read_text(encoding="utf-8")) for path in (PUBLISHED, PROGRAMS))
    generations = load_generations()
    rows = []
    for raw in published["rows"]:
        compiled = programs["steps"].get(_key(raw["program"], raw["generation"], raw.get("batch_per_device", 0)))
        if compiled:
            make = _row_of_block if raw["program"] == _BLOCK else _row_of_step
            rows.append(make(raw, compiled, generations[raw["generation"]], published["sources"][raw["source"]]))
    return rows


def load_generations() -> dict[str, Generation]:
    """The catalogue's generations, and those on which Vertex does not train but others have measured."""
    known = {one.name: one for one in load_catalogue().generations}
    raw = json.loads(PUBLISHED.read_text(encoding="utf-8"))["generations"]
    others = {name: dataclasses.replace(known["v3"], name=name, **values) for name, values in raw.items()}
    return known | others


def _key(program: str, generation: str, batch_size: int) -> str:
    return "/".join([program, generation, *([str(batch_size)] if batch_size else [])])


def _row_of_step(raw: Mapping[str, Any], compiled: Mapping[str, Any], generation: Generation, source: str) -> Row:
    summing = rates.summing_seconds(round(compiled["parameters"]), raw["chips"], generation)
    estimated = compiled["ms"] + 1e3 * summing
    measured = raw["step_ms"]
    return Row(
        raw["model"],
        raw["program"],
        generation.name,
        raw["slice"],
        "step",
        "ms",
        measured,
        estimated,
        measured / estimated,
        True,
        source,
    )


def _row_of_block(raw: Mapping[str, Any], compiled: Mapping[str, Any], generation: Generation, source: str) -> Row:
    peak = generation.peak_bf16_flops / 1e12
    share = compiled["flops"] / (compiled["ms"] / 1e3 * generation.peak_bf16_flops / generation.devices_per_chip)
    estimated = share * peak / (1 + raw["recomputed"] * _FORWARD)
    measured = raw["tflops_per_chip"]
    return Row(
        raw["model"],
        raw["program"],
        generation.name,
        raw["slice"],
        "block",
        "TFLOP/s",
        measured,
        estimated,
        estimated / measured,
        is_fitted=not raw.get("experts", False),
        source=source,
    )


Ratios = Mapping[str, Mapping[str, Sequence[float]]]  # By generation and program: each row's logarithm.


def ratios_of(rows: Iterable[Row]) -> Ratios:
    """The logarithms of measured over estimated time, of all rows that the correction follows from."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.is_fitted:
            found[row.generation][row.program].append(math.log(row.ratio))
    return found


@dataclasses.dataclass(frozen=True)
class Model:
    """Deviations of generations, programs and rows from a mean, all of logarithms.

    Attributes:
        mean: Of all generations.
        between: Variance of generations, and as much of the programs of one.
        rows: Variance of rows of one program on one generation.
        means: Of each generation's programs.
        counts: Of each generation's programs.
    """

    mean: float
    between: float
    rows: float
    means: Mapping[str, float]
    counts: Mapping[str, int]

    def expect(self, generation: str) -> tuple[float, float]:
        """The next step's logarithm on a generation, be it known or not, and how far nine of ten reach to each side."""
        count = self.counts.get(generation, 0)
        weight = count / (count + 1)
        deviation = self.means[generation] - self.mean if count else 0.0
        of_mean = 2 * self.between / len(self.counts)
        variance = self.rows + self.between * (2 - weight) + (1 - weight) ** 2 * of_mean
        nine_of_ten = float(scipy.stats.t.ppf(0.95, sum(self.counts.values()) - 1))
        return self.mean + weight * deviation, nine_of_ten * math.sqrt(variance)


def fit(ratios: Ratios) -> Model:
    """The model by the method of moments; programs count alike within a generation, and generations among all."""
    groups = {
        name: [statistics.fmean(values) for values in programs.values()]
        for name, programs in ratios.items()
        if programs
    }
    means = {name: statistics.fmean(group) for name, group in groups.items()}
    several = [values for programs in ratios.values() for values in programs.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    return Model(
        mean=statistics.fmean(means.values()),
        between=statistics.variance(means.values())
        / (1 + statistics.fmean(1 / len(group) for group in groups.values())),
        rows=sum(statistics.variance(values) * (len(values) - 1) for values in several) / freedom,
        means=means,
        counts={name: len(group) for name, group in groups.items()},
    )


def accuracies(rows: Sequence[Row]) -> dict[str, Accuracy]:
    """What preflight is to say of each generation of the catalogue, to two decimals."""
    ratios = ratios_of(rows)
    model = fit(ratios)
    tried = cross_validate(rows)
    found = {}
    for generation in load_catalogue().generations:
        if generation.accelerator == GPU:
            continue
        mean, reach = model.expect(generation.name)
        low, factor, high = (round(math.exp(mean + side * reach), 2) for side in (-1, 0, 1))
        steps = sum(row.is_fitted and row.generation == generation.name for row in rows)
        held = sum(is_held for row, _, is_held in tried if row.generation == generation.name)
        programs = len(ratios.get(generation.name, {}))
        estimates, whole = basis(rows, generation.name)
        found[generation.name] = Accuracy(factor, low, high, steps, programs, held, estimates, whole)
    return found


def basis(rows: Iterable[Row], generation: str = "") -> tuple[int, int]:
    """Distinct estimates of the fitted rows of a generation, or of all, and how many of these rows are whole steps.

    Whole steps of one program and batch differ only by the communication of the slice, so these count once.
    """
    fitted = [row for row in rows if row.is_fitted and generation in ("", row.generation)]
    whole = [row for row in fitted if row.way == "step"]
    blocks = {(row.generation, round(row.estimated, 6)) for row in fitted if row.way != "step"}
    return len(blocks) + len({place(row) for row in whole}), len(whole)


def cross_validate(rows: Sequence[Row]) -> list[tuple[Row, float, bool]]:
    """For every fitted row: measured over corrected time, and whether the interval holds it.

    The correction is that which follows without any row of its program on its generation.
    """
    ratios, found = ratios_of(rows), []
    for row in rows:
        if row.is_fitted:
            left = {
                name: {program: values for program, values in programs.items() if (name, program) != place(row)}
                for name, programs in ratios.items()
            }
            mean, reach = fit(left).expect(row.generation)
            off = math.log(row.ratio) - mean
            found.append((row, math.exp(off), abs(off) <= reach))
    return found


def place(row: Row) -> tuple[str, str]:
    """What stands for one observation: a program on a generation."""
    return row.generation, row.program


def errors(ratios: Iterable[float]) -> tuple[float, float]:
    """Median and 95th percentile of how far an estimate is from what was measured, as a share of what was measured."""
    median, most, _ = rates.errors(list(ratios))
    return median, most


def compile_programs(wanted: Sequence[str]) -> None:
    """Compile programs anew and keep what they cost: `resnet50/v3/128`, or a part of that; minutes each."""
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    asked = {_key(raw["program"], raw["generation"], raw.get("batch_per_device", 0)): raw for raw in published["rows"]}
    for key, raw in asked.items():
        if any(part in key for part in wanted):
            step = _compile(raw, published["programs"][raw["program"]], published["topologies"][raw["generation"]])
            kept = json.loads(PROGRAMS.read_text(encoding="utf-8"))
            kept["steps"][key] = step
            kept["steps"] = dict(sorted(kept["steps"].items()))
            PROGRAMS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
            print(key, step, flush=True)


def _compile(raw: Mapping[str, Any], program: Mapping[str, Any], topology: str) -> dict[str, float]:
    """Time, arithmetic and trainable values of one device's step, or of one block of it."""
    from tpu_components.core.examples.interface import ImageInput, Interface, TextInput
    from tpu_components.core.models.step.hyperparameters import TrainParams
    from tpu_components.preflight_training.compiling import sandbox
    from tpu_components.preflight_training.compiling.compiler import Compilation
    from tpu_components.preflight_training.compiling.hlo import OPTIMIZER

    generation = load_generations()[raw["generation"]]
    asked = program["input"]
    one = ImageInput((asked["side"],) * 2 + (3,), "encoded") if "side" in asked else TextInput(**asked)
    batch_size = raw.get("batch_per_device") or program["batch_per_device"]
    machine = next(entry for entry in load_catalogue().slices if entry.generation.name == raw["generation"])
    plain = dataclasses.replace(generation, chip_config="")
    machine = dataclasses.replace(
        machine, generation=plain, libtpu_topology=topology, chips_per_host_bounds=None, devices=1
    )
    found = []
    for depth in program.get("depths", [None]):
        parameters = program["parameters"] | ({"depth": depth} if depth else {})
        training = TrainParams(
            program["model"],
            parameters,
            batch_size_per_replica=batch_size,
            optimizer=program["optimizer"],
            backend="jax",
            precision="mixed_bfloat16",
        )
        compilation = Compilation(training, Interface(one, program["num_classes"]), _EXAMPLES, machine)
        box = sandbox.Sandbox(timeout_seconds=3600, memory_mib=16_384, cache_dir=sandbox.default_cache_dir())
        outcome = box.compile_all([compilation])[0]
        if outcome.cost is None:
            raise RuntimeError(f"{raw['program']} on {raw['generation']}: {outcome.verdict}: {outcome.reason}")
        flops = sum(
            product.flops * product.times for layer in outcome.cost.layers.values() for product in layer.products
        )
        # Weights and their optimizer are divided among the chips where a network is compared by its blocks.
        aside = outcome.cost.layers[OPTIMIZER].cycles if raw["program"] == _BLOCK else 0.0
        found.append(((outcome.cost.cycles - aside) / generation.clock_hz * 1e3, flops, outcome.parameters))
    if "depths" not in program:
        return dict(zip(_STEP, found[0], strict=True))
    few, more = program["depths"]
    blocks = program["depth"] - few
    return dict(zip(_STEP, (a + blocks * (b - a) / (more - few) for a, b in zip(*found, strict=True)), strict=True))


def table() -> list[str]:
    """Every row, then the errors before and after, then each generation's correction."""
    rows = load_rows()
    checked = {id(row): (ratio, held) for row, ratio, held in cross_validate(rows)}
    lines = Table(_COLUMNS, [_cells(row, *checked.get(id(row), (None, True))) for row in rows]).lines()
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))["rows"]
    lines += ["", "* outside the interval for nine of ten; – a mixture of experts, which the correction leaves out"]
    lines += [
        f"{len(published)} step times were found; the programs of {len(published) - len(rows)} were not compiled",
        "",
    ]
    groups = {"all": list(checked)} | {
        name: [id(row) for row in rows if row.generation == name and id(row) in checked] for name in ratios_of(rows)
    }
    before = {id(row): row.ratio for row in rows}
    summary = []
    for name, members in groups.items():
        old, new = errors(before[one] for one in members), errors(checked[one][0] for one in members)
        held = sum(checked[one][1] for one in members)
        summary.append((name, str(len(members)), *(f"{value:.0%}" for value in old + new), f"{held} of {len(members)}"))
    columns = ("generation", "rows", "median", "95%", "median after", "95% after", "in the interval")
    lines += Table(dict(zip(columns, "<>>>>>>", strict=True)), summary).lines()
    corrections = [
        (
            name,
            f"{one.factor:.2f}",
            f"{one.low:.2f} to {one.high:.2f}",
            *map(str, (one.steps, one.whole_steps, one.estimates, one.programs)),
        )
        for name, one in accuracies(rows).items()
    ]
    columns = ("generation", "factor", "nine of ten", "figures", "whole steps", "distinct estimates", "programs")
    return [*lines, "", *Table(dict(zip(columns, "<>>>>>>", strict=True)), corrections).lines()]


def _cells(row: Row, ratio: float | None, is_held: bool) -> tuple[str, ...]:
    after = "–" if ratio is None else f"{ratio:.2f}{'' if is_held else '*'}"
    return (
        row.network,
        row.machine,
        row.way,
        row.unit,
        f"{row.measured:,.1f}",
        f"{row.estimated:,.1f}",
        f"{row.ratio:.2f}",
        after,
    )


def main() -> None:
    """Print the table; with programs named, compile these first."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.truth", description=__doc__)
    parser.add_argument(
        "--compile", nargs="*", default=[], metavar="PROGRAM", help="such as resnet50/v3, or all of v5e"
    )
    compile_programs(parser.parse_args().compile)
    print("\n".join(table()))


if __name__ == "__main__":
    main()
