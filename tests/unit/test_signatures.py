"""What callers send is what a function's annotations say, or is refused by name."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pytest

from avmfs.errors import Invalid
from avmfs.signatures import Arguments, Query, Range


def asked(
    own: object,
    *,
    q: str,
    limit: Annotated[int, Range(1, 9)] = 3,
    share: Annotated[float | None, Range(0, 1)] = None,
    sort: Literal["new", "old"] | None = None,
    from_: int = 0,
    all_of: bool = False,
) -> None: ...


def called(
    own: object,
    node: int,
    name: bytes,
    text: str | None,
    many: list[int],
    raw: list[Any],
    more: dict[str, Any],
    some: float = 0,
    flag: bool = False,
) -> None: ...


GOOD: dict[str, Any] = {"node": 1, "name": b"n", "text": None, "many": [1], "raw": ["x"], "more": {"k": 1}}
QUERY = Query(asked, ":asked")
DOOR, STORE = Arguments(called, "called"), Arguments(called, "called", stored=True)


class Text(str):
    """As ``AVM.read`` gives."""


def test_texts_become_values() -> None:
    given = {"q": "x", "limit": "9", "share": "0.5", "sort": "old", "from": "7", "all_of": "true"}
    bound = QUERY.parse(given)
    assert bound == {"q": "x", "limit": 9, "share": 0.5, "sort": "old", "from_": 7, "all_of": True}
    assert QUERY.parse({"q": "x"}) == {"q": "x"} and QUERY.parse({"q": "", "all_of": "0"}) == {"q": "", "all_of": False}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, ":asked: parameter 'q' is required"),
        ({"q": "x", "no": "1"}, "unknown parameter 'no' (it takes: q, limit, share, sort, from, all_of)"),
        ({"q": "x", "from_": "1"}, "unknown parameter 'from_'"),
        ({"q": "x", "limit": "many"}, ":asked: limit='many': expected a number"),
        *(({"q": "x", "limit": it}, f"limit={it!r}: expected a number") for it in ("0_1", "٥", "+5", " 5", "5\n", "")),
        *(({"q": "x", "share": it}, f"share={it!r}: expected a number") for it in ("0.1_0", "٠", "+1", "1 ")),
        ({"q": "x", "limit": "10"}, ":asked: limit='10': expected 1 to 9"),
        ({"q": "x", "share": "nan"}, "expected 0 to 1"),
        ({"q": "x", "sort": "best"}, "expected one of new, old"),
        ({"q": "x", "all_of": "yes"}, "expected 1 or 0"),
    ],
)
def test_a_text_that_does_not_fit_is_refused_by_name(given: dict[str, str], reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        QUERY.parse(given)
    assert reason in str(refused.value)


@pytest.mark.parametrize("arguments", [DOOR, STORE], ids=["door", "store"])
@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("node", [0, -(1 << 63)], [True, 1.0, "1", None]),
        ("name", [b""], ["x", bytearray(b"x"), None]),
        ("text", [None, "ü"], [b"x", 1]),
        ("many", [[], [1, 2]], [[True], ["x"], (1,), None]),
        ("raw", [[], [None, "x"]], [(1,), "x"]),
        ("more", [{}, {"k": None}], [[], None]),
        ("some", [1, 1.5, math.inf], [True, "1", None]),
        ("flag", [True, False], [0, 1, None]),
    ],
)
def test_values_are_of_their_types(arguments: Arguments, name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        arguments.check({**GOOD, name: value})
    for value in bad:
        with pytest.raises(Invalid, match=f"called: {name}: wrong type {type(value).__name__}"):
            arguments.check({**GOOD, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("node", 1 << 63), ("some", 1 << 63), ("text", "\udc80"), ("text", Text("x")), ("many", [1 << 63])],
)
def test_only_what_is_stored_has_to_be_such_as_sqlite_keeps(name: str, value: Any) -> None:
    DOOR.check({**GOOD, name: value})
    with pytest.raises(Invalid, match="or out of range"):
        STORE.check({**GOOD, name: value})


def test_a_value_out_of_its_range_is_refused_and_none_is_in_it() -> None:
    door = Arguments(asked, "asked")
    for good in ({}, {"limit": 1}, {"limit": 9, "share": 1}, {"share": None}):
        door.within(good)
    for name, bad, bounds in (("limit", 0, "1 to 9"), ("limit", 10, "1 to 9"), ("share", math.nan, "0 to 1")):
        with pytest.raises(Invalid, match=f"^{name} {bad}: expected {bounds}$"):
            door.within({name: bad})


def test_keys_of_what_a_caller_made_up_are_text() -> None:
    with pytest.raises(Invalid, match="more"):
        DOOR.check({**GOOD, "more": {1: 2}})


@pytest.mark.parametrize("arguments", [DOOR, STORE], ids=["door", "store"])
def test_unknown_and_missing_arguments_are_named(arguments: Arguments) -> None:
    with pytest.raises(Invalid, match="unknown argument 'own'"):
        arguments.check({**GOOD, "own": 1})
    with pytest.raises(Invalid, match="called: argument 'name' is required"):
        arguments.check({"node": 1})
