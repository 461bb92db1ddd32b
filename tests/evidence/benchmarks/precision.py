"""How far bfloat16's metrics lie from float32's, over several seeds.

`python -m tests.evidence.benchmarks.precision EXAMPLE` runs it.

Everything but the precision of the training is the example's own; the split stays, and evaluation computes in float32.
Every finished training is a line of `precision.jsonl`, and what stands there is not trained again.
"""

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

from tpu_components.core.pages.blocks import Table

RESULTS = Path(__file__).parent / "precision.jsonl"
FLOAT32, BFLOAT16 = "float32", "mixed_bfloat16"
_METRICS = ("accuracy", "bits_per_character")
_COLUMNS = {
    "example": "<",
    "what was trained": "<",
    "metric": "<",
    "seeds": ">",
    "float32": ">",
    "bfloat16": ">",
    "bfloat16 − float32": ">",
    "by the choice of examples": ">",
}


@dataclasses.dataclass(frozen=True)
class Trained:
    """One training's figure.

    Attributes:
        example: The configuration's name.
        what: Its data, as far as not the example's own, and its epochs.
        seed: Of weights, order, dropout and augmentation.
        precision: `float32` or `mixed_bfloat16`.
        metric: The one that the example is judged by.
        value: Of the test split.
        num_examples: In that split.
    """

    example: str
    what: str
    seed: int
    precision: str
    metric: str
    value: float
    num_examples: int

    @classmethod
    def read(cls, path: Path = RESULTS) -> list[Self]:
        """All trainings that a file holds; none if there is no such file."""
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return [cls(**json.loads(line)) for line in lines]


def train(example: str, overrides: Sequence[str], what: str, seeds: Iterable[int], known: Path) -> Iterator[Trained]:
    """Train an example in both precisions with each seed, but for what `known` holds."""
    from tpu_components.create_tfrecords import write_records
    from tpu_components.evaluate_model import EvaluateParams, evaluate_model
    from tpu_components.train_model import train_model
    from tpu_pipelines.config.configuration import load_config

    config = load_config(example, overrides)
    what = f"{what}{', ' if what else ''}{config.training.epochs} epochs"
    done = {(one.example, one.what, one.seed, one.precision) for one in Trained.read(known)}
    with tempfile.TemporaryDirectory(prefix="precision-") as folder:
        work = Path(folder)
        write_records(config.data, work / "records")
        for seed in seeds:
            for precision in (FLOAT32, BFLOAT16):
                if (example, what, seed, precision) in done:
                    continue
                params = dataclasses.replace(config.training, seed=seed, precision=precision)
                name = f"{seed}-{precision}"
                train_model(params, work / "records", work / name)
                judged = evaluate_model(EvaluateParams(), work / "records", work / name, work / f"{name}-judged")
                metric = next(metric for metric in _METRICS if metric in judged.metrics)
                value = judged.metrics[metric]
                yield Trained(example, what, seed, precision, metric, value, judged.num_examples)


def summarize(trained: Iterable[Trained]) -> list[tuple[str, ...]]:
    """Rows of the table: mean ± standard deviation over the seeds that both precisions have, and of the difference.

    The last column is an accuracy's standard error for the choice of test examples, which no seed changes.
    """
    values: dict[tuple[str, str, str], dict[str, dict[int, float]]] = {}
    tested: dict[tuple[str, str, str], int] = {}
    for one in trained:
        tested[one.example, one.what, one.metric] = one.num_examples
        of_example = values.setdefault((one.example, one.what, one.metric), {FLOAT32: {}, BFLOAT16: {}})
        of_example[one.precision][one.seed] = one.value
    rows = []
    for what, found in values.items():
        seeds = sorted(set(found[FLOAT32]) & set(found[BFLOAT16]))
        if len(seeds) > 1:
            wide, narrow = ([found[precision][seed] for seed in seeds] for precision in (FLOAT32, BFLOAT16))
            apart = [b - a for a, b in zip(wide, narrow, strict=True)]
            mean, is_share = statistics.fmean(wide), what[-1] == "accuracy"
            chance = f"± {sampling_error(mean, tested[what]):.4f}" if is_share else "–"
            rows.append((*what, str(len(seeds)), _spread(wide), _spread(narrow), _spread(apart, "+.4f"), chance))
    return rows


def _spread(values: Sequence[float], form: str = ".4f") -> str:
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values):.4f}"


def sampling_error(accuracy: float, num_examples: int) -> float:
    """Standard error of an accuracy for the examples' choice alone: no seed changes it.

    Example:
        >>> round(sampling_error(0.996, 10_000), 4)
        0.0006
    """
    return math.sqrt(accuracy * (1 - accuracy) / num_examples)


def table(path: Path = RESULTS) -> list[str]:
    """The table of all that a file holds."""
    return Table(_COLUMNS, summarize(Trained.read(path))).lines()


def main() -> None:
    """Train an example as asked, and print the table of all that was trained."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks.precision", description=__doc__)
    parser.add_argument("example", nargs="?", help="A ready example, or a YAML file; without one, the table alone.")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--what", default="", help="Where the data are not the example's own: which, in a few words.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS, help="Read first, then added to.")
    arguments = parser.parse_args()
    if arguments.example:
        seeds = range(arguments.seeds)
        for one in train(arguments.example, arguments.overrides, arguments.what, seeds, arguments.results):
            with arguments.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(one)) + "\n")
    print("\n".join(table(arguments.results)))


if __name__ == "__main__":
    main()
