"""The Python API: the index of code. A base of ``AVM``, which has the door; parsing happens in this process."""

from __future__ import annotations

import builtins
import os
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from avmfs.codeindex import finding, scanning
from avmfs.codeindex.modules import Place
from avmfs.rpc.client import Door


class CodeIndex:
    """A symbol is {"name", "kind", "line", "signature", "doc", "project", "source", "path", "calls"}: ``source`` is the
    file in the project, ``path`` its note below /index."""

    @property
    @abstractmethod
    def _door(self) -> Door: ...

    def index_scan(
        self, project: str, root: str | os.PathLike[str] | None = None, *, private: bool = False
    ) -> dict[str, Any]:
        """Index the code below ``root`` (None: where it was), or what has changed in it: files, symbols, added,
        changed, moved, removed, left_out by reason, and more. ``private``: for this agent alone. Raises Denied where
        the project is another agent's, Invalid without the parsers (avmfs[index])."""
        return scanning.scan(self._door, project, root, private=private).plain()

    def index_status(self, project: str | None = None) -> dict[str, Any]:
        """Of a project what its index has, and what has changed since; None: {"projects"}, all that are known."""
        if project is None:
            return {"projects": scanning.projects(self._door)}
        return scanning.status(self._door, project)

    def index_sigs(self, project: str, pattern: str = "", *, kind: str = "") -> builtins.list[dict[str, Any]]:
        """Symbols by file and line. ``pattern``: a file, a folder, a glob of either, or a symbol's name."""
        return _plain(finding.sigs(self._door, project, pattern, kind=kind))

    def index_find(self, question: str, project: str | None = None, *, limit: int = 5) -> builtins.list[dict[str, Any]]:
        """The symbols that answer a question best, or have a name, best first."""
        return _plain(finding.find(self._door, question, project, limit))

    def index_callers(self, name: str, project: str | None = None) -> builtins.list[dict[str, Any]]:
        """Symbols that call something of this name: by names alone, which of several is meant is not known."""
        return _plain(finding.callers(self._door, name, project))

    def index_callees(self, name: str, project: str | None = None) -> builtins.list[dict[str, Any]]:
        """Symbols of this name, whose ``calls`` are the names that they call."""
        return _plain(finding.callees(self._door, name, project))

    def index_drop(self, project: str, *, private: bool = False) -> int:
        """Take a project's index away; returns how many notes went."""
        return scanning.drop(self._door, project, private=private)


def _plain(found: Iterable[Place]) -> builtins.list[dict[str, Any]]:
    return [each.plain() for each in found]
