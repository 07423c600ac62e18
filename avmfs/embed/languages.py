"""Whether a model knows the language of a text, as far as its name says.

Owns the names. Called by ``avm doctor``. Knows no store and loads no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from avmfs.text import segment

_ENGLISH: Final = re.compile(r"(?:^|/)(?:all-|wordllama)|(?:^|[-_])en(?:$|[-_])", re.IGNORECASE)
_MANY: Final = re.compile("multilingual", re.IGNORECASE)


def english_only(model: str) -> bool:
    """all-MiniLM-L6-v2, bge-small-en-v1.5: yes; what says nothing of a language: no."""
    return _ENGLISH.search(model) is not None and _MANY.search(model) is None


def unspaced(texts: Iterable[str]) -> float:
    """The share, 0 to 1, of index terms in scripts without spaces: Chinese, Japanese, Korean, Thai."""
    return segment.pairs([term for text in texts for term in segment.terms(text)])
