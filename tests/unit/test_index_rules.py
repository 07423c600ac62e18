"""What is not indexed by its name: see ``avmfs.store.tx.transaction.IndexRules``."""

from __future__ import annotations

import pytest

from avmfs.store.tx.transaction import IndexRules

RULES = IndexRules(("*.swp", "[#]*[#]", ".git/*", "build/out?/*", "wörk*"))


@pytest.mark.parametrize(
    "name",
    [
        "note.swp",
        "a/b/.note.swp",
        "#note#",
        ".git/config",
        "a/.git/objects/00/ff",
        "build/out1/x",
        "wörk.md",
        "line\n.swp",
    ],
)
def test_names_that_match_are_ignored(name: str) -> None:
    assert RULES.ignores(tuple(part.encode() for part in name.split("/")))


@pytest.mark.parametrize("name", ["note.SWP", "note.swp.md", "#note", "git/config", "a.git", "build/out/x", "mywörk"])
def test_other_names_are_not(name: str) -> None:
    assert not RULES.ignores(tuple(part.encode() for part in name.split("/")))


def test_without_rules_nothing_is() -> None:
    assert not IndexRules().ignores((b".git", b"config"))


def test_names_need_not_be_text() -> None:
    assert RULES.ignores((b"\xff\xfe.swp",)) and not RULES.ignores((b"\xff\xfe",))


@pytest.mark.parametrize("glob", [*RULES.ignore, "*/drafts/*", "memory/[ab]/?", "a/"])
def test_only_directories_of_which_it_is_said_may_decide_what_is_ignored_below_them(glob: str) -> None:
    rules = IndexRules((glob,))
    places = [b"a", b".git", b"a/.git/x", b"build", b"a/build/out1", b"memory/a", b"memory/drafts", b"memory"]
    ways = [b"x", b"out1/x", b"c/d.swp", b"a/x", b".git/c", b"build/out2/y", b"drafts/z"]
    for place in (tuple(each.split(b"/")) for each in places):
        for way in (tuple(each.split(b"/")) for each in ways):
            if rules.ignores((*place, *way)) != rules.ignores((b"elsewhere", *way)):
                assert rules.ignores_by(place), (place, way)
    assert not RULES.ignores_by((b"memory", b"shared", b"house"))
