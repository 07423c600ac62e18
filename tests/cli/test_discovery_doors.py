"""who, ask, topics, privacy at the command line and in Python: texts, JSON, exit codes; with a daemon and without."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from avmfs import AVM
from avmfs.errors import Invalid, NotFound
from tests.cli.shells import QuickShell, Shell, environment
from tests.mount.mount_world import World

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module", params=["daemon", "alone"])
def avm(request: pytest.FixtureRequest, settings: str) -> Iterator[Shell]:
    """A shell on a store in which alice, bob and carol have written."""
    with tempfile.TemporaryDirectory(prefix="avmc-", dir="/tmp") as name:
        root = Path(name)
        if request.param == "daemon":
            world: World = request.getfixturevalue("world")
            environ = world.environ
        else:
            (root / "config").mkdir()
            (root / "config/config.yaml").write_text(settings)
            environ = environment(root)
        shell = QuickShell(environ, root)
        shell.run("write", "/shared/nvda.md", "# NVDA\nThe RSI of NVDA is 72.")
        shell.run("remember", "# NVDA\nsecret plans for zqcanaryqz", agent="bob")
        shell.run("remember", "#gold is what I know about", "--tag", "metals", agent="carol")
        yield shell


def knows(shell: Shell, *words: str, agent: str = "dora") -> list[tuple[str | None, str]]:
    return [(line["agent"], line["how"]) for line in json.loads(shell.out(*words, "--json", agent=agent))["knows"]]


def test_who_and_privacy(avm: Shell) -> None:
    assert avm.out("who", agent="bob") == "privacy of bob: none\n"
    assert avm.out("who", "NVDA", agent="dora").startswith("alice  1 file: NVDA  @")
    assert knows(avm, "who", "NVDA") == [("alice", "files")]
    assert avm.out("who", "--privacy", "owner", agent="bob") == "privacy of bob: owner\n"
    assert avm.out("who", "what", "about", "NVDA?", agent="dora").endswith("\nbob  private\n")
    assert knows(avm, "who", "NVDA", "-n", "1") == [("alice", "files")]
    assert json.loads(avm.out("who", "--json", agent="bob")) == {"agent": "bob", "mode": "owner"}
    assert avm.out("who", "--operator", "--of", "carol", "--privacy", "full") == "privacy of carol: full\n"
    assert avm.out("who", "metals", agent="dora").endswith("carol  private: metals (1)\n")
    line = json.loads(avm.out("who", "NVDA", "--json", agent="dora"))["knows"][0]
    assert line == {
        "agent": "alice",
        "files": 1,
        "handle": line["handle"],
        "host": None,
        "how": "files",
        "path": "/memory/shared/nvda.md",
        "topics": ["NVDA"],
    }
    assert avm.out("read", line["handle"], agent="dora").startswith("# NVDA")


def test_digests_say_the_same_soon(avm: Shell) -> None:
    avm.run("who", "--privacy", "owner", agent="bob")
    deadline = time.monotonic() + 300
    while (found := knows(avm, "who", "NVDA", "--gossip")) != [("alice", "digest"), ("bob", "digest")]:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_what_is_wrong_is_said(avm: Shell) -> None:
    for words, code, reason in (
        (("who", "--privacy", "loud"), 2, "expected one of full, owner, existence, none"),
        (("who", "x", "--privacy", "full"), 2, "go without a query"),
        (("who", "--of", "bob"), 1, "only an operator"),
        (("who", "--privacy", "full", "--of", "bob"), 1, "operator"),
        (("who", "--operator", "--of", "nobody-yet", "--privacy", "full"), 1, "no agent is called"),
        (("who", "x", "-n", "0"), 2, "limit 0"),
        (("ask", "zebra", "--to", "nobody-yet"), 1, "nobody-yet"),
        (("ask", "where do zebras sleep", "--forward"), 1, "nobody else is known"),
        (("ask", " "), 2, "what is it about"),
        (("ask", "NVDA", "-t", "0"), 2, "0"),
        (("topics", "/shared/nvda.md"), 2, "not a directory"),
        (("topics", "/memory/private/bob"), 1, "No such file"),
    ):
        assert reason in avm.complaint(*words, code=code, agent="dora"), words


def test_ask_recalls_names_who_knows_and_sends_only_when_told_to(avm: Shell) -> None:
    avm.run("who", "--privacy", "owner", agent="bob")
    said = avm.out("ask", "what is the RSI of NVDA?", agent="dora")
    assert "The RSI of NVDA is 72." in said and "\n## Who knows\n\nalice  1 file: NVDA, RSI  @" in said
    assert "bob  private" in said and "asked" not in said and "zqcanaryqz" not in said
    for agent in ("alice", "bob"):
        assert avm.out("inbox", "--unread", agent=agent) == "(no messages)\n"
    sent = json.loads(avm.out("ask", "what is the RSI of NVDA?", "--forward", "--json", agent="dora"))
    assert sent["asked"]["recipient"] == "alice" and sent["tokens"] > 0 and sent["recalled"]
    assert "> what is the RSI of NVDA?" in avm.out("inbox", "-m", agent="alice")
    # alice knows best herself: whoever else does is asked.
    assert avm.out("ask", "NVDA?", "--forward", agent="alice").splitlines()[-1].startswith("asked bob (#")
    assert "asked carol (#" in avm.out("ask", "-", "--to", "carol", agent="dora", data=b"is there gold?\n")
    assert "> is there gold?" in avm.out("inbox", "-m", agent="carol")


def test_an_answer_keeps_to_its_budget(avm: Shell) -> None:
    from avmfs.text.tokens import TokenCounter

    counter = TokenCounter("cl100k_base")
    for budget in (1, 20, 60, 78, 4000):
        said = avm.out("ask", "what is the RSI of NVDA?", "-t", str(budget), agent="dora")
        assert counter.count(said) <= budget or said == "(nothing fits)\n", (budget, said)


def test_topics(avm: Shell) -> None:
    assert avm.out("topics", agent="carol") == (
        "## Memory Topics\n### By Category:\n   1  private\n   1  shared\n### By Tag:\n   1  metals\n"
        "### By Topic:\n   1  gold\n   1  metals\n   1  NVDA\n   1  RSI\n"
    )
    assert avm.out("topics", "/shared", agent="carol") == "## Memory Topics\n### By Topic:\n   1  NVDA\n   1  RSI\n"
    assert json.loads(avm.out("topics", "--json", "-n", "1", agent="dora")) == [{"files": 1, "topic": "NVDA"}]
    assert [file["path"] for file in json.loads(avm.out("topics", "--name", "nvda", "--json", agent="dora"))] == [
        "/memory/shared/nvda.md"
    ]
    assert avm.out("topics", "--name", "zebra", agent="dora") == "(no files)\n"


def test_python(avm: Shell) -> None:
    with AVM(agent="bob", environ=avm.environ, embeddings=False) as bob:
        assert bob.privacy("existence") == "existence" == bob.privacy()
        with pytest.raises(Invalid):
            bob.privacy("loud")
    with AVM(agent="dora", environ=avm.environ, embeddings=False) as dora:
        assert [(line["agent"], line["how"]) for line in dora.who("NVDA")] == [("alice", "files"), (None, "private")]
        answered = dora.ask("what is the RSI of NVDA?", to="alice")
        assert answered["asked"]["recipient"] == "alice" and answered["knows"] == dora.who("RSI of NVDA", limit=5)
        with pytest.raises(NotFound):
            dora.ask("zebras", to="nobody-yet")
        with pytest.raises(Invalid):
            dora.who("NVDA", via="telepathy")
        assert dora.agent_memory().topics() == dora.read("/memory/:topics")
        assert "nvda.md" in dora.agent_memory().topics(name="NVDA")
        dora.write("/:who", "full")
        assert dora.privacy() == "full"
