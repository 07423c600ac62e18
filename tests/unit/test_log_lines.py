"""What the fixtures of the daemon take for a problem in its log."""

from __future__ import annotations

from tests.log_lines import tracebacks, unexpected

LOG = """\
2026-01-01 00:00:00,000 supervisor: INFO mount alice: ready
2026-01-01 00:00:01,000 supervisor: WARNING mount alice (pid 7) ended: killed by SIGKILL
2026-01-01 00:00:02,000 writer: ERROR cannot write
Traceback (most recent call last):
  File "x.py", line 1, in <module>
    1 / 0
ZeroDivisionError: division by zero
2026-01-01 00:00:03,000 keeper: INFO not an ERROR of ours
"""


def test_warnings_errors_and_tracebacks_are_problems_but_for_what_was_expected() -> None:
    warning, error, raised = unexpected(LOG)
    assert "SIGKILL" in warning and "cannot write" in error and raised == "ZeroDivisionError: division by zero"
    assert unexpected(LOG, ["killed by SIGKILL", "cannot write"]) == [raised]
    assert unexpected(LOG, ["SIGKILL", "cannot write", "ZeroDivisionError"]) == []
    assert unexpected(LOG + "Traceback (most recent call last):\n")[-1] == "a traceback without an end"
    late = "2026-01-01 00:00:03,000 keeper: WARNING not known which files are open: the daemon does not answer\n"
    assert unexpected("") == unexpected(late) == []


def test_what_was_raised_is_told_from_what_was_logged() -> None:
    assert tracebacks(LOG) == ["ZeroDivisionError: division by zero"]
    assert tracebacks("2026-01-01 00:00:02,000 writer: ERROR cannot write\n") == []
