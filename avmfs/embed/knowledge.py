"""Whether a model knows the words of a text, by its vocabulary: who does not know a language must not judge in it.

Owns the measure and what it does to vectors. Called by the engines whose vocabulary is of one language; loads nothing.
A word that a vocabulary has as a whole was met often in what the model has read; the pieces of others ("##nz", "##rt")
have little to say. German, Chinese or letters struck at random give an English model vectors all the same, and those
are near to one short text or another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from avmfs.text import function_words

ONE_LANGUAGE: Final = 60_000
"""Pieces above which a vocabulary is of many languages: then nothing is held against a text."""
READ: Final = 64
"""Words of a text that are looked at."""
SHORT: Final = 4
"""Letters below which an ASCII word tells nothing, unless all words are so: "die", "was" and "des" are English too."""

PIECE: Final = 5
"""Letters of a piece that is as good as a word: "##viction", "kafka"; those of chance have two or three."""

ASKED: Final = (0.15, 0.35)
"""Share of letters up to which a question is not known, and from which it is. Of English questions, names
of products and code among them, 97 in 100 have .35 and more, of German, French and Spanish ones most .25 and less, of
letters struck at random 15 of 17 none."""
TOLD: Final = 0.05
"""The same for what is stored, as a step, where most letters are not ASCII's: code and tables are in pieces too."""

OWN: Final = 2 / 3
"""Share of a language's function words that a vocabulary of it has. The default model's has a fifth of the German ones,
a third of the French and Spanish, half of the Italian."""

_NO_PIECE: Final = frozenset(("▁", "[UNK]", "<unk>"))
_ENGLISH: Final = re.compile(
    r"\A(?:is|are)\b|\b(?:the|what|which|who|whose|why|how|when|where|does|did|that)\b", re.IGNORECASE
)
"""Words that mark a question as English: known as well as ASKED wants to a vocabulary that has them, whatever the other
words ("is Nvidia overpriced" is pieces but for the first); "is" and "are" at its beginning, as "waar is" is Dutch."""
_WORD: Final = re.compile(r"[^\W\d_]+")


def known(tokenizer: Any, text: str) -> float:
    """The share, 0 to 1, of the letters of ``text`` in words that ``tokenizer`` (of the package tokenizers) has whole,
    or in pieces of PIECE letters; 1 where there are no letters. A word of other letters than ASCII's is not known."""
    words = _WORD.findall(text[: 64 * READ])[:READ]
    words = [word for word in words if len(word) >= SHORT or not word.isascii()] or words
    letters, ours = sum(map(len, words)), 0
    plain = [word for word in words if word.isascii()]
    for found in tokenizer.encode_batch(plain, add_special_tokens=False) if plain else ():
        pieces = [token for token, real in zip(found.tokens, found.attention_mask, strict=True) if real]
        sizes = [len(token.strip("#▁")) for token in pieces if token not in _NO_PIECE]
        ours += sum(sizes) if len(sizes) == 1 else sum(size for size in sizes if size >= PIECE)
    return min(ours / letters, 1.0) if letters else 1.0


def _foreign(tokenizer: Any, text: str) -> bool:
    """Whether ``text`` shows itself to be in a language of whose function words the vocabulary has less than OWN. Words
    of its matter it may have all the same ("concert", "premier")."""
    said = function_words.spoken(text)
    return sum(tokenizer.token_to_id(word) is not None for word in said) < OWN * len(said)


def _latin(text: str) -> bool:
    """Whether most of the characters are ASCII's."""
    return text.isascii() or sum(map(str.isascii, text)) > len(text) / 2


def weigh(tokenizer: Any, texts: Sequence[str], vectors: NDArray[np.float32], urgent: bool) -> None:
    """Shorten each of ``vectors`` (n, dim) to how far the model knows its text: 0 for not at all. ``urgent``: these are
    questions."""
    if tokenizer.get_vocab_size() > ONE_LANGUAGE:
        return
    low, high = ASKED
    for vector, text in zip(vectors, texts, strict=True):
        if not urgent:  # most texts are ASCII, and looking words up takes a GPU as long as the vectors
            if not (_latin(text) or known(tokenizer, text) > TOLD):
                vector[:] = 0
            continue
        share = known(tokenizer, text)
        marks = _ENGLISH.findall(text) if share < high and _latin(text) else ()
        if any(tokenizer.token_to_id(word.lower()) is not None for word in marks):
            share = high
        elif _foreign(tokenizer, text):
            share = min(share, (low + high) / 2)
        vector *= min(max((share - low) / (high - low), 0.0), 1.0)
