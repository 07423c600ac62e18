"""The table of the log's ops: what each of those who read it derives, spelled out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from avmfs.store.index import hit_cache
from avmfs.store.notify import kernel_notices
from avmfs.store.queries import nodes
from avmfs.store.rows import events, log_ops
from avmfs.views import pending

STORE = Path(log_ops.__file__).parents[1]


@pytest.mark.parametrize(
    ("derived", "expected"),
    [
        (log_ops.MAKES, "create mkdir"),
        (log_ops.REMOVES, "remove rmdir"),
        (log_ops.LEAVES, "carried remove rename rmdir"),
        (log_ops.DIRECTORY_NAMES, "mkdir rmdir"),
        (log_ops.MOVES, "carried create remove rename"),
        (log_ops.NAMES, "carried create mkdir remove rename rmdir"),
        (log_ops.BYTES_ALONE, "attributes links meta tags write"),
        (
            log_ops._ONE_NODE,
            "attributes carried create let_out links meta mkdir remove rename rmdir shared tags trust ttl write",
        ),
        (log_ops._NOTHING, "claim release tell"),
        (kernel_notices._NAME, "beside carried create mkdir remove rename rights rmdir"),
        (kernel_notices._ALL_NAMES, "let_out moved rules shared trust ttl"),
        (kernel_notices._SILENT, "claim key people release tell"),
        (events._SILENT, "attributes carried claim key people privacy release trust"),
        (hit_cache._STILL, "attributes claim mkdir release rmdir tell"),
        (nodes._UNLISTED, "attributes claim key people privacy release tell trust"),
        (log_ops.DIRECTORY_NAMES, "mkdir rmdir"),
    ],
)
def test_what_follows_from_the_table(derived: frozenset[str], expected: str) -> None:
    assert sorted(derived) == expected.split()


def test_what_an_agent_did() -> None:
    assert pending._DID == {
        "create": "made",
        "mkdir": "made",
        "write": "wrote",
        "rename": "moved",
        "remove": "removed",
        "rmdir": "removed",
        "tags": "tagged",
        "links": "linked",
        "meta": "described",
        "let_out": "let out",
        "shared": "shared",
        "ttl": "set the ttl of",
    }


def test_subscriptions_tell_of_what_their_document_lists() -> None:
    text = (STORE.parents[1] / "docs" / "SUBSCRIPTIONS.md").read_text(encoding="utf-8")
    listed = re.findall(r"`(\w+)`", text.split("what happens from then on:")[1].split(". ")[0])
    told = [op.name for op in log_ops.OPS if events.of_row(1, 1, op.name, "bob", 1, 1, 1, b"/a", None)]
    assert sorted(told) == sorted([*listed, "beside", "moved", "orphaned", "rights", "rules", "touched"]), "no rows"


def test_every_op_that_is_logged_by_name_is_in_the_table() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (STORE / "commands").glob("*.py"))
    logged = set(re.findall(r'tx\.log\("(\w+)"', source)) | set(re.findall(r'events\.append\(\("(\w+)"', source))
    names = [op.name for op in log_ops.OPS]
    assert len(logged) > 8 and logged <= set(names) and len(names) == len(set(names))


def test_of_an_unknown_op_the_worst_is_believed() -> None:
    new = log_ops.Op("new")
    assert new.changes == "anything" and new.listed and new.subscribed and not new.still
    assert log_ops.done_to([(1, 2, "new", 3)]) is None and log_ops.concerned([(1, 2, "new", 3)], [])[0]
