"""git: a stream for git fast-import, in which every version is a commit of the agent that wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from avmfs.transfer.exporting import Step
from avmfs.transfer.files import output
from avmfs.transfer.formats import writer

_NONE = b"nobody"


@writer("git", "a stream for git fast-import: versions as commits, agents as authors", history=True)
def write(path: Path, steps: Iterator[Step]) -> int:
    """The tree of the last commit is what was exported; symlinks are symlinks, an executable file has its bit."""
    count = 0
    with output(path) as out:
        out.write(b"feature done\nreset refs/heads/main\n\n")
        for step in steps:
            count += 1
            who = _person(step.agent)
            when = b"%d +0000" % (step.at // 10**9)
            said = step.says.encode("utf-8", "replace")
            out.write(b"commit refs/heads/main\n")
            for role in (b"author", b"committer"):
                out.write(b"%s %s <%s@avm> %s\n" % (role, who, who, when))
            out.write(b"data %d\n%s\n" % (len(said), said))
            for gone in step.gone:
                out.write(b"D %s\n" % _quoted(gone))
            for was, now in step.renamed:
                out.write(b"R %s %s\n" % (_quoted(was), _quoted(now)))
            for name, mode, data in step.written:
                out.write(b"M %o inline %s\ndata %d\n%s\n" % (mode, _quoted(name), len(data), data))
            out.write(b"\n")
        out.write(b"done\n")
    return count


def _person(agent: str) -> bytes:
    """A name in which git finds its own signs."""
    return bytes(byte for byte in agent.encode("utf-8", "replace") if byte not in b"<>\n\0").strip() or _NONE


def _quoted(name: str) -> bytes:
    """A path as C writes a string."""
    text = bytearray(b'"')
    for byte in name.encode("utf-8", "surrogateescape"):
        text += b"\\%03o" % byte if byte < 32 or byte in b'"\\' or byte > 126 else bytes([byte])
    return bytes(text + b'"')
