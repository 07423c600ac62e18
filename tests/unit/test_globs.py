"""Agents' globs mean what fnmatch means, and cost a path once whatever they are."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avmfs.store.rows import globs
from avmfs.store.rows.events import matches
from avmfs.store.rows.globs import Glob

_PATTERNS = st.text(st.sampled_from("ab*?[]!-/é"), max_size=10)
_PATHS = st.text(st.sampled_from("abc/[]!-é"), max_size=8)


@given(_PATTERNS, _PATHS)
def test_a_glob_means_what_fnmatch_means(pattern: str, path: str) -> None:
    assert Glob(pattern).matches(path) == fnmatch.fnmatchcase(path, pattern)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/" + "?" * 1900 + "*x", "/" + "a" * 4000),
        ("/*" + "?" * 1000 + "x", "/" + "a" * 4000),
        ("/" + "*a?" * 32 + "b", "/" + "a" * 4000),
        ("/" + "*[a-c]" * 32 + "/x", "/" + "abc" * 1300),
    ],
)
def test_each_character_of_a_path_is_looked_at_a_few_times(
    pattern: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    real = globs._Piece._places

    def places(self: object, character: str) -> int:
        nonlocal looked
        looked += 1
        return real(self, character)  # type: ignore[arg-type]

    monkeypatch.setattr(globs._Piece, "_places", places)
    assert Glob(pattern).matches(path) == fnmatch.fnmatchcase(path, pattern)
    assert looked <= 3 * len(path)


def test_a_pattern_of_a_directory_is_about_the_directory_too() -> None:
    assert matches("/memory/a/*", "/memory/a") and matches("/memory/a/*", "/memory/a/b/c")
    assert not matches("/memory/a/*", "/memory/ab") and not matches("/*", "/tell/bob") and matches("/*", "/x")
