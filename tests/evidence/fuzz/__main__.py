"""Mutated input for every reader, until the time is over; what is found stays in the corpus, which `make test` reads.

Each call has two seconds of the processor and 1 GiB. Anything but a value or a refusal in words is a fault.
"""

import argparse
import hashlib
import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, configuration, given, settings
from hypothesis import strategies as st

from tests.evidence.fuzz import mutations, repairs, sandbox
from tests.evidence.fuzz.bombs import BOMBS
from tests.evidence.fuzz.readers import READERS, prepare
from tests.evidence.fuzz.sandbox import FAULT, Outcome, Sandbox

CORPUS = Path(__file__).parent / "corpus"
_ROUND = 200  # Inputs of a reader before the next one's turn.
_MOST_SHRINKS = 60  # Calls that a fault is made smaller by.


def inputs_of(name: str, seeds: Sequence[bytes]) -> Any:
    """Return the strategy of a reader's mutated input."""
    reader, drawn = READERS[name], [mutations.mutated_bytes(seeds)]
    if reader.repair is not None:
        drawn.append(drawn[0].map(reader.repair))
    if reader.is_json:
        drawn.append(mutations.mutated_json(seeds))
    if name == "http":
        drawn.append(_bodies(seeds))
    return st.one_of(drawn)


def _bodies(seeds: Sequence[bytes]) -> Any:
    """Return requests with other values in the JSON of their bodies."""
    split = [(head, body) for head, _, body in (seed.partition(b"\r\n\r\n") for seed in seeds) if body[:1] == b"{"]

    def of(head: bytes, body: bytes) -> Any:
        return mutations.mutated_json([body]).map(lambda new: repairs.request(head + b"\r\n\r\n" + new))

    return st.sampled_from(split).flatmap(lambda pair: of(*pair))


class Target:
    """A reader that is tried.

    Args:
        name: Its name.
        folder: Folder for its files.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, reader = name, READERS[name]
        path, self.seeds = prepare(name, folder)
        self.sandbox = Sandbox(reader.read, path, reader.refusals)
        self.counts, self.faults = Counter[str](), dict[str, tuple[bytes, Outcome]]()
        self.longest, self.largest, self._saved = 0.0, 0.0, set[str]()

    def call(self, content: bytes) -> Outcome:
        """Read an input, and count what became of it."""
        outcome = self.sandbox.call(content)
        self.counts[outcome.kind] += 1
        self.longest, self.largest = max(self.longest, outcome.seconds), max(self.largest, outcome.mib)
        if outcome.kind == FAULT:
            kind = sign_of(outcome)
            if kind not in self.faults or len(content) < len(self.faults[kind][0]):
                self.faults[kind] = content, outcome
        return outcome

    def round(self, count: int, seed: int) -> None:
        """Try mutated inputs; of every fault the smallest found is kept."""

        @hypothesis.seed(seed)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(inputs_of(self.name, self.seeds))
        def attempt(content: bytes) -> None:
            self.call(content)

        with warnings.catch_warnings(action="ignore"):
            attempt()
        self.save()

    def save(self) -> None:
        """Write new faults to the corpus, each cut down as far as it stays the same, and print them."""
        for kind in self.faults.keys() - self._saved:
            content, outcome = self.faults[kind]
            content = self._cut(kind, content)
            folder = CORPUS / self.name.replace(" ", "_")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / hashlib.sha256(content).hexdigest()[:12]).write_bytes(content)
            print(f"\n{self.name}: {kind} ({len(content):,} bytes)\n{outcome.said[-3000:]}", flush=True)
            self._saved.add(kind)

    def _cut(self, kind: str, content: bytes) -> bytes:
        size, calls = len(content) // 2, 0
        while size and calls < _MOST_SHRINKS:
            for start in range(0, len(content), size):
                smaller, calls = content[:start] + content[start + size :], calls + 1
                outcome = self.sandbox.call(smaller)
                if outcome.kind == FAULT and sign_of(outcome) == kind:
                    content = smaller
                    break
                if calls == _MOST_SHRINKS:
                    break
            else:
                size //= 2
        return content


def sign_of(outcome: Outcome) -> str:
    """Return what tells one fault from another: the last lines of a stack trace, without the message."""
    lines = [line.strip() for line in outcome.said.splitlines() if line.strip().startswith("File ")]
    last = outcome.said.strip().splitlines()[-1].partition(":")[0] if outcome.said else ""
    own = [line for line in lines if "site-packages" not in line and "/lib/python" not in line]
    return f"{own[-1] if own else ''} {last}"


def corpus() -> list[Path]:
    """Return everything that was ever found."""
    return sorted(path for path in CORPUS.glob("*/*") if path.is_file())


def reader_of(path: Path) -> str:
    """Return the reader of a file of the corpus."""
    return next(name for name in READERS if name.replace(" ", "_") == path.parent.name)


def report(targets: Sequence[Target]) -> str:
    """Return a line for each reader, and one for all."""
    lines = [f"{'':<18}{'inputs':>8}{'read':>8}{'refused':>9}{'faults':>8}{'longest, s':>12}{'most, MiB':>11}"]
    total = Counter[str]()
    for target in targets:
        total += target.counts
        lines.append(_line(target.name, target.counts, target.longest, target.largest))
    most = max(target.longest for target in targets), max(target.largest for target in targets)
    return "\n".join([*lines, _line("in all", total, *most)])


def _line(name: str, counts: Counter[str], seconds: float, mib: float) -> str:
    read, refused, faults = counts["read"], counts["refused"], counts[FAULT]
    return f"{name:<18}{counts.total():>8,}{read:>8,}{refused:>9,}{faults:>8,}{seconds:>12.2f}{mib:>11.0f}"


def read_corpus(folder: Path) -> None:
    """Print a JSON line for each good file, each bomb and each file of the corpus: what became of it."""
    found = [(reader_of(path), path.name, path.read_bytes()) for path in corpus()]
    for name in READERS:
        target = Target(name, folder / name)
        known = [(name, f"good {i}", seed) for i, seed in enumerate(target.seeds)]
        if name in BOMBS:
            known.append((name, "bomb", BOMBS[name](target.seeds)))
        for reader, file, content in [*known, *(each for each in found if each[0] == name)]:
            outcome = target.call(content)
            told = {"reader": reader, "file": file, **outcome._asdict(), "said": outcome.said[-2000:]}
            print(json.dumps(told | {"num_bytes": len(content)}), flush=True)
        target.sandbox.close()


def main() -> int:
    """Try every reader; returns 1 if a fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--inputs", type=int, help="end at this number of inputs for each reader, if that is sooner")
    parser.add_argument("--only", nargs="+", choices=READERS, metavar="READER", help=", ".join(READERS))
    parser.add_argument("--seed", type=int, default=0, help="another one draws other input")
    parser.add_argument("--corpus", action="store_true", help="only read the corpus, and print what becomes of it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as work:
        configuration.set_hypothesis_home_dir(work)
        if arguments.corpus:
            sandbox.MOST_SECONDS = 60.0  # `make test` judges no machine by its speed.
            read_corpus(Path(work))
            return 0
        targets = [Target(name, Path(work) / name) for name in arguments.only or READERS]
        end, seed = time.monotonic() + 60 * arguments.minutes, arguments.seed << 32
        while time.monotonic() < end:
            waiting = [each for each in targets if each.counts.total() < (arguments.inputs or sys.maxsize)]
            if not waiting:
                break
            for target in waiting:
                if time.monotonic() < end:
                    target.round(_ROUND, seed := seed + 1)
        for target in targets:
            target.sandbox.close()
        print(report(targets))
    return int(any(target.faults for target in targets))


if __name__ == "__main__":
    sys.exit(main())
