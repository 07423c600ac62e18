"""The audit from outside: every route's changes and refusals are there, by `avm audit`, and `verify` notices damage."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM
from avmfs.access import Policy
from avmfs.agents import anchors
from avmfs.agents.auditing import Chainer
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from tests.behind import connect
from tests.cli.shells import QuickShell, Shell
from tests.mount.mount_world import World, until

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module")
def settings() -> str:
    return (
        "embedding: {enabled: false}\naudit: {interval_s: 1}\n"
        "permissions:\n  - {pattern: /memory/law/*, access: ro}\n  - {pattern: /memory/*, access: rw}\n"
    )


@pytest.fixture(scope="module")
def avm(world: World) -> Shell:
    return QuickShell({**world.environ, "LC_ALL": "C.UTF-8"}, world.root)


def acts(shell: Shell, *arguments: str, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shell.out("--json", "audit", "--limit", "10000", *arguments, **more))
    return found


def test_every_route_leaves_as_many_rows_as_it_made_changes(world: World, avm: Shell) -> None:
    mount = world.mounts["alice"]
    place = mount / "memory/routes"
    place.mkdir()
    for number in range(4):
        (place / f"m{number}").write_text("by mount")
    os.rename(place / "m0", place / "m9")
    os.utime(place / "m1", ns=(5, 5))
    os.unlink(place / "m2")
    (mount / "memory/routes/m3:tags").write_text("a,b")
    for number in range(3):
        avm.out("write", f"/memory/routes/c{number}", "by cli")
    avm.out("rm", "/memory/routes/c0")
    with AVM(config=world.root / "config/config.yaml", agent="alice", environ=world.environ) as api:
        for number in range(2):
            api.write(f"/memory/routes/p{number}", "by python")
        api.append("/memory/routes/p0", "more")
        (last,) = api.audit(path="/memory/routes/p0", limit=1)
        assert (last["op"], last["route"], last["version"]) == ("write", "python", 2)
    found = acts(avm, "--path", "/memory/routes", "--by", "alice")
    count = Counter((act["route"], act["op"]) for act in found)
    assert count == {
        ("mount", "mkdir"): 1,
        ("mount", "create"): 4,
        ("mount", "write"): 4,
        ("mount", "rename"): 1,
        ("mount", "attributes"): 1,
        ("mount", "remove"): 1,
        ("mount", "tags"): 1,
        ("cli", "create"): 3,
        ("cli", "write"): 3,
        ("cli", "remove"): 1,
        ("python", "create"): 2,
        ("python", "write"): 3,
    }
    assert all(act["agent"] == "alice" and not act["operator"] for act in found)
    said = avm.out("audit", "--path", "/memory/routes/m9", "--limit", "1")
    assert re.fullmatch(r"\S+Z  alice/mount  rename  /memory/routes/m9  \(was /memory/routes/m0\)\n", said)
    assert "alice/cli" in avm.out("read", "/memory/routes/c1:history")
    assert json.loads(avm.out("read", "/memory/routes/p1:meta"))["route"] == "python"


def test_refusals_of_every_route_are_counted(world: World, avm: Shell) -> None:
    mount = world.mounts["alice"]
    avm.out("--operator", "write", "/memory/law/code.md", "it is so", agent="root")
    for _ in range(3):
        avm.complaint("write", "/memory/law/code.md", "no", code=1)
    avm.complaint("rm", "/memory/law/code.md", code=1)
    avm.complaint("rm", "/memory/law/nothing.md", code=1)  # ENOENT: no refusal
    with AVM(config=world.root / "config/config.yaml", agent="bob", environ=world.environ) as api:
        for _ in range(2):
            with pytest.raises(PermissionError):
                api.append("/memory/law/code.md", "no")
        with pytest.raises(PermissionError):
            api.read("/tell/alice")
    for _ in range(5):  # refused by the mount itself; what the kernel refuses by the mode bits never comes here
        with pytest.raises(PermissionError):
            (mount / "new").mkdir()
    with pytest.raises(PermissionError):
        (mount / "memory/law/code.md:tags").write_text("x")

    def counted() -> dict[tuple[str, str], int]:
        with contextlib.closing(connect(world.root / "data/avm.db", read_only=True)) as db:
            return {
                (row[0], row[1]): row[2]
                for row in db.execute(
                    "select agent || '/' || route, command, sum(count) from refusal group by 1, 2 order by 1, 2"
                )
            }

    until(lambda: counted().get(("alice/mount", "nothing can be created or removed here")) == 5)
    found = counted()
    assert found["alice/cli", "write_path"] == 3 and found["alice/cli", "unlink"] == 1
    assert found["bob/python", "write_path"] == 2
    assert ("bob/python", "a mailbox can only be written: read /:inbox") in found
    until(lambda: any(who == "alice/mount" and count == 1 for (who, _), count in counted().items()))
    assert not any("nothing.md" in command for _, command in found)


def test_who_acts_as_the_operator_is_noted_even_if_he_only_reads(avm: Shell) -> None:
    avm.out("--operator", "-a", "eve", "ls", "/memory")
    (act,) = acts(avm, "--operator", "--by", "eve", agent="root")
    assert (act["op"], act["operator"], act["route"]) == ("operator", True, "cli")
    assert not any(act["agent"] == "eve" for act in acts(avm, agent="eve")), "the operator's to see"


def test_an_agent_sees_nothing_of_what_it_cannot_see(avm: Shell) -> None:
    avm.out("write", "/private/canary.md", "secret")
    for who in ("bob", "carol"):
        assert "canary" not in avm.out("audit", "--limit", "10000", agent=who)
        assert avm.out("audit", "--path", "/memory/private/alice", agent=who) == "(nothing)\n"
    assert "canary" in avm.out("audit", "--path", "/private")
    assert all("seq" not in act for act in acts(avm))


def test_verify_is_the_operators_and_names_the_row_that_was_changed(alone: Shell) -> None:
    for number in range(4):
        alone.out("write", f"/shared/f{number}", "x")
    assert "operator" in alone.complaint("audit", "verify", code=1)
    said = alone.out("--operator", "audit", "verify")
    assert said.startswith("ok: ") and "newer rows are not chained yet" in said
    database = Path(alone.environ["AVM_DATA_DIR"]) / "avm.db"
    with contextlib.closing(connect(database)) as db:
        policy = Policy.from_words([("/memory/law/*", "ro", None), ("/memory/*", "rw", None)], "ro")
        store = open_direct(database, policy, IndexRules())
        try:
            Chainer(store, anchors.beside(database), 1.0, lambda: 10**18).step()
        finally:
            store.close()
        said = alone.out("--operator", "audit", "verify")
        assert re.match(r"ok: \d+ rows as they were written", said) and "anchors agree" in said
        anchor = alone.out("--operator", "audit", "anchor").split()
        assert alone.out("--operator", "audit", "verify", "--anchor", f"{anchor[0]}:{anchor[1]}").startswith("ok")
        assert alone.run("--operator", "audit", "verify", "--anchor", f"{anchor[0]}:{'0' * 64}", code=1).stdout
        db.execute("drop trigger log_is_append_only")
        seq = db.execute("select seq from log where path = x'2f6d656d6f72792f7368617265642f6632' and op = 'write'").get
        db.execute("update log set agent = 'eve' where seq = ?", (seq,))
    said = alone.run("--operator", "audit", "verify", code=1).stdout.decode()
    assert said.startswith(f"FAILED: row {seq} is not as it was chained") and "log_is_append_only" in said
    found = json.loads(alone.run("--operator", "--json", "audit", "verify", code=1).stdout)
    assert (found["ok"], found["bad"], found["unguarded"]) == (False, seq, ["log_is_append_only"])
