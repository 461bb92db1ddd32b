import html

import pytest
from markdown_it import MarkdownIt

from tests.support.browser import find, needs_browser, photograph
from tests.support.html_page import Page
from tpu_components.core.base.terminal import visible
from tpu_components.core.pages import page
from tpu_components.core.pages.blocks import Cell, Fields, Figure, Section, Sentences, Table, as_markdown, as_text

_HOSTILE = "<script>alert(1)</script>\"' onerror=alert(2) {{ 7 * 7 }} |*\x1b[2J\u202e"


def _blocks(text):
    return [
        text,
        Sentences([text], text, passed=True),
        Fields([(text, text), ("empty", "")]),
        [Figure(text, text, [text, Cell(text, "bad")])],
        Section(text, [Table({text: "<", "n": ">"}, [(text, Cell(text, share=0.5))])]),
        Section(text, [Table({Cell(text): "<", "n": ">"}, [(text, Cell(text, link="a.html"))])], is_folded=True),
    ]


def test_a_page_shows_any_text_as_it_is_and_loads_nothing():
    shown = Page(page.render(_HOSTILE, _blocks(_HOSTILE), _blocks(_HOSTILE), _HOSTILE))
    assert "script" not in {tag for tag, _ in shown.tags}
    assert not [name for _, attributes in shown.tags for name in attributes if name.startswith("on")]
    assert shown.words.count(visible(_HOSTILE)) == 2 * 16 + 2
    assert shown.values("src") == []
    assert shown.values("href") == ["a.html"] * 2
    policies = [attributes["content"] for _, attributes in shown.tags if "http-equiv" in attributes]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_cells_of_a_page_say_their_column_and_rows_have_a_heading():
    text = page.render("t", [Table({"name": "<", "a": ">", "b": "<"}, [("x", "1", Cell("2", "good"))])])
    shown = Page(text)
    cells = [(attributes["data-label"], attributes["class"].strip()) for tag, attributes in shown.tags if tag == "td"]
    assert cells == [("a", "number"), ("b", "good")]
    assert shown.values("scope") == ["col"] * 3 + ["row"]


def test_a_terminal_gets_the_same_blocks_in_lines_without_what_is_empty_or_drawn():
    blocks = [*_blocks("a b"), Sentences((), "nothing"), Fields([("none", "")])]
    assert as_text(blocks, 9).split("\n\n") == [
        "a b",
        "a b\n- a b",
        "a b    a\n       b",
        *["a b\na b    n\na b  a b"] * 2,
    ]


def test_markdown_shows_the_texts_of_a_table_as_they_are():
    table = Table({"a|b": "<", "n": ">"}, [("<cat>\n*", Cell("1", strong=True))])
    assert table.markdown() == "| a\\|b | n |\n|---|--:|\n| &lt;cat&gt; \\* | **1** |"


@pytest.mark.parametrize(("passed", "sign"), [(True, "✓ fine"), (False, "✗ fine")])
def test_a_verdict_is_a_sign_and_not_a_colour_alone(passed, sign):
    assert sign in Page(page.render("t", [Sentences((), "fine", passed)])).words


def test_markdown_gets_the_same_blocks_below_headings_without_what_is_empty_or_drawn():
    nothing = Section("nothing", ["", Sentences(()), Fields([("none", "")]), Table({"n": "<"}, [])])
    text = as_markdown([Section("a", [*_blocks("a b"), nothing])])
    table = ["## a b", "| a b | n |\n|---|--:|\n| a b | a b |"]
    assert text.split("\n\n") == ["# a", "a b", "a b", "- a b", "- **a b:** a b", *table * 2]


def test_markdown_shows_any_text_as_it_is():
    tokens = MarkdownIt("commonmark").enable("table").parse(as_markdown(_blocks(_HOSTILE)))
    inline = [child for token in tokens for child in token.children or ()]
    assert {token.type for token in inline} == {"text", "strong_open", "strong_close"}
    assert "".join(token.content for token in inline).count(visible(_HOSTILE)) == 13
    assert not [token for token in tokens if token.type == "html_block"]


@needs_browser
@pytest.mark.parametrize(("word", "width"), [("max_pooling2d", 390), ("global_average_pooling", 1000)])
def test_no_word_of_a_table_breaks_beside_text_that_can_wrap(word, width, tmp_path):
    """The name of a row is one word on one line, and the cell beside it has many short words."""
    table = Table({"layer": "<", "advice": "<"}, [(word, "a few short words " * 60)])
    text = page.render("words", [Section("layers", [table])])
    marked = text.replace(f">{word}<", f'><span style="background:#fe01dc">{word}</span><')
    assert marked != text
    path = tmp_path / "page.html"
    path.write_text(f'<iframe style="border:0" width="{width}" height="1800" srcdoc="{html.escape(marked)}"></iframe>')
    screen, _ = photograph(path, tmp_path, 1100, 1900)
    rows, _ = find(screen, (254, 1, 220))
    assert 5 < rows.max() - rows.min() < 25, "one line"
