"""The service's files: systemd takes the unit, a property list is one, and values survive the quoting."""

from __future__ import annotations

import os
import plistlib
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from avmfs_daemon import service
from avmfs_daemon.service import ServiceProblem
from avmfs_daemon.setup import install_service
from click.testing import CliRunner

ODD = "/opt/a b/100% $HOME \"q\" 'p' \\x;#/avm-daemon"


def made(platform: service.Platform, home: Path, command: list[str], **environ: str) -> service.Service:
    return service.make(platform, command, environ, home, home / "log")


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    path = tmp_path / "bin dir" / "avm-daemon"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return [str(path)]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_installed_unit(tmp_path: Path, program: list[str]) -> None:
    values = {"AVM_CONFIG_DIR": "/etc/a b", "AVM_DATA_DIR": '/x/100% "$HOME" \\n', "PATH": "/usr/bin:/bin"}
    found = made("systemd", tmp_path, program, **values)
    assert service.put(found, force=False)
    (tmp_path / "run").mkdir(mode=0o700)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(found.path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_names_this_program_and_this_configuration(tmp_path: Path, program: list[str]) -> None:
    found = made("systemd", tmp_path, program, AVM_CONFIG_DIR="/c", AVM_AGENT="alice", OTHER="x", AVM_DB="")
    assert found.path == tmp_path / ".config/systemd/user/avm-daemon.service"
    lines = found.text.splitlines()
    assert f'ExecStart="{program[0]}" start' in lines and f'ExecReload="{program[0]}" reload' in lines
    assert [line for line in lines if line.startswith("Environment=")] == ['Environment="AVM_CONFIG_DIR=/c"']
    assert {"Type=notify", "WatchdogSec=60", "Restart=on-failure", "WantedBy=default.target"} <= set(lines)
    assert "@" not in found.text and "enable-linger" in found.following
    elsewhere = made("systemd", tmp_path, program, XDG_CONFIG_HOME=str(tmp_path / "x"))
    assert elsewhere.path == tmp_path / "x/systemd/user/avm-daemon.service"


@pytest.mark.parametrize("platform", ["systemd", "launchd"])
def test_nothing_of_who_installs_it_is_in_the_service(
    tmp_path: Path, program: list[str], platform: service.Platform
) -> None:
    """Others can read the file: keys and tokens are secrets, and the daemon is nobody's client."""
    own = {"AVM_AGENT": "alice", "AVM_API_KEY": "avm_secret", "AVM_AT": "https://far", "AVM_CA": "/ca.pem"}
    own |= {"AVM_MCP_TOKEN": "bearer", "AVM_OF_LATER": "unheard of"}
    text = made(platform, tmp_path, program, AVM_CONFIG_DIR="/c", **own).text
    assert "AVM_CONFIG_DIR" in text and not [each for pair in own.items() for each in pair if each in text]


def test_the_machine_s_unit_runs_under_its_own_user_in_the_system_s_places(tmp_path: Path, program: list[str]) -> None:
    evil = {"PATH": f"{tmp_path}:/bin", "PYTHONPATH": str(tmp_path), "AVM_DB": "/root/x", "AVM_AGENT": "alice"}
    found = service.make_system(program, evil, "avmfs")
    assert found.path == Path("/etc/systemd/system/avm-daemon.service") and "@" not in found.text
    lines = found.text.splitlines()
    assert {"User=avmfs", "RuntimeDirectoryMode=0711", "StateDirectoryMode=0700", "UMask=0077"} <= set(lines)
    assert [line for line in lines if line.startswith("Environment=")] == [
        f'Environment="PATH={service.SYSTEM_PATH}"',
        'Environment="AVM_CONFIG_DIR=/etc/avm"',
        'Environment="AVM_DATA_DIR=/var/lib/avm"',
        'Environment="AVM_RUNTIME_DIR=/run/avm"',
    ]
    from_a_checkout = service.make_system(["/usr/bin/python3", "-m", "avmfs_daemon"], evil, "avmfs")
    assert f'Environment="PYTHONPATH={tmp_path}"' in from_a_checkout.text
    assert "NoNewPrivileges=" not in found.text and "Private" not in found.text  # fusermount3 needs its setuid bit
    assert "useradd" in found.following and "user_allow_other" in found.following
    for bad in ("root", "a b", "", "x\n", "-x", "Alice"):
        with pytest.raises(ServiceProblem):
            service.make_system(program, {}, bad)


def test_a_program_that_the_machine_s_user_does_not_get_to_is_refused(
    tmp_path: Path, program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what uv and pipx install for root."""
    (tmp_path / "closed").mkdir(mode=0o700)
    inside = tmp_path / "closed/avm-daemon"
    shutil.copy(program[0], inside)
    monkeypatch.setattr(sys, "argv", [str(inside)])
    done = CliRunner().invoke(install_service, ["--platform", "systemd", "--system", "nobody-yet", "--dry-run"])
    assert done.exit_code == 1 and "nobody-yet cannot get through " in done.output and "/opt" in done.output
    for name, value in {"argv": ["/bin/sh"], "prefix": "/usr", "executable": "/bin/sh"}.items():
        monkeypatch.setattr(sys, name, value)
    service.check_reach(["/bin/sh"], "nobody-yet")


def test_the_daemon_finds_programs_only_where_nobody_else_can_put_them(tmp_path: Path, program: list[str]) -> None:
    for name, mode in (("own", 0o755), ("others", 0o757), ("group", 0o775)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        (tmp_path / name / "fusermount3").write_text("#!/bin/sh\n")
        (tmp_path / name / "fusermount3").chmod(0o755)
    path = f"{tmp_path}/own:{tmp_path}/others:.::{tmp_path}/group:{tmp_path}/none:/usr/bin"
    assert f'"PATH={tmp_path}/own:/usr/bin"' in made("systemd", tmp_path, program, PATH=path).text
    for name in ("others", "group"):
        system = service.make_system(program, {"PATH": f"{tmp_path}/{name}:/bin"}, "avmfs").text
        assert f'"PATH={service.SYSTEM_PATH}"' in system
    system = service.make_system(program, {"PATH": f"{tmp_path}/own:/bin"}, "avmfs").text
    ours = f":{tmp_path}/own" if os.geteuid() == 0 else ""  # as where a system keeps its setuid programs apart
    assert f'"PATH={service.SYSTEM_PATH}{ours}"' in system


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_machine_s_unit(tmp_path: Path, program: list[str]) -> None:
    unit = tmp_path / "avm-daemon.service"
    unit.write_text(service.make_system(program, {"PATH": "/usr/bin:/bin"}, "daemon").text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if str(unit) in line]) == (0, []), done.stderr


def test_odd_names_are_quoted_for_systemd(tmp_path: Path) -> None:
    text = made("systemd", tmp_path, [ODD], AVM_DB=ODD).text
    assert 'ExecStart="/opt/a b/100%% $$HOME \\"q\\" \'p\' \\\\x;#/avm-daemon" start' in text
    assert 'Environment="AVM_DB=/opt/a b/100%% $HOME \\"q\\" \'p\' \\\\x;#/avm-daemon"' in text
    with pytest.raises(ServiceProblem, match="control character"):
        made("systemd", tmp_path, ["/bin/x\nExecStartPost=/bin/evil"])


def test_the_property_list_says_the_same(tmp_path: Path) -> None:
    found = made("launchd", tmp_path, [ODD], AVM_DB="<&>", PATH="/bin")
    assert found.path == tmp_path / "Library/LaunchAgents/org.avmfs.daemon.plist"
    read = plistlib.loads(found.text.encode())
    assert read["ProgramArguments"] == [ODD, "start"]
    assert read["EnvironmentVariables"] == {"AVM_DB": "<&>", "PATH": "/bin"}
    assert read["KeepAlive"] == {"SuccessfulExit": False} and read["RunAtLoad"] is True and read["Umask"] == 0o077
    assert read["StandardErrorPath"] == str(tmp_path / "log") and str(found.path) in found.following


def test_a_name_that_is_relative_to_where_it_is_installed_means_the_same_to_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name, given in {"AVM_DB": "x.db", "AVM_CONFIG_DIR": "./conf", "AVM_DATA_DIR": ""}.items():
        monkeypatch.setenv(name, given)
    done = CliRunner().invoke(install_service, ["--platform", "systemd", "--print"])
    lines = done.output.splitlines()
    assert {f'Environment="AVM_DB={tmp_path}/x.db"', f'Environment="AVM_CONFIG_DIR={tmp_path}/conf"'} <= set(lines)
    assert "AVM_DATA_DIR" not in done.output and done.exit_code == 0


def test_a_database_that_is_a_link_is_named_by_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the store has moved and the link with it, the service and commands go on with the same one."""
    (tmp_path / "current.db").symlink_to(tmp_path / "disk1.db")
    for name, given in {"HOME": str(tmp_path), "AVM_DB": "~/current.db"}.items():
        monkeypatch.setenv(name, given)
    done = CliRunner().invoke(install_service, ["--platform", "systemd", "--print"])
    assert f'Environment="AVM_DB={tmp_path}/current.db"' in done.output.splitlines(), done.output


def test_a_file_of_somebody_else_is_not_replaced_unasked(tmp_path: Path, program: list[str]) -> None:
    found = made("systemd", tmp_path, program)
    assert service.put(found, force=False) and not service.put(found, force=False)
    found.path.write_text(found.text.replace("RestartSec=2", "RestartSec=9"))
    assert service.put(found, force=False)  # still ours
    found.path.write_text("[Unit]\n")
    with pytest.raises(ServiceProblem, match="--force"):
        service.put(found, force=False)
    assert found.path.read_text() == "[Unit]\n"
    assert service.put(found, force=True) and found.path.read_text() == found.text
    assert os.listdir(found.path.parent) == ["avm-daemon.service"]


def test_everybody_may_read_the_file_whatever_who_installs_it_hides(tmp_path: Path, program: list[str]) -> None:
    found = made("systemd", tmp_path, program)
    before = os.umask(0o077)
    try:
        service.put(found, force=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE(found.path.stat().st_mode) == 0o644


def test_the_program_names_itself_so_that_it_is_found_from_anywhere(tmp_path: Path, program: list[str]) -> None:
    assert service.own_command(program[0]) == program
    assert service.own_command("/somewhere/__main__.py")[1:] == ["-P", "-m", "avmfs_daemon"]
