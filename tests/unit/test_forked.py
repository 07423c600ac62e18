"""What tests fork instead of starting an interpreter ends and speaks as that would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

JSON = "json.tool"


@pytest.mark.parametrize(
    ("arguments", "data"),
    [
        (["--indent", "1"], b'{"a": [1, 2]}'),
        ([], b"no json"),  # ends with a message
        (["--what"], b""),  # ends with a number
        (["--help"], b""),
        (["a.json", "b.json"], b""),
        (["missing.json"], b""),
    ],
)
def test_a_forked_program_is_what_an_interpreter_runs(tmp_path: Path, arguments: list[str], data: bytes) -> None:
    (tmp_path / "a.json").write_text("[1]")
    environ = {**os.environ, "COLUMNS": "70"}
    right = subprocess.run(
        [sys.executable, "-m", JSON, *arguments], env=environ, cwd=tmp_path, input=data, capture_output=True
    )
    (made := tmp_path / "b.json").exists() and made.unlink()
    found = forked.run(JSON, arguments, environ, tmp_path, data)
    assert (found.returncode, found.stdout) == (right.returncode, right.stdout)
    assert found.stderr.splitlines()[-1:] == right.stderr.splitlines()[-1:]
    assert made.exists() == (arguments[:1] == ["a.json"])


def test_a_forked_program_that_is_killed_says_by_what(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with open(reading) as stdin, open(writing, "w"), open(tmp_path / "said", "w") as said:
        process = forked.start(JSON, [], files=(stdin.fileno(), said.fileno(), said.fileno()))
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.kill()
        assert process.wait(300) == process.poll() == -signal.SIGKILL
        process.terminate()  # which has nobody to reach


def test_a_forked_program_has_what_is_passed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('"passed"')
    with open(tmp_path / "in.json") as passed, open(os.devnull, "r+b") as null, open(tmp_path / "said", "w+") as said:
        files = (null.fileno(), said.fileno(), said.fileno())
        process = forked.start(JSON, [f"/dev/fd/{passed.fileno()}"], files=files, passed=[passed.fileno()])
        assert process.wait(300) == 0
        assert (tmp_path / "said").read_text() == '"passed"\n'
        process = forked.start(JSON, [f"/dev/fd/{passed.fileno()}"], files=files)
        assert process.wait(300) != 0
