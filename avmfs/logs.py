"""Where a program's log goes: to stderr, a record a line, whatever the names in it are.

Owns the form of log lines. Called by the main function of each long-lived program. A file's name may have line
ends and control characters; in a log these would be records that nobody wrote.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from avmfs.text.escapes import visible, visible_lines


class _OneLine(logging.Formatter):
    """A message is one line; only a traceback has several."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(super().format(record))


class _Json(logging.Formatter):
    """A record is an object of JSON, with its traceback."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        told = {"at": at, "level": record.levelname, "process": self._process, "logger": record.name}
        told["message"] = record.getMessage()
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)  # ASCII: whatever a name has, a line is one record


def log_of_daemon(process: str, *, as_json: bool = False) -> None:
    """What one of the daemon's processes logs, from INFO on."""
    _log(_Json(process) if as_json else _OneLine(f"%(asctime)s {process}: %(levelname)s %(message)s"), logging.INFO)


def log_to_stderr(form: str, level: int) -> None:
    """Everything from ``level`` on, in this form (of logging.Formatter), instead of whatever was set up before."""
    _log(_OneLine(form), level)


def _log(form: logging.Formatter, level: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(form)
    logging.basicConfig(handlers=[handler], level=level, force=True)
