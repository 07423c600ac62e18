"""The generated references are what the programs print; completion and doctor work as processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from avmfs.cli.commands import COMMANDS
from tests import references
from tests.cli.shells import QuickShell, Shell
from tests.mount.mount_world import World


def test_the_reference_has_every_command_as_its_help_prints_it(alone: Shell) -> None:
    text = references.CLI.read_text("utf-8")
    for name in COMMANDS:
        assert f"### `avm {name}`" in text
    said = alone.out("tell", "--help", agent=None)
    _, _, rest = said.partition("\n")  # but for how the program was called
    assert " ".join(rest.split()) in " ".join(text.split())


def test_help_can_be_printed_in_any_encoding(alone: Shell) -> None:
    assert references.cli_page().isascii()
    said = Shell({**alone.environ, "PYTHONIOENCODING": "iso-8859-1"}).out("sync", "--help", agent=None)
    assert "conflict ..." in " ".join(said.split())


@pytest.mark.skipif(shutil.which("man") is None, reason="no man here")
@pytest.mark.parametrize("name", references.PROGRAMS)
def test_man_shows_the_page_without_a_warning(name: str) -> None:
    done = subprocess.run(
        ["man", "--warnings", "-l", str(references.MANUALS / f"{name}.1")],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"},
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "SYNOPSIS" in done.stdout and "--help" in done.stdout


def test_bash_completes_commands_and_options(alone: Shell, tmp_path: Path) -> None:
    script = alone.out("completion", "bash", agent=None)
    (tmp_path / "avm").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "import sys; sys.argv[0] = \'avm\'; '
        f'from avmfs.cli.main import main; main()" "$@"\n'
    )
    (tmp_path / "avm").chmod(0o755)
    ask = r"""
eval "$SCRIPT"
compopt() { echo "${@: -1}"; }
complete_with() {
    COMPREPLY=()
    "$(complete -p avm | sed 's/.*-F \([^ ]*\) .*/\1/')" avm
    printf '%s\n' "${COMPREPLY[@]}"
}
COMP_LINE="avm rec"; COMP_POINT=7; complete_with
COMP_LINE="avm recall --max  x"; COMP_POINT=16; complete_with
COMP_LINE="avm backup "; COMP_POINT=11; complete_with
COMP_LINE="avm --config "; COMP_POINT=13; complete_with
"""
    environ = {**alone.environ, "SCRIPT": script, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "--norc", "-c", ask], env=environ, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["recall", "--max-tokens", "default", "default"], done.stderr
    for shell in ("zsh", "fish"):
        assert "_AVM_COMPLETE" in alone.out("completion", shell, agent=None)
    assert json.loads(alone.out("completion", "fish", "--json", agent=None))["shell"] == "fish"
    assert "csh" in alone.complaint("completion", "csh", code=2, agent=None)


def test_doctor_says_what_there_is_and_what_to_do(alone: Shell) -> None:
    found = {each["about"]: each for each in json.loads(alone.out("--json", "doctor", agent=None))}
    assert found["daemon"]["todo"] == "avm-daemon start --daemon" and found["store"]["state"] == "note"
    assert found["mounts.yaml"]["todo"].startswith("avm init") and found["model"]["state"] == "note"
    config = Path(alone.environ["AVM_CONFIG_DIR"], "config.yaml")
    alone.run("write", "/memory/a.md", "x")
    assert "answers; 0 files wait" in alone.out("doctor") or "files wait for words" in alone.out("doctor")
    data = Path(alone.environ["AVM_DATA_DIR"])
    data.chmod(0o755)
    assert f"chmod 700 {data}" in alone.out("doctor")
    data.chmod(0o700)
    assert "chmod 700" not in alone.out("doctor")
    config.write_text("embedding: {enabled: perhaps}\n")
    done = alone.run("doctor", code=1)
    assert b"PROBLEM  config.yaml" in done.stdout and b"embedding.enabled" in done.stdout
    config.write_text("providers: [{pattern: /live/x, handler: scrpt}]\n")
    assert b"providers[0].handler" in alone.run("doctor", code=1).stdout
    config.write_text("embedding: {path: /nowhere/at/all}\n")
    assert b"/nowhere/at/all" in alone.run("doctor", code=None).stdout
    config.write_text("embedding: {enabled: false}\nsearch: {rerank: {model: /nowhere/at/all}}\n")
    assert b"PROBLEM  re-ranker       no cross-encoder in /nowhere" in alone.run("doctor", code=1).stdout
    config.write_text("embedding: {enabled: false}\n")
    Path(alone.environ["AVM_DATA_DIR"], "avm.db").write_bytes(b"no database" * 1000)
    assert b"PROBLEM  database" in alone.run("doctor", code=1).stdout


def test_doctor_warns_of_a_model_that_does_not_know_the_language(alone: Shell) -> None:
    alone.run("write", "/memory/a.md", "quarterly figures")
    alone.run("write", "/memory/b.md", "中东局势紧张升级，油价上涨，航运受阻")
    config = Path(alone.environ["AVM_CONFIG_DIR"], "config.yaml")
    config.write_text("embedding: {model: all-MiniLM-L6-v2}\n")
    assert (
        b"1 of the 2 files written last are in other scripts; all-MiniLM-L6-v2 knows English only"
        in alone.run("doctor", code=None).stdout
    )
    for settings in ("engine: universal", "model: paraphrase-multilingual-MiniLM-L12-v2", "enabled: false"):
        config.write_text(f"embedding: {{{settings}}}\n")
        assert b"English only" not in alone.run("doctor", code=None).stdout
    config.write_text("embedding: {model: all-MiniLM-L6-v2}\n")
    for name in "cde":
        alone.run("write", f"/memory/{name}.md", "notes of which most are in English")
    assert b"English only" not in alone.run("doctor", code=None).stdout


@pytest.mark.mount
def test_doctor_finds_a_running_daemon_well(world: World) -> None:
    shell = QuickShell({**world.environ, "LC_ALL": "C.UTF-8"}, world.root)
    found = {each["about"]: each for each in json.loads(shell.out("doctor", "--json"))}
    assert found["daemon"]["state"] == found["store"]["state"] == found["mounts.yaml"]["state"] == "ok"
    assert "1 mounts" in found["mounts.yaml"]["says"] and found["/dev/fuse"]["state"] == "ok"
