"""Agents under Unix users of their own: what the kernel then keeps apart, for real.

alice and bob are two users, the daemon runs under a third (`unix_machine.Machine`). What bob's processes try here, they
try as bob: with open(2) on alice's mount, on the store and on the sockets, at the door, and through the programs.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.daemons import wait
from tests.faults.unix_machine import USERS, Machine, as_entries, missing

pytestmark = pytest.mark.mount

SECRET = "zqsecretqz"


@pytest.fixture(autouse=True, scope="module")
def possible() -> None:
    if (reason := missing()) is not None:
        if os.environ.get("AVM_REQUIRE_MOUNTS") == "1":
            pytest.fail(f"AVM_REQUIRE_MOUNTS=1, but {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="module")
def machine(possible: None) -> Iterator[Machine]:
    """The daemon under its own user, started with no umask at all; alice has a secret and has looked at everything of
    hers, so that the kernel has it cached."""
    machine = Machine("avmfs")
    try:
        alice, bob = as_entries("alice", "bob")
        machine.mounts({**alice, "link": str(machine.home("alice") / "avm")}, bob)
        assert machine.daemon("start", "--daemon", mask=0).startswith("avm-daemon is running")
        machine.python(
            "alice",
            f"""
at = Path(sys.argv[1])
(at / "private/secret.md").write_text("{SECRET}")
(at / "private/deep/er").mkdir(parents=True)
(at / "shared/from-alice.md").write_text("hello bob")
for top, names, files in os.walk(at / "memory"):
    for name in files:
        (Path(top) / name).read_bytes(), os.stat(Path(top) / name)
print(0)
""",
            machine.at("alice"),
        )
        yield machine
        assert "Traceback" not in machine.log(), machine.log()[-6000:]
    finally:
        machine.end()


@pytest.fixture
def another() -> Iterator[Any]:
    """Makes further machines."""
    made: list[Machine] = []

    def make(user: str, **more: Any) -> Machine:
        made.append(Machine(user, **more))
        return made[-1]

    yield make
    for machine in made:
        machine.end()


LOOK = """
def everything(at):
    at = Path(at)
    return {
        **{f"stat {p}": said(lambda: os.lstat(at / p).st_size) for p in
           ("memory", "private", "private/secret.md", "tell")},
        **{f"list {p}": said(os.listdir, at / p) for p in ("", "memory", "memory/private", "private/deep", "tell")},
        **{f"read {p}": said(lambda: (at / p).read_bytes().decode()) for p in
           ("private/secret.md", "memory/private/alice/secret.md", ":recall?q=zq", "private/:list",
            "private/secret.md:meta", "shared/from-alice.md", ":stats")},
        **{f"write {p}": said(lambda: (at / p).write_text("x")) for p in
           ("private/secret.md", "private/new.md", "shared/from-alice.md", "shared/new.md", "tell/bob")},
        "mkdir": said(os.mkdir, at / "private/d"), "unlink": said(os.unlink, at / "private/secret.md"),
        "rename": said(os.rename, at / "private/secret.md", at / "shared/secret.md"),
        "symlink": said(os.symlink, "x", at / "private/s"), "truncate": said(os.truncate, at / "private/secret.md", 0),
        "chmod": said(os.chmod, at / "private/secret.md", 0o777), "statvfs": said(lambda: os.statvfs(at).f_bfree),
        "chdir": said(os.chdir, at / "private"), "xattrs": said(os.listxattr, at / "private/secret.md"),
    }
"""


def test_two_users_share_memory_through_mounts_that_each_owns(machine: Machine) -> None:
    assert machine.status()["isolation"] == "by uid" and machine.status()["isolation_reason"] == ""
    bobs = machine.python(
        "bob",
        """
at = Path(sys.argv[1])
(at / "shared/from-bob.md").write_text("hello alice")
os.umask(0o077)
(at / "private/own.md").write_text("bob's")
owner = lambda p: [os.stat(at / p).st_uid, os.stat(at / p).st_gid]
print(json.dumps([(at / "shared/from-alice.md").read_text(), sorted(os.listdir(at / "memory/private")), owner(""),
                  owner("memory"), owner("shared/from-alice.md"), owner("private/own.md"), owner(":stats")]))
""",
        machine.at("bob"),
    )
    assert bobs == ["hello bob", ["bob"], *[[USERS["bob"]] * 2] * 5]
    alices = machine.python(
        "alice",
        """
at = Path(sys.argv[1])
(at / "shared/from-bob.md").open("a").write(", and back")
print(json.dumps([(at / "shared/from-bob.md").read_text(), os.stat(at / "shared/from-bob.md").st_uid,
                  (at / "private/secret.md").read_text()]))
""",
        machine.at("alice"),
    )
    assert alices == ["hello alice, and back", USERS["alice"], SECRET]


def test_who_is_given_the_owner_that_the_mount_shows_owns_nothing_alone(machine: Machine) -> None:
    """As sed -i gives its output that of the file, and cp -a and mv those of a directory."""
    at = machine.at("alice") / "shared"
    script = f"""
echo one > {at}/n.md; sed -i s/one/two/ {at}/n.md
mkdir -p from/deep; echo three > from/deep/f.md; cp -a from {at}/copied; mv from {at}/moved
touch -d 2020-01-01 {at}/n.md; before=$(stat -c %z {at}/n.md); chown alice:alice {at}/n.md
test "$before" != "$(stat -c %z {at}/n.md)"
"""
    machine.told("alice", "sh", "-ec", f"cd ~\n{script}")
    code = """
at = Path(sys.argv[1]) / "shared"
for path in ("n.md", "copied/deep/f.md", "moved/deep/f.md"):
    (at / path).open("a").write("bob\\n")
for path in ("copied/new", "moved/deep/new"):
    (at / path).mkdir()
print(json.dumps([(at / "n.md").read_text(), os.stat(at / "n.md").st_uid, os.stat(at / "moved/deep").st_gid]))
"""
    assert machine.python("bob", code, machine.at("bob")) == ["two\nbob\n", USERS["bob"], USERS["bob"]]


@pytest.mark.parametrize("user", ["bob", "avmfs", "root"])
def test_a_mount_is_usable_for_its_own_user_only(machine: Machine, user: str) -> None:
    found = machine.python(user, LOOK + "print(json.dumps(everything(sys.argv[1])))", machine.at("alice"))
    if user == "root":  # root passes every mode: what the kernel has cached of names it may see, and nothing beyond
        found = {what: said for what, said in found.items() if not what.startswith(("stat ", "chdir"))}
    assert {what: said for what, said in found.items() if said != errno.EACCES} == {}
    assert (
        machine.python(
            "alice", f"print(json.dumps(Path({str(machine.at('alice') / 'private/secret.md')!r}).read_text()))"
        )
        == SECRET
    )


def test_the_portable_front_end_refuses_others_too_root_among_them(another: Any) -> None:
    pytest.importorskip("mfusepy")
    machine = another("root", front_end="portable")
    machine.mounts(*as_entries("alice"))
    machine.daemon("start", "--daemon")
    at = machine.at("alice")
    machine.python(
        "alice", f"print(json.dumps([(Path(sys.argv[1]) / 'private/secret.md').write_text('{SECRET}')]))", at
    )
    for user in ("bob", "root"):
        found = machine.python(user, LOOK + "print(json.dumps(everything(sys.argv[1])))", at)
        assert {what: said for what, said in found.items() if said != errno.EACCES} == {}, user
    look = "print(json.dumps((Path(sys.argv[1]) / 'private/secret.md').read_text()))"
    assert machine.python("alice", look, at) == SECRET
    assert machine.told("root", "sh", "-c", f"setpriv --reuid 41001 sh -c 'exec 3<{at}/private/secret.md; cat <&3'")


def test_an_open_descriptor_may_be_handed_on(machine: Machine) -> None:
    """As in `sudo cat < file`."""
    read = f"exec 3< {machine.at('alice')}/private/secret.md; exec cat /dev/fd/3 2>/dev/null || cat <&3"
    assert machine.told("alice", "sh", "-c", read) == SECRET
    code = """
import socket
one, other = socket.socketpair()
if os.fork() == 0:
    socket.send_fds(one, [b"x"], [os.open(sys.argv[1], os.O_RDONLY)])
    os._exit(0)
_, (fd,), _, _ = socket.recv_fds(other, 1, 1)
os.setgid(41002); os.setuid(41002)
print(json.dumps([said(os.open, sys.argv[1], os.O_RDONLY), os.read(fd, 100).decode()]))
"""
    as_root_then_bob = machine.python(
        "root",
        code.replace("if os.fork() == 0:", "if os.fork() == 0:\n    os.setgid(41001); os.setuid(41001)"),
        machine.at("alice") / "private/secret.md",
    )
    assert as_root_then_bob == [errno.EACCES, SECRET]


def test_a_descriptor_that_was_handed_on_is_of_use_after_a_change_too(machine: Machine) -> None:
    """The kernel then asks for the attributes, at each read; of a view it always does."""
    code = """
import socket
def handed(path):
    one, other = socket.socketpair()
    if os.fork() == 0:
        os.setgid(41001); os.setuid(41001)
        socket.send_fds(one, [b"x"], [os.open(path, os.O_RDONLY)])
        os._exit(0)
    os.wait()
    return socket.recv_fds(other, 1, 1)[1][0]
path = sys.argv[1]
file, view = handed(path), handed(path + ":path")
first = os.pread(file, 100, 0).decode()
if os.fork() == 0:
    os.setgid(41001); os.setuid(41001)
    with open(path, "a") as more:
        more.write(" and more")
    os._exit(0)
os.wait()
if sys.argv[2] != "0":
    os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
print(json.dumps([first, os.pread(file, 100, 0).decode(), os.fstat(file).st_size, os.fstat(view).st_size]))
"""
    at = machine.at("alice") / "private/handed.md"
    for user in ("0", "41002"):
        machine.python("alice", "print(Path(sys.argv[1]).write_text('first'))", at)
        assert machine.python("root", code, at, user) == ["first", "first and more", 14, 0]


def test_a_descriptor_that_was_handed_on_cuts_the_file_if_it_was_opened_to_write(machine: Machine) -> None:
    at = machine.at("alice") / "private/cut.md"
    machine.python("alice", "print(Path(sys.argv[1]).write_text('first'))", at)
    code = """
fds = []
def opened(path):
    os.setegid(41001); os.seteuid(41001)
    fds.extend(os.open(path, how) for how in (os.O_RDWR, os.O_RDONLY))
    os.seteuid(0); os.setegid(0)
opened(sys.argv[1])
if sys.argv[2] != "0":
    os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
done = [said(os.ftruncate, fd, 3) for fd in fds]
print(json.dumps([*done, said(os.truncate, sys.argv[1], 1), said(os.fchmod, fds[0], 0o666) == 0]))
"""
    for user in ("0", "41002"):
        assert machine.python("root", code, at, user) == [None, errno.EINVAL, errno.EACCES, False]
        assert machine.python("alice", "print(json.dumps(Path(sys.argv[1]).read_text()))", at) == "fir"


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_of_the_daemon_s_files_nothing_is_for_others_but_the_door(machine: Machine, user: str) -> None:
    # It fails at the mounts, which are not for root either.
    found = machine.done("root", "find", machine.run, machine.data, "-xdev", "-perm", "/077", "!", "-type", "l").stdout
    assert set(found.split()) == {str(machine.run), str(machine.run / "avm.sock"), str(machine.run / "mounts")}
    code = """
import socket
run, data = Path(sys.argv[1]), Path(sys.argv[2])
def knock(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        return "open"
def seqpacket(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(path))
        return "open"
print(json.dumps({
    "list run": said(os.listdir, run), "list mounts": said(os.listdir, run / "mounts"),
    "list data": said(os.listdir, data),
    **{f"read {p}": said(lambda: open(p, "rb").read(1)) for p in
       (data / "avm.db", data / "avm.db-wal", data / "avm.db-shm", data / "avm.db.lock", data / "logs/avm-daemon.log",
        run / "state.json", run / "daemon.lock")},
    **{f"knock {p}": said(knock, run / p) for p in ("writer.sock", "index.sock", "control.sock")},
    "knock hold.sock": said(seqpacket, run / "hold.sock"), "plant": said(lambda: open(run / "planted", "w")),
    "door": said(knock, run / "avm.sock"), "move": said(os.rename, run / "avm.sock", run / "x"),
    "locks": said(os.listdir, run / "locks"),
}))
"""
    tried = machine.python(user, code, machine.run, machine.data)
    assert tried.pop("door") == "open"
    assert {what: said for what, said in tried.items() if said != errno.EACCES} == {}


def test_a_purge_is_looked_at_by_an_agent_who_cannot_read_the_daemon_s_folder(machine: Machine) -> None:
    machine.avm("alice", "write", "/private/old.md", "x", agent="alice")
    assert "backups" not in machine.avm("alice", "purge", "/private/old.md", "-n", agent="alice")
    machine.told(
        "avmfs", sys.executable, "-m", "avmfs.cli", "--operator", "backup", str(machine.home("avmfs") / "kept")
    )
    for more in ([], ["--json"]):
        said = machine.avm("alice", "purge", "/private/old.md", "-n", *more, agent="alice")
        assert "/private/alice/old.md" in said and ("backed_up" if more else "# backups stay as they are") in said
    assert "nothing to purge" in machine.avm("alice", "purge", "--tag", "none-has-this", agent="alice")


def test_at_the_door_a_user_is_the_agent_whose_mount_it_has(machine: Machine) -> None:
    """Without `uids` in config.yaml: the mount's `uid` says it."""
    assert SECRET in machine.avm("alice", "read", "/private/secret.md", agent="alice")
    assert "hello bob" in machine.avm("bob", "read", "/shared/from-alice.md", agent="bob")
    for arguments in (["read", "/private/secret.md"], ["recall", "zq"], ["inbox"], ["write", "/private/x.md", "x"]):
        said = machine.avm("bob", *arguments, agent="alice", code=1)
        assert said.startswith(f"avm: uid {USERS['bob']} may not speak for 'alice': see `uids` in config.yaml\n")
    assert "may not be the operator" in machine.avm("bob", "--operator", "ls", "/", agent="bob", code=1)
    assert "may not speak for" in machine.avm("bob", "ls", "/", agent="carol", code=1)
    assert SECRET not in machine.avm("bob", "read", "/memory/private/alice/secret.md", agent="bob", code=1)
    done = machine.done("bob", sys.executable, "-m", "avmfs.mcp", "--user", "alice")
    assert done.returncode and f"uid {USERS['bob']} may not speak for 'alice'" in done.stderr
    code = """
from avmfs import AVM
def ask(agent):
    with AVM(agent=agent) as avm:
        return avm.read("/private/secret.md")
print(json.dumps([said(ask, "alice"), said(ask, "bob")]))
"""
    assert machine.python("bob", code) == [errno.EACCES, errno.ENOENT]
    assert machine.python("alice", code) == [SECRET, errno.EACCES]


def test_hooks_and_completion_reach_the_daemon_of_another_user(machine: Machine) -> None:
    hook = f"echo '{{}}' | AVM_HOOK_S=100 {sys.executable} -m avmfs.cli hook --client claude -a alice session-start"
    assert "you are alice." in machine.told("alice", "sh", "-c", hook)
    typed = "import sys; sys.argv[0] = 'avm'; from avmfs.cli.main import main; main()"
    asked = ("env", "_AVM_COMPLETE=bash_complete", "COMP_WORDS=avm read /sha", "COMP_CWORD=2")
    # A shell waits for it for a second: on a busy machine that may be too short.
    wait(lambda: "/shared/" in machine.told("alice", *asked, sys.executable, "-c", typed, agent="alice"))


def test_the_doctor_of_a_user_who_may_not_look_at_the_store_tells_of_all_else(machine: Machine) -> None:
    doctor = machine.done("alice", sys.executable, "-m", "avmfs.cli", "--json", "doctor", agent="alice")
    found = {each["about"]: each for each in json.loads(doctor.stdout or "[]")}
    assert doctor.returncode == 1 and "/dev/fuse" in found, doctor
    assert found["store"]["todo"] == "run it as the user whose store it is", found
    assert not [each for each in found.values() if "not mounted" in each["says"]]


def test_a_killed_mount_comes_back_with_its_fence(machine: Machine) -> None:
    before = next(mount for mount in machine.status()["mounts"] if mount["agent_id"] == "alice")
    os.kill(before["pid"], 9)
    wait(lambda: machine.status()["mounts"][0]["pid"] not in (before["pid"], None))
    wait(lambda: machine.status()["mounts"][0]["state"] == "ready")
    look = "print(json.dumps(said(lambda: Path(sys.argv[1]).read_text())))"
    assert machine.python("alice", look, machine.at("alice") / "private/secret.md") == SECRET
    for user in ("bob", "root"):
        assert machine.python(user, look, machine.at("alice") / "private/secret.md") == errno.EACCES


def test_a_root_daemon_lets_root_in_where_configured_and_makes_links_as_the_user(another: Any) -> None:
    machine = another("root")
    machine.told("root", "install", "-d", "-m", "755", machine.root / "roots")
    machine.told("bob", "ln", "-s", machine.root / "roots", machine.home("bob") / "way")
    alice, bob = as_entries("alice", "bob")
    machine.mounts(
        {**alice, "allow_root": True, "link": str(machine.home("alice") / "avm")},
        {**bob, "link": str(machine.home("bob") / "way/avm")},  # would have root write into a folder of root's
    )
    machine.daemon("start", "--daemon")
    machine.python("alice", "print(Path(sys.argv[1]).write_text('x'))", machine.at("alice") / "private/f")
    look = "print(json.dumps(said(os.listdir, sys.argv[1])))"
    assert machine.python("root", look, machine.at("alice") / "private") == ["f"]
    assert machine.python("root", look, machine.at("bob") / "private") == errno.EACCES
    assert machine.python("bob", look, machine.at("alice") / "private") == errno.EACCES

    def problem(agent: str) -> str:
        found: str = next(each["link_problem"] for each in machine.status()["mounts"] if each["agent_id"] == agent)
        return found

    wait(lambda: problem("bob"))
    assert "Permission denied" in problem("bob") and f"ln -s {machine.at('bob')} " in problem("bob")
    assert os.listdir(machine.root / "roots") == []
    wait(lambda: os.path.islink(machine.home("alice") / "avm"))
    assert problem("alice") == "" and os.lstat(machine.home("alice") / "avm").st_uid == USERS["alice"]
    assert machine.python("alice", look, machine.home("alice") / "avm/private") == ["f"]
    shown = machine.daemon("status")
    assert f"bob: {problem('bob')}" in shown and "isolation by uid" in shown


def test_a_daemon_that_is_not_root_says_who_can_make_the_link(machine: Machine) -> None:
    link = machine.home("alice") / "avm"
    wait(lambda: machine.status()["mounts"][0]["link_problem"])
    assert machine.status()["mounts"][0]["link_problem"] == (
        f"{link}: only root or uid {USERS['alice']} can make it; as that user: ln -s {machine.at('alice')} {link}"
    )
    machine.told("alice", "ln", "-s", machine.at("alice"), link)
    assert machine.python("alice", "print(json.dumps(os.listdir(sys.argv[1])))", link) == [
        "memory",
        "private",
        "shared",
        "tell",
    ]


def test_without_user_allow_other_the_reason_and_the_remedy_are_told(another: Any) -> None:
    machine = another("avmfs", user_allow_other=False)
    machine.mounts(*as_entries("alice"))
    said = machine.daemon("start", "--daemon", code=1)
    assert "user_allow_other" in said and "/etc/fuse.conf" in said, said
    assert machine.status()["mounts"][0]["state"] == "failed"
    doctor = machine.done("avmfs", sys.executable, "-m", "avmfs.cli", "--json", "doctor")
    found = {each["about"]: each for each in json.loads(doctor.stdout)}
    assert doctor.returncode == 1 and found["fuse.conf"]["state"] == "problem", doctor.stdout
    assert "user_allow_other" in found["fuse.conf"]["todo"]
    assert found["isolation"]["state"] == "ok", found["isolation"]


ORDINARY = """
at = Path(sys.argv[1])
f = at / "private/f.md"
f.write_text("one")
with open(f, "a") as file: file.write(" two")
os.mkdir(at / "private/d"); os.rename(f, at / "private/d/g.md")
g = at / "private/d/g.md"
os.symlink("g.md", at / "private/d/l"); os.truncate(g, 5); os.chmod(g, 0o640); os.utime(g, (1, 1))
fd = os.open(g, os.O_RDONLY)
kept = [os.stat(g).st_mode & 0o777, os.stat(g).st_mtime]
os.unlink(at / "private/d/l"); os.unlink(g)
rest = os.read(fd, 100).decode()
(at / "tell/alice").open("w").write("to myself")
print(json.dumps([rest, kept, os.listdir(at / "private/d"), said(os.link, at / "private/d", at / "x"),
    said(os.mkdir, at / "nope"), said(os.chown, at / "private", 0, 0),
    "to myself" in (at / ":inbox").open("rb", 0).read(9999).decode(),
    os.stat(at).st_uid, said(os.getxattr, at, "user.avm.id")]))
"""


def test_an_ordinary_user_needs_nothing_but_fusermount3(another: Any) -> None:
    """No root, no user_allow_other, no `uid`: alice runs the daemon for herself. What holds of mounts holds here."""
    machine = another("alice", user_allow_other=False)
    machine.mounts({"agent_id": "alice"})
    machine.daemon("start", "--daemon")
    mount = machine.status()["mounts"][0]
    assert (mount["state"], mount["survives"], mount["caching"]) == ("ready", "resume", "epoch")
    found = machine.python("alice", ORDINARY, machine.at("alice"))
    assert found[:3] == ["one t", [0o640, 1.0], []]
    assert found[3] in (errno.EPERM, errno.EACCES) and found[4:7] == [errno.EACCES, errno.EPERM, True]
    assert found[7] == USERS["alice"]
    for user in ("bob", "root"):  # the kernel lets nobody else in, not even root
        assert (
            machine.python(user, "print(json.dumps(said(os.listdir, sys.argv[1])))", machine.at("alice"))
            == errno.EACCES
        )
    # Killed, it goes on; killed as a whole, the next start repairs it, as an ordinary user.
    os.kill(mount["pid"], 9)
    look = "print(json.dumps(said(os.listdir, sys.argv[1])))"
    assert machine.python("alice", look, machine.at("alice")) == ["memory", "private", "shared", "tell"]
    assert machine.status()["isolation"] == "advisory"
    status = machine.status()
    assert status["isolation_reason"] == "the mount of alice has no uid of its own"
    os.kill(status["pid"], 9)
    os.kill(status["holder_pid"], 9)
    machine.daemon("start", "--daemon")
    assert machine.python("alice", look, machine.at("alice")) == ["memory", "private", "shared", "tell"]
    machine.daemon("stop")
    assert machine.python("alice", look, machine.at("alice")) == []


CALL = """
import urllib.request
url, token = sys.argv[1], sys.argv[2]
session = {}
def post(**body):
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
               "Authorization": "Bearer " + token, **session}
    asked = urllib.request.Request(url, json.dumps({"jsonrpc": "2.0", **body}).encode(), headers)
    with urllib.request.urlopen(asked, timeout=200) as reply:
        if "mcp-session-id" in reply.headers:
            session["mcp-session-id"] = reply.headers["mcp-session-id"]
        return [json.loads(line[5:]) for line in reply.read().decode().splitlines() if line.startswith("data:")]
post(id=1, method="initialize", params={"protocolVersion": "2025-06-18", "capabilities": {},
                                        "clientInfo": {"name": "test", "version": "1"}})
post(method="notifications/initialized")
said = post(id=2, method="tools/call", params={"name": "avm_read", "arguments": {"path": sys.argv[3]}})
print(json.dumps(said[-1]["result"]))
"""


def test_each_user_serves_their_own_agent_over_http(machine: Machine) -> None:
    """The data directory is the daemon's user's alone, and so no place for the tokens of others."""
    server = machine.begun(
        "alice", sys.executable, "-m", "avmfs.mcp", "--user", "alice", "--http", "--port", "0", agent="alice"
    )
    try:
        assert server.stderr is not None
        lines = [server.stderr.readline()]
        assert "token in" in lines[0], lines[0] + server.stderr.read()
        file = machine.home("alice") / ".local/share/avm/mcp/alice.token"
        assert lines[0] == f"avm-mcp: token in {file}\n"
        url = server.stderr.readline().split(" on ")[1].strip()
        secret = machine.python("alice", "print(json.dumps(Path(sys.argv[1]).read_text()))", file).strip()
        found = machine.python("alice", CALL, url, secret, "/private/secret.md")
        assert SECRET in json.dumps(found) and not found.get("isError")
        assert machine.python("bob", "print(json.dumps(said(open, sys.argv[1])))", file) == errno.EACCES
    finally:
        server.kill()
        server.communicate(timeout=200)
    refused = machine.told(
        "alice", sys.executable, "-m", "avmfs.mcp", "--user", "bob", "--http", "--port", "0", agent="bob", code=1
    )
    assert "may not speak for 'bob'" in refused
