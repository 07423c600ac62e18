"""From text to index terms, the same way for what is stored and for what is asked.

Owns folding, word boundaries and stemming, and which words a question can do without. Called by the store's indexer
(``terms``) and by search (``query_terms``). Must not know scopes: the store puts '<scope>x' before a term and hands it
to FTS5's 'ascii' tokenizer, for which a term must be made of ASCII letters and digits (lower-case) and non-ASCII
alphanumerics alone; tests hold that for every code point. A change here makes existing indexes wrong: raise
``REVISION``.

Threads: any. PyStemmer's object is not thread-safe, so each thread has its own.
"""

from __future__ import annotations

import itertools
import re
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

import Stemmer

from avmfs.lru import FIFO
from avmfs.text import asian_grammar, function_words
from avmfs.text.escapes import visible

REVISION: Final = 2
"""Of the terms that this module makes. With another one goes a step of avmfs.store.schema.migrations, which has what it
changes indexed anew."""

TERM_MAX: Final = 64
"""Characters kept of one term: what is longer is no word (base64, hashes) and would only swell the index."""

QUERY_MAX: Final = 64
"""Terms used of one query; each costs a walk over its postings."""

FEW: Final = 4
"""Terms of a question below which each counts."""

_REMEMBERED: Final = 20_000  # words and their terms, some 3 MB
_REMEMBERED_LENGTH: Final = 24

# Scripts written without spaces, where a word boundary needs a dictionary: overlapping pairs instead (measured
# on XQuAD and CMRC: R@10 .99 where a unicode61 word index reaches .12 to .18).
_UNSPACED: Final = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
    "\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff"  # Hangul
    "\u2e80-\u30ff\u3100-\u31ff\u3400-\u9fff\uf900-\ufaff\U00016fe0-\U00018fff\U0001b000-\U0001b2ff"
    "\U00020000-\U0003ffff]+)"  # Han, Kana, Bopomofo, Tangut
)
QUOTES: Final = 8
_QUOTED_IN: Final = 4000  # characters of a question in which quotes are looked for
_QUOTED: Final = re.compile(
    '"([^"]{2,300})"|“([^“”]{2,300})”|「([^「」]{2,300})」|『([^『』]{2,300})』|«([^«»]{2,300})»'
)
_SYNTAX: Final = re.compile(r"[\"'“”„«»「」『』]|\bNOT\b")
# What is quoted is no syntax, however short or long it is.
_NOT: Final = re.compile(
    r"(?<!\S)NOT\s+(?P<unwanted>" + _QUOTED.pattern + r"|\S+)"
    r'|(?<!\w)"[^"]*"|“[^“”]*”|「[^「」]*」|『[^『』]*』|«[^«»]*»'
)
# INC-2041, CVE-2021-44228; not KW-2024
_IDENTIFIER: Final = re.compile(r"\W*[A-Z]{1,12}(?![-_#/](?:19\d|20[0-2])\d\W*$)(?:[-_#/]\d+)+\W*")
# In the scripts of India a vowel is a mark on a letter, and no word is without them.
_WORD: Final = re.compile(r"(?:[^\W_]|[\u0900-\u0963\u0966-\u0dff])+")
# The stemmer of each script: the first code point, the first that is another script's, and a language of it. Words in
# Latin letters may be of any: the English one leaves most of them alone.
_STEMMED: Final = (
    (0x0370, 0x0400, "greek"),
    (0x0400, 0x0530, "russian"),
    (0x0600, 0x0700, "arabic"),
    (0x0900, 0x0980, "hindi"),
    (0x1F00, 0x2000, "greek"),
)
_LATIN: Final = {ord("ø"): "o", ord("đ"): "d", ord("ħ"): "h", ord("ı"): "i", ord("ł"): "l", ord("ŧ"): "t"}
# Normalisation sorts runs of combining marks by insertion, which is quadratic: pieces bound the run.
_PIECE: Final = re.compile(r"\S{1,512}|\s+")
_JOINERS: Final = frozenset((0x00AD, 0x200C, 0x200D, 0x2060, 0xFEFF))

_STOP: Final = function_words.ENGLISH | function_words.ANYWHERE

_HAN: Final = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# A pair is dropped from a Chinese query only when both halves stand here: each alone is part of real words.
_FUNCTION: Final = frozenset(
    "的了是在和与及或吗呢吧啊呀么什怎哪谁这那其之也都就而被把对于从到以为有个着过多少几何请我你他她它们"
)
# A pair with one of these stands across two words, as a rule: it is found nowhere, or by chance.
_PARTICLES: Final = frozenset("的是了吗呢什么谁哪在のをがは")


class _Fold(dict[int, int | str | None]):
    """A translate() table made on demand: joiners vanish, and marks but those of India's scripts; Latin letters lose
    their diacritics.

    Only Latin ones: taking the mark off a kana makes another letter, Hangul would fall apart, and a stemmer knows those
    of its own script. Remembered for the basic plane alone, so that hostile text cannot grow it without end.
    """

    def __missing__(self, code: int) -> int | str | None:
        folded = self._fold(code)
        if code < 0x10000:
            self[code] = folded
        return folded

    @staticmethod
    def _fold(code: int) -> int | str | None:
        if code in _JOINERS:
            return None
        if 0x00C0 <= code < 0x0250 or 0x1E00 <= code < 0x1F00:
            return _LATIN.get(code) or unicodedata.normalize("NFD", chr(code))[0]
        if 0x0900 <= code < 0x0E00:
            return code
        return None if unicodedata.category(chr(code)).startswith("M") else code


class _Stems(FIFO[str, str]):
    """The terms of words, made on demand: a language has few that are common, and to ask for each costs more than the
    rest of indexing a text. What is too long for a word is not remembered."""

    def __missing__(self, word: str) -> str:
        start = word[:TERM_MAX]
        term = (_stemmer(_language(start)).stemWord(start) or start)[:TERM_MAX]
        if len(word) <= _REMEMBERED_LENGTH:
            self.put(word, term)
        return term


_FOLD: Final = _Fold()
_STEMS: Final = _Stems(_REMEMBERED)
_own = threading.local()


def terms(text: str) -> list[str]:
    """Index terms of ``text``, in its order, with repetitions.

    NFKC and case folding (Unicode's NFKC_Casefold), diacritics of Latin letters off, words at
    non-alphanumerics, Snowball stems of the script (_STEMMED, else English), overlapping pairs in scripts without
    spaces. Each is 1 to TERM_MAX characters. Takes any str and never raises; linear in its length.
    """
    folded = _folded(text)
    if folded.isascii():  # most text
        return list(map(_STEMS.__getitem__, _WORD.findall(folded)))
    return [term for _, term in _words(text)]


def name_terms(name: str) -> list[str]:
    """Distinct index terms of a file's name, in its order, without what stands after the last dot."""
    return list(dict.fromkeys(terms(name.rpartition(".")[0] or name)))


def query_terms(text: str) -> list[str]:
    """Distinct index terms of a query in its order, without English stop words and Chinese function words,
    unless nothing else is there.

    At most QUERY_MAX: of a longer query (a pasted document) the longest terms stay, for they are the rarest;
    a pair of ideographs counts as six letters. Never raises.
    """
    distinct = content_terms(text)
    if len(distinct) <= QUERY_MAX:
        return distinct
    kept = set(sorted(distinct, key=_weight, reverse=True)[:QUERY_MAX])
    return [term for term in distinct if term in kept]


def content_terms(text: str) -> list[str]:
    """Distinct index terms of ``text`` in its order, without function words; all of them, if there are no others. Of a
    pair that is left out because of a particle the ideograph beside it stays, where no other term has it, and there are
    FEW: it may be the noun that is asked for (猫は, 茶的), and in a long question it is as often chance."""
    found = list(_words(text))
    spoken = function_words.spoken(text)
    if "für" in unicodedata.normalize("NFC", text[: function_words.READ]).casefold():
        spoken |= {"fur"}
    grammar, nouns = (frozenset(), ()) if text.isascii() else asian_grammar.pairs(_folded(text))
    kept = [term for word, term in found if not _is_function(word) and word not in spoken and word not in grammar]
    if len(kept) < min(len(found), FEW) and not text.isascii():
        inside = frozenset("".join(kept))
        signs = (each for word, _ in found if not _PARTICLES.isdisjoint(word) for each in _HAN.findall(word))
        kept += [each for each in nouns if each not in inside]
        kept += [each for each in signs if each not in _FUNCTION and each not in _PARTICLES and each not in inside]
    return list(dict.fromkeys(kept or [term for _, term in found]))


def lone(term: str) -> bool:
    """Return whether it is one character of a script without spaces. It is looked for at the beginning of pairs, and
    where a run of them ends (``ends``)."""
    return len(term) == 1 and _UNSPACED.match(term) is not None


def ends(text: str) -> list[str]:
    """Distinct last characters of runs in scripts without spaces: the only ones that begin no pair."""
    if text.isascii() or _UNSPACED.search(text) is None:
        return []
    runs = (run for word in _WORD.findall(_folded(text)) for run in _UNSPACED.findall(word))
    return list(dict.fromkeys(run[-1] for run in runs if len(run) > 1))


def quoted(text: str) -> list[list[str]]:
    """The index terms, in order, of what ``text`` puts in quotation marks; at most QUOTES of two terms or more. A
    single term says nothing that it does not say without them."""
    found = (terms(next(filter(None, inside))) for inside in _QUOTED.findall(text[:_QUOTED_IN]))
    return [one[:QUERY_MAX] for one in itertools.islice((one for one in found if len(one) > 1), QUOTES)]


def identifier(text: str) -> list[str]:
    """The index terms of an identifier of three digits or more, if ``text`` is one and nothing else: as one word, as
    its letters with its first number, and each number."""
    if len(text) > TERM_MAX or not _IDENTIFIER.fullmatch(text):
        return []
    letters, *numbers = _WORD.findall(_folded(text))
    if sum(map(len, numbers)) < 3:
        return []
    return [*terms(f"{letters}{''.join(numbers)} {letters}{numbers[0]}"), *numbers]


def pairs(found: Sequence[str]) -> float:
    """The share, 0 to 1, of terms that come from scripts without spaces."""
    return sum(_UNSPACED.match(term) is not None for term in found) / len(found) if found else 0.0


def one_line(text: str, most: int) -> str:
    """``text`` with runs of white space as one blank, control characters left out, cut to ``most`` characters, and what
    would show as nothing as an escape."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text[: 4 * most]).split())
    return visible(line if len(line) <= most else line[: most - 1].rstrip() + "…")


def only_function_words(text: str) -> bool:
    """Return whether there is nothing in it but words that carry no topic."""
    return all(_is_function(word) for word, _ in _words(text))


def unwanted(text: str) -> tuple[str, list[list[str]]]:
    """``text`` without each NOT in capitals and the word or quotation after it, and their index terms, in order.

    Inside a quotation, and where nothing else stands, NOT is a word like others.
    """
    start = text[:_QUOTED_IN]
    rest = _NOT.sub(lambda found: " " if found["unwanted"] else found[0], start) + text[_QUOTED_IN:]
    if not any(map(str.isalnum, rest)):
        return text, []
    out = (terms(found["unwanted"] or "")[:QUERY_MAX] for found in _NOT.finditer(start))
    return rest, [each for each in out if each][:QUOTES]


def as_question(text: str) -> str:
    """What any text has of words, to be searched for: without what would mean something in a question."""
    return _SYNTAX.sub(lambda found: "not" if found[0] == "NOT" else " ", text)


def _words(text: str) -> Iterator[tuple[str, str]]:
    """(word as written but folded, its term)."""
    for word in _WORD.findall(_folded(text)):
        if word.isascii():
            yield word, _STEMS[word]
            continue
        # re.split with a group alternates: spaced, unspaced, spaced, ...
        for index, part in enumerate(_UNSPACED.split(word)):
            if index % 2 == 0:
                if part:
                    yield part, _STEMS[part]
            elif len(part) == 1:
                yield part, part
            else:
                for at in range(len(part) - 1):
                    yield part[at : at + 2], part[at : at + 2]


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    return "".join(map(_casefolded, _PIECE.findall(text))).translate(_FOLD)


def _casefolded(piece: str) -> str:
    if piece.isascii():
        return piece.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", piece).casefold())


def _is_function(word: str) -> bool:
    if word.isascii():
        return word in _STOP
    return word in _STOP or _FUNCTION.issuperset(word) or (len(word) == 2 and not _PARTICLES.isdisjoint(word))


def _weight(term: str) -> int:
    return 3 * len(term) if _UNSPACED.match(term) else len(term)


def _language(word: str) -> str:
    if not word.isascii():
        for first, stop, language in _STEMMED:
            if first <= ord(word[0]) < stop:
                return language
    return "english"


def _stemmer(language: str) -> Stemmer.Stemmer:
    found: Stemmer.Stemmer | None = getattr(_own, language, None)
    if found is None:
        found = Stemmer.Stemmer(language, 0)  # without a memory of its own
        setattr(_own, language, found)
    return found
