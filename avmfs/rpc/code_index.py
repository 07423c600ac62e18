"""The method of the door that keeps an index of code. Called through the registry."""

from __future__ import annotations

from typing import Any

from avmfs import paths
from avmfs.errors import Invalid, IsDirectory, NameTooLong, NotDirectory
from avmfs.memory import Memory
from avmfs.rpc.methods import method

AT_ONCE = 500  # of one transaction: others wait meanwhile
_OF_AN_ITEM = (Invalid, IsDirectory, NameTooLong, NotDirectory)


@method
def write_index(memory: Memory, project: str, items: list[Any], private: bool = False) -> list[Any]:
    """Bring notes of a project's index up to date: items with what the store's command takes, ``path`` and ``was`` as
    text below the project. For each None, or why the store refused it."""
    if len(items) > AT_ONCE:
        raise Invalid(f"{len(items)} items: at most {AT_ONCE} at a time")
    memory.enroll()
    made: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("path"), str):
            raise Invalid(f"item {number}: expected a mapping with a path")
        said = {name: value for name, value in item.items() if name not in ("path", "was")}
        for name in ("path", "was"):
            if isinstance(item.get(name), str):
                said[name] = list(paths.split(paths.raw(item[name])))
        made.append(said)
    how = {"project": paths.raw(project), "private": private}
    try:
        memory.submit("write_index", items=made, **how)
        return [None] * len(items)
    except _OF_AN_ITEM:
        pass  # each by itself, then
    answers: list[str | None] = []
    for item in made:
        try:
            memory.submit("write_index", items=[item], **how)
            answers.append(None)
        except _OF_AN_ITEM as e:
            answers.append(e.reason)
    return answers
