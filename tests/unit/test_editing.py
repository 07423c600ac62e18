"""Setting one key of config.yaml: what it means afterwards, and that nothing else of the file changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from avmfs_config import Settings, load_settings
from avmfs_config.editing import EditProblem, set_value


def universal(settings: Settings) -> Settings:
    return replace(settings, embedding=replace(settings.embedding, engine="universal"))


def changed(path: Path, text: str | None) -> str:
    if text is not None:
        path.write_text(text)
    set_value(path, {}, "embedding", "engine", "universal", universal)
    assert load_settings(path, {}).embedding.engine == "universal"
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    return path.read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "embedding:\n  engine: universal\n"),
        ("", "embedding:\n  engine: universal\n"),
        ("# only said\n", "# only said\nembedding:\n  engine: universal\n"),
        ("autostart: false", "autostart: false\nembedding:\n  engine: universal\n"),
        (
            "embedding:  # mine\n    # why\n    model: x  # this\nautostart: false\n",
            "embedding:  # mine\n    # why\n    engine: universal\n    model: x  # this\nautostart: false\n",
        ),
        ("embedding:\n  engine: onnx  # fast\n  model: x\n", "embedding:\n  engine: universal  # fast\n  model: x\n"),
        ('embedding: {"engine": "auto", model: x}\n', 'embedding: {"engine": universal, model: x}\n'),
        ("embedding: {model: x}\n", "embedding: {engine: universal, model: x}\n"),
        ("embedding: {}\n", "embedding: {engine: universal}\n"),
    ],
)
def test_the_key_is_set_and_the_rest_of_the_file_stays(tmp_path: Path, before: str | None, after: str) -> None:
    path = tmp_path / "config.yaml"
    assert changed(path, before) == after


@pytest.mark.parametrize(
    "text",
    [
        "{autostart: false}\n",  # all in one pair of braces
        "autostart: false\n...\n",  # what follows the end is another document
        "embedding: &e\n  model: x\nsearch: {max_tokens: 0}\n",  # wrong elsewhere
        "embedding: [",
        "embedding:\nautostart: false\n",  # nothing, where a mapping is due
    ],
)
def test_what_cannot_be_changed_safely_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(EditProblem, match=r"config\.yaml|edit it"):
        set_value(path, {}, "embedding", "engine", "universal", universal)
    assert path.read_text() == text and len(list(tmp_path.iterdir())) == 1


def test_a_link_stays_one_and_the_mode_too(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real = tmp_path / "real/config.yaml"
    real.write_text("autostart: false\n")
    real.chmod(0o600)
    (tmp_path / "config.yaml").symlink_to(real)
    set_value(tmp_path / "config.yaml", {}, "embedding", "engine", "universal", universal)
    assert (tmp_path / "config.yaml").is_symlink() and real.stat().st_mode & 0o777 == 0o600
    assert load_settings(real, {}).embedding.engine == "universal"
