"""avm model use, and avm init's question: the engine of the language that notes are in."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.cli.shells import LIMIT_S, Shell


def test_the_engine_is_tried_and_written_and_the_rest_of_the_file_stays(apart: Shell) -> None:
    config = Path(apart.environ["AVM_CONFIG_DIR"], "config.yaml")
    config.write_text("autostart: false\nembedding: {allow_download: false}  # as it is here\n")
    told = apart.out("model", "use", "universal")
    assert "use-multilingual-3" in told and "the next question embeds" in told
    assert config.read_text() == (
        "autostart: false\nembedding: {engine: universal, allow_download: false}  # as it is here\n"
    )
    assert json.loads(apart.out("--json", "model", "use", "universal")) == {
        "engine": "universal",
        "model": "use-multilingual-3",
        "config_file": str(config),
        "reloaded": False,
    }


def test_an_engine_that_cannot_be_used_changes_nothing(apart: Shell, tmp_path: Path) -> None:
    config = Path(apart.environ["AVM_CONFIG_DIR"], "config.yaml")
    for before, complaint, code in (
        (f"embedding: {{path: {tmp_path}}}\n", "cannot load the table", 1),
        ("embedding: {enabled: false}\n", "turned off (embedding.enabled)", 2),
        ("embedding: {engine: perhaps}\n", "embedding.engine", 2),
    ):
        config.write_text(before)
        assert complaint in apart.complaint("model", "use", "static", code=code)
        assert config.read_text() == before


def test_init_asks_at_a_terminal_which_languages_notes_are_in(apart: Shell) -> None:
    folder = Path(apart.environ["AVM_CONFIG_DIR"])
    for answer, engine in ((b"y\n", True), (b"\n", False)):
        for file in ("mounts.yaml", "config.yaml"):
            (folder / file).unlink(missing_ok=True)
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-m", "avmfs.cli", "init"],
            env=apart.environ,
            stdin=theirs,
            stderr=theirs,
            stdout=subprocess.PIPE,
        ) as process:
            os.write(ours, answer)
            out, _ = process.communicate(timeout=LIMIT_S)
        asked = os.read(ours, 1000)
        os.close(ours)
        os.close(theirs)
        assert process.returncode == 0 and b"other languages than English?" in asked, (out, asked)
        assert ("\n  engine: universal" in (folder / "config.yaml").read_text()) == engine
    assert "avm model use" in apart.complaint("init", "--force", "--multilingual", code=1)
    (folder / "config.yaml").unlink()
    apart.run("init", "--force", "--multilingual")
    assert "\n  engine: universal" in (folder / "config.yaml").read_text()
    assert "ok" in apart.out("config", "check")
