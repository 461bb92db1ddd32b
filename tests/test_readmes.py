"""The READMEs are short, and every link in them leads to what is there."""

import re

import pytest

from tests.support.cli import COMPONENTS, PIPELINES, READMES, REPOSITORY
from tpu_components.core.sources.kinds import SOURCES
from tpu_pipelines.cli.commands import COMMANDS

PAGES = [*READMES, REPOSITORY / "CHANGELOG.md"]
LONGEST = 80  # Words of a paragraph.


def prose(text):
    """The text without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def paragraphs(text):
    """Paragraphs and items of lists; tables are none."""
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose(text)):
        if part.strip() and not part.lstrip().startswith("|"):
            yield part.strip()


def anchors(text):
    """The anchors that GitHub gives to headings."""
    for heading in re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def ids(path):
    return str(path.relative_to(REPOSITORY))


def test_the_first_readme_is_read_in_a_few_minutes():
    text = (REPOSITORY / "README.md").read_text()
    assert len(text.splitlines()) <= 180
    assert len(text.split()) <= 1500


@pytest.mark.parametrize("path", READMES, ids=ids)
def test_a_readme_begins_with_a_command(path):
    """What it is may be said before, in one paragraph; the first README draws the steps."""
    assert re.match(r"# .+\n\n(?:(?:[^\n|`].*\n)+\n)?```(?:sh|python|)\n", path.read_text())


@pytest.mark.parametrize("path", READMES, ids=ids)
def test_no_paragraph_is_long(path):
    assert [text for text in paragraphs(path.read_text()) if len(text.split()) > LONGEST] == []


def test_every_command_and_every_kind_of_source_is_described():
    text = (PIPELINES / "cli" / "README.md").read_text()
    told = set(re.findall(r"\btpu-pipelines ([a-z]+)|`([a-z]+) [A-Z]", text))
    assert {one.name for one in COMMANDS} <= {name for pair in told for name in pair}
    rows = (COMPONENTS / "create_tfrecords" / "README.md").read_text()
    assert [kind for kind in SOURCES if f"\n| `{kind}:" not in rows] == []


@pytest.mark.parametrize("path", PAGES, ids=ids)
def test_every_link_leads_to_what_is_there(path):
    for place, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", prose(path.read_text())):
        target = path.parent / place if place else path
        assert target.exists(), place
        assert not anchor or anchor in anchors(target.read_text()), f"{place}#{anchor}"


def test_paragraphs_and_anchors_are_found():
    text = "# What is `a_b`?\n\nOne two.\n\n- three\n- four\n\n| a | b |\n\n```sh\n# no heading\n```\n"
    assert list(paragraphs(text)) == ["# What is `a_b`?", "One two.", "- three", "- four"]
    assert list(anchors(text)) == ["what-is-a_b"]
