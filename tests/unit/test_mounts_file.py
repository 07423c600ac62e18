"""avm-daemon add and remove: only the entry changes, and nothing that cannot be read is ever written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from avmfs_config import load_mounts
from avmfs_config.editing import EditProblem
from avmfs_daemon.main import cli
from avmfs_daemon.mounts_file import add, remove
from click.testing import CliRunner

COMMENTED = """\
# Who sees the memory.
mounts:   # all of them
  - mountpoint: ~/a/avm   # alice's
    agent_id: alice

  # bob is careful
  - mountpoint: "~/b/avm"
    agent_id: bob
    read_only: true
    # a comment inside

  # carol comes last
  - {mountpoint: ~/c/avm, agent_id: carol}   # short
# the end
"""
SHAPES = {
    "comments": COMMENTED,
    "no indent": "mounts:\n- mountpoint: /m/a\n  agent_id: alice\n- agent_id: bob\n  mountpoint: /m/b",
    "flow": "mounts: [{mountpoint: /m/a, agent_id: alice}, {mountpoint: /m/b, agent_id: bob}]  # both\n",
    "flow lines": "mounts: [\n  {mountpoint: /m/a, agent_id: alice},\n  {mountpoint: /m/b, agent_id: bob},\n]\n",
    "json": '{"mounts": [{"mountpoint": "/m/a", "agent_id": "alice"}, {"mountpoint": "/m/b", "agent_id": "bob"}]}',
    "deep": "mounts:\n   -   mountpoint: /a\n       agent_id: alice\n   -   agent_id: bob\n       mountpoint: '/b'\n",
    "one": "mounts:\n  - mountpoint: /m/a\n    agent_id: alice\n",
    "one flow": "mounts: [{mountpoint: /m/a, agent_id: alice}]",
    "empty": "mounts: []   # nobody yet\n# later\n",
    "nothing": "",
    "only a comment": "# mounts.yaml\n",
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "HOME": str(tmp_path / "home"),
        "AVM_CONFIG_DIR": str(tmp_path / "c"),
        "AVM_DATA_DIR": str(tmp_path / "d"),
        "AVM_RUNTIME_DIR": str(tmp_path / "r"),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "c").mkdir()
    return tmp_path / "c/mounts.yaml"


def agents(path: Path, environ: dict[str, str]) -> list[str]:
    return [mount.agent_id for mount in load_mounts(path, environ)]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_added_is_there_and_gone_again_after_removing(path: Path, environ: dict[str, str], shape: str) -> None:
    path.write_text(SHAPES[shape])
    before = agents(path, environ) if "mounts" in SHAPES[shape].replace("# mounts", "") else []
    mount = add(path, environ, "zoe", "/m/z z: #1", {"read_only": True, "uid": 7})
    assert agents(path, environ) == [*before, "zoe"] and mount.read_only and mount.uid == 7
    assert os.fspath(mount.mountpoint) == "/m/z z: #1"
    for line in SHAPES[shape].splitlines():  # every comment is still there
        _, sign, comment = line.partition("#")
        assert not sign or comment.strip() in path.read_text()
    remove(path, environ, "zoe")
    assert agents(path, environ) == before
    for agent in list(before):
        remove(path, environ, agent)
        before.remove(agent)
        assert agents(path, environ) == before
    add(path, environ, "again", "~/again", {})
    assert agents(path, environ) == ["again"]
    assert os.listdir(path.parent) == ["mounts.yaml"]


def test_the_rest_of_the_file_stays_letter_for_letter(path: Path, environ: dict[str, str]) -> None:
    path.write_text(COMMENTED)
    add(path, environ, "dora", "~/d/avm", {})
    assert path.read_text() == COMMENTED.replace(
        "# the end\n", "  - mountpoint: ~/d/avm\n    agent_id: dora\n# the end\n"
    )
    remove(path, environ, "dora")
    assert path.read_text() == COMMENTED
    remove(path, environ, "alice")
    assert path.read_text() == COMMENTED.replace("  - mountpoint: ~/a/avm   # alice's\n    agent_id: alice\n", "")


@pytest.mark.parametrize(
    ("agent", "mountpoint", "word"),
    [
        ("alice", "/m/x", "already mounted"),
        ("dora", "/m/a", "already used"),
        ("dora", "/m/a/b", "lies inside"),
        ("Dora", "/m/x", "agent_id"),
        ("dora", "relative", "absolute"),
        ("dora", "/", "root"),
        ("dora", "/m/$NOWHERE", "NOWHERE"),
        ("dora", "/m/a\nb", ""),
        ("dora", "/m/\udcff", "UTF-8"),
        ("all", "/m/x", "agent_id"),
    ],
)
def test_what_could_not_be_used_is_never_written(
    path: Path, environ: dict[str, str], agent: str, mountpoint: str, word: str
) -> None:
    text = SHAPES["no indent"]
    path.write_text(text)
    if "\n" in mountpoint:  # a strange name, but a possible one: quoted
        assert "\n" in os.fspath(add(path, environ, agent, mountpoint, {}).mountpoint)
        return
    with pytest.raises(EditProblem, match=word):
        add(path, environ, agent, mountpoint, {})
    assert path.read_text() == text and os.listdir(path.parent) == ["mounts.yaml"]


def test_an_empty_mountpoint_is_not_the_working_directory(
    path: Path, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["add", "alice", "", "--no-reload"], env=environ)
    assert done.exit_code == 1 and "cannot be empty" in done.stderr and not path.exists()


def test_a_file_that_is_broken_already_is_left_alone(path: Path, environ: dict[str, str]) -> None:
    for text in ("mounts: [", "mounts:\n  - {agent_id: alice}\n", "other: 1\n", "mounts:\n", "\x00"):
        path.write_text(text)
        with pytest.raises(EditProblem, match=r"mounts\.yaml"):
            add(path, environ, "dora", "/m/d", {})
        with pytest.raises(EditProblem, match=r"mounts\.yaml"):
            remove(path, environ, "alice")
        assert path.read_text() == text


ADDING = """
import sys
from pathlib import Path
from avmfs_daemon.main import cli
from avmfs_daemon.mounts_file import add, remove
from click.testing import CliRunner
sys.stdin.read()
path, environ, agent = Path(sys.argv[1]), {"HOME": "/home/x"}, sys.argv[2]
add(path, environ, agent, f"/m/{agent}", {})
add(path, environ, f"{agent}x", f"/m/{agent}x", {})
remove(path, environ, f"{agent}x")
"""


def test_of_edits_at_once_none_is_lost(path: Path, environ: dict[str, str]) -> None:
    wanted = [f"agent{number}" for number in range(8)]
    command = [sys.executable, "-c", ADDING, os.fspath(path)]
    running = [subprocess.Popen([*command, agent], stdin=subprocess.PIPE, stderr=subprocess.PIPE) for agent in wanted]
    for each in running:
        assert each.stdin is not None
        each.stdin.close()
    for each in running:
        with each:
            assert each.stderr is not None and each.stderr.read() == b""
        assert each.returncode == 0
    assert sorted(agents(path, environ)) == wanted and os.listdir(path.parent) == ["mounts.yaml"]


def test_a_missing_file_is_made_and_a_link_stays_one(path: Path, environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(EditProblem, match="no such file"):
        remove(path, environ, "alice")
    add(path, environ, "alice", "/m/a", {})
    assert path.read_text() == "mounts:\n  - mountpoint: /m/a\n    agent_id: alice\n"
    real = tmp_path / "dotfiles.yaml"
    path.rename(real)
    real.chmod(0o640)
    path.symlink_to(real)
    add(path, environ, "bob", "/m/b", {})
    assert path.is_symlink() and agents(path, environ) == ["alice", "bob"] and real.stat().st_mode & 0o777 == 0o640
    with pytest.raises(EditProblem, match="no mount of carol; it has alice, bob"):
        remove(path, environ, "carol")
