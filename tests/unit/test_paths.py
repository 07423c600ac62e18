"""The path grammar: nothing that is typed can be lost or mean two things."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avmfs import paths
from avmfs.errors import AvmError, Invalid, NameTooLong
from avmfs.text.escapes import visible

NAME = st.binary(min_size=1, max_size=40).filter(lambda n: b"/" not in n and b"\0" not in n)
TYPED = st.lists(
    st.sampled_from([b":", b"?", b"=", b"&", b"%", b"@", b"/", b".", b"..", b"meta", b"recall", b"q", b"x", b"\xff"]),
    max_size=12,
).map(b"".join)


@given(NAME)
@settings(max_examples=300)
def test_a_name_can_be_made_or_is_a_view_or_is_refused_with_a_reason(name: bytes) -> None:
    try:
        assert paths.check_name(name) == name
    except AvmError as e:
        assert e.reason
        assert paths.parse_view(name) is not None or name in (b".", b"..")
    else:
        assert paths.parse_view(name) is None


@given(NAME)
def test_text_and_raw_are_inverse(name: bytes) -> None:
    assert paths.raw(paths.text(name)) == name
    assert paths.printable(name) == visible(paths.printable(name))


@given(TYPED)
@settings(max_examples=500)
def test_splitting_is_idempotent_and_never_leaves_the_root(path: bytes) -> None:
    parts = paths.split(path)
    assert b".." not in parts and b"." not in parts and b"" not in parts
    assert paths.split(paths.join(parts)) == parts
    assert paths.split(b"//" + path) == paths.split(b"/./" + path)


@given(TYPED)
@settings(max_examples=500)
def test_a_view_name_is_its_parts_again(name: bytes) -> None:
    found = paths.parse_view(name)
    if found is None:
        return
    rest = b"" if found.query is None else b"?" + found.query
    if found.literal is not None:
        rest = b":" + found.literal[0].encode() + b"=" + paths.raw(found.literal[1])
    assert found.base + b":" + found.view.encode() + rest == name


@pytest.mark.parametrize("view", sorted(paths.CORE_VIEWS))
def test_no_core_view_can_be_planted(view: str) -> None:
    for name in (f"n.md:{view}", f":{view}", f"n:{view}?x=1", f"n:{view}:q=1", f"a:b:{view}", f"n:{view}?"):
        with pytest.raises(Invalid):
            paths.check_name(name.encode())
    for name in (f"n.md:{view}s-x", f"n:{view}.txt", f"n: {view}", f"n:{view.upper()}", view, f"n:{view}:x"):
        assert paths.check_name(name.encode()) or True
        assert paths.parse_view(name.encode()) is None


@pytest.mark.parametrize(
    ("name", "base", "view", "parameters"),
    [
        (b"n.md:meta", b"n.md", "meta", {}),
        (b":recall?q=NVDA", b"", "recall", {"q": "NVDA"}),
        (b":recall?q=a%20b&limit=3", b"", "recall", {"q": "a b", "limit": "3"}),
        (b":recall?q=100%&x=a+b", b"", "recall", {"q": "100%", "x": "a+b"}),
        (b":recall:q=R&D spending, 50% drop", b"", "recall", {"q": "R&D spending, 50% drop"}),
        (b":recall?q=a:meta", b"", "recall", {"q": "a:meta"}),
        (b"a:b:tags", b"a:b", "tags", {}),
        (b":recall?q=%C3%BC%ff", b"", "recall", {"q": "ü\udcff"}),
        (b":recall?", b"", "recall", {}),
        (b":recall?q=a=b", b"", "recall", {"q": "a=b"}),
        (b":recall?q=", b"", "recall", {"q": ""}),
    ],
)
def test_views_and_their_queries(name: bytes, base: bytes, view: str, parameters: dict[str, str]) -> None:
    found = paths.parse_view(name)
    assert found is not None and (found.base, found.view) == (base, view)
    assert found.parameters() == parameters


@pytest.mark.parametrize("query", [b"q", b"=x", b"q=1&q=2", b"q=1&&x=2", b"&"])
def test_a_bad_query_names_its_place(query: bytes) -> None:
    with pytest.raises(Invalid, match="query"):
        paths.parse_query(query)


def test_plugins_views_are_views_where_they_are_known() -> None:
    assert paths.parse_view(b"f:x-rsi?n=3") is None
    found = paths.parse_view(b"f:x-rsi?n=3", frozenset({"x-rsi"}))
    assert found is not None and found.view == "x-rsi"
    assert paths.check_name(b"f:x-rsi") == b"f:x-rsi"


@pytest.mark.parametrize(
    ("name", "recipient", "parameters"),
    [
        (b"alice", "alice", {}),
        (b"@all", "@all", {}),
        (b"alice?priority=urgent&expires=2h", "alice", {"priority": "urgent", "expires": "2h"}),
        (b"alice:priority=urgent", "alice", {"priority": "urgent"}),
        (b"alice:x=a&b?c", "alice", {"x": "a&b?c"}),
    ],
)
def test_mailboxes_take_both_forms(name: bytes, recipient: str, parameters: dict[str, str]) -> None:
    if b"?c" in name:  # a question mark comes first: that is the query form
        with pytest.raises(Invalid):
            paths.parse_mailbox(name)
        return
    assert paths.parse_mailbox(name) == (recipient, parameters)


def test_mailboxes_refuse_what_is_no_parameter() -> None:
    with pytest.raises(Invalid):
        paths.parse_mailbox(b"alice:urgent")
    with pytest.raises(Invalid):
        paths.parse_mailbox(b"alice?urgent")


def test_split_keeps_a_querys_slashes_and_resolves_dots() -> None:
    assert paths.split(b"/memory/:recall?q=a/b/../c") == (b"memory", b":recall?q=a/b/../c")
    assert paths.split(b"/memory/./a//../b/") == (b"memory", b"b")
    assert paths.split(b"../../x") == (b"x",) and paths.split(b"/") == () == paths.split(b"")
    assert paths.split(b"/a:meta/b") == (b"a:meta", b"b"), "without a query it takes no more than its component"


@given(
    st.lists(st.sampled_from([b"private", b"alice", b"x", b"(1)", b"(2)", b"(10)", b"(02)"]), min_size=1, max_size=5),
    st.sampled_from([paths.TRASH, paths.ARCHIVE]),
    st.integers(2, 12),
)
def test_whatever_stands_in_a_mirror_has_one_origin(names: list[bytes], top: bytes, number: int) -> None:
    place = (paths.MEMORY, *names)
    inside = len(place) > len(paths.space(place))  # the top of a space is no thing that could be put away
    assert not inside or paths.origin(paths.mirror(place, top, number)) == place
    assert paths.agent_space(paths.mirror(place, top, number)) == paths.agent_space(place) or not inside
    assert paths.origin(paths.mirror(place, top)) == place or names[len(paths.space(place)) - 1] in (b"(2)", b"(10)")


def test_handles_and_private_spaces() -> None:
    assert paths.parse_handle(b"@k7f2") == "k7f2" and paths.parse_handle(b"@abcde23") == "abcde23"
    for name in (b"@all", b"@abc", b"k7f2", b"@K7F2", b"@abc1", b"@k7f2:meta", b"@k7f2\n"):
        assert paths.parse_handle(name) is None
    assert paths.agent_space((b"memory", b"private", b"bob")) == "bob"
    assert paths.agent_space((b"memory", b"private", b"bob", b"x", b"y")) == "bob"
    assert paths.agent_space((b"memory", b"private")) is None
    assert paths.agent_space((b"memory", b"shared", b"private", b"bob")) is None


def test_names_have_255_bytes() -> None:
    assert paths.check_name("ü".encode() * 127)
    with pytest.raises(NameTooLong):
        paths.check_name("ü".encode() * 128)


def test_printable_shows_one_line_whatever_the_name() -> None:
    assert paths.printable(b"a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert paths.printable(b"caf\xe9") == "caf\\xe9" and paths.printable("ü日".encode()) == "ü日"
