"""Who answers the questions of an evaluation: a model behind an endpoint, or a reader that needs none.

Owns the wire formats (OpenAI's chat completions, which Azure, llama.cpp, vLLM and others speak, and Anthropic's
messages), retries and the count of tokens. Knows nothing of scenarios. Raises ModelError when an endpoint stays out of
reach or refuses. The addresses are the caller's own: they are not those of agents, and no guard stands before them.
"""

from __future__ import annotations

import json
import math
import re
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Protocol

DO_NOT_KNOW = "I don't know."
ATTEMPTS, FIRST_PAUSE_S, LONGEST_PAUSE_S, PATIENCE_S = 5, 1.0, 60.0, 300.0
_NO_ANSWER = re.compile(r"\b(don't|do not|cannot|can't|not) (know|have|find|enough|available)|不知道|没有.{0,6}信息")
_TRY_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The key goes to the host that was named, and to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


class ModelError(Exception):
    """An endpoint that does not answer, or not in its own format."""


@dataclass(frozen=True)
class Reply:
    text: str
    tokens_in: int
    tokens_out: int


class ChatModel(Protocol):
    @property
    def name(self) -> str: ...

    def ask(self, shown: str, question: str) -> Reply:
        """Answer a question from what is shown, "" where nothing is."""


def silent(answer: str) -> bool:
    """An answer that says that it has none."""
    said = answer.strip().lower().replace("\u2019", "'")
    return not said or _NO_ANSWER.search(said) is not None


# ---- without a model ----

_STOP = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been by did do does for from has have he her his how i if in is it its may "
        "much my no not now of on or our s she should so such that the their them then there they this to was "
        "we were what when where which who whom whose why will with you your many long often about go goes ",
    )
)
_WORD = re.compile(r"[a-z0-9]+(?:[-.:/@_,][a-z0-9]+)*|(?=([\u3400-\u9fff]{2}))")  # of Chinese, pairs of characters
LEAST_SHARE, OF_BEST, PARAGRAPHS = 0.34, 0.55, 4


@dataclass(frozen=True)
class OfflineReader:
    """Answers with the paragraphs that hold most of the question's words, by their rarity, or doesn't know.

    It makes nothing up and concludes nothing: what it answers was shown to it. So its figures tell what a memory makes
    available, and are not to be put beside those of a model.
    """

    count: Callable[[str], int]
    """Tokens of a text."""
    name: str = "offline reader"

    def ask(self, shown: str, question: str) -> Reply:
        paragraphs = [line.strip() for line in shown.splitlines() if line.strip()]
        words = [_stems(paragraph) for paragraph in paragraphs]
        wanted = _stems(question)
        seen = Counter(word for each in words for word in each)
        worth = {word: math.log(1 + len(words) / (seen[word] or 0.5)) for word in wanted}
        whole = sum(worth.values()) or 1.0
        scores = [sum(worth[word] for word in each & wanted) / whole for each in words]
        best = max(scores, default=0.0)
        # Of equal ones the later: what was said last holds.
        order = sorted(range(len(scores)), key=lambda at: (scores[at], at), reverse=True)
        chosen = [paragraphs[at] for at in order if scores[at] >= max(LEAST_SHARE, OF_BEST * best)][:PARAGRAPHS]
        text = "\n".join(dict.fromkeys(chosen)) or DO_NOT_KNOW
        return Reply(text, self.count(shown) + self.count(question), self.count(text))


def _stems(text: str) -> frozenset[str]:
    """Words without the commonest, cut to their first five letters: a stem good enough for a question's words."""
    words = (match[1] or match[0] for match in _WORD.finditer(text.lower()))
    return frozenset(word[:5] if word.isalpha() else word for word in words if word not in _STOP)


# ---- behind an endpoint ----

SYSTEM = (
    "You are one of several agents that work together. Answer the question from what you are shown, in one or two "
    f"sentences with the exact names and figures. If it is not there, say: {DO_NOT_KNOW}"
)


@dataclass(frozen=True)
class Endpoint:
    """A model behind HTTP. `kind`: openai (anything that speaks chat completions), azure, anthropic."""

    kind: str
    url: str
    name: str
    key: str
    max_tokens: int = 300
    system: str = SYSTEM

    def ask(self, shown: str, question: str) -> Reply:
        return self.reply([("user", f"{shown}\n\n{question}" if shown else question)], self.system)

    def reply(self, turns: Sequence[tuple[str, str]], system: str) -> Reply:
        """The next turn of a conversation, (role, text) each."""
        key = self.key.strip()
        if not (key.isascii() and key.isprintable()):  # what refuses it in a header would show it
            raise ModelError(f"{self.url}: the key has characters that no key has")
        messages = [{"role": role, "content": text} for role, text in turns]
        headers = {"content-type": "application/json"}
        body: dict[str, Any] = {"model": self.name, "max_tokens": self.max_tokens, "temperature": 0}
        if self.kind == "anthropic":
            headers |= {"x-api-key": key, "anthropic-version": "2023-06-01"}
            body |= {"system": system, "messages": messages}
        else:
            headers |= {"api-key": key} if self.kind == "azure" else {"authorization": f"Bearer {key}"}
            body |= {"messages": [{"role": "system", "content": system}, *messages]}
        found = self._post(self._path(), body, headers)
        try:
            usage = found.get("usage") or {}
            if self.kind == "anthropic":
                text = "".join(part.get("text", "") for part in found["content"])
                return Reply(text, int(usage.get("input_tokens", 0)), int(usage.get("output_tokens", 0)))
            text = found["choices"][0]["message"]["content"] or ""
            return Reply(text, int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0)))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ModelError(f"{self.url}: no answer in {json.dumps(found)[:200]}") from error

    def _path(self) -> str:
        base = self.url.rstrip("/")
        if self.kind == "anthropic":
            return f"{base}/v1/messages"
        if self.kind == "azure":
            return f"{base}/openai/deployments/{self.name}/chat/completions?api-version=2024-06-01"
        return f"{base}/chat/completions"

    def _post(self, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        request = urllib.request.Request(url, json.dumps(body).encode(), dict(headers))
        failure = ""
        for attempt in range(ATTEMPTS):
            pause = FIRST_PAUSE_S * 2**attempt
            try:
                with _OPENER.open(request, timeout=PATIENCE_S) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                failure = f"{error.code} {_beginning(error)}"
                if error.code not in _TRY_AGAIN:
                    break
                asked = error.headers.get("retry-after", "")
                pause = min(max(pause, float(asked)), LONGEST_PAUSE_S) if asked.isdigit() else pause
            except (OSError, ValueError, HTTPException) as error:  # ValueError: a body that is no JSON
                failure = str(error)
            if attempt + 1 < ATTEMPTS:
                time.sleep(pause)
        raise ModelError(f"{self.url}: {failure}")


def _beginning(error: urllib.error.HTTPError) -> str:
    """What an endpoint says to its refusal, as far as it comes."""
    try:
        return error.read(300).decode("utf-8", "replace")
    except (OSError, HTTPException) as e:
        return str(e)
