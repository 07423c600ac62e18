"""`avm subscribe`, `unsubscribe`, `subscriptions`, and the same from Python, on a store of their own."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from avmfs import AVM
from avmfs.errors import Denied, NotFound
from tests.cli.shells import QuickShell, environment


@pytest.fixture(scope="module")
def avm(tmp_path_factory: pytest.TempPathFactory) -> QuickShell:
    tmp_path = tmp_path_factory.mktemp("store")
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text("embedding: {enabled: false}\nwebhooks: {allow: [10.0.0.0/8]}\n")
    return QuickShell(environment(tmp_path), tmp_path)


def test_the_customers_commands_work(avm: QuickShell) -> None:
    hook = (
        "subscribe",
        "/memory/shared/market/*",
        "-a",
        "trader",
        "-m",
        "realtime",
        "-w",
        "http://localhost:3000/hook",
    )
    refusal = avm.complaint(*hook, agent=None, code=1)
    assert "webhooks.allow in config.yaml" in refusal
    said = avm.out(*hook, "--operator", agent=None)
    assert re.fullmatch(r"#1  /memory/shared/market/\*  realtime\nsecret: whsec_[A-Za-z0-9+/]{32}\nkeep it.*\n", said)
    again = avm.out(*hook, "--operator", agent=None)
    assert again == "#1  /memory/shared/market/*  realtime  (changed)\n" and "whsec_" not in again
    avm.run("subscribe", "/memory/shared/*", "-a", "analyst", "-m", "throttled", "-t", "60", agent=None)
    line = "#1  /memory/shared/market/*  realtime  -> http://localhost:3000/hook  0 delivered\n"
    assert avm.out("subscriptions", "--agent", "trader", agent=None) == line
    assert avm.out("read", "/:subscriptions", agent="trader") == line
    assert "whsec_" not in avm.out("--json", "subscriptions", agent="trader")
    avm.run("unsubscribe", "/memory/shared/market/*", "-a", "trader", agent=None)
    assert avm.out("subscriptions", agent="trader") == "(no subscriptions)\n"
    assert "no subscription" in avm.complaint("unsubscribe", "/memory/shared/market/*", agent="trader", code=1)


def test_notices_are_read_once(avm: QuickShell) -> None:
    avm.run("subscribe", "/shared/*", agent="bob")
    avm.run("write", "/private/mine.md", "secret", agent="alice")
    avm.run("write", "/shared/a.md", "hello", agent="alice")
    assert "2 notices of your subscriptions" in avm.out("pending", agent="bob"), (
        "also before anybody has asked for them"
    )
    text = avm.out("subscriptions", "notices", agent="bob")
    assert [line.split("  ")[1:] for line in text.splitlines()] == [
        ["alice", "create", "/memory/shared/a.md"],
        ["alice", "write", "/memory/shared/a.md v1"],
    ]
    assert "2 unread" in avm.out("subscriptions", agent="bob")
    assert avm.out("pending", agent="bob") == (
        "2 notices of your subscriptions (mark read: echo > /:pending)\n"
        + "".join(f"  {line}\n" for line in text.splitlines())
    )
    found = json.loads(avm.out("--json", "subscriptions", "notices", "--mark-read", agent="bob"))
    assert [each["events"][0]["event"] for each in found] == ["create", "write"]
    assert avm.out("subscriptions", "notices", agent="bob") == "(nothing pending)\n"
    assert avm.out("subscriptions", agent="alice") == "(no subscriptions)\n"


def test_all_are_shown_to_the_operator_alone(avm: QuickShell) -> None:
    avm.run("subscribe", "/memory/all/*", agent="eve")
    assert "operator" in avm.complaint("subscriptions", "--all", agent="alice", code=1)
    for which in (["--dead"], ["notices"], ["redeliver"]):
        assert "--all to the list" in avm.complaint("subscriptions", "--all", *which, "--operator", code=2)
    assert "eve #1  /memory/all/*  realtime" in avm.out("subscriptions", "--all", "--operator", agent="alice")


WRONG = (
    ("subscribe", "memory/*"),
    ("subscribe", "/m", "-m", "often"),
    ("subscribe", "/m", "-m", "batched", "-t", "0"),
    ("subscribe", "/m", "-t", "nan"),
    ("subscribe", "/m", "-w", "ftp://example.com/"),
    ("subscribe", "/tell/alice"),
    ("subscriptions", "list", "msg_x"),
    ("subscriptions", "redeliver", "--dead"),
    ("subscriptions", "--mark-read"),
)


def test_wrong_use_is_said_and_exits_2(avm: QuickShell) -> None:
    for wrong in WRONG:
        assert avm.complaint(*wrong, agent="bob", code=2)


def test_python_has_the_same(avm: QuickShell) -> None:
    with AVM(agent="carl", environ=avm.environ) as bob, AVM(agent="alice", environ=avm.environ) as alice:
        made = bob.subscribe("/shared/*", mode="batched", every_s=0.001)
        assert (made["number"], made["secret"], made["every_s"]) == (1, None, 0.001)
        assert bob.subscribe("/shared/*", url="http://10.1.2.3/hook")["secret"].startswith("whsec_")
        with pytest.raises(Denied):
            bob.subscribe("/shared/*", url="http://192.168.0.1/hook")
        alice.write("/shared/c.md", "x")
        assert {event["path"] for each in _until(bob) for event in each["events"]} == {"/memory/shared/c.md"}
        assert bob.notices(mark_read=True) and not bob.notices()
        assert [each["mode"] for each in bob.subscriptions()] == ["batched", "realtime"]
        assert bob.dead_letters() == [] and bob.redeliver() == 0 and bob.redeliver(["msg_x"]) == 0
        assert bob.unsubscribe("/shared/*") == 2
        with pytest.raises(NotFound):
            alice.unsubscribe("/shared/*")


def _until(bob: AVM) -> list[dict[str, Any]]:
    """A batch is told when its millisecond is over."""
    for _ in range(100):
        if found := bob.notices():
            return found
    raise AssertionError("nothing came")
