"""Whether a question asks for what was true before.

Owns the words that say so. Most of them are words of the present as well: what is run before a merge, backups older
than a month, the original of a logo. So the first verb of what is asked decides (not of "can you tell me"), and where
there is none, or a question such as "what is the old limit", the notes: a word that all those of a matter have is a
word of the matter. Called for the order of notes that say different things (current, linked). Knows no note's time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_READ: Final = 2000  # characters of a question
_SENTENCE: Final = re.compile(r"[.?!;]+\s|\n")
_SURE: Final = re.compile(
    r"\b(?:back then|in the past"
    r"|(?:was|were|did|had|wrote|went)\b.{0,80}\b(?:in|during) (?:the |last )?(?:spring|summer|autumn|fall|winter)"
    r"|(?:wurden?|waren?|hatten?|kam)\b.{0,80}\bim (?:Jan|Feb|März|Apr|Mai|Ju|Aug|Sep|Okt|Nov|Dez|Früh|Som|Her|Wint)\w*"
    r"|(?:hatten?|wollten?)\b.{0,80}\bzuerst"
    r"|damals|bisher|ursprünglich\w*|anfangs|anfänglich\w*|vorherig\w*|ehemalig\w*|auparavant|initialement"
    r"|originalmente|inicialmente|прежн\w+|изначально)\b"
    r"|原来|原先|过去|最初(?![にの])|起初|当初|もともと|元々|昔|かつて|(?:^|[、。\s])前は|원래|예전|옛날|이전(?:에는|의)|قبل|سابق",
    re.IGNORECASE,
)
_ELSEWHERE: Final = re.compile(
    r"\b(?:vorher|zuvor|früher(?! als\b)|antes(?! de \w+[aeií]r)|avant(?! d[e'’]| qu[e'’])|раньше(?! чем)"
    r"|прежде(?! чем))\b"
    r"|(?<![天月年周])(?:以前|之前)",
    re.IGNORECASE,
)
_MUST_ELSEWHERE: Final = re.compile(
    r"\b(?:muss|müssen|soll\w*|darf|dürfen|kann|können|deb[eo]\w*|hay que|tengo que|doi[st]|faut|нужно"
    r"|надо|должен)\b"
    r"|[要需须应该]",
    re.IGNORECASE,
)
_KNOW: Final = r"(?:know|remember|recall|let (?:me|us) know|(?:tell|remind)(?: (?:me|us)|(?= wh| how| if)))"
_FIND: Final = r"(?:say|ask|check|see|find out|look up)(?= wh| how| if| about)"
_BARELY: Final = r"(?:(?:please|kindly|still|just|really|also|here|else|happen to|help me(?: to)?) )*"
# Ahead of an indirect question, which is then as the direct one: "can you tell me", "I need to know"; not "I need to
# know before Monday".
_AHEAD: Final = re.compile(
    r"\b(?:(?:can|could|would|will|may|do|does|must|shall|should) (?:you|we|i|any(?:one|body)|some(?:one|body))"
    rf" {_BARELY}(?:{_KNOW}|have any (?:idea|clue))"
    rf"|(?<!when )(?:can|could|would|will|may) (?:you|we|i|any(?:one|body)|some(?:one|body)) {_BARELY}{_FIND}"
    rf"|(?:i|we) {_BARELY}(?:(?:need|have|would (?:like|love)|(?:am|are) (?:trying|hoping)) to|must|should"
    rf"|(?:can|could|do)(?:n?['’]?t| ?not)) {_BARELY}(?:{_KNOW}|{_FIND})"
    r"|i (?:am|was) (?:wondering|asking|curious|not sure)|is there any (?:idea|clue)|who (?:knows|remembers|recalls)"
    rf"|(?:who can|(?:(?:is it|would it be) possible|is there (?:a|any) way|are you able) to) (?:{_KNOW}|{_FIND})"
    r")\b(?! (?:to(?! wh)|before|prior)\b)",
    re.IGNORECASE,
)
_VERB: Final = re.compile(
    r"\b(?:"
    r"(?P<past>was|were|wasn|weren|did|didn|had|hadn|(?:could|would)(?! (?:you|i)\b)"
    r"|(?:who|what|that|which [\w'’-]+)"
    r" (?:\w+ed|led|made|ran|kept|taught|sent|wrote|held|got|took|came|went|paid|built))"
    r"|(?P<must>must|should|shall|needs?|(?-i:can|may|will)|ha(?:ve|s) to"
    r"|(?:what|where|when|how|whom?|whether|which \w+) to \w+|who (?!was|is|has)\w+s"
    r"|(?:what|which [\w'’-]+) (?:happens|comes|goes|runs|gets|applies|holds))"
    r"|(?P<now>is|are|am|isn|aren|(?:what|who|where|when|how)['’]s|do|does|don|doesn)"
    r")\b|^\W*(?P<asked>can|may|will)\b",
    re.IGNORECASE,
)
_FORMER: Final = re.compile(
    r"\b(?:(?P<before>before|prior to)|(?P<used>used to)"
    r"|(?P<former>older|earlier|(?<!how )(?<!year )(?<!years )(?<!year-)(?<!month )(?<!months )(?<!days )old"
    r"|previous(?:ly)?|former(?:ly)?|original(?:ly)?|initial(?:ly)?|at first|anterior\w*|ancien(?:ne)?s?"
    r"|(?<!Jahre )(?<!Monate )(?<!Wochen )(?<!Tage )(?<!Jahr )(?<!Monat )(?<!Woche )(?<!Tag )(?<!le )alte[mns]?"
    r"|первоначальн\w+"
    r"|first (?:plan\w*|thought|think|idea|announced?|choice|cho[os]en?|picked|meant|going to)"
    r"|prior(?! (?:written )?(?:approval|consent|notice|permission|knowledge|experience|warning)\b))(?! (?:than|to)\b)"
    r")\b",
    re.IGNORECASE,
)
_PLACE: Final = re.compile(r"\b(?:where|how)\b", re.IGNORECASE)
_ENDS: Final = re.compile(r"\W*$")
_EVENT: Final = re.compile(  # before the move, before GlitchTip; not before a merge, before I merge, before Monday
    r" (?:(?:the|our|my|his|her|its|their|that|this|last)\b|(?!I\b|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)[A-Z])"
)
_SUBJECT: Final = re.compile(r"\b(?:wh\w+|how|we|i|you|they|he|she|it|there|that)\b", re.IGNORECASE)


def asks_for_past(q: str, notes: Sequence[str]) -> bool:
    """Return whether a question is about what was before; ``notes``: those of one matter that it could be about."""
    sure, words = _asked(q[:_READ])
    return sure or any(not all(re.search(rf"\b{word}", note, re.IGNORECASE) for note in notes) for word in words)


@lru_cache(256)
def _asked(q: str) -> tuple[bool, frozenset[str]]:
    """Whether it surely is about that; else the words by which it is, unless they are of the matter."""
    words: set[str] = set()
    for sentence in _SENTENCE.split(q):
        if _SURE.search(sentence) or (_ELSEWHERE.search(sentence) and not _MUST_ELSEWHERE.search(sentence)):
            return True, frozenset()
        direct = _AHEAD.sub("", sentence)
        verb = _VERB.search(direct)
        tense = verb.lastgroup if verb is not None else None
        for found in _FORMER.finditer(direct):
            kind, after = found.lastgroup, found.end()
            ends = kind == "before" and _ENDS.match(direct, after) is not None
            if tense == "past" or (ends and tense in (None, "now")):
                return True, frozenset()
            if tense is None and kind == "used" and _SUBJECT.search(direct, 0, found.start()):
                return True, frozenset()
            if kind == "former" and (tense is None or (tense == "now" and not _PLACE.search(direct))):
                words.add(found[0].casefold())
            if kind == "before" and tense is None and _EVENT.match(direct, after):
                words.add(found[0].casefold())
    return False, frozenset(words)
