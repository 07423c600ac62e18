"""What rows of the log mean: one table of their ops, and what follows for whoever remembers nodes (``cache.follow``).

Owns the table ``OPS``. Called by the transaction, the caches, the notices to kernels, the outbox and the readers of
changes; what each makes of an op is derived from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

from avmfs.node import Kind, Node
from avmfs.store.schema.tables import NOBODYS

Changes = Literal["anything", "nothing", "node", "access", "made", "gone", "moved"]
Notifies = Literal["node", "name", "all names", "nothing"]


class Op(NamedTuple):
    """What a row of the log with this op means to whoever remembers, tells or counts. The defaults hold of an op that
    is not in the table: everybody forgets all."""

    name: str
    changes: Changes = "anything"
    """``node``: alone what the node holds. ``access``: who may see it, or for how long. ``made``, ``gone`` and
    ``moved``: a name of the node came, went, or is another one now."""
    notifies: Notifies = "node"
    """What kernels ask for again: the node's attributes; these and the name; these and every name."""
    directory: bool = False
    """The node is always a directory."""
    still: bool = False
    """Said of a directory, it leaves every file where it is."""
    listed: bool = True
    """``:changes``, ``:delta`` and ``:feed`` tell of it."""
    subscribed: bool = True
    """Subscriptions tell of it."""
    verb: str | None = None
    """What an agent did, in ``:feed``."""


RULES: Final = "policy"  # of nobody's rows the one that says that other rules are in force
CARRIED: Final = "carried"  # what lies below a directory that has a row: told to keys that see one end of it alone
RIGHTS: Final = "rights"  # a node's owner or mode, at this name
ORPHANED: Final = "orphaned"  # it lost its name, or another file took it
MOVED: Final = "moved"  # a directory: the names below it are reached, or not, by another path
BESIDE: Final = "beside"  # a name, of which the kernel that asked for the change does not know what became
TOUCHED: Final = "touched"  # a directory whose own times and link count changed: its kernel may not know the count

OPS: Final = (
    Op("create", "made", "name", verb="made"),
    Op("mkdir", "made", "name", directory=True, still=True, verb="made"),
    Op("remove", "gone", "name", verb="removed"),
    Op("rmdir", "gone", "name", directory=True, still=True, verb="removed"),
    Op("rename", "moved", "name", verb="moved"),
    Op(CARRIED, "moved", "name", subscribed=False),
    Op("write", "node", verb="wrote"),
    Op("tags", "node", verb="tagged"),
    Op("links", "node", verb="linked"),
    Op("meta", "node", verb="described"),
    Op("trust", "access", "all names", listed=False, subscribed=False),
    Op("let_out", "access", "all names", verb="let out"),
    Op("attributes", "node", still=True, listed=False, subscribed=False),
    Op("shared", "access", "all names", verb="shared"),
    Op("ttl", "access", "all names", verb="set the ttl of"),
    Op("tell", "nothing", "nothing", still=True, listed=False),
    Op("claim", "nothing", "nothing", still=True, listed=False, subscribed=False),
    Op("release", "nothing", "nothing", still=True, listed=False, subscribed=False),
    Op("privacy", listed=False, subscribed=False),
    Op("key", notifies="nothing", listed=False, subscribed=False),
    Op("people", notifies="nothing", listed=False, subscribed=False),
    # Events that are no rows of the log: kernels alone hear of them.
    Op(RIGHTS, notifies="name"),
    Op(ORPHANED),
    Op(MOVED, notifies="all names"),
    Op(BESIDE, notifies="name"),
    Op(TOUCHED),
    Op("rules", notifies="all names"),
)
"""Every op, beside those of nobody's rows, which are for the audit alone."""


def ops_where(which: Callable[[Op], bool]) -> frozenset[str]:
    return frozenset(op.name for op in OPS if which(op))


MAKES: Final = ops_where(lambda op: op.changes == "made")
REMOVES: Final = ops_where(lambda op: op.changes == "gone")
LEAVES: Final = REMOVES | ops_where(lambda op: op.changes == "moved")
NAMES: Final = MAKES | LEAVES
DIRECTORY_NAMES: Final = NAMES & ops_where(lambda op: op.directory)
MOVES: Final = NAMES - DIRECTORY_NAMES
BYTES_ALONE: Final = ops_where(lambda op: op.changes == "node")
_ONE_NODE: Final = BYTES_ALONE | NAMES | ops_where(lambda op: op.changes == "access")
_NOTHING: Final = ops_where(lambda op: op.changes == "nothing")


def done_to(rows: Sequence[Sequence[Any]]) -> dict[int, list[str]] | None:
    """What has happened to which node, of rows that begin with (seq, scope, op, node); None when the log does not
    say enough."""
    ops: dict[int, list[str]] = {}
    for row in rows:
        op = row[2]
        if row[1] == NOBODYS:
            if op == RULES:
                return None
        elif op in _ONE_NODE:
            ops.setdefault(row[3], []).append(op)
        elif op not in _NOTHING:
            return None
    return ops


class ChangedNode(NamedTuple):
    """A changed node, as far as it matters here; None where it is gone."""

    node: int
    parent: int | None
    kind: int | None
    scope: int


def concerned(rows: Sequence[Sequence[Any]], changed: Iterable[ChangedNode]) -> tuple[bool, set[int]]:
    """Whom a commit concerns, of rows as in ``done_to`` and all nodes that are otherwise since then. True: everybody,
    since more may be otherwise than these nodes. Else those who remember one of the nodes or directories with these
    numbers: to everybody else it is as if it had not been."""
    named: set[int] = set()
    written: set[int] = set()
    everybody = False
    for row in rows:
        op = row[2]
        if row[1] == NOBODYS:
            everybody |= op == RULES
        elif op in BYTES_ALONE:
            written.add(row[3])
        elif op in MOVES:
            named.add(row[3])
        elif op not in _NOTHING:
            everybody = True
    numbers: set[int] = set()
    for node, parent, kind, _ in changed:
        numbers.add(node)
        if node in named and (kind is None or kind == Kind.DIRECTORY):
            everybody = True  # with all that is below it
        # Where a name came or went the directory is among the nodes; one that stays where it is has only other times.
        elif parent is not None and (node in named or (node not in written and kind != Kind.DIRECTORY)):
            numbers.add(parent)
    return everybody, numbers


def last_name(path: bytes) -> bytes:
    return path[path.rfind(b"/") + 1 :]


def same_place(one: Node, other: Node) -> bool:
    """Return whether the same agents may see both, for as long, and by the same name."""
    return (
        one.parent == other.parent
        and one.name == other.name
        and one.scope == other.scope
        and one.expires == other.expires
    )


class Event(NamedTuple):
    """``origin`` is the mount whose kernel asked for the change, empty when none did. ``parent`` and ``name``: the
    name that came or went."""

    origin: bytes
    op: str
    node: int
    parent: int | None = None
    name: bytes = b""
