"""What is optional is brought by the program that installed avmfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from avmfs.extras import bring


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("pyvenv.cfg", "", "pip install 'avmfs[index]'"),
        ("pipx_metadata.json", "{}", "pipx inject avmfs 'avmfs[index]'"),
        ("uv-receipt.toml", '[tool]\nrequirements = [{ name = "avmfs" }]\n', "uv tool install 'avmfs[index]'"),
        (
            "uv-receipt.toml",
            '[tool]\nrequirements = [{ name = "avmfs", extras = ["mcp"] }, { name = "numpy", extras = ["x"] }]\n',
            "uv tool install 'avmfs[index,mcp]'",
        ),
    ],
)
def test_an_extra_is_brought_as_avmfs_was(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    assert bring("index", tmp_path) == said
