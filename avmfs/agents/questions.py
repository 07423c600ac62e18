"""The questions that an agent has asked through recall, for replaying them under other settings.

Owns one file per agent beside the database, ``NAME.questions/AGENT.jsonl``, which only the store's owner can open; it
is no part of the store: no view, search, export or backup has it. Kept only where ``search.query_log`` says how many,
of an agent that asks as itself (of no API key, no operator). Called by ``memory`` and by the door. Processes take
turns by a lock on the folder, so that several may note the questions of one agent. A note is not synced: what a crash
of the machine takes of it is not missed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from avmfs_config import SearchSettings

from avmfs import paths
from avmfs.access import Principal

log = logging.getLogger(__name__)

LONGEST: Final = 4096  # characters of a question; a longer one is not kept
SPARE: Final = 8  # the file has at most this share of what is kept more than that, before it is cut

Asked = dict[str, Any]
"""``at`` (ns), ``q``, ``under`` (a path), ``strategy``; ``max_tokens`` and ``min_relevance`` where they were not those
of the settings, else None. And what else made the ``answer``: its ``seq``, ``cite``, ``scores``, ``form``, ``reserve``,
``archive``, and ``then``, the moment of the past that it is of."""


class QuestionLog:
    """The last ``settings.query_log`` questions of each agent of the store ``database``; of 0 nothing is written."""

    def __init__(self, database: Path, settings: SearchSettings) -> None:
        self._folder = database.with_name(f"{database.name}.questions")
        self._usual = settings
        self._kept = settings.query_log
        self._mutex = threading.Lock()
        self._noted: dict[str, int] = {}  # since the file was last cut, by this process

    def note(
        self,
        who: Principal,
        at: int,
        q: str,
        under: tuple[bytes, ...],
        strategy: str,
        max_tokens: int | None,
        min_relevance: float | None,
        answer: Mapping[str, Any] | None = None,
    ) -> None:
        """``answer``: see Asked. Never raises for what the disk says: an answer does not depend on its being noted."""
        if not self._kept or len(q) > LONGEST or who.key is not None or who.operator or who.nameless:
            return
        asked: Asked = {
            "at": at,
            "q": q,
            "under": paths.text(paths.join(under)),
            "strategy": strategy,
            "max_tokens": None if max_tokens == self._usual.max_tokens else max_tokens,
            "min_relevance": None if min_relevance == self._usual.min_relevance else min_relevance,
            "answer": answer,
        }
        try:
            with self._locked():
                self._append(who.name, json.dumps(asked, sort_keys=True))
        except OSError as e:
            log.error("a question of %s is not kept: %s", who.name, e)

    def asked(self, agent: str) -> list[Asked]:
        """The newest first. Those of an earlier time, too, if the log has been turned off since."""
        found = []
        for line in reversed(self._lines(agent)):
            try:
                found.append(json.loads(line))
            except ValueError:
                log.warning("a line of the questions of %s is damaged", agent)
        return found[: self._kept or None]

    def forget(self, agent: str) -> int:
        """Delete them; returns how many there were."""
        count = len(self.asked(agent))
        if count or self._file(agent).exists():
            with self._locked():
                self._file(agent).unlink(missing_ok=True)
        return count

    def forget_about(self, about: Callable[[str], bool]) -> None:
        """Delete those of any agent of which this is true, as others that no longer can be read."""
        if not self._folder.exists():
            return
        with self._locked():
            for file in self._folder.glob("*.jsonl"):
                lines = self._lines(file.stem)
                left = [line for line in lines if (said := _question(line)) is not None and not about(said)]
                if len(left) < len(lines):
                    self._cut(file, left)

    def _append(self, agent: str, line: str) -> None:
        file = self._file(agent)
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "a", encoding="ascii") as appended:
            appended.write(f"{line}\n")
        # A process that notes one question and ends has to look as well.
        self._noted[agent] = self._noted.get(agent, self._kept) + 1
        if self._noted[agent] > max(1, self._kept // SPARE):
            lines = self._lines(agent)
            self._noted[agent] = 0
            if len(lines) > self._kept:
                self._cut(file, lines[-self._kept :])

    def _cut(self, file: Path, lines: list[str]) -> None:
        fresh = file.with_suffix(".new")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as cut:
            cut.writelines(f"{each}\n" for each in lines)
        fresh.replace(file)

    def _lines(self, agent: str) -> list[str]:
        try:
            return self._file(agent).read_text("ascii", "replace").splitlines()
        except FileNotFoundError:
            return []

    def _file(self, agent: str) -> Path:
        return self._folder / f"{agent}.jsonl"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with self._mutex:
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)


def _question(line: str) -> str | None:
    try:
        return str(json.loads(line)["q"])
    except (ValueError, KeyError, TypeError):
        return None
