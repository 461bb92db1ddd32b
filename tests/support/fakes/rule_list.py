"""The rules of the services that the local servers enforce, one per line.

A rule is a comment `# Rule: WHAT (SOURCE)` next to the code that enforces it, where `…/` at the start of a source
stands for Vertex AI's documentation. `python -m tests.support.fakes.rule_list > tests/support/fakes/RULES` rewrites the
list.
"""

import re
from pathlib import Path

from tests.support.fakes.vertex_rules import DOCS

FOLDER = Path(__file__).parent
_RULE = re.compile(r"^ *# (Rule: .*\n(?: *# .*\n)*)", re.MULTILINE)


def rules_in(text: str) -> list[str]:
    """Return the rules in a module's comments, one line each.

    Example:
        >>> rules_in("    # Rule: a job has a name\\n    # (job.proto)\\n    check(job)\\n")
        ['a job has a name (job.proto)']
    """
    found = [re.sub(r"\s*\n\s*(# )?", " ", rule).strip() for rule in _RULE.findall(text)]
    return [part.strip() for rule in found for part in rule.split("Rule: ") if part]


def all_rules() -> str:
    """Return the list: each rule after the name of the module that enforces it."""
    modules = sorted(path for path in FOLDER.glob("*.py") if path.name not in ("rule_list.py", "test_rule_list.py"))
    lines = [f"{path.stem}: {rule}" for path in modules for rule in rules_in(path.read_text())]
    return re.sub(r"(?<=[(; ])…/", f"{DOCS}/", "\n".join(lines)) + "\n"


if __name__ == "__main__":
    print(all_rules(), end="")
