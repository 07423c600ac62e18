"""Many rows of the log become one line per path."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from avmfs.agents.changes import Fold
from avmfs.node import Change


def told(*rows: str, below: str = "/d", but_by: str | None = "me") -> list[str]:
    """Rows as ``[agent:]op path [old path]``."""
    fold = Fold(below.encode(), but_by)
    for seq, row in enumerate(rows, 1):
        agent, _, rest = row.rpartition(":")
        op, path, *other = rest.split()
        fold.take(Change(seq, seq, op, agent or "you", 1, 1, None, path.encode(), other[0].encode() if other else None))
    return [
        f"{each.status} {each.path.decode()}" + (f" {each.was.decode()}" if each.was is not None else "")
        for each in fold.touched()
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["create /d/a", "write /d/a"], ["A /d/a"]),
        (["write /d/a", "write /d/a", "tags /d/a"], ["M /d/a"]),
        (["remove /d/a"], ["D /d/a"]),
        (["create /d/a", "remove /d/a"], []),
        (["remove /d/a", "create /d/a"], ["M /d/a"]),
        (["remove /d/a", "create /d/a", "remove /d/a"], ["D /d/a"]),
        (["mkdir /d/s", "create /d/s/a"], ["A /d/s/a"]),
        (["rmdir /d/s"], []),
        # renames
        (["rename /d/b /d/a"], ["R /d/b /d/a"]),
        (["rename /d/b /d/a", "rename /d/c /d/b"], ["R /d/c /d/a"]),
        (["rename /d/b /d/a", "rename /d/a /d/b"], ["M /d/a"]),
        (["create /d/a", "rename /d/b /d/a"], ["A /d/b"]),
        (["write /d/a", "rename /d/b /d/a"], ["R /d/b /d/a"]),
        (["rename /d/b /d/a", "remove /d/b"], ["D /d/a"]),
        (["create /d/a", "rename /d/b /d/a", "remove /d/b"], []),
        (["rename /d/b /d/a", "create /d/a"], ["M /d/a", "A /d/b"]),
        (["rename /d/x /d/a", "rename /d/a /d/b", "rename /d/b /d/x"], ["M /d/a", "M /d/b"]),
        # an editor saves: over a temporary, and with a backup
        (["create /d/.t", "write /d/.t", "write /d/a", "rename /d/a /d/.t"], ["M /d/a"]),
        (["rename /d/a~ /d/a", "create /d/a", "write /d/a", "remove /d/a~"], ["M /d/a"]),
        # one file replaces another
        (["write /d/b", "rename /d/b /d/a"], ["D /d/a", "M /d/b"]),
        # in and out
        (["rename /d/a /e/a"], ["A /d/a"]),
        (["rename /e/a /d/a"], ["D /d/a"]),
        (["create /d/a", "rename /e/a /d/a"], []),
        (["rename /d/a /e/a", "rename /e/a /d/a"], []),
        (["create /e/a", "write /d2/a"], []),
        # a directory moves with what was told of its files
        (["write /d/s/a", "rename /d/t /d/s"], ["R /d/t /d/s", "R /d/t/a /d/s/a"]),
        (["create /d/s/a", "rename /e/s /d/s"], ["D /d/s"]),
        (["remove /d/s/a", "rename /d/t /d/s"], ["D /d/s/a", "R /d/t /d/s"]),
        # shared: who loses sight sees a removal, who keeps it a change
        (["remove /d/a", "shared /d/a"], ["M /d/a"]),
    ],
)
def test_rows_fold_to_what_they_come_to(rows: list[str], expected: list[str]) -> None:
    assert told(*rows) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["me:write /d/a"], []),
        (["me:create /d/a", "write /d/a"], ["M /d/a"]),
        (["me:create /d/a", "rename /d/b /d/a"], ["R /d/b /d/a"]),
        (["me:create /d/a", "remove /d/a"], ["D /d/a"]),
        (["write /d/a", "me:remove /d/a"], []),
        (["remove /d/a", "me:create /d/a"], ["M /d/a"]),
        (["write /d/a", "me:rename /d/b /d/a"], ["M /d/b"]),
        (["me:rename /d/b /d/a"], []),
        (["me:rename /d/b /d/a", "write /d/b"], ["M /d/b"]),
        (["rename /d/b /d/a", "me:write /d/b"], ["D /d/a", "M /d/b"]),
    ],
)
def test_what_one_did_oneself_is_known_and_not_told(rows: list[str], expected: list[str]) -> None:
    assert told(*rows) == expected


def test_below_the_root_everything_is() -> None:
    assert told("create /a", "rename /b/c /d/c", below="", but_by=None) == ["A /a", "R /b/c /d/c"]


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_many_renames_cost_grows_with_their_number_alone(kind: str) -> None:
    def calls(renames: int) -> int:
        fold, seen = Fold(b"/d", "me"), 0

        def see(*_: Any) -> None:
            nonlocal seen
            seen += 1

        sys.setprofile(see)
        try:
            for number in range(renames):
                old, new = b"/d/.%d" % number, b"/d/%d" % number
                made = old if kind == "file" else old + b"/a"
                fold.take(Change(2 * number, 1, "create", "you", 1, 1, None, made, None))
                fold.take(Change(2 * number + 1, 1, "rename", "you", 1, 1, None, new, old))
        finally:
            sys.setprofile(None)
        return seen

    assert calls(400) < 3 * calls(200)
