"""Words that change within: *went* is *go*, *children* is *child*, and no stemmer tells; and plurals of Arabic.

Owns the list, English. Called by the store's index when it looks a question's words up: what is stored keeps the word
that was written, so the list may grow without any index being built anew. Left out is what is as often another word
(*lay*, *lives*, *bore*, *wound*, *ground*, *rose*).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from avmfs.text import segment

# A group a line would be four pages. What the stemmer joins by itself (goes, going) is not listed.
_GROUPS: Final = (
    "go went gone;buy bought;take took taken;see saw seen;make made;give gave given;find found;think thought;"
    "feel felt;meet met;tell told;say said;know knew known;come came;become became;begin began begun;"
    "write wrote written;speak spoke spoken;run ran;eat ate eaten;drink drank drunk;drive drove driven;"
    "fly flew flown;grow grew grown;win won;lose lost;leave left;keep kept;sleep slept;spend spent;send sent;"
    "build built;teach taught;catch caught;bring brought;choose chose chosen;break broke broken;wear wore worn;"
    "draw drew drawn;sing sang sung;swim swam swum;sell sold;pay paid;hear heard;hold held;stand stood;"
    "understand understood;sit sat;fall fell fallen;forget forgot forgotten;ride rode ridden;throw threw thrown;"
    "wake woke woken;fight fought;seek sought;lead led;mean meant;deal dealt;freeze froze frozen;hide hid hidden;"
    "shake shook shaken;steal stole stolen;swear swore sworn;tear tore torn;blow blew blown;bite bit bitten;"
    "dig dug;hang hung;shoot shot;stick stuck;strike struck;sweep swept;swing swung;shine shone;sink sank sunk;"
    "spin spun;spring sprang sprung;string strung;weave wove woven;bend bent;lend lent;burn burnt;dream dreamt;"
    "learn learnt;feed fed;flee fled;forgive forgave forgiven;overcome overcame;arise arose arisen;bind bound;"
    "withdraw withdrew withdrawn;undertake undertook undertaken;undergo underwent undergone;rebuild rebuilt;"
    "child children;man men;woman women;foot feet;tooth teeth;goose geese;mouse mice;wife wives;knife knives;"
    "wolf wolves;shelf shelves;thief thieves;half halves;loaf loaves;analysis analyses;crisis crises;"
    "hypothesis hypotheses;index indices;matrix matrices;vertex vertices"
)

_ARABIC: Final = re.compile("[\u0620-\u064a]{3,}\\Z")


def of(term: str) -> tuple[str, ...]:
    """The index terms that stand for the same word as ``term``, itself the first; all that begin with it ("*"), where
    it is one character of a script without spaces."""
    if segment.lone(term):
        return (f"{term}*",)
    return _arabic(term) if _ARABIC.match(term) else _families().get(term, (term,))


def _arabic(term: str) -> tuple[str, ...]:
    """The stemmer leaves the alif of a regular plural unless an article is before it (شهادات, شهادة), and takes a seen
    before that word for the future's (سيارات, سيارة)."""
    if term.endswith("ا"):
        return (term, term[:-1], f"س{term[:-1]}")
    return (term, f"{term}ا", *([f"{term[1:]}ا"] if term.startswith("س") else ()))


@cache
def _families() -> dict[str, tuple[str, ...]]:
    found = {}
    for group in _GROUPS.split(";"):
        stems = dict.fromkeys(segment.terms(group))
        for stem in stems:
            found[stem] = (stem, *(other for other in stems if other != stem))
    return found
