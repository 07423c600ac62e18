"""What of a Japanese or Korean question is grammar: particles, endings, auxiliaries, words that ask.

Owns the closed classes. A run without spaces is indexed in pairs of characters, and those of でしょうか or 에서 are
words to an index: a note is found by them by chance, and one that answers has too few of a question's words. Called by
``segment``. Takes any folded str, never raises, linear in its length.
"""

from __future__ import annotations

import re
from typing import Final

_JAPANESE: Final = (
    "でしょうか でしょう ください でした ました ませんでした ません ます ですか です だった だろう じゃない "
    "なかった ない られない られる られた られて られ れない れる れた れて たい ている ていた ていて って った "
    "てい いる いた いて する した して しない される された すれば すれ せる ある あった あり なった なる なり "
    "たら から まで より ほど だけ しか など について における によって として とき こと もの ため ように ような "
    "よう という どこ どれ どの どうやって どう なぜ なに なん だれ いつ いくら いくつ どんな この その あの これ "
    "それ あれ ここ そこ ばいい いい もら くれ の を が は に で と も へ や か ね よ な た て だ"
)
_KOREAN_PARTICLES: Final = (
    "에서는 에서도 에서 에게서 에게 한테서 한테 께서 으로는 으로 로는 까지 부터 마다 조차 마저 밖에 처럼 보다 "
    "이라고 라고 이랑 하고 이나 은 는 이 가 을 를 의 에 도 만 과 와 로 나 랑"
)
_KOREAN_ENDINGS: Final = (
    "이에요 예요 입니까 입니다 인가요 인가 이었어 이야 야 요 하나요 되나요 나요 되었나요 었나요 았나요 했나요 "
    "됐나요 하세요 세요 으세요 했어요 됐어요 었어요 았어요 어요 아요 해요 돼요 했어 됐어 었어 았어 였어 졌어 했지 "
    "됐지 었지 았지 합니다 됩니다 습니다 습니까 해도 되어도 어도 아도 으면 하면 되면 면 해야 되어야 어야 아야 "
    "을까 는지 은지 던 하는 되는 하기 되기"
)
_KOREAN_WORDS: Final = (
    "무엇 뭐 뭐가 뭐야 뭘 뭐예요 누구 누가 누구야 누구예요 누구에게 언제 언제야 언제까지 어디 어디에 어디서 "
    "어떻게 왜 얼마 얼마나 얼마야 몇 어느 어떤 무슨 이 그 저 것 것은 것이 거 게 수 때 안 못 및 또는 그리고 되는 "
    "하는 있는 해 돼 돼요 되나요 하나요 있나요 있어 있지 없어 해야 좀 해줘 알려줘 지금 있었어 있었나요"
)


def _longest_first(words: str) -> list[str]:
    return sorted(words.split(), key=len, reverse=True)


_CARRIES: Final = re.compile("|".join(_longest_first(_JAPANESE)))
_PARTICLES: Final = _longest_first(_KOREAN_PARTICLES)
_ENDINGS: Final = _longest_first(f"{_KOREAN_PARTICLES} {_KOREAN_ENDINGS}")
_WORDS: Final = frozenset(_KOREAN_WORDS.split())
_RUN: Final = re.compile("[\u2e80-\u30ff\u3400-\u9fff]+")
_HIRAGANA: Final = re.compile("[\u3041-\u309f]")
_HANGUL: Final = re.compile("[\uac00-\ud7a3]+")
_BESIDE: Final = frozenset("のをがはにでともへやか")
"""Particles that end a noun: a pair of one and what is no hiragana stands across two words."""


def pairs(folded: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """The pairs and lone characters of a text that are grammar wherever they stand in it; and Korean nouns of one
    character, of which nothing is left but that without their particle (집에서)."""
    grammar: set[str] = set()
    other: set[str] = set()
    for run in _RUN.findall(folded):
        if _HIRAGANA.search(run):
            _japanese(run, grammar, other)
    nouns = []
    for word in _HANGUL.findall(folded):
        size = 0 if word in _WORDS else _stem(word)
        if size == 1 and word[1:] in _PARTICLES:
            nouns.append(word[0])
        if not size:
            grammar.add(word)
        for at in range(len(word) - 1):
            (other if at + 1 < size else grammar).add(word[at : at + 2])
    return frozenset(grammar - other), tuple(nouns)


def _japanese(run: str, grammar: set[str], other: set[str]) -> None:
    carries = [False] * len(run)
    for found in _CARRIES.finditer(run):
        carries[found.start() : found.end()] = [True] * len(found[0])
    kana = [_HIRAGANA.match(sign) is not None for sign in run]
    for at in range(len(run) - 1):
        pair = run[at : at + 2]
        if kana[at] == kana[at + 1]:
            apart = carries[at] and carries[at + 1]
        else:
            here = at if kana[at] else at + 1
            apart = carries[here] and run[here] in _BESIDE
        (grammar if apart else other).add(pair)


def _stem(word: str) -> int:
    """Characters of a Korean word before its particle or ending; two of a kind may follow each other."""
    size, endings = len(word), _ENDINGS
    for _ in range(2):
        ending = next((each for each in endings if word.endswith(each, 0, size)), "")
        if ending and size - len(ending) >= (2 if len(ending) == 1 else 1):
            size -= len(ending)
            endings = _PARTICLES if ending in _PARTICLES else endings
    return size
