"""What a person, a flag or KFP wrote is read as the types that dataclasses name, and refused in words."""

import dataclasses
import datetime
import enum
import math
from collections.abc import Mapping
from typing import Annotated, Any

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import Positive, Range, Share, check_fields, read, read_by_hand


@dataclasses.dataclass(frozen=True)
class _Part:
    epochs: Positive
    frozen: tuple[str, ...] = ()

    def __post_init__(self):
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class _Params:
    rate: float = 0.1
    sides: tuple[int, ...] = ()
    name: str = ""
    is_on: bool = True
    optimizer: Annotated[str, ("adam", "sgd")] = "adam"
    share: Share = 0.5
    parts: tuple[_Part, ...] = ()
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        check_fields(self)


@pytest.mark.parametrize(
    ("raw", "kind", "expected"),
    [
        ("64,64", tuple[int, ...], (64, 64)),
        (64.0, tuple[int, ...], (64,)),
        ("a, b", tuple[str, ...], ("a", "b")),
        ("", tuple[str, ...], ()),
        ("1e-4", float, 1e-4),
        (32.0, int, 32),
        (3, float, 3.0),
        (7, str, "7"),
        ({"filters": [8.0, 0.5]}, Mapping[str, Any], {"filters": [8, 0.5]}),
        ({"parts": [{"epochs": 2.0, "frozen": "a,b"}]}, _Params, _Params(parts=(_Part(2, ("a", "b")),))),
    ],
)
def test_numbers_and_lists_are_read_as_people_and_kfp_write_them(raw, kind, expected):
    received = read_by_hand(raw, kind, "it")
    assert repr(received) == repr(expected), "60 and 60.0 are equal, and in a record not the same"


@pytest.mark.parametrize(
    ("raw", "kind", "message"),
    [
        (True, int, "it is True, expected a whole number"),
        ("x", int, "it is 'x', expected a whole number"),
        (4.5, int, "it is 4.5, expected a whole number"),
        (2**64, int, "expected a 64-bit integer"),
        ("nan", float, "it is nan, expected a finite number"),
        ("yes", bool, "it is 'yes', expected true or false"),
        (None, str, "it is None, expected a text$"),
        (False, str, "it is False, expected a text: in YAML, write yes, no, on, off and dates in quotation marks"),
        (datetime.date(2026, 1, 2), str, r"it is datetime\.date\(2026, 1, 2\), expected a text: in YAML, write"),
        ({"rat": 1}, _Params, r"Unknown key 'rat' in it: expected one of rate, .* Did you mean 'rate'\?"),
        ({"parts": [{}]}, _Params, r"parts\[0\] lacks the field 'epochs'"),
        (
            {"parts": [{"epochs": 0}]},
            _Params,
            r"^parts\[0\]\.epochs must be at least 1\. Received: parts\[0\]\.epochs=0\.$",
        ),
        ({"optimizer": "adm"}, _Params, r"one of adam, sgd\. Received: optimizer='adm'\. Did you mean 'adam'\?"),
        ({"share": 1.5}, _Params, r"share must be from 0 to 1\. Received: share=1\.5\."),
    ],
)
def test_what_only_looks_right_is_refused_by_its_place(raw, kind, message):
    with pytest.raises(InputError, match=message):
        read_by_hand(raw, kind, "it")


def test_all_mistakes_are_shown_at_once_and_the_first_alone_in_a_file():
    wrong = {"rate": "high", "sidess": 1, "is_on": 1, "share": 2}
    with pytest.raises(InputError) as refused:
        read_by_hand(wrong, _Params, "training")
    assert [line.split()[:2] for line in str(refused.value).splitlines()] == [
        ["Unknown", "key"],
        ["training.rate", "is"],
        ["training.is_on", "is"],
        ["training.share", "must"],
    ]
    with pytest.raises(InputError) as refused:
        read(wrong, _Params)
    assert len(str(refused.value).splitlines()) == 1


def test_ranges_say_their_ends_and_hold_no_nan():
    ranges = [Range(1), Range(0, 1), Range(0, below=1), Range(above=0, most=1), Range(0, below=math.inf)]
    assert [str(one) for one in ranges] == [
        "at least 1",
        "from 0 to 1",
        "at least 0 and below 1",
        "above 0 and at most 1",
        "at least 0 and finite",
    ]
    assert not any(math.nan in one for one in ranges)
    assert math.inf not in ranges[-1]
    assert [1 in one for one in ranges] == [True, True, False, True, True]
    assert 0 not in ranges[3]


class _Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass(frozen=True)
class _Painted:
    colour: _Colour


@pytest.mark.parametrize("reading", [read, read_by_hand])
def test_one_of_several_words_is_read_as_a_member_of_its_enum(reading):
    assert reading({"colour": "red"}, _Painted, "paint") == _Painted(_Colour.RED)
    for wrong in ("green", 1, None, ["red"]):
        with pytest.raises(InputError, match=r"paint.colour is .*, expected one of red, blue"):
            reading({"colour": wrong}, _Painted, "paint")
