"""CSV files as spreadsheets, databases and old programs write them: their rows are read, or the cause is named."""

import gzip

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.files.csv_files import open_csv
from tpu_components.core.files.location import Location
from tpu_components.core.sources.csv_file import read_others
from tpu_components.core.sources.kinds import list_examples, list_unlabelled
from tpu_components.core.sources.params import WriteParams

_TEXTS = [f"text number {i}" for i in range(6)]
_ROWS = [(text, "cat" if i % 2 else "dog") for i, text in enumerate(_TEXTS)]


def _table(*header, rows=_ROWS, before=(), after=(), delimiter=",", end="\n"):
    lines = [header, *((*before, *row, *after) for row in rows)]
    return "".join(delimiter.join(line) + end for line in lines)


def _listed(folder, content, labelled=True, **params):
    content = content if isinstance(content, bytes) else content.encode()
    (folder / "table.csv").write_bytes(content)
    params = WriteParams(f"csv:{folder / 'table.csv'}", **params)
    return list_examples(params) if labelled else list_unlabelled(params)


def _read(folder, content, **params):
    """Each text with its class."""
    listing = _listed(folder, content, **params)
    return [
        (text.decode(), listing.class_names[label]) for text, label in zip(listing.texts, listing.labels, strict=True)
    ]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(_table("text", "label", "", "", "", after=("", "", "")), id="three nameless columns at the end"),
        pytest.param(_table("text", "label", "", " ", after=("", "a note")), id="nameless columns with values"),
        pytest.param(_table("", "", "text", "label", before=("7", "8")), id="two index columns of pandas"),
        pytest.param(_table("text", "label", "", ""), id="rows without the nameless cells"),
        pytest.param(_table("text", "label", after=("", " ")), id="rows with more empty cells than the header"),
        pytest.param(
            _table("text", "label", "note", "note", after=("a", "b")), id="a repeated column that is not used"
        ),
        pytest.param("\n\r\n" + _table("text", "label"), id="empty lines before the header"),
        pytest.param(_table(" text ", "label\u00a0"), id="spaces around names"),
        pytest.param(
            _table("text", "size, cm", "label", delimiter="\t", rows=[(text, "1", label) for text, label in _ROWS]),
            id="tabs, and a comma in a name",
        ),
        pytest.param("sep=;\n" + _table("text", "label", delimiter=";"), id="sep=;"),
        pytest.param('"sep=,"\r\n' + _table("text", "label", end="\r\n"), id="sep=, in quotation marks"),
        pytest.param("SEP=^;;\n" + _table("text", "label", delimiter="^"), id="SEP=^ with delimiters after it"),
        pytest.param("\ufeffsep=\t\n" + _table("text", "label", delimiter="\t"), id="sep=TAB after a byte order mark"),
        pytest.param(_table("text", "label", end="\r"), id="lines that end with CR"),
        pytest.param("sep=;\r" + _table("text", "label", delimiter=";", end="\r"), id="sep=; and CR"),
        pytest.param(_table("text", "label", end="\r\n").replace("\r\n", "\n", 3), id="LF and CRLF"),
        pytest.param(_table("text", "label").replace("\n", "\r", 3), id="CR and LF"),
        pytest.param(_table("text", "label", delimiter="\t", end="\r\n").encode("utf-16"), id="Excel's Unicode text"),
        pytest.param("\ufeff".encode("utf-16-be") + _table("text", "label").encode("utf-16-be"), id="UTF-16BE"),
        pytest.param(_table("text", "label").encode("utf-32"), id="UTF-32"),
        pytest.param(_table('"a, b"', "text", "label", before=("1",), delimiter=";"), id="a comma in a quoted name"),
        pytest.param(_table('"a\n b, c"', '"text"', '"label"', before=("1",), delimiter=";"), id="a name of two lines"),
    ],
)
def test_rows_are_read_however_the_file_was_written(tmp_path, content):
    assert _read(tmp_path, content) == _ROWS
    assert [text.decode() for text in _listed(tmp_path, content, labelled=False).texts] == _TEXTS


def test_columns_without_names_and_repeated_ones_are_no_columns_to_group_by(tmp_path):
    _listed(tmp_path, _table("", "text", "label", "", "site", "day", before=("1",), after=("2", "x", "y")))
    params = WriteParams(f"csv:{tmp_path / 'table.csv'}")
    assert list(read_others(Location(tmp_path / "table.csv"), params, 10)) == ["site", "day"]


def test_a_nameless_column_of_0_and_1_is_no_label(tmp_path):
    rows = [(text, str(i % 2), str((i + 1) % 2)) for i, text in enumerate(_TEXTS)]
    listing = _listed(tmp_path, _table("", "text", "cat", "dog", rows=rows, before=("1",)))
    assert listing.class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("header", "name"), [(("text", "label", "label"), "label"), (("text", "text", "label"), "text")]
)
def test_a_repeated_column_that_is_used_is_refused(tmp_path, header, name):
    with pytest.raises(
        InputError, match=rf"Repeated columns in .*: '{name}'\. .*Rename or remove the repeated columns"
    ):
        _listed(tmp_path, _table(*header, rows=[(*row, "x") for row in _ROWS]))


@pytest.mark.parametrize(
    ("prefix", "end", "line"), [("sep=,\n", "\n", 4), ("", "\r", 3), ("sep=,\r\n", "\r\n", 4), ("", "\n", 3)]
)
def test_messages_name_the_line_of_the_file(tmp_path, prefix, end, line):
    rows = [_ROWS[0], ("one cell more", "cat", "x"), *_ROWS[1:]]
    with pytest.raises(InputError, match=rf"Malformed line {line} of .*received \['one cell more', 'cat', 'x'\]"):
        _listed(tmp_path, prefix + _table("text", "label", rows=rows, end=end))


def test_quotation_marks_after_a_backslash_are_read(tmp_path):
    cells = [
        r'"say \"hi, you\" 1"',
        r'"C:\\data, or \"D\""',
        '"it ends with \\""',
        r'"C:\new"',
        "two\\lines",
        '"a ""b"" c"',
    ]
    rows = [(cell, "cat" if i % 2 else "dog") for i, cell in enumerate(cells)]
    texts = [text for text, _ in _read(tmp_path, _table("text", "label", rows=rows))]
    assert texts == ['say "hi, you" 1', r'C:\data, or "D"', 'it ends with "', r"C:\new", "two\\lines", 'a "b" c']


def test_a_backslash_at_the_end_of_a_standard_cell_is_no_escape(tmp_path):
    rows = [('"C:\\data\\"', "dog"), (r'"{""a"": ""x\""y""}"', "cat"), (r"say \"hi\"", "cat")]
    texts = [text for text, _ in _read(tmp_path, _table("text", "label", rows=rows))]
    assert texts == ["C:\\data\\", r'{"a": "x\"y"}', r"say \"hi\""]


def test_both_kinds_of_quotation_in_one_file_are_refused_with_the_cause(tmp_path):
    rows = [(r'"say \"hi, you\""', "dog"), ('"C:\\data\\"', "cat"), ("text", "cat")]
    with pytest.raises(InputError, match=r"Malformed line [23] of .*quotation mark"):
        _listed(tmp_path, _table("text", "label", rows=rows))


def test_a_carriage_return_in_a_bare_cell_is_named(tmp_path):
    with pytest.raises(InputError, match=r"Malformed line 3 of .*A carriage return ends the line"):
        _listed(tmp_path, _table("text", "label", rows=[_ROWS[0], ("two\rparts", "cat"), *_ROWS[1:]]))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_byte_order_mark_is_named(tmp_path, encoding):
    name = encoding.replace("-", "", 1).replace("-", "").upper().replace("UTF", "UTF-")
    with pytest.raises(InputError, match=rf"looks like {name} without a byte order mark.*iconv -f {name} -t UTF-8"):
        _listed(tmp_path, _table("text", "label").encode(encoding))


def test_a_byte_order_mark_before_another_encoding_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read .*a CSV file in UTF-16, which its byte order mark indicates"):
        _listed(tmp_path, b"\xff\xfe" + _table("text", "label").encode("utf-16-le") + b"\x00")


def test_an_empty_file_has_no_columns_and_no_rows():
    for content in (b"", b"\n\n", b"\xef\xbb\xbf", b"sep=;\n"):
        file = open_csv("empty.csv", content)
        assert (file.columns, file.has_rows, list(file.rows())) == ([], False, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            gzip.compress(_table("text", "label").encode(), mtime=0),
            r"received a file compressed with gzip\. Decompress it",
        ),
        (b"PK\x03\x04\x14\x00\x83", r"received a ZIP file, such as \.xlsx\. Save the sheet as the type CSV UTF-8"),
        (b"PAR1\x15\x04\x15\x83", r"received a Parquet file\. Use the source parquet:FILE"),
    ],
    ids=["gzip", "zip", "parquet"],
)
def test_other_files_with_the_name_of_a_csv_file_are_named(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        _listed(tmp_path, content)


def test_a_space_before_a_quotation_mark_is_named(tmp_path):
    with pytest.raises(InputError, match=r"line 2 .*Remove the space between ',' and the quotation mark"):
        _listed(tmp_path, 'label, text\ncat, "one, two"\n')


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_labels_with_decimal_commas_are_numbers(tmp_path, delimiter):
    whole = [(text, str(i % 2) if i < 2 else f"{i % 2},0") for i, text in enumerate(_TEXTS)]
    content = _table("text", "label", rows=whole, delimiter=delimiter)
    assert {label for _, label in _read(tmp_path, content)} == {"0", "1"}
    assert _listed(tmp_path, content, class_names=("1", "0")).class_names == ("1", "0")
    fractions = _table("text", "label", rows=[(text, f"{i},5") for i, text in enumerate(_TEXTS)], delimiter=delimiter)
    with pytest.raises(InputError, match=r"labels are numbers with a fraction: '0\.5'.*set data\.task to regression"):
        _listed(tmp_path, fractions)
    assert _listed(tmp_path, fractions, task="regression").labels[1, 0] == 1.5


def test_labels_with_commas_that_are_named_or_no_numbers_stay_as_they_are(tmp_path):
    rows = [(text, "1,0" if i % 2 else "0,1") for i, text in enumerate(_TEXTS)]
    listing = _listed(tmp_path, _table("text", "label", rows=rows, delimiter=";"), class_names=("1,0", "0,1"))
    assert listing.class_names == ("1,0", "0,1")
    rows[0] = (_TEXTS[0], "a,b")
    assert _listed(tmp_path, _table("text", "label", rows=rows, delimiter=";")).class_names == ("0,1", "1,0", "a,b")
