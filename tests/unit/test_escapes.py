"""What is escaped where text that others chose is shown, and that nothing is lost by it."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import unicodedata

import pytest
from avmfs_daemon.status_text import status_text
from hypothesis import given
from hypothesis import strategies as st

from avmfs.errors import NotFound, from_wire
from avmfs.logs import log_to_stderr
from avmfs.text.escapes import escaped, json_safe, visible, visible_lines

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
# Of other categories, but fonts show them as nothing.
BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180f\u2065\u3164\ufe0f\uffa0\ufff0\U000e0000\U000e0100\U000e0fff"
WORKING = (
    "می\u200cخواهم",  # Persian
    "ක\u0dca\u200dර",  # Sinhala
    "👩\u200d👩\u200d👧",
    "❤\ufe0f\u200d🔥",
    "1\ufe0f\u20e3",
    "©\ufe0f",
    "葛\U000e0100城",  # the variant of a name's character
    "ᠮᠣ\u180bᠩ",
)


def test_every_character_that_unicode_calls_control_format_surrogate_private_or_separator_is_escaped() -> None:
    hidden = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in HIDDEN]
    assert len(hidden) > 139_000
    for sign in (*hidden, *BLANK):
        assert escaped(sign).startswith("\\") and escaped(sign).isascii(), hex(ord(sign))
        assert visible(sign) == (sign if sign == "\t" else escaped(sign)), hex(ord(sign))
        assert visible_lines(sign) == (sign if sign in "\t\n" else escaped(sign)), hex(ord(sign))


def test_letters_marks_digits_and_emoji_of_all_scripts_stand_as_they_are() -> None:
    for code in range(sys.maxunicode + 1):
        sign = chr(code)
        selector = 0x180B <= code <= 0x180F or 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
        seen = unicodedata.category(sign)[0] in "LMNPSZ" and sign not in (*BLANK, "\\", "\u2028", "\u2029")
        assert not seen or selector or escaped(sign) == sign, hex(code)


@pytest.mark.parametrize("word", WORKING)
def test_a_joiner_or_selector_stays_where_it_does_work(word: str) -> None:
    assert escaped(word) == visible(word) == word


@pytest.mark.parametrize(
    "hiding",
    ["a\u200db.md", "\u200cx", "x\u200c", "م\u200c.md", "a\ufe0f", "❤\ufe0f\ufe0e", "\ufe0f", "م\u200c\u200cم"],
)
def test_a_joiner_or_selector_that_could_only_hide_is_an_escape(hiding: str) -> None:
    assert escaped(hiding) != hiding and all(unicodedata.category(c) not in HIDDEN for c in escaped(hiding[-2:]))


_ESCAPE = re.compile(r"\\(?:([\\nrt])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def unescaped(text: str) -> str:
    """The name that escaped() shows."""

    def meant(found: re.Match[str]) -> str:
        short, byte, *codes = found.groups()
        if short is not None:
            return {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}[short]
        if byte is not None:
            code = int(byte, 16)
            return chr(code if code < 0x80 else 0xDC00 + code)
        return chr(int(codes[0] or codes[1], 16))

    return _ESCAPE.sub(meant, text)


@given(st.text(st.characters(), max_size=40), st.text(st.characters(), max_size=5))
def test_a_name_can_be_had_back_and_no_two_names_look_alike(name: str, other: str) -> None:
    shown = escaped(name)
    assert unescaped(shown) == name
    assert "\n" not in shown and len(shown.splitlines()) <= 1
    assert (shown == escaped(other)) == (name == other)


@given(st.binary(max_size=40))
def test_a_name_of_any_bytes_can_be_had_back(name: bytes) -> None:
    assert os.fsencode(unescaped(escaped(os.fsdecode(name)))) == name


@given(st.text(st.characters(), max_size=60))
def test_prose_that_was_made_visible_stays_as_it_is(text: str) -> None:
    assert visible(visible(text)) == visible(text) and "\n" not in visible(text)
    assert visible_lines(visible_lines(text)) == visible_lines(text)
    assert visible_lines(text).count("\n") == text.count("\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "ksh"])
def test_a_shell_reads_a_name_back(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    name = "a\n\r\t\x1b[31m\x01\x7f\\n\\\\ \u202egnp.md\u2028\U000e0041 日本 \udcff\udc80"
    done = subprocess.run(
        [shell, "-c", f"printf %s $'{escaped(name)}'"],
        capture_output=True,
        check=True,
        timeout=200,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert os.fsdecode(done.stdout) == name


TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF))


@given(st.recursive(TEXT, lambda v: st.lists(v, max_size=3)))
def test_json_has_nothing_that_hides_and_is_what_it_was(value: object) -> None:
    said = json_safe(value)
    assert json.loads(said) == value
    assert said == visible(said) and said.encode("utf-8", "strict")


def test_a_record_of_the_log_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.root.handlers[:], logging.root.level
    try:
        log_to_stderr("avm: %(levelname)s %(message)s", logging.INFO)
        try:
            raise OSError(5, "read", "a\x1b[2Jb")
        except OSError:
            logging.getLogger("test").exception("%s: broken", "a\n2026-01-01 supervisor: INFO forged\u202e")
    finally:
        logging.root.handlers[:], logging.root.level = before
    first, *trace = capsys.readouterr().err.splitlines()
    assert first == r"avm: ERROR a\n2026-01-01 supervisor: INFO forged\u202e: broken"
    assert trace[0].startswith("Traceback") and not any("\x1b" in line for line in trace)


def test_an_error_says_a_name_escaped_and_has_it_as_it_is() -> None:
    error = NotFound("no \u202etxt.exe here", "/memory/a\nb\\c")
    assert str(error) == r"/memory/a\nb\\c: no \u202etxt.exe here"
    assert error.filename == "/memory/a\nb\\c"
    again = from_wire(error.code, error.reason, error.filename)
    assert str(again) == str(error) and again.filename == error.filename


def test_the_status_of_a_daemon_is_the_lines_that_it_has() -> None:
    forged = "/home/a\nstore      /etc/passwd\x1b[2J"
    mount = {
        "agent_id": "a",
        "state": "serving",
        "pid": 1,
        "restarts": 0,
        "since": 0,
        "unread": 0,
        "mountpoint": forged,
        "error": forged,
    }
    said = status_text(
        {
            "version": "1",
            "pid": 1,
            "isolation": "advisory",
            "mounts": [mount],
            "embedding": {"state": "off", "model": None, "reason": forged},
            "store": {"path": forged, "error": forged},
        }
    )
    assert said == visible_lines(said) and sum(line.startswith("store") for line in said.split("\n")) == 1
