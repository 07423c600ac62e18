"""A recall is proved by its receipt: asked again as of then, its notes looked at, the audit's chain walked."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from avmfs_config import load_settings

from avmfs.rpc.local import LocalDoor
from tests.behind import connect

ASKED = "ingress proxy of atlas"
PLAN = "/memory/shared/plan.md"


class Home:
    def __init__(self, root: Path, config: str) -> None:
        self.path = root / "avm.db"
        (root / "config.yaml").write_text(config)
        self._settings = load_settings(root / "config.yaml", {})

    def door(self, agent: str) -> LocalDoor:
        return LocalDoor(self.path, self._settings, agent, embeddings=False)


@pytest.fixture(params=["", "search: {query_log: 100}\n"], ids=["no log", "a log"])
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Home]:
    made = Home(tmp_path, request.param)
    alice = made.door("alice")
    alice.call("write", path="/shared/plan.md", data=b"atlas moves the ingress proxy to Envoy in May\n")
    alice.call("write", path="/shared/other.md", data=b"the ingress proxy of atlas has 3 backends\n")
    alice.close()
    yield made


def states(found: dict[str, Any]) -> list[str]:
    return [each["state"] for each in found["verdicts"]]


def receipt(text: str) -> str:
    return ":".join(re.search(r"\(seq=(\d+) (\d{6})\)", text).groups())  # type: ignore[union-attr]


def test_an_answer_asked_again_gives_the_same_until_its_notes_change(home: Home) -> None:
    alice = home.door("alice")
    given = alice.call("recall", q=ASKED, cite="path")["text"]
    found = alice.call("verify", text=given, q=ASKED, replay=True)
    assert states(found) == ["proved", "stands", "stands", "replayed", "holds"] and found["good"]
    assert "the same text" in found["text"]
    alice.call("write", path="/shared/new.md", data=b"atlas: an ingress proxy that came later\n")
    found = alice.call("verify", text=given, q=ASKED, replay=True)
    assert states(found) == ["proved", "stands", "stands", "replayed", "holds"], "as the memory stood then"
    alice.call("write", path="/shared/plan.md", data=b"something else\n")
    found = alice.call("verify", text=given, q=ASKED, replay=True)
    assert sorted(states(found)) == ["changed", "holds", "not replayed", "proved", "stands"] and not found["good"]
    altered = given.replace("3 backends", "4 backends")
    assert "misquoted" in states(alice.call("verify", text=altered, q=ASKED, replay=True))
    alice.close()


@pytest.mark.parametrize(
    "how",
    [
        {"scores": True},
        {"format": "markdown"},
        {"archive": True},
        {"under": "/memory/shared/far"},
        {"max_tokens": 120},
        {"strategy": "recency", "cite": "path"},
    ],
    ids=lambda how: next(iter(how)),
)
def test_an_answer_is_asked_again_as_it_was_asked_for(home: Home, how: dict[str, Any]) -> None:
    alice = home.door("alice")
    alice.call("write", path="/shared/far/third.md", data=b"atlas: the ingress proxy logs to Loki\n")
    alice.call("write", path="/shared/away.md", data=b"the ingress proxy of atlas was nginx\n")
    alice.call("archive", path="/shared/away.md")
    given = alice.call("recall", q=ASKED, **how)["text"]
    alice.call("recall", q=ASKED, max_tokens=1000)  # of the same state, in another way
    logged = bool(alice.call("questions")["kept"])
    for _ in range(2):
        found = alice.call("verify", text=given, q=ASKED, replay=True)
        assert found["good"] and states(found)[-2] in ("replayed", "not replayed"), found
        assert states(found)[-2] == "replayed" or not logged or "arranged in another way" in found["text"]
        alice.call("write", path="/shared/more.md", data=b"an ingress proxy of atlas came later\n")
    if logged and "cite" not in how and "format" not in how:
        forged = given.replace(" alice\n", " mallory\n")
        assert states(alice.call("verify", text=forged, q=ASKED, replay=True))[-2] == "differs"
    if "cite" not in how:  # else that it is misquoted is said of the citation
        cut = given.replace("Envoy", "Zuul").replace("Loki", "Zuul")
        found = alice.call("verify", text=cut, q=ASKED, replay=True)
        assert states(found)[-2] == ("differs" if logged else "not replayed")
    alice.close()


def test_an_answer_of_the_past_is_asked_again_of_the_same_past(home: Home) -> None:
    alice = home.door("alice")
    alice.call("snapshot", name="before")
    alice.call("write", path="/shared/more.md", data=b"an ingress proxy of atlas came later\n")
    given = alice.call("read", path=f"/@snap.before/:recall?q={ASKED}")["data"].decode()
    assert "Envoy" in given and "came later" not in given
    found = alice.call("verify", text=given, q=ASKED, replay=True)
    assert states(found)[-2] == ("replayed" if alice.call("questions")["kept"] else "not replayed")
    assert found["good"]
    alice.close()


def test_a_receipt_alone_says_which_notes_it_was_of(home: Home) -> None:
    alice, bob = home.door("alice"), home.door("bob")
    shown = receipt(alice.call("recall", q=ASKED)["text"])
    found = alice.call("verify", text=shown, q=ASKED, replay=True)
    assert states(found) == ["proved", "replayed", "stands", "stands", "holds"] and found["good"]
    assert {each["what"] for each in found["verdicts"]} >= {PLAN, "/memory/shared/other.md"}
    alice.call("write", path="/shared/later.md", data=b"more of the ingress proxy of atlas\n")
    later = alice.call("verify", text=shown, q=ASKED, replay=True)
    assert {each["what"]: each["version"] for each in later["verdicts"] if each["version"]} == {
        each["what"]: each["version"] for each in found["verdicts"] if each["version"]
    }
    for door, q in ((bob, ASKED), (alice, "another")):
        forged = door.call("verify", text=shown, q=q, replay=True)
        assert states(forged) == ["forged", "holds"] and not forged["good"]
    kept = alice.call("questions")["kept"]
    assert states(alice.call("verify", text=shown, replay=True))[0] == ("proved" if kept else "not replayed")
    alice.close()
    bob.close()


@pytest.mark.parametrize("given_before", [True, False], ids=["ttl after the answer", "ttl before the answer"])
def test_an_answer_of_what_has_expired_since_is_not_replayed_though_nobody_has_put_that_away(
    home: Home, given_before: bool
) -> None:
    alice = home.door("alice")
    ttl = {"path": "/shared/plan.md:ttl", "data": b"1s\n"}
    if not given_before:
        alice.call("write", **ttl)
    given = alice.call("recall", q=ASKED)["text"]
    assert "Envoy" in given
    if given_before:
        alice.call("write", **ttl)
    while any(each["name"] == "plan.md" for each in alice.call("entries", path="/shared")):
        time.sleep(0.05)
    for text in (given, receipt(given)):
        assert "not replayed" in states(alice.call("verify", text=text, q=ASKED, replay=True)), text
    alice.close()


def test_a_number_of_a_state_that_is_yet_to_come_is_not_told_from_another(home: Home) -> None:
    alice = home.door("alice")
    newest = int(receipt(alice.call("recall", q=ASKED)["text"]).partition(":")[0])
    right = int(alice._memory.store.nonce(alice._memory.who, newest + 1, ASKED))
    for guess in (right, (right + 1) % 10**6):
        found = alice.call("verify", text=f"{newest + 1}:{guess:06}", q=ASKED, replay=True)
        assert states(found) == ["forged", "holds"]
    alice.close()


def test_a_chain_that_was_broken_is_said_to_every_agent_and_no_more(home: Home) -> None:
    alice = home.door("alice")
    given = alice.call("recall", q=ASKED, cite="path")["text"]
    alice.close()
    with connect(home.path) as db:
        db.execute("drop trigger log_is_append_only; update log set agent = 'eve' where agent = 'alice'")
    bob = home.door("alice")
    found = bob.call("verify", text=given, q=ASKED, replay=True)
    assert found["verdicts"][-1] == {
        "what": "audit chain", "version": None, "state": "broken", "about": "avm audit verify --operator",
    }  # fmt: skip
    assert not found["good"]
    bob.close()


@pytest.mark.parametrize("cite", ["path", None])
@pytest.mark.parametrize("put_aside", ["archive", "remove"])
def test_an_answer_whose_notes_were_put_aside_since_does_not_differ(
    home: Home, put_aside: str, cite: str | None
) -> None:
    alice, old = home.door("alice"), time.time_ns() - 3600 * 10**9  # younger ones are not kept in the trash
    alice.call("remember", path="/shared/old.md", content="the ingress proxy of atlas was nginx", created=old)
    given = alice.call("recall", q=ASKED, cite=cite)["text"]
    assert "nginx" in given
    alice.call(put_aside, path="/shared/old.md")
    for _ in range(2):
        found = alice.call("verify", text=given, q=ASKED, replay=True)
        assert states(found)[-2] == "replayed" if cite else states(found)[-2] in ("replayed", "not replayed"), found
        alice.call("write", path="/shared/more.md", data=b"an ingress proxy of atlas came later\n")
    again = alice.call("recall", q=ASKED, cite=cite)["text"]
    assert "nginx" not in again and "replayed" in states(alice.call("verify", text=again, q=ASKED, replay=True))
    alice.close()


@pytest.mark.parametrize("cite", ["path", None])
def test_an_answer_does_not_differ_by_what_was_written_since(home: Home, cite: str | None) -> None:
    alice = home.door("alice")
    alice.call("write", path="/shared/third.md", data=b"the proxy logs to Loki\n")
    given = alice.call("recall", q=ASKED, cite=cite, min_relevance=0.95)["text"]
    for number in range(12):
        alice.call("write", path=f"/shared/more/{number}.md", data=b"a proxy here, and a proxy there\n")
    assert "Loki" in given and "Loki" not in alice.call("recall", q=ASKED, min_relevance=0.95)["text"]
    found = alice.call("verify", text=given, q=ASKED, replay=True)
    logged = alice.call("questions")["kept"]
    assert states(found)[-2] == ("not replayed" if logged else "replayed") and found["good"], found
    if cite is None and logged:
        forged = given.replace("Loki", "Zuul")
        assert states(alice.call("verify", text=forged, q=ASKED, replay=True))[-2] == "differs"
    alice.close()
