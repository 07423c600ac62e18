"""Pictures of links: what is drawn of names that anybody chose, what is marked, and what is said without Graphviz."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from pathlib import Path

import pytest

from avmfs.errors import NotSupported
from avmfs.text.sparkline import per_slot, sparkline
from avmfs.views import picture

A, B, ODD = "/memory/a.md", "/memory/b.md", '/memory/"]; x [URL="javascript:1\\'
LINKS = {
    "path": "/memory",
    "nodes": [ODD, A, B],
    "edges": [
        {"source": A, "target": B, "type": "supersedes"},
        {"source": A, "target": ODD, "type": "contradicts"},
        {"source": B, "target": ODD, "type": "</title><script>"},
    ],
}


def test_what_is_disputed_and_what_is_superseded_is_marked_and_names_stay_labels() -> None:
    lines = picture.dot(LINKS, lambda name: f"/note?n={len(name)}").splitlines()
    a, b = (next(line for line in lines if line.startswith(f'"{name}" [')) for name in (A, B))
    assert "#c0392b" in a and "dashed" in b and f'URL="/note?n={len(B)}"' in b
    assert any(line.startswith('"/memory/\\"]; x [URL=\\"javascript:1\\\\"') for line in lines)


def test_a_picture_is_xml_without_anything_that_runs() -> None:
    if not picture.available():
        with pytest.raises(NotSupported, match="graphviz"):
            picture.svg(LINKS)
        return
    drawn = ElementTree.fromstring(picture.svg(LINKS))
    assert {each.tag.rpartition("}")[2] for each in drawn.iter()} <= {"svg", "g", "title", "a", *SHAPES}
    assert not [value for each in drawn.iter() for name, value in each.attrib.items() if "javascript" in value[:12]]
    assert picture.png(LINKS).startswith(b"\x89PNG")


SHAPES = ("path", "polygon", "text", "ellipse", "polyline")


def test_without_graphviz_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotSupported, match="apt-get install graphviz"):
        picture.svg(LINKS)


def test_bars_are_as_high_as_their_numbers() -> None:
    assert sparkline([0, 1, 2, 4, 8]) == "▁▂▃▅█" and sparkline([0, 0]) == "▁▁" and sparkline([]) == ""
    now = datetime(2026, 3, 7, 12, tzinfo=UTC)
    stamps = [
        "2026-03-07T11:59:59+00:00",
        "2026-03-07T12:00:01+00:00",
        "2026-03-07T10:30:00+00:00",
        "2026-03-06T12:00:00+00:00",
    ]
    assert per_slot(stamps, now, 3600, 3) == [0, 1, 2]
