"""Preflight's estimates beside step times that others published: `python -m tests.evidence.benchmarks.whole_steps`.

`published_steps.json` names the steps, and the rules by which some are left out; `published_programs` writes their
programs down, and `published_compile` compiles them and keeps the scheduled HLO outside the repository.
`compiled_steps.json` holds what `--read` takes from these texts: the costs of each program's operations.

What is compared is one device's computation by `estimate.seconds_of`, and communication. Where weights are replicated,
the sum of gradients is added, as preflight does; where they are divided among chips, publishers hide their gathering
behind the computation, so the longer of the two counts. Between slices, the time of the data-centre network, over which
each chip's float32 gradients are summed, is added. Beside it stand two simple estimators: the compiler's cycles as they
are, and a constant share of the chip's peak.
"""

import argparse
import dataclasses
import functools
import gzip
import hashlib
import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.evidence.benchmarks import published_compile
from tests.evidence.benchmarks.step_errors import (
    Observation,
    errors,
    hold_out_constant,
    hold_out_intervals,
    interval,
    summing_seconds,
)
from tpu_components.core.machines.machine_spec import TPU, Generation, load_catalogue
from tpu_components.core.pages.blocks import Table
from tpu_components.preflight_training.compiling.hlo import Kind, OperationCost, layer_of, read_cost
from tpu_components.preflight_training.compiling.kernels import Array, Kernels
from tpu_components.preflight_training.estimate import WELL_USED, Accuracy, gradient_bytes, seconds_of

PUBLISHED = published_compile.PUBLISHED
COMPILED = Path(__file__).parent / "compiled_steps.json"
TABLE = COMPILED.with_name("whole_steps.txt")  # What `steps` returns; tests.evidence.generated writes it.
_SMALL = 2e-4  # Operations with a smaller share of a step are kept as one of their kind.
# Dimensions of the torus of a large slice: each has two links of a chip.
_AXES = {"v2": 2, "v3": 2, "v4": 3, "v5e": 2, "v5p": 3, "v6e": 2, "7x": 3}


@dataclasses.dataclass(frozen=True)
class Row:
    """A published step time, and the compiled program of one device.

    Attributes:
        model: The network, as its publisher calls it.
        program: Name of its program.
        family: Name of the program that it is a variant of, or its own.
        kind: Kind of program, such as `decoder`.
        generation: Of the chips; `v4-core` if a device is one core.
        machine: The slice or slices.
        key: What names the compilation: program, generation and examples per device.
        slices: Number of slices that the data-centre network joins.
        source: Who published it; a publisher's figures for several slices share what he does and counts.
        measured: Seconds.
        beside: Seconds of communication that is added to the computation.
        hidden: Seconds of communication that overlaps the computation.
        is_whole: Whether it is a whole training step.
    """

    model: str
    program: str
    family: str
    kind: str
    generation: str
    machine: str
    key: str
    slices: int
    source: str
    measured: float
    beside: float
    hidden: float
    is_whole: bool

    @property
    def estimate(self) -> str:
        """What names the estimate: the compilation, and the number of slices."""
        return self.key if self.slices == 1 else f"{self.key}/{self.slices} slices"


def load_generations() -> dict[str, Generation]:
    """The catalogue's TPU generations by name, and v4 with a device for each core."""
    found = {one.name: one for one in load_catalogue().generations if one.accelerator == TPU}
    v4 = found["v4"]
    core = dataclasses.replace(v4, devices_per_chip=2, cores_per_device=1, hbm_usable_bytes=v4.hbm_usable_bytes // 2)
    return found | {f"v4{published_compile.CORE}": core}


def memory_shares() -> dict[str, float]:
    """Return, by key, which share of a device's memory each whole step needs that was compiled with all its layers."""
    programs = _published()["programs"]
    generations = load_generations()
    peaks = json.loads(COMPILED.read_text(encoding="utf-8"))["steps"]
    return {
        row.key: peaks[row.key]["peak_bytes"] / generations[row.generation].hbm_usable_bytes
        for row in load_rows()
        if row.is_whole and not programs[row.program]["arguments"].get("depth")
    }


@functools.cache
def load_costs() -> dict[str, tuple[list[OperationCost], int]]:
    """By key, the costs of a compiled program's operations, and the number of the network's weights."""
    kept = json.loads(COMPILED.read_text(encoding="utf-8"))["steps"]
    return {
        key: ([OperationCost(Kind(kind), *values) for kind, *values in step["operations"]], step["parameters"])
        for key, step in kept.items()
    }


def load_rows() -> list[Row]:
    """Every published step time that no rule leaves out and whose program has been compiled."""
    published = _published()
    costs = load_costs()
    generations = load_generations()
    rows = []
    for raw in published["rows"]:
        if raw["excluded"] or (key := published_compile.key_of(raw)) not in costs:
            continue
        device = published_compile.device_of(raw)
        generation = generations[device]
        program = published["programs"][raw["program"]]
        parameters = costs[key][1]
        is_divided = raw["weights"] != "replicated"
        slices = raw.get("slices", 1)
        seconds = 0.0
        between = 0.0
        if slices > 1:
            chips = raw["chips"] // slices
            between = summing_seconds(gradient_bytes(parameters) // chips, chips, generation, slices)
        if raw["whole"] and is_divided:
            seconds = _gathering(parameters, raw["chips"], generation)
        elif raw["whole"]:
            of_each = raw.get("gradient_bytes")
            num_bytes = of_each * parameters if of_each else gradient_bytes(parameters)
            seconds = summing_seconds(num_bytes, raw["chips"], generation)
        rows.append(
            Row(
                model=raw["model"],
                program=raw["program"],
                family=program.get("family", raw["program"]),
                kind=program["kind"],
                generation=device,
                machine=raw["slice"],
                key=key,
                slices=slices,
                source=_publisher(raw["source"]),
                measured=raw["step_ms"] / 1e3,
                beside=between if is_divided else seconds + between,
                hidden=seconds if is_divided else 0.0,
                is_whole=raw["whole"],
            )
        )
    return rows


def digest_of(program: Mapping[str, Any]) -> str:
    """Return a digest that changes with the program's dimensions and options."""
    return hashlib.sha256(json.dumps(program, sort_keys=True).encode()).hexdigest()[:12]


def _published() -> dict[str, Any]:
    published: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return published


def _publisher(address: str) -> str:
    """The repository of an address, whatever its version: its rows were measured and counted by the same people."""
    parts = address.removeprefix("https://").split("/")
    return re.sub(r"_v[\d.]+$", "", "/".join(parts[1:3]))


def _gathering(parameters: int, chips: int, generation: Generation) -> float:
    """Seconds in which all links of a chip gather bfloat16 weights twice and scatter gradients once."""
    if chips == 1 or generation.ici_bytes_per_second is None:
        return 0.0
    links = 2 * _AXES[generation.name] * generation.ici_bytes_per_second
    return 3 * 2 * parameters / links


def load_observations(rows: Iterable[Row]) -> list[Observation]:
    """The distinct estimates: rows whose program, communication and chip are the same are one."""
    costs = load_costs()
    generations = load_generations()
    groups = defaultdict(list)
    for row in rows:
        groups[row.estimate].append(row)
    return [
        Observation(
            key=estimate,
            program=group[0].program,
            family=group[0].family,
            kind=group[0].kind,
            generation=generations[group[0].generation],
            sources=frozenset(row.source for row in group),
            operations=costs[group[0].key][0],
            beside=statistics.fmean(row.beside for row in group),
            hidden=statistics.fmean(row.hidden for row in group),
            measured=math.exp(statistics.fmean(math.log(row.measured) for row in group)),
            is_whole=group[0].is_whole,
        )
        for estimate, group in groups.items()
    ]


def read_programs(folder: Path) -> None:
    """Read the costs of every compared program from the compiled texts in a folder.

    A program without a text in the folder keeps its stored costs, so that new programs can be compiled on another
    machine. The stored costs of a program that has changed are dropped.

    Raises:
        SystemExit: If another version of the compiler made the texts than the other costs.
    """
    published = _published()
    rows = {published_compile.key_of(row): row for row in published["rows"] if not row["excluded"]}
    generations = load_generations()
    before = json.loads(COMPILED.read_text(encoding="utf-8"))
    digests = {key: digest_of(published["programs"][row["program"]]) for key, row in rows.items()}
    steps = {key: step for key, step in before["steps"].items() if step["program"] == digests.get(key)}
    for key, row in sorted(rows.items()):
        text, beside = published_compile.paths_of(key, folder)
        if not text.exists():
            continue
        program = published["programs"][row["program"]]
        figures = json.loads(beside.read_text(encoding="utf-8"))
        if figures["program"] != program:
            continue
        if figures["versions"] != before["compiler"]:
            raise SystemExit(
                f"Cannot compare programs of two compilers: {key} is of {figures['versions']}, and {COMPILED.name} of "
                f"{before['compiler']}. Install that version, or compile all programs again and change the file's "
                "`compiler`."
            )
        scheduled = gzip.decompress(text.read_bytes()).decode()
        if figures["depth"] != figures["real_depth"]:
            scheduled = _deepen(scheduled, figures["depth"], figures["real_depth"])
        steps[key] = {
            "program": digests[key],
            "parameters": _parameters(program, row["batch_per_device"]),
            "seconds": figures["seconds"],
            "compiler_mib": figures["compiler_peak_mib"],
            "peak_bytes": figures["peak_bytes"],
            "operations": _merge(
                read_cost(scheduled, functools.partial(layer_of, layers=()), _kernels(figures["kernels"])).operations,
                generations[published_compile.device_of(row)],
            ),
        }
    kept = {"steps": dict(sorted(steps.items())), "compiler": before["compiler"]}
    COMPILED.write_text(_json(kept), encoding="utf-8")


def _kernels(kept: Mapping[str, Any]) -> Kernels:
    """The operands and results of kernels, as `read_kernels` returned them, from JSON."""
    return {
        body: tuple(
            Array(tuple(shape), None if values is None else tuple(map(tuple, values))) for shape, values in arrays
        )
        for body, arrays in kept.items()
    }


def _deepen(scheduled: str, compiled: int, real: int) -> str:
    """Let the scan over layers run as often as the network has layers: its condition compares with a constant."""
    conditions = set(re.findall(r" while\(.*?condition=%([\w.\-]+)", scheduled))
    parts = re.split(r"(?m)^(?=%|ENTRY)", scheduled)
    for number, part in enumerate(parts):
        if part.partition(" ")[0].lstrip("%") in conditions:
            parts[number] = re.sub(rf"constant\({compiled}\)", f"constant({real})", part)
    return "".join(parts)


def _parameters(program: Mapping[str, Any], batch: float) -> int:
    import jax

    if program["kind"] == "product":
        return 0
    step = published_compile.build_step(program, batch)
    arguments = program["arguments"]
    shards = arguments.get("shards", 1) * arguments.get("tensor", 1)
    weights = step.arguments[0][0] if shards == 1 else step.arguments[1][0]
    return shards * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(weights))


def _merge(operations: Sequence[OperationCost], generation: Generation) -> list[list[Any]]:
    """Operations as JSON; the shortest are one of their kind."""
    whole = sum(seconds_of(one, generation) for one in operations)
    small: defaultdict[Kind, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    found = []
    for one in operations:
        if seconds_of(one, generation) > _SMALL * whole:
            found.append([one.kind.value, *dataclasses.astuple(one)[1:]])
        else:
            for at, value in enumerate((one.cycles, one.flops, one.num_bytes)):
                small[one.kind][at] += value * one.times
    return [*found, *([kind.value, *values, 1, 1.0, 0, 0] for kind, values in small.items())]


def _json(kept: Mapping[str, Any]) -> str:
    """A line for each operation."""
    text = json.dumps(kept, indent=1)
    return (
        re.sub(
            r"\[\s+(\"[\w ]+\"(?:,\s+[\d.e+]+){7})\s+\]",
            lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]",
            text,
        )
        + "\n"
    )


def is_busy(one: Observation) -> bool:
    """Whether a step is estimated to use the matrix units well."""
    return one.utilization >= WELL_USED


def accuracies(rows: Sequence[Row]) -> dict[bool, Accuracy]:
    """What preflight is to say of training steps that use the matrix units well, and of the others; to two decimals."""
    observations = [one for one in load_observations(rows) if one.is_whole]
    held = hold_out_intervals(observations, is_busy)
    found = {}
    for busy in (True, False):
        own = {one.key: one for one in observations if is_busy(one) == busy}
        ratios = [one.ratio for one in own.values()]
        low, high = (round(end, 2) for end in interval(list(own.values())))
        median, most, _ = errors(ratios)
        steps = sum(row.estimate in own for row in rows)
        found[busy] = Accuracy(
            factor=1.0,
            low=low,
            high=high,
            steps=steps,
            programs=len({one.program for one in own.values()}),
            held_out=sum(held[key] for key in own),
            estimates=len(own),
            whole_steps=steps,
            median_error=round(median, 2),
            most_error=round(most, 2),
        )
    return found


def steps() -> list[str]:
    """A table of every distinct estimate."""
    rows = load_rows()
    observations = load_observations(rows)
    held = hold_out_intervals([one for one in observations if one.is_whole], is_busy)
    figures = Counter(row.estimate for row in rows)
    texts = dict.fromkeys(("program", "machine"), "<")
    numbers = dict.fromkeys(("rows", "measured", "estimated", "matrix units", "measured/estimated"), ">")
    lines = Table(
        {**texts, **numbers},
        [
            (
                one.program,
                ", ".join(sorted({row.machine for row in rows if row.estimate == one.key})[:2]),
                str(figures[one.key]),
                f"{one.measured * 1e3:,.4g}",
                f"{one.measured * 1e3 / one.ratio:,.4g}",
                f"{one.utilization:.0%}",
                f"{one.ratio:.2f}{'' if held.get(one.key, True) else '*'}",
            )
            for one in observations
        ],
    ).lines()
    return [*lines, "", "milliseconds; * outside the interval that other programs and publishers give"]


def summary() -> list[str]:
    """A table of the errors by generation and by kind of program, and the intervals that follow."""
    rows = load_rows()
    observations = load_observations(rows)
    whole = [one for one in observations if one.is_whole]
    held = hold_out_intervals(whole, is_busy)
    constant = hold_out_constant(observations)
    figures = Counter(row.estimate for row in rows)
    groups = {"whole steps": whole}
    groups |= {f"{_GROUPS[busy]} of the peak": [one for one in whole if is_busy(one) == busy] for busy in (True, False)}
    names = dict.fromkeys(one.name for one in load_generations().values())
    groups |= {name: [one for one in whole if one.generation.name == name] for name in names}
    groups |= {kind: [one for one in whole if one.kind == kind] for kind in sorted({one.kind for one in whole})}
    groups |= {"single products": [one for one in observations if not one.is_whole]}
    cells = []
    for name, members in groups.items():
        if not members:
            continue
        median, most, bias = errors([one.ratio for one in members])
        simple = [[one.ratio_by_cycles for one in members], [constant[one.key] for one in members]]
        cells.append(
            (
                name,
                str(sum(figures[one.key] for one in members)),
                str(len(members)),
                f"{median:.0%}",
                f"{most:.0%}",
                f"{bias:+.0%}",
                f"{sum(held[one.key] for one in members)} of {len(members)}" if members[0].is_whole else "",
                *(f"{value:.0%}" for ratios in simple for value in errors(ratios)[:2]),
            )
        )
    columns = (
        "",
        "rows",
        "distinct",
        "median",
        "95%",
        "bias",
        "held",
        "cycles: median",
        "95%",
        "constant: median",
        "95%",
    )
    lines = Table({f"{column}{' ' * at}": "<" if not at else ">" for at, column in enumerate(columns)}, cells).lines()
    for busy, accuracy in accuracies(rows).items():
        lines += ["", f"{_GROUPS[busy]} of the peak: {accuracy.text}"]
    return lines


_GROUPS = {True: f"at least {WELL_USED:.0%}", False: f"less than {WELL_USED:.0%}"}


def main() -> None:
    """Print both tables; before, compile programs or read compiled ones if asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks.whole_steps", description=__doc__)
    parser.add_argument("--read", action="store_true", help="take the costs of programs from the compiled texts")
    published_compile.add_arguments(parser)
    asked = parser.parse_args()
    published_compile.compile_all(asked.compile, asked.cache, asked.timeout, asked.memory)
    if asked.read:
        read_programs(asked.cache)
    print("\n".join([*steps(), "", *summary()]))


if __name__ == "__main__":
    main()
