"""server-memory: the memory.json of the MCP reference server, a line of JSON for each entity and relation. An entity
becomes a note, its type a tag, a relation a link of the note that it starts at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from avmfs.transfer.formats import reader
from avmfs.transfer.notes import kind_of, slug, tags_of, text_of
from avmfs.transfer.record import Record, Refusal


@reader("server-memory", "memory.json of the MCP memory server: entities, relations")
def read(path: Path) -> Iterator[Record | Refusal]:
    """A relation from what is no entity is refused, since there is no note to have it."""
    at = path.stat().st_mtime_ns
    entities: dict[str, dict[str, Any]] = {}
    relations: list[tuple[str, dict[str, Any]]] = []
    for place, said in _lines(path):
        if isinstance(said, Refusal):
            yield said
        elif said.get("type") == "entity" and isinstance(said.get("name"), str) and said["name"].strip():
            if said["name"] in entities:
                yield Refusal(place, f"the entity {said['name']!r} is there twice")
            else:
                entities[said["name"]] = said
        elif said.get("type") == "relation" and all(isinstance(said.get(key), str) for key in ("from", "to")):
            relations.append((place, said))
        else:
            yield Refusal(place, "neither an entity with a name nor a relation")
    files: dict[str, str] = {}
    for name in entities:
        stem, number = slug(name, "entity"), 1
        while (file := f"{stem}{'' if number == 1 else f'-{number}'}.md") in files.values():
            number += 1
        files[name] = file
    links: dict[str, list[tuple[str, str]]] = {}
    for place, said in relations:
        if said["from"] not in files or said["to"] not in files or said["from"] == said["to"]:
            yield Refusal(place, f"a relation from {said['from']!r} to {said['to']!r}: not between two entities")
        else:
            kind = kind_of(str(said.get("relationType", "related")))
            links.setdefault(said["from"], []).append((files[said["to"]], kind))
    for name, said in entities.items():
        observations = said.get("observations")
        told = [text_of(each) for each in observations] if isinstance(observations, list) else []
        text = f"# {text_of(name)}\n" + ("\n" if told else "") + "".join(f"- {each}\n" for each in told)
        yield Record(
            files[name],
            text.encode(),
            created=at,
            updated=at,
            tags=tags_of([str(said.get("entityType") or "")]),
            links=tuple(dict.fromkeys(links.get(name, ()))),
            meta={"title": text_of(name)},
            source=f"server-memory:{text_of(name)}",
            folder=path,
            place=f"entity {name!r}",
        )


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, object), or a Refusal for the object. A file that is one object with two lists is read as well."""
    data = path.read_bytes().decode("utf-8-sig", "replace")
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict) and {"entities", "relations"} & whole.keys():
        for key, kind in (("entities", "entity"), ("relations", "relation")):
            listed = whole.get(key) or []
            if not isinstance(listed, list):
                yield f"{path.name}: {key}", Refusal(f"{path.name}: {key}", "no list")
                continue
            for number, each in enumerate(listed, 1):
                place = f"{path.name}: {key} {number}"
                yield place, {**each, "type": kind} if isinstance(each, dict) else Refusal(place, "no object")
        return
    for number, line in enumerate(data.split("\n"), 1):
        if line.strip():
            place = f"{path.name}:{number}"
            try:
                said = json.loads(line)
            except (ValueError, RecursionError) as e:
                said = Refusal(place, f"no JSON: {e}")
            yield place, said if isinstance(said, dict | Refusal) else Refusal(place, "no object")
