"""Random mutants of `core/`: which of them do the tests catch?

    pip install pytest-cov
    python -m pytest -m "not slow and not heavy" --cov components/tpu_components/core --cov-context test --cov-report= \
        -o junit_family=xunit1 --junitxml build/tests.xml
    python -m tests.evidence.mutants build/mutants.jsonl --count 250

pytest writes to .coverage which test executes which line. A mutant is one change of one statement. It is caught if a
test that executes the statement fails or does not end: of the 40 cheapest tests, those of the module's own file first,
or else of the others, as many as take 90 s. With `--again OTHER/build/mutants.jsonl`, run in an older checkout, the
mutants are those that the tests of the other checkout did not catch.

mutmut and cosmic-ray neither choose tests by line nor repeat a mutant in another commit.
"""

import argparse
import ast
import collections
import contextlib
import copy
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CORE = Path("components/tpu_components/core")
SWAPPED = {
    "Lt": "LtE",
    "Gt": "GtE",
    "Eq": "NotEq",
    "Is": "IsNot",
    "In": "NotIn",
    "And": "Or",
    "Add": "Sub",
    "Mult": "Div",
}
SWAPPED |= {"min": "max", "any": "all"}
SWAPPED |= {other: one for one, other in SWAPPED.items()}


class Mutant(NamedTuple):
    """A changed file. `key` names the change, not its line; `lines` is empty if the import executes the statement."""

    key: str
    path: Path
    text: bytes
    lines: range


def _changed(node: Any) -> Iterator[str]:
    """Yield the code of an expression with one change, if there is one to make."""
    other = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[operator]) if type(operator).__name__ in SWAPPED:
            other.ops = [getattr(ast, SWAPPED[type(operator).__name__])()]
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator).__name__ in SWAPPED:
            other.op = getattr(ast, SWAPPED[type(operator).__name__])()
        case ast.UnaryOp(op=ast.Not()):
            other = node.operand
        case ast.Constant(value=bool(value)):
            other.value = not value
        case ast.Constant(value=int(value) | float(value)):
            other.value = value + 1
        case ast.Constant(value=str(value)) if " " not in value:  # Texts with spaces are for people.
            other.value = value + "x"
        case ast.Name(id=name) if name in SWAPPED:
            other.id = SWAPPED[name]
        case ast.IfExp(test=test):
            other.test = ast.UnaryOp(ast.Not(), test)
        case ast.Slice(lower=lower, upper=upper) if lower or upper:
            yield f":{ast.unparse(upper) if lower and upper else ''}"
            return
        case _:
            return
    yield f"({ast.unparse(other)})"


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """Yield an expression and its parts; those of f-strings have no positions in Python 3.11."""
    if not isinstance(node, ast.JoinedStr | ast.stmt):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _within(child)


def mutants_of(path: Path) -> Iterator[list[Mutant]]:
    """Yield the mutants of each statement of a file."""
    source = path.read_bytes()
    starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    seen: collections.Counter[str] = collections.Counter()

    def mutant(scope: str, statement: Any, lines: range, old: Any, new: str) -> Mutant:
        shown = [ast.unparse(each).split("\n")[0] for each in (statement, old)]
        if isinstance(statement, ast.Raise):  # Stays the same statement with another message.
            shown = [re.sub(r"(['\"]).*\1", "...", text) for text in shown]
        key = " | ".join([str(path.relative_to(CORE)), scope, *shown, new])
        seen[key] += 1
        start, end = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset
        new = new.removesuffix(")") + "\n" * source.count(b"\n", start, end) + ")" * new.endswith(")")  # Lines stay.
        return Mutant(f"{key} | {seen[key]}", path, source[:start] + new.encode() + source[end:], lines)

    def walk(node: Any, scope: str) -> Iterator[list[Mutant]]:
        for child in ast.iter_child_nodes(node):
            yield from walk(
                child, f"{scope}.{child.name}" if isinstance(child, ast.FunctionDef | ast.ClassDef) else scope
            )
            value = getattr(child, "test", None) or getattr(child, "iter", None) or getattr(child, "value", None)
            if not isinstance(child, ast.stmt) or (isinstance(child, ast.Expr) and isinstance(value, ast.Constant)):
                continue
            changes = [(old, new) for old in _within(value) for new in _changed(old)] if value else []
            if isinstance(child, ast.If | ast.While):
                changes.append((value, f"(not ({ast.unparse(value)}))"))
            elif isinstance(child, ast.Return) and value:
                changes.append((child, "return None"))
            elif isinstance(child, ast.Raise | ast.Assign | ast.AugAssign | ast.Expr):
                changes.append((child, "pass"))
            last = child.body[0].lineno - 1 if hasattr(child, "body") else child.end_lineno
            at_import = isinstance(node, ast.Module | ast.ClassDef)
            lines = range(0) if at_import else range(child.lineno, max(last or 0, child.lineno) + 1)
            if changes:
                yield [mutant(scope, child, lines, old, new) for old, new in changes]

    yield from walk(ast.parse(source), "")


def choose(mutant: Mutant, executed: Mapping[int, set[str]], seconds: Mapping[str, float]) -> list[list[str]]:
    """Choose the tests to run first, and those to run if all of these pass."""
    tests = {test for line, tests in executed.items() if not mutant.lines or line in mutant.lines for test in tests}
    own = str(mutant.path.parent / f"test_{mutant.path.name}").replace("components/tpu_components", "tests/components")
    # TensorFlow traces a copy of a function, whose lines coverage does not see.
    tests = tests or {test for test in seconds if test.startswith(own)}
    order = sorted(tests, key=lambda test: (not test.startswith((own, str(mutant.path))), seconds[test], test))
    rest = sorted(order[40:], key=lambda test: (seconds[test], test))
    spent = itertools.accumulate(seconds[test] for test in rest)
    return [order[:40], [test for test, until in zip(rest, spent, strict=True) if until < 90]]


def failure_of(tests: list[str], seconds: int) -> str:
    """Run tests in a fork of this process, and return the one that fails, another reason, or nothing."""
    scratch = Path(tempfile.mkdtemp(prefix="mutant-"))
    child = os.fork()
    if not child:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        os.dup2(os.open(scratch / "output", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(1, 2)
        tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-n", "0", "--tb=no", *tests]))
    end = time.monotonic() + 10 * seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # And what it has left.
    if not ended[0]:
        os.waitpid(child, 0)
    output = (scratch / "output").read_text(errors="replace")
    shutil.rmtree(scratch, ignore_errors=True)
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.MULTILINE)
    if ended[0] and ended[1] == 0:
        return ""
    return failed[1] if failed else "timeout" if not ended[0] or os.WIFSIGNALED(ended[1]) else output[-500:]


def read_tests() -> tuple[Mapping[str, Mapping[int, set[str]]], Mapping[str, float]]:
    """Read which tests execute each line of each file, and how many seconds each test takes."""
    import coverage  # Not locked.

    cases = xml.etree.ElementTree.parse("build/tests.xml").iter("testcase")
    seconds = {f"{case.attrib['file']}::{case.attrib['name']}": float(case.attrib["time"]) for case in cases}
    of_file: dict[str, set[str]] = collections.defaultdict(set)
    for test in seconds:
        of_file[test.partition("::")[0]].add(test)
    executed: dict[str, dict[int, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
    data = coverage.CoverageData()
    data.read()
    for path in data.measured_files():
        lines = executed[os.path.relpath(path)]
        for line, contexts in data.contexts_by_lineno(path).items():
            for test, _, phase in (context.rpartition("|") for context in contexts):
                # The set-up of a fixture that tests share is in the context of the first of them.
                file = test.partition("::")[0]
                lines[line] |= of_file[file] if phase == "setup" else {test} & seconds.keys()
    return executed, seconds


def main() -> None:
    """Run mutants, and append to a file what catches each of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.mutants", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--again", type=Path)
    arguments = parser.parse_args()
    statements = [mutants for path in sorted(CORE.rglob("*.py")) for mutants in mutants_of(path)]
    chance = random.Random(57)
    chance.shuffle(statements)
    drawn = [chance.choice(mutants) for mutants in statements][: arguments.count]
    if arguments.again:
        here = {mutant.key: mutant for mutants in statements for mutant in mutants}
        missed = [row["key"] for row in map(json.loads, arguments.again.open()) if not row["caught_by"]]
        drawn = [here[key] for key in missed if key in here]
        print("\n".join(["Not in this checkout:", *(key for key in missed if key not in here)]))
    executed, seconds = read_tests()
    __import__("tensorflow")  # Takes seconds. The process of each mutant is a fork of this one.
    done = {json.loads(line)["key"] for line in arguments.results.open()} if arguments.results.exists() else set()
    for mutant in drawn:
        if mutant.key in done:
            continue
        source = mutant.path.read_bytes()
        times = mutant.path.stat()
        groups = choose(mutant, executed.get(str(mutant.path), {}), seconds)
        started = time.monotonic()
        try:
            mutant.path.write_bytes(mutant.text)
            caught_by = next(filter(None, (failure_of(tests, 120) for tests in groups if tests)), "")
        finally:
            mutant.path.write_bytes(source)
            os.utime(mutant.path, (times.st_atime, times.st_mtime))
        row = {"key": mutant.key, "caught_by": caught_by, "tests": sum(map(len, groups))}
        print(f"{row} {time.monotonic() - started:.0f} s", flush=True)
        with arguments.results.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
