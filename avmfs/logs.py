"""Where a program's log goes: to stderr, a record a line, whatever the names in it are.

Owns the form of log lines. Called once by the main function of each long-lived program. A file's name may have line
ends and control characters; in a log these would be records that nobody wrote.
"""

from __future__ import annotations

import logging
import sys

from avmfs.text.escapes import visible, visible_lines


class _OneLine(logging.Formatter):
    """A message is one line; only a traceback has several."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(super().format(record))


def log_to_stderr(form: str, level: int) -> None:
    """Everything from ``level`` on, in this form (of logging.Formatter), instead of whatever was set up before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(form))
    logging.basicConfig(handlers=[handler], level=level, force=True)
