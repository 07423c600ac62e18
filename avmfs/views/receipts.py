"""An answer, proved: asked again as the memory stood then, and whether the record of who wrote what still holds.

Owns what ``avm verify --replay`` adds to the verdicts of ``verifying``. A receipt is an answer of recall that stands
whole in a text, or the two numbers of its last line, ``SEQ:NONCE``. Called by the door.
"""

from __future__ import annotations

import re
from typing import Any, Final

from avmfs import calls, paths
from avmfs.agents import anchors, auditing
from avmfs.agents.questions import Asked
from avmfs.errors import NotFound
from avmfs.memory import Memory
from avmfs.node import Moment
from avmfs.search.recall import Recall
from avmfs.store.identity import OPERATOR
from avmfs.store.queries.nodes import Reader
from avmfs.store.schema.tables import ROOT
from avmfs.views.verifying import CITED, TO_COME, Verdict, answers, questions_of

RECEIPT: Final = re.compile(r"\s*(\d{1,15}):(\d{6})\s*")
ALL: Final = 200_000  # tokens


def replayed(memory: Memory, text: str, question: str | None) -> list[Verdict]:
    """Of each receipt in the text, then of the audit's chain. ``question``: as for ``verified``."""
    token = RECEIPT.fullmatch(text)
    given = (
        [(int(token[1]), token[2], "")]
        if token
        else [(each.seq, each.nonce, text[each.within.start : each.within.stop]) for each in answers(text)]
    )
    found = [verdict for each in given for verdict in _replayed(memory, *each, question)]
    return [*found, chain(memory)]


def chain(memory: Memory) -> Verdict:
    """Whether the audit is as it was written. Which row is not is for an operator (avm audit verify)."""
    where = memory.around.anchors
    holds = auditing.verify(memory.store, OPERATOR, [] if where is None else anchors.read(where)).ok
    return Verdict("audit chain", None, "holds" if holds else "broken", "" if holds else "avm audit verify --operator")


def _replayed(memory: Memory, seq: int, nonce: str, said: str, question: str | None) -> list[Verdict]:
    """``said``: the answer; "" where only its receipt is at hand."""
    calls.go_on()
    what = f"answer of seq={seq}"
    with memory.store.reading(memory.who) as reader:
        newest = reader.newest_seq()
        if seq > newest:  # a guess would be confirmed in time for a note that is written then
            return [Verdict(what, None, "forged", TO_COME)]
        asked = [*questions_of(memory, seq, nonce, question)]
        if not asked:
            if question is not None:
                return [Verdict(what, None, "forged", "this memory did not give it to you for that question")]
            return [Verdict(what, None, "not replayed", "for that its question is needed")]
        known = [each for each in asked if _answer(each).get("seq") == seq]
        told = f"this memory gave it to you for {asked[0]['q'][:80]!r}"
        proof = [] if said else [Verdict(what, None, "proved", told)]
        try:
            # Changes of what stands aside count in no answer's seq: it is of the state before the next that does.
            following = reader.changes(ROOT, after_seq=seq, limit=1, newest_first=False)
            stood = following[0].seq - 1 if following else newest
            moment = _before_a_ttl_ended(memory, reader) if stood == newest else reader.moment(Moment(stood, 0))
            for then in filter(None, (_answer(each)["then"] for each in known)):
                reader.moment(Moment(then[0], 0))  # is it still kept?
        except NotFound as e:
            return [*proof, Verdict(what, None, "not replayed", e.reason)]
    if said:
        compared = [_judged(memory, moment, each, said) for each in known or asked[:1]]
        state, why = max(compared)  # "replayed", else "not replayed", else "differs"
        if state == "differs" and not known:
            state, why = "not replayed", "how it was asked for is not known"
        return [Verdict(what, None, state, why)]
    again, since = _asked_again(memory, moment, (known or asked)[0], said)
    notes = {scored.hit.path: scored.hit.version for scored in again.hits}
    listed = [_stands(memory, path, version) for path, version in notes.items()]
    told = f"{len(notes)} notes" + ("" if known else " of that question, asked the usual way")
    return [*proof, Verdict(what, None, "not replayed" if since else "replayed", _but(since) or told), *listed]


def _before_a_ttl_ended(memory: Memory, reader: Reader) -> Moment | None:
    """The state of the newest change, where that is not the state of now: a note is gone once its ttl has passed, and
    has its row of the log only when it is put away."""
    for last in reader.changes(ROOT, limit=1):
        then = Moment(reader.newest_seq(), last.at)
        with memory.store.reading_at(memory.who, then) as past:
            return then if past.changed_since(1, "archive", "archive") else None
    return None


def _answer(asked: Asked) -> dict[str, Any]:
    return asked.get("answer") or {}


def _asked_again(memory: Memory, moment: Moment | None, asked: Asked, said: str) -> tuple[Recall, int]:
    """The answer as of then, and how many files of then have changed since, whose words are in no index any more, or
    were put aside, and count for more or less where they stand now."""
    then, since, how = memory, 0, {"cite": "path" if CITED.search(said) else None} | _answer(asked)
    if how.pop("then", None):
        moment = Moment(*_answer(asked)["then"])
    how.pop("seq", None)
    under = paths.split(paths.raw(asked["under"]))
    aside = paths.searched(under, how.get("archive", False))
    if moment is not None:
        then = memory.at(moment)
        with memory.store.reading_at(memory.who, moment) as reader:
            since = reader.changed_since(1000, aside, aside)
    found = then.recall(
        asked["q"],
        max_tokens=asked["max_tokens"],
        min_relevance=asked["min_relevance"],
        strategy=asked["strategy"],
        under=under,
        handed_out=False,
        **how,
    )
    return found, since


def _judged(memory: Memory, moment: Moment | None, asked: Asked, said: str) -> tuple[str, str]:
    later = moment is not None
    state, why = _compared(said, *_asked_again(memory, moment, asked, said), later)
    if state == "differs" and later:  # the index of today has a say in what is relevant, too
        all_there_is = {**asked, "max_tokens": ALL, "min_relevance": 0.0}
        if _compared(said, *_asked_again(memory, moment, all_there_is, said), later)[0] != "differs":
            return "not replayed", "what it quotes stood there, and is less relevant beside what was written since"
    return state, why


def _compared(said: str, again: Recall, since: int, later: bool) -> tuple[str, str]:
    """(state, why). ``later``: something was written since."""
    notes = {paths.printable(scored.hit.path) for scored in again.hits}
    if _body(said) == _body(again.text):
        return "replayed", "the same text"
    cited = {each[3] for each in CITED.finditer(said)}
    if cited and cited <= notes:
        more = len(notes - cited)
        return "replayed", f"the same {len(cited)} notes" + (f", and {more} that it had no room for" if more else "")
    if since:
        return "not replayed", _but(since)
    if later and _quoted(said) <= _quoted(again.text):  # the index of today has a say in order, score and what replaces
        return "not replayed", "it quotes the same, arranged in another way, as what was written since may bring about"
    missing = sorted(cited - notes)
    return (
        "differs",
        f"asked again it does not give {', '.join(missing[:3])}" if missing else "asked again it says else",
    )


def _but(since: int) -> str:
    return (
        f"{since} files of then have changed or were put aside since, and are not searched as they were"
        if since
        else ""
    )


def _body(text: str) -> list[str]:
    """Without what stands above the heading, and the lines that count tokens or name the state."""
    _, heading, rest = text.strip().partition("## Relevant Memory")
    framing = re.compile(r"\((?:\w+ · )?seq=|[> ] \(\d{6} untrusted ends\)$")
    return [line for line in (heading + rest).split("\n")[1:] if not framing.match(line)]


def _quoted(text: str) -> frozenset[str]:
    """The lines of notes without what is said of them, and the days and authors of their headings."""
    found = set()
    for line in _body(text):
        if line.startswith("# "):
            found |= {word for word in line.split()[1:] if word != "in" and not word.startswith("/")}
        elif not line.startswith("#"):
            found.add(re.sub(r"^@\w+ (?:\([^()]*\) )?", "", line).strip())
    return frozenset(found - {""})


def _stands(memory: Memory, path: bytes, version: int) -> Verdict:
    shown = paths.printable(path)
    with memory.reading() as reader:
        try:
            now = reader.document(memory.resolve(reader, path)).head
        except NotFound:
            return Verdict(shown, version, "gone")
    return Verdict(shown, version, *(("stands", "") if now == version else ("changed", f"the newest is {now}")))
