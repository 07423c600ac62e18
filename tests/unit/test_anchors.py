"""The file of anchors: what is written is read, damage is named, and it does not grow for ever."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from avmfs.agents import anchors
from avmfs.errors import Invalid
from avmfs.store.rows.hash_chain import Anchor


def anchor(seq: int) -> Anchor:
    return Anchor(seq, hashlib.sha256(b"%d" % seq).digest(), 1_700_000_000 * 10**9)


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for seq in (1, 5, 9):
            anchors.append(tmp_path / "a", anchor(seq))
    finally:
        os.umask(before)
    assert anchors.read(tmp_path / "a") == [anchor(1), anchor(5), anchor(9)]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert anchors.read(tmp_path / "none") == []


def test_a_line_that_a_crash_has_cut_is_left_out_and_not_continued(tmp_path: Path) -> None:
    anchors.append(tmp_path / "a", anchor(1))
    with open(tmp_path / "a", "a") as torn:
        torn.write("7 abcd")
    assert anchors.read(tmp_path / "a") == [anchor(1)]
    anchors.append(tmp_path / "a", anchor(8))
    assert anchors.read(tmp_path / "a") == [anchor(1), anchor(8)]
    (tmp_path / "a").write_text("9 ab")
    anchors.append(tmp_path / "a", anchor(9))
    assert anchors.read(tmp_path / "a") == [anchor(9)]


def test_a_last_line_whose_beginning_never_reached_the_disk_is_left_out(tmp_path: Path) -> None:
    """The disk writes sectors in any order: zeros stand where one is missing, and the line's end may be there."""
    anchors.append(tmp_path / "a", anchor(1))
    with open(tmp_path / "a", "ab") as torn:
        torn.write(bytes(40) + b"abcd 2023-11-14T22:13:20Z\n")
    assert anchors.read(tmp_path / "a") == [anchor(1)]
    anchors.append(tmp_path / "a", anchor(8))
    assert anchors.read(tmp_path / "a") == [anchor(1), anchor(8)]


def test_a_line_that_the_disk_did_not_take_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync of the next one would return 0 without it."""
    anchors.append(tmp_path / "a", anchor(1))

    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output"):
        patch.setattr(os, "fdatasync", failing)
        anchors.append(tmp_path / "a", anchor(2))
    assert anchors.read(tmp_path / "a") == [anchor(1)]
    anchors.append(tmp_path / "a", anchor(3))
    assert anchors.read(tmp_path / "a") == [anchor(1), anchor(3)]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    anchors.append(tmp_path / "a", anchor(1))
    with open(tmp_path / "a", "a") as damaged:
        damaged.write("7 abcd\n")
    with pytest.raises(Invalid, match="a:2"):
        anchors.read(tmp_path / "a")


def test_an_anchor_is_typed_as_it_is_printed(tmp_path: Path) -> None:
    one = anchor(7)
    assert anchors.parse(anchors.line(one), "x") == one
    assert anchors.parse(f"7:{one.head.hex()}", "x") == Anchor(7, one.head)
    for bad in ("", "7", f"7:{'g' * 64}", f"x:{'a' * 64}", f"7 {'a' * 64} yesterday", f"7:{'a' * 63}"):
        with pytest.raises(Invalid):
            anchors.parse(bad, "x")


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        anchors.append(tmp_path / "a", anchor(1))
    assert not (tmp_path / "elsewhere").exists()


def test_a_long_file_is_thinned_in_its_older_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "THIN_BYTES", 2000)
    for seq in range(1, 200):
        anchors.append(tmp_path / "a", anchor(seq))
    kept = anchors.read(tmp_path / "a")
    assert len(kept) < 40 and kept[-3:] == [anchor(197), anchor(198), anchor(199)]
    assert kept == sorted(kept, key=lambda each: each.seq) and kept[0] == anchor(1)
    assert not (tmp_path / "a.new").exists()
