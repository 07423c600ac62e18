"""Counting: exactly tiktoken's figures, without a network, on any text."""

import os
import random
import stat
import threading
import time
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from avmfs.text.tokens import ENCODINGS, TokenCounter

CL100K = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # sha1 of the vocabulary's address


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="module", params=ENCODINGS)
def counter(request: pytest.FixtureRequest, environ: dict[str, str]) -> TokenCounter:
    return TokenCounter(request.param, environ)


def plain(counter: TokenCounter, text: str) -> list[int]:
    counter.count("")
    return tiktoken.get_encoding(counter.name).encode(text, disallowed_special=())


def test_known_counts() -> None:
    counter = TokenCounter("cl100k_base")
    assert counter.encode("hello world") == [15339, 1917]
    assert counter.count("") == 0
    assert counter.decode(counter.encode("naïve 中东 😀")) == "naïve 中东 😀"


def test_special_tokens_are_ordinary_text(counter: TokenCounter) -> None:
    assert counter.count("<|endoftext|>") > 1


PIECES = [*" \t\n\r\u3000\x85\x1c aZ9.,'!/é中😀\u0301", "  ", " \n", "'s", "word", "\n\n"]


@given(text=st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
@settings(max_examples=300)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_counting_around_runs_of_blanks_is_exact(environ: dict[str, str], encoding: str, text: str) -> None:
    # The shortest run that can be cut out: the rule is the same for long ones.
    counter = TokenCounter(encoding, environ, run_max=2)
    assert counter.encode(text) == plain(counter, text)


LINES = [
    *PIECES,
    "\n",
    "\r\n",
    "\n\n",
    "\u2028",
    "@k (.9) ",
    "### ",
    "!)",
    "…",
    "don't",
    "42",
    "茶",
    "/x",
    " " * 300,
    "<|x|>",
]


@given(text=st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=4)), max_size=40).map("".join))
@settings(max_examples=400)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_lines_counted_one_by_one_make_the_whole(environ: dict[str, str], encoding: str, text: str) -> None:
    counter = TokenCounter(encoding, environ)
    assert counter.count_lines(text) == len(counter.encode(text))


def test_long_runs_in_long_texts_are_counted_exactly(counter: TokenCounter) -> None:
    dice = random.Random(7)
    for _ in range(60):
        text = "".join(
            dice.choice(
                ["  " * 200, "\t" * 300, " " * 257 + "\n", "\n" + " " * 400, "word", ". ", "\u3000" * 300, "7", "中"]
            )
            for _ in range(12)
        )
        assert counter.encode(text) == plain(counter, text)


@pytest.mark.parametrize(
    "text",
    [
        " " * 10**6,
        " " * 10**6 + "x",
        "\n" + "\t " * 500_000 + "9",
        " " * 10**6 + "\n",
        "a" * 10**6,
        "^" * 10**6,
        "\n" * 10**6 + "x",
        "中" * 400_000,
        "\ud800" * 200_000,
    ],
    ids=["blanks", "blanks-word", "tabs", "blanks-line", "letter", "sign", "lines", "han", "surrogates"],
)
def test_a_megabyte_of_one_thing_is_counted_in_seconds(counter: TokenCounter, text: str) -> None:
    began = time.process_time()
    assert counter.count(text) > 0
    assert time.process_time() - began < 20


def test_the_vocabulary_is_unpacked_once_privately_and_the_environment_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    seen = dict(os.environ)
    assert TokenCounter("cl100k_base", {"XDG_CACHE_HOME": str(tmp_path)}).count("hello world") == 2
    file = tmp_path / "avmfs" / "tiktoken" / CL100K
    assert [one.name for one in file.parent.iterdir()] == [CL100K]
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert dict(os.environ) == seen


def test_a_torn_vocabulary_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    file = tmp_path / "avmfs" / "tiktoken" / CL100K
    file.parent.mkdir(parents=True)
    file.write_bytes(b"half")
    assert TokenCounter("cl100k_base", {"XDG_CACHE_HOME": str(tmp_path)}).count("hello world") == 2


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    (tmp_path / "file").touch()
    assert TokenCounter("cl100k_base", {"XDG_CACHE_HOME": str(tmp_path / "file")}).count("hello world") == 2


def test_the_first_count_may_come_from_many_threads(environ: dict[str, str]) -> None:
    counter = TokenCounter("o200k_base", environ)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(counter.count("hello world"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2] * 8


def test_an_unknown_encoding_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="expected one of cl100k_base, o200k_base"):
        TokenCounter("p50k")
