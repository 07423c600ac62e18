"""Who may do what at the doors: `avm agents`, `avm keys`, AVM_API_KEY, the operator, the Python calls, real mounts."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM
from avmfs.errors import Denied, Invalid, NotFound
from tests.cli.shells import QuickShell, Shell, configured, environment
from tests.mount.mount_world import World, code_of, until

pytestmark = pytest.mark.mount

QUOTA = 1_000_000
SETTINGS = f"""
embedding: {{enabled: false}}
agents:
  alice: {{groups: [desk], capabilities: [write, sudo], quota: {{bytes: {QUOTA}, nodes: 60, unread: 3}}}}
  guest: {{capabilities: [%s]}}
permissions:
  - {{pattern: "/memory/desk/*", access: rw, groups: [desk]}}
  - {{pattern: "/memory/desk/*", access: none}}
default_access: rw
"""


@pytest.fixture(scope="module")
def settings() -> str:
    return SETTINGS % ""


@pytest.fixture(scope="module")
def agents() -> list[str]:
    return ["alice", "guest"]


@pytest.fixture(scope="module", params=["daemon", "alone"])
def avm(request: pytest.FixtureRequest, settings: str) -> Iterator[Shell]:
    """The same commands, answered by a daemon and by the store itself."""
    if request.param == "daemon":
        world: World = request.getfixturevalue("world")
        yield QuickShell({**world.environ, "LC_ALL": "C.UTF-8"}, world.root)
        return
    with configured(settings) as root:
        shell = QuickShell(environment(root), root)
        shell.run("write", "/private/x", "x", agent="alice")
        yield shell


def parsed(shell: Shell, *arguments: str, **more: Any) -> Any:
    return json.loads(shell.out("--json", *arguments, **more))


@contextlib.contextmanager
def showing(shell: Shell, key: str) -> Iterator[Shell]:
    """The shell of a program that has this key."""
    shell.environ["AVM_API_KEY"] = key
    try:
        yield shell
    finally:
        del shell.environ["AVM_API_KEY"]


def test_a_key_for_a_name_that_is_no_utf8_is_shown(avm: Shell) -> None:
    made = avm.out("keys", "create", "--path", "/memory/caf\udce9/*", agent="alice")
    assert made.startswith("avm_") and "caf\\xe9/*" in avm.out("keys", "list", agent="alice")


def test_avm_agents_says_what_each_may(avm: Shell) -> None:
    found = {each["name"]: each for each in parsed(avm, "agents")}
    assert found["alice"]["groups"] == ["desk"] and found["alice"]["capabilities"] == ["write", "sudo"]
    assert found["guest"]["capabilities"] == [] and found["alice"]["used"]["nodes"] >= 0
    lines = avm.out("agents").splitlines()
    assert any(line.startswith("alice  write, sudo  groups: desk  quota: nodes ") for line in lines)
    assert any(line.partition("  here: ")[0] == "guest  read-only" for line in lines)
    assert {each["name"]: each["used"] for each in parsed(avm, "agents", agent="guest")}["alice"] is None


def test_a_key_is_its_agent_within_its_paths_and_actions(avm: Shell) -> None:
    avm.run("write", "/shared/k/in.md", "the okapi inside")
    avm.run("write", "/shared/kk/out.md", "the okapi outside")
    made = parsed(avm, "keys", "create", "--path", "/shared/k/*", "--label", "for a test", "--expires", "1h")
    assert made["agent"] == "alice" and made["actions"] == ["read", "search"] and made["key"].startswith("avm_")
    with showing(avm, made["key"]):
        assert avm.out("read", "/shared/k/in.md", agent=None) == "the okapi inside"
        assert avm.out("ls", "/memory/shared", agent=None) == "k/\n"
        for path in ("/shared/kk/out.md", "/private/x", "/memory/shared/kk"):
            avm.complaint("read", path, agent=None, code=1)
        hits = parsed(avm, "search", "okapi", agent=None)["hits"]
        assert [hit["path"] for hit in hits] == ["/memory/shared/k/in.md"]
        for recalled in (("recall", "okapi"), ("read", "/memory/:recall?q=okapi&min_relevance=0")):
            said = avm.out(*recalled, agent="alice")
            assert "outside" not in said and "inside" in said
        for refused in (("write", "/shared/k/in.md", "x"), ("tell", "guest", "x"), ("inbox",), ("keys", "create")):
            avm.complaint(*refused, agent=None, code=1)
        assert "guest" in avm.complaint("read", "/shared/k/in.md", agent="guest", code=1)
        assert "operator" in avm.complaint("--operator", "read", "/shared/k/in.md", agent="alice", code=1)
    listed = parsed(avm, "keys", "list")
    assert [each["state"] for each in listed if each["id"] == made["id"]] == ["valid"]
    assert made["key"].split("_", 2)[2] not in json.dumps(listed) + avm.out("keys", "list")
    assert parsed(avm, "keys", "list", agent="guest") == []
    avm.complaint("keys", "revoke", made["id"], agent="guest", code=1)
    avm.run("keys", "revoke", made["id"])
    with showing(avm, made["key"]):
        assert "revoked" in avm.complaint("read", "/shared/k/in.md", agent=None, code=1)


def test_a_key_says_what_it_opens_where_its_path_goes_up(avm: Shell) -> None:
    avm.run("write", "/private/up.md", "hers")
    for path in ("/memory/shared/../private/alice/*", "/shared/../private/*", "/../private//./*"):
        made = parsed(avm, "keys", "create", "--path", path)
        assert made["paths"] == ["/memory/private/alice/*"]
        with showing(avm, made["key"]):
            assert avm.out("read", "/private/up.md", agent=None) == "hers"
            avm.complaint("read", "/shared/k/in.md", agent=None, code=1)
    assert "begins with /" in avm.complaint("keys", "create", "--path", "shared/k", code=2)


def test_a_key_is_printed_alone_on_stdout(avm: Shell) -> None:
    done = avm.run("keys", "create", "-x", "tell", "-x", "inbox")
    key = done.stdout.decode().strip()
    assert key.startswith("avm_") and key.encode() not in done.stderr and b"not be shown again" in done.stderr
    with showing(avm, key):
        avm.run("tell", "alice", "to myself", agent=None)
        assert "to myself" in avm.out("inbox", "--mark-read", agent=None)
        avm.complaint("read", "/shared/k/in.md", agent=None, code=1)
    with showing(avm, f"avm_aaaaaaaa_{'A' * 43}"):
        assert "no such API key" in avm.complaint("ls", agent=None, code=1)
        assert "no such API key" in avm.complaint("ls", agent="alice", code=1)
    with showing(avm, "alice"):
        assert "not an API key" in avm.complaint("ls", agent="alice", code=1)
    assert "alice" not in avm.complaint("ls", agent=None, code=2)


def test_who_is_configured_needs_sudo_to_be_the_operator(avm: Shell) -> None:
    avm.run("write", "/private/hers.md", "hers")
    assert avm.out("--operator", "read", "/memory/private/alice/hers.md", agent="alice") == "hers"
    assert "sudo" in avm.complaint("--operator", "read", "/memory/private/alice/hers.md", agent="guest", code=1)
    assert avm.out("--operator", "read", "/memory/private/alice/hers.md", agent=None) == "hers"
    assert parsed(avm, "keys", "create", "--for", "guest", "--operator", agent="alice")["agent"] == "guest"
    avm.complaint("keys", "create", "--for", "guest", agent="alice", code=1)


# --- Python


@pytest.fixture(scope="module", params=["daemon", "alone"])
def opened(request: pytest.FixtureRequest) -> Iterator[Callable[..., AVM]]:
    """AVM(agent) of a store whose configuration says nothing of agents."""
    made: list[AVM] = []
    with contextlib.ExitStack() as stack:
        if request.param == "daemon":
            world = World([{"agent_id": "akashi"}])
            stack.callback(world.end)
            world.start()
            environ = world.environ
        else:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="avmc-", dir="/tmp")))
            environ = environment(root)

        def open_(agent: str | None, **more: str) -> AVM:
            made.append(AVM(agent=agent, environ={**environ, **more}, embeddings=False))
            return made[-1]

        stack.callback(lambda: [avm.close() for avm in made])
        yield open_


def test_permissions_from_python_as_the_documentation_has_them(opened: Callable[..., AVM]) -> None:
    avm = opened("akashi")
    avm.write("/memory/market/nvda.md", "the okapi index")
    avm.write("/private/note.md", "mine")
    opened("yuze").write("/private/secret.md", "hers")
    registered = avm.init_permissions(
        {
            "users": {
                "akashi": {"groups": ["trading", "admin"], "capabilities": ["search_all", "write", "sudo"]},
                "guest": {"groups": [], "capabilities": []},
            }
        }
    )
    assert registered == 2
    user = avm.get_user("akashi")
    assert (user.name, user.groups, user.capabilities) == (
        "akashi",
        ("admin", "trading"),
        ("search_all", "write", "sudo"),
    )
    assert avm.check_permission(user, "/memory/private/akashi/note.md", "write") is True
    assert avm.check_permission(user, "/memory/private/yuze/secret.md", "read") is True
    assert avm.check_permission(user, "/memory/private/yuze/secret.md", "write") is False
    assert avm.check_permission("guest", "/memory/market/nvda.md", "read") is True
    assert avm.check_permission("guest", "/memory/market/nvda.md", "write") is False
    assert avm.check_permission("guest", "/private/x", "write") is False
    assert avm.check_permission("yuze", "/memory/market/nvda.md", "delete") is True
    assert avm.check_permission(user, "/new.md", "write") is False
    assert avm.check_permission("yuze", "/memory/private/akashi/note.md", "read") is False
    assert avm.read("/memory/private/yuze/secret.md") == "hers"
    guest = opened("guest")
    assert guest.read("/memory/market/nvda.md") == "the okapi index"
    for change in (
        lambda: guest.write("/memory/market/nvda.md", "x"),
        lambda: guest.write("/private/x", "x"),
        lambda: guest.tell("akashi", "x"),
        lambda: guest.delete("/memory/market/nvda.md"),
        lambda: guest.agent_memory().remember("x"),
        lambda: guest.init_permissions({"users": {}}),
        lambda: guest.create_api_key("akashi"),
    ):
        with pytest.raises(Denied):
            change()

    key = avm.create_api_key(user, paths=["/memory/*"], actions=["read"])
    program = opened(None, AVM_API_KEY=key)
    assert program.agent == "akashi" and program.read("/memory/market/nvda.md") == "the okapi index"
    for refused in (lambda: program.write("/memory/x.md", "x"), lambda: program.search("okapi")):
        with pytest.raises(Denied):
            refused()
    narrow = opened(None, AVM_API_KEY=avm.create_api_key(paths=["/memory/market/*"]))
    with pytest.raises(NotFound):
        narrow.read("/private/note.md")
    assert [hit["path"] for hit in narrow.search("okapi")] == ["/memory/market/nvda.md"]
    assert [each["state"] for each in avm.api_keys()] == ["valid", "valid"]
    avm.revoke_api_key(key)
    with pytest.raises(Denied, match="revoked"):
        program.read("/memory/market/nvda.md")
    with pytest.raises(Denied, match="revoked"):
        opened(None, AVM_API_KEY=key)
    for bad, place in (
        ({}, "users"),
        ({"users": {}, "user": {}}, "'user'"),
        ({"users": {"x": {"groups": 1}}}, "x.groups"),
    ):
        with pytest.raises(Invalid, match=place):
            avm.init_permissions(bad)
    with pytest.raises(Invalid, match="fly"):
        avm.check_permission("guest", "/memory", "fly")


# --- mounts


def test_a_mount_of_an_agent_without_write_only_reads(world: World) -> None:
    alice, guest = world.mounts["alice"], world.mounts["guest"]
    (alice / "shared/m.md").write_text("seen")
    assert (guest / "shared/m.md").read_text() == "seen"
    assert (guest / "shared/m.md").stat().st_mode & 0o222 == 0
    assert code_of(lambda: (guest / "memory/new.md").write_text("x")) == errno.EACCES
    assert code_of(lambda: (guest / "private/new.md").write_text("x")) == errno.EACCES
    assert code_of(lambda: (guest / "shared/m.md:tags").write_text("x")) == errno.EACCES
    assert code_of(lambda: (guest / "tell/alice").write_text("x")) == errno.EACCES
    (alice / "memory/desk").mkdir()
    assert code_of(lambda: os.listdir(guest / "memory/desk")) == errno.ENOENT


def test_a_quota_is_felt_at_the_mount_and_shown_by_df(world: World) -> None:
    alice = world.mounts["alice"]
    world.expected.append("after its last flush are lost: alice may have")  # its writer was told
    before = os.statvfs(alice)
    assert 0 < before.f_bavail * before.f_frsize <= QUOTA and before.f_files == 60
    (alice / "memory/big").write_bytes(b"x" * 600_000)
    after = os.statvfs(alice)
    assert 590_000 <= (before.f_bavail - after.f_bavail) * after.f_frsize <= 610_000
    assert before.f_ffree - after.f_ffree == 1 and after.f_blocks >= after.f_bfree
    assert code_of(lambda: (alice / "memory/more").write_bytes(b"x" * 600_000)) == errno.EDQUOT
    assert code_of(lambda: os.truncate(alice / "memory/big", 1 << 40)) == errno.EDQUOT
    for path in (alice / "memory/big", alice / "memory/more"):
        path.unlink(missing_ok=True)
    (alice / "memory/more").write_bytes(b"x" * 600_000)
    (alice / "memory/more").unlink()
    room = os.statvfs(alice).f_ffree
    for number in range(room):
        (alice / f"memory/n{number}").touch()
    assert code_of(lambda: (alice / "memory/n").touch()) == errno.EDQUOT
    assert code_of(lambda: (alice / "memory/nd").mkdir()) == errno.EDQUOT
    for number in range(room):
        (alice / f"memory/n{number}").unlink()
    assert "PROBLEM  quotas" not in QuickShell({**world.environ}, world.root).out("doctor", code=None)


def test_a_change_of_what_an_agent_may_reaches_its_mount_without_a_restart(world: World) -> None:
    guest, file = world.mounts["guest"], world.root / "config/config.yaml"
    (world.mounts["alice"] / "shared/r.md").write_text("seen")
    pids = [mount["pid"] for mount in (world.status() or {})["mounts"]]
    file.write_text(SETTINGS % "write, search_all")
    assert world.command("reload").returncode == 0
    (guest / "shared/r.md").write_text("written")
    (world.mounts["alice"] / "private/only.md").write_text("private")
    assert (guest / "memory/private/alice/only.md").read_text() == "private"
    file.write_text(SETTINGS % "")
    assert world.command("reload").returncode == 0
    until(lambda: not (guest / "memory/private/alice/only.md").exists())
    assert code_of(lambda: (guest / "shared/r.md").write_text("again")) == errno.EACCES
    assert [mount["pid"] for mount in (world.status() or {})["mounts"]] == pids


def test_no_key_is_in_any_file_of_the_daemon(world: World) -> None:
    shell = QuickShell({**world.environ}, world.root)
    key = shell.out("keys", "create").strip()
    with showing(shell, key):
        shell.run("ls", agent=None)
        shell.run("write", "/private/x.md", "x", agent=None, code=1)
    secret = key.split("_", 2)[2].encode()
    for path in world.root.rglob("*"):
        if path.is_file() and not path.is_relative_to(world.mounts["alice"]) and "guest" not in path.parts:
            assert secret not in path.read_bytes(), path
