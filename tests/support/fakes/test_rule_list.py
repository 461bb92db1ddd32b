"""Claims about the list of the services' rules."""

import re

from tests.support.fakes.rule_list import FOLDER, all_rules, rules_in


def test_the_list_is_what_the_code_says():
    told = "Run: python -m tests.support.fakes.rule_list > tests/support/fakes/RULES"
    assert (FOLDER / "RULES").read_text() == all_rules(), told


def test_every_rule_has_a_source():
    sourceless = [rule for rule in all_rules().splitlines() if not re.search(r" \([^()]+(\([^()]*\)[^()]*)*\)$", rule)]
    assert sourceless == []


def test_two_rules_in_a_row_are_two():
    assert rules_in("# Rule: one\n# (a)\n# Rule: two (b)\n") == ["one (a)", "two (b)"]
