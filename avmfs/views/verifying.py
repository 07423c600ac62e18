"""What a text cites, checked like links. Owns :verify (docs/FORMATS.md).

A citation is `[/path@VERSION]`, as recalls with `cite=path` and bundles have it, with a handle before it or not. Where
an answer stands whole, from its heading to the line with its seq, it is a receipt: what it quotes must stand in that
version, and for the question that was asked its nonce shows that this store gave it to this agent. What the asker
cannot see is not there, as ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from avmfs import calls, paths
from avmfs.agents.questions import Asked
from avmfs.errors import Invalid, NameTooLong, NotDirectory, NotFound
from avmfs.memory import Memory
from avmfs.node import DISPUTES, Link, Node
from avmfs.search.excerpts import one_line
from avmfs.search.forms import closing
from avmfs.store.queries.nodes import Reader
from avmfs.text import sniff
from avmfs.text.escapes import visible
from avmfs.views.registry import Context, view
from avmfs.views.shape import lines, parts, whole

CITATIONS: Final = 1000  # of one text
LARGEST: Final = 1024 * 1024  # characters of one
SHOWN: Final = 80  # characters of what is misquoted
COMPARED: Final = 16 * 1024 * 1024  # bytes of the versions that a text quotes
# Neither can be made to look at a text more than once. Within a path "[/" begins another citation, but where a line
# begins with a handle as an item of an answer does: directories may be named so.
CITED: Final = re.compile(
    r"(^(?=@))?(?:@([a-z2-7]{4,32}) (?:\([^()\n]*\) )?)?\[(/(?:(?(1)[^\]\n]|(?!\[/)[^\n]))*?)@(\d{1,15})\]",
    re.MULTILINE,
)
_FRAME: Final = re.compile(
    r"^(?:## Relevant Memory \([^()\n]*\)(?: \w+)? (\d{6})|\((?:\w+ · )?seq=(\d{1,15}) (\d{6})\))$", re.MULTILINE
)
_QUOTED: Final = re.compile(r" (.*(?:\n  .*)*)")
_DAY: Final = re.compile(r"\d{1,2}(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)(?:\d\d)? ")
STANDS: Final = "stands"
TO_COME: Final = "it names a state that is yet to come"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a citation or, without a ``version``, of an answer, whose seq stands in ``what``."""

    what: str
    version: int | None
    state: str
    about: str = ""

    @property
    def good(self) -> bool:
        return self.state in (STANDS, "proved", "not proved", "replayed", "not replayed", "holds")

    def __str__(self) -> str:
        cited = self.what if self.version is None else f"{self.what}@{self.version}"
        return f"{self.state}  {cited}" + (f"  {self.about}" if self.about else "")


@view(
    "verify",
    "file",
    summary="what it cites as [/path@VERSION]: whether that stands, was changed, is gone",
    shows_bytes=True,
)
def verify(ctx: Context, *, q: str | None = None) -> str:
    with ctx.memory.reading() as reader:
        data = whole(reader, reader.node(ctx.node.id))
    text = sniff.decode(data)
    # One odd byte must not hide what the rest cites.
    text = data.decode("utf-8", "replace") if text is None else text
    return lines(map(str, verified(ctx.memory, text, q)), "no citations")


def verified(memory: Memory, text: str, question: str | None) -> list[Verdict]:
    """Of each answer in it, then of each citation, in order. ``question``: what the answers are answers to. Raises
    Invalid for a text that is too long or cites too much."""
    if len(text) > LARGEST:
        raise Invalid(f"a text of {len(text)} characters: at most {LARGEST} are looked through")
    with memory.reading() as reader:
        newest = reader.newest_seq()
        given = answers(text)
        found = [_answer(memory, each, newest, question) for each in given]
        then = _Then(reader)
        for number, cited in enumerate(CITED.finditer(text)):
            calls.go_on()
            if number == CITATIONS:
                raise Invalid(f"more than {CITATIONS} citations")
            # An item of an answer begins its line; one whose handle was taken away still quotes.
            answer = next((each for each in given if cited.start() in each.within), None)
            quoted = _QUOTED.match(text, cited.end()) if answer and text[cited.start() - 1] == "\n" else None
            said = quoted[1].removesuffix(closing(answer.nonce, "untrusted")) if quoted and answer else ""
            found.append(_citation(memory, reader, cited, said, then))
    return found


@dataclass(frozen=True, slots=True)
class _Answer:
    within: range
    seq: int
    nonce: str


def answers(text: str) -> list[_Answer]:
    found: list[_Answer] = []
    begun: dict[str, int] = {}
    for each in _FRAME.finditer(text):
        if each[1]:
            begun.setdefault(each[1], each.start())
        elif (start := begun.pop(each[3], None)) is not None:
            found.append(_Answer(range(start, each.end()), int(each[2]), each[3]))
    if len(found) > CITATIONS:
        raise Invalid(f"more than {CITATIONS} answers")
    return found


def _answer(memory: Memory, given: _Answer, newest: int, question: str | None) -> Verdict:
    what = f"answer of seq={given.seq}"
    if given.seq > newest:
        return Verdict(what, None, "forged", TO_COME)
    asked = next(questions_of(memory, given.seq, given.nonce, question), None)
    if asked is None and question is None:
        return Verdict(what, None, "not proved", "for that its question is needed")
    if asked is not None:
        known = "that question" if question is not None else repr(asked["q"][:SHOWN])
        return Verdict(what, None, "proved", f"this memory gave it to you for {known}")
    return Verdict(what, None, "forged", "this memory did not give it to you for that question")


def questions_of(memory: Memory, seq: int, nonce: str, question: str | None) -> Iterator[Asked]:
    """How an answer may have been asked for (agents.questions): as the agent's log has it, which knows those that
    nobody names, too; then ``question`` the usual way. Only those that the nonce is of."""
    log, who = memory.around.questions, memory.who
    kept = log.asked(who.name) if log is not None and who.key is None and not who.operator and who.name else []
    usual: Asked = {"under": "/", "strategy": "balanced", "max_tokens": None, "min_relevance": None}
    known = [each for each in kept if question in (None, each["q"])]
    for each in (*known, *([{**usual, "q": question}] if question is not None else [])):
        calls.go_on()
        if memory.store.nonce(who, seq, each["q"]) == nonce:
            yield each


def _citation(memory: Memory, reader: Reader, cited: re.Match[str], quoted: str, then: _Then) -> Verdict:
    handle, path, version = cited[2], cited[3], int(cited[4])

    def says(state: str, about: str = "") -> Verdict:
        return Verdict(visible(path), version, state, about)

    node = _node(memory, reader, handle, path)
    if node is None or node.document is None:
        return says("gone")
    document = reader.document(node)
    size = next((each.size for each in reader.versions(node.document) if each.number == version), None)
    if size is None:
        return says("never", f"there is no such version: the newest is {document.head}")
    compared = not quoted or then.read(node.document, version, size)
    if quoted and (text := then.texts.get((node.document, version))) is not None:
        wrong = next((each for each in _fragments(quoted) if each not in text), None)
        if wrong is not None:
            return says("misquoted", f"it does not say: {visible(wrong[:SHOWN])}")
    if version != document.head:
        return says("changed", f"the newest is {document.head}")
    if by := superseding(reader.links(node.document, told=True)):
        return says("superseded", f"by {paths.printable(by[0])}")
    if not compared:
        return says("not compared", f"more than {COMPARED // 1024**2} MiB are quoted from")
    here = reader.path(node.id)
    return says(STANDS, f"now {paths.printable(here)}" if paths.printable(here) != path else "")


def _node(memory: Memory, reader: Reader, handle: str | None, path: str) -> Node | None:
    """What is cited: by its handle, where one is given, else by its path."""
    if handle is not None:
        return reader.by_handle(handle)
    try:
        return memory.resolve(reader, path)
    except (NotFound, NotDirectory, Invalid, NameTooLong):
        return None


def superseding(links: Iterable[Link]) -> list[bytes]:
    """Paths of what supersedes the file whose links these are: what was put aside says nothing of it any more, as in
    a recall."""
    found = (link.path for link in links if link.type == DISPUTES[0] and not link.outgoing)
    return [path for path in found if not paths.aside(parts(path))]


class _Then:
    """The texts of versions as answers would quote them, in one line each, None where one is no longer kept: each read
    once, of COMPARED bytes in all."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._room = reader, COMPARED
        self.texts: dict[tuple[int, int], str | None] = {}

    def read(self, document: int, version: int, size: int) -> bool:
        """Return whether there was room for it."""
        if (document, version) in self.texts:
            return True
        if size > self._room:
            return False
        self._room -= size
        try:
            text = sniff.decode(self._reader.version_bytes(document, version))
        except Invalid:
            text = None
        self.texts[document, version] = None if text is None else one_line(text)
        return True


def _fragments(quoted: str) -> Iterator[str]:
    """What stands in one piece in the note. A day before it is the answer's."""
    day = _DAY.match(quoted)
    for line in re.split("[\n…]", quoted[day.end() if day else 0 :]):
        calls.go_on()
        if said := one_line(line):
            yield said
