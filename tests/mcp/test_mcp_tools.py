"""Every tool, through the official client: schemas, good input, bad input, urgent mail, two agents."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import jsonschema
import pytest
from anyio.from_thread import BlockingPortal
from mcp.shared.exceptions import MCPError

from avmfs import AVM
from avmfs.codeindex import modules
from avmfs.mcp import registry, resources
from avmfs.text.tokens import TokenCounter
from tests import references
from tests.mcp.peers import Peer, stdio
from tests.mount.mount_world import World, until

pytestmark = pytest.mark.mount

NAMES = sorted(registry.tools())
WANTED = {
    "avm_recall",
    "avm_browse",
    "avm_fetch",
    "avm_remember",
    "avm_search",
    "avm_list",
    "avm_read",
    "avm_write",
    "avm_tags",
    "avm_recent",
    "avm_stats",
    "avm_tell",
    "avm_inbox",
    "avm_history",
    "avm_link",
    "memory",
    "avm_topics",
    "avm_ask",
    "avm_claim",
    "avm_index",
    "avm_digest",
    "avm_bundle",
    "avm_consolidate",
}

# One good call of each tool, on what `ground` has written, and a word of its answer.
GOOD: dict[str, tuple[dict[str, Any], str]] = {
    "avm_recall": ({"query": "zebra stripes", "max_tokens": 500, "strategy": "relevance", "cite": True}, "zebra"),
    "avm_search": ({"query": "zebra", "limit": 3, "mode": "lexical", "under": "/memory/shared"}, "/ground/zebra.md"),
    "avm_browse": ({"target": "/memory/shared/ground", "depth": 2}, "zebra.md"),
    "avm_fetch": ({"targets": ["/memory/shared/ground/zebra.md"]}, "stripes"),
    "avm_recent": ({"under": "/memory/shared", "minutes": 10}, "zebra.md"),
    "avm_stats": ({}, '"files"'),
    "avm_remember": (
        {
            "content": "a good memory",
            "tags": ["good"],
            "importance": 0.5,
            "ttl": "30d",
            "namespace": "shared",
            "created": "2026-03-07T10:30",
        },
        "remembered as /memory/shared/",
    ),
    "avm_list": ({"path": "/memory/shared/ground", "query": "stripes"}, "zebra.md"),
    "avm_read": ({"path": "/shared/ground/zebra.md", "offset": 2, "limit": 5}, "Zebra"),
    "avm_write": ({"path": "/shared/good/new.md", "content": "x\n", "mode": "create"}, "v1"),
    "avm_tags": ({"path": "/shared/ground/zebra.md", "add": ["striped"]}, "striped"),
    "avm_history": ({"path": "/shared/ground/zebra.md", "older": 1}, "v2"),
    "avm_link": ({"path": "/shared/ground/zebra.md", "target": "/shared/ground/horse.md", "type": "like"}, "(like)"),
    "avm_tell": ({"recipient": "carol", "body": "hello", "priority": "low", "expires": "1h"}, "to carol"),
    "avm_inbox": ({"unread_only": True}, "(no"),
    "memory": ({"command": "view", "path": "/memories"}, "/memories"),
    "avm_topics": ({"under": "/memory/shared", "limit": 5}, "Zebra"),
    "avm_ask": ({"question": "zebra stripes", "max_tokens": 500}, "Who knows"),
    "avm_index": ({"action": "status"}, "no project is indexed"),
    "avm_digest": ({"under": "/memory/shared", "days": 1}, "## Cold for 90 days (0)"),
    "avm_bundle": ({"query": "zebra stripes", "max_tokens": 500}, "## Timeline"),
    "avm_consolidate": ({"under": "/memory/shared/ground"}, "nothing repeats"),
    "avm_claim": ({"path": "/shared/ground", "action": "next", "lease": "1m"}, "/memory/shared/ground/"),
}

# What each refuses beside wrong types and names, and a word of the reason.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "avm_recall": ({"query": "x", "min_relevance": 2}, "min_relevance: input should be less than or equal to 1"),
    "avm_search": ({"query": "x", "under": "/memory/nowhere"}, "No such file"),
    "avm_browse": ({"target": "/memory/shared/ground/zebra.md"}, "not a directory"),
    "avm_fetch": ({"targets": []}, "targets: list should have at least 1 item"),
    "avm_recent": ({"since": "yesterday-ish"}, "yesterday-ish"),
    "avm_stats": ({"under": "/memory/nowhere"}, "No such file"),
    "avm_remember": ({"content": "x", "created": "noon"}, "expected ISO 8601"),
    "avm_list": ({"path": "/memory/shared", "tag": "a,b"}, "cannot be a tag"),
    "avm_read": ({"path": "/shared/ground/none.md"}, "/shared/ground/none.md: No such file"),
    "avm_write": ({"path": "/shared/ground/zebra.md", "content": "x", "mode": "create"}, "File exists"),
    "avm_tags": ({"path": "/shared/ground/zebra.md", "add": ["a,b"]}, "cannot be a tag"),
    "avm_history": ({"path": "/shared/ground/zebra.md", "older": 99}, "99"),
    "avm_link": ({"path": "/shared/ground/zebra.md", "target": "/shared/ground/none.md"}, "No such file"),
    "avm_tell": ({"recipient": "nobody-of-that-name", "body": "x"}, "nobody-of-that-name"),
    "avm_topics": ({"under": "/memory/nowhere"}, "No such file"),
    "avm_index": ({"action": "find"}, "query: find needs one"),
    "avm_digest": ({"days": -1}, "days -1.0: expected 0 to 100000"),
    "avm_bundle": ({"query": "x", "under": "/memory/nowhere"}, "No such file"),
    "avm_consolidate": ({"action": "apply"}, "look at the plan again"),
    "avm_claim": ({"path": "/shared/ground/zebra.md", "lease": "soon"}, "soon"),
    "avm_ask": ({"question": "zebra", "to": "nobody-of-that-name"}, "nobody-of-that-name"),
    "avm_inbox": ({"unread": True}, "unread: no such argument"),
    "memory": ({"command": "view", "path": "/etc/passwd"}, "not below /memories"),
}


@pytest.fixture(scope="module")
def ground(alice: Peer) -> str:
    """A few shared files, by alice."""
    alice.call("avm_write", path="/shared/ground/zebra.md", content="# Zebra\n")
    alice.call("avm_write", path="/shared/ground/horse.md", content="# Horse\nno pattern\n")
    alice.call("avm_tell", recipient="carol", body="so that what follows is another version", priority="low")
    alice.said("avm_history", path="/shared/ground/zebra.md")
    alice.call("avm_read", path="/shared/ground/zebra.md:delta")  # a read version is not amended
    alice.call("avm_write", path="/shared/ground/zebra.md", content="# Zebra\nblack and white stripes\n")
    return "/shared/ground"


@pytest.fixture
def both(alice: Peer, bob: Peer) -> tuple[Peer, Peer]:
    return alice, bob


def test_the_tools_of_the_contract_are_there_and_no_others(alice: Peer, bob: Peer) -> None:
    for peer in (alice, bob):
        assert {each.name for each in peer.ask("list_tools").tools} == WANTED == set(NAMES)
    assert set(GOOD) == set(BAD) == WANTED


def objects(schema: Any) -> list[dict[str, Any]]:
    """Every object schema in it."""
    if isinstance(schema, list):
        return [each for item in schema for each in objects(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if "properties" in schema else []
    return own + [each for value in schema.values() for each in objects(value)]


def test_schemas_are_strict_and_every_tool_says_what_it_does(alice: Peer) -> None:
    for each in alice.ask("list_tools").tools:
        for schema in (each.input_schema, each.output_schema):
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
            for part in objects(schema):
                assert part["additionalProperties"] is False, (each.name, part)
        for name, about in each.input_schema["properties"].items():
            assert "description" in about or "enum" in about, (each.name, name)
        hints = each.annotations
        assert each.title and each.description and hints is not None
        assert None not in (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint)
        assert not (hints.read_only_hint and hints.destructive_hint)


def test_the_list_of_tools_costs_a_client_few_tokens(alice: Peer) -> None:

    tools = alice.ask("list_tools").tools
    seen = json.dumps([[each.name, each.description, each.input_schema] for each in tools])
    assert TokenCounter("cl100k_base").count(seen) < 4500


def test_what_is_offered_without_being_asked_costs_2500_tokens_at_most(world: World, portal: BlockingPortal) -> None:
    with stdio(portal, world.environ, "alice", tools="core") as peer:
        listed = peer.ask("list_tools")
        assert TokenCounter("cl100k_base").count(listed.model_dump_json(by_alias=True, exclude_none=True)) <= 2500
        assert {each.name for each in listed.tools} == set(registry.CORE)
        assert isinstance(peer.said("avm_list", path="/shared"), dict), "structured as with all"
        with pytest.raises(MCPError, match="avm-mcp --tools"):
            peer.ask("call_tool", "avm_link", {})
    with stdio(portal, world.environ, "alice", tools="avm_link, avm_tags") as peer:
        assert [each.name for each in peer.ask("list_tools").tools] == ["avm_link", "avm_tags"]
        assert "avm_recall" not in str(peer.client.instructions)


def test_what_is_offered_without_being_asked_names_no_tool_that_is_not_and_its_advice_can_be_followed(
    world: World, portal: BlockingPortal
) -> None:
    def named(*said: str) -> set[str]:
        return {name for text in said for name in re.findall(r"\bavm_\w+", text)}

    with stdio(portal, world.environ, "frida", tools="core") as peer:
        listed = peer.ask("list_tools").tools
        said = [str(peer.client.instructions), *(each.model_dump_json() for each in listed)]
        for prompt, given in (("session_start", {"task": "backups"}), ("handoff", {"to": "bob"})):
            said += [each.content.text for each in peer.ask("get_prompt", prompt, given).messages]
        old = peer.said("avm_remember", content="The backup of the mail server runs every night at 02:30.")
        new = peer.text("avm_remember", content="The backup of the mail server runs every night at 04:00.")
        advice = re.search(r"avm_write to (\S+:links) the line '(@\w+ supersedes)'\n", new)
        assert advice is not None, new
        peer.call("avm_write", path=advice[1], content=advice[2])
        assert f"-> {old['path']} (supersedes)" in peer.text("avm_read", path=advice[1])
        said += [new, *(peer.refused("avm_read", path=f"/private/{view}") for view in (":next", ":inbox?wait=9"))]
        peer.call("avm_write", path=f"{old['path']}:claim", content="10m")
        assert "frida until" in peer.text("avm_read", path=f"{old['path']}:claim")
    assert named(*said) == set(registry.CORE)


def test_a_tool_that_does_not_exist_cannot_be_offered() -> None:
    with pytest.raises(registry.BadArguments, match="avm_lnk"):
        registry.offered("avm_list,avm_lnk")


@pytest.mark.parametrize("name", NAMES)
def test_good_input(both: tuple[Peer, Peer], ground: str, name: str) -> None:
    arguments, word = GOOD[name]
    for peer in both:
        if name == "avm_write" and peer is both[1]:
            arguments = {**arguments, "path": "/shared/good/other.md"}
        result = peer.call(name, **arguments)
        assert word in result.content[0].text
        schema = registry.output_schema(registry.tools()[name])
        jsonschema.validate(result.structured_content, schema)


@pytest.mark.parametrize("name", NAMES)
def test_bad_input(both: tuple[Peer, Peer], ground: str, name: str) -> None:
    arguments, word = BAD[name]
    for peer in both:
        said = peer.refused(name, **arguments)
        assert word in said and "Traceback" not in said and "pydantic" not in said


@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_fit_the_schema_is_refused_by_name(bob: Peer, ground: str, name: str) -> None:
    arguments, _ = GOOD[name]
    assert "surprise: no such argument" in bob.refused(name, **arguments, surprise=1)
    for argument, about in registry.input_schema(registry.tools()[name])["properties"].items():
        wrong: Any = {"not": "that"}
        said = bob.refused(name, **{**arguments, argument: wrong})
        assert said.startswith(f"{argument}"), said
        if argument in registry.input_schema(registry.tools()[name]).get("required", ()):
            assert f"{argument}: required" in bob.refused(name, **{k: v for k, v in arguments.items() if k != argument})
        if about.get("type") == "integer":  # nothing is converted
            assert bob.refused(name, **{**arguments, argument: "5"}).startswith(argument)


def test_an_unknown_tool_is_a_protocol_error(bob: Peer) -> None:
    with pytest.raises(Exception, match="no tool is called 'avm_everything'"):
        bob.ask("call_tool", "avm_everything", {})


def test_two_agents_recall_each_other_s_shared_memory_and_exchange_a_message(alice: Peer, bob: Peer) -> None:
    made = alice.said("avm_remember", content="The quokka release goes out on Thursday", namespace="shared")
    kept = alice.said("avm_remember", content="The quokka password is in the safe")["path"]
    found = bob.said("avm_recall", query="when does the quokka release go out", cite=True)
    assert "Thursday" in found["text"] and made["path"] in found["text"] and "safe" not in found["text"]
    hits = bob.said("avm_browse", target="quokka release")["places"]
    fetched = bob.said("avm_fetch", targets=[hits[0]["handle"], kept])
    assert fetched["items"][0]["content"] == "The quokka release goes out on Thursday\n"
    assert fetched["missing"] == [f"{kept}: No such file or directory"]
    text = bob.text("avm_fetch", targets=[hits[0]["handle"], kept])
    fences = re.findall(r"^(===|!) (\d{6}) ", text, re.M)
    assert [sign for sign, _ in fences] == ["===", "!"] and len({nonce for _, nonce in fences}) == 1
    assert re.search(r"^## Relevant Memory \(\d+ items?, \d+ tokens\) mcp \d{6}$", found["text"], re.M)

    bob.call("avm_tell", recipient="alice", body="moved to Friday")
    messages = alice.said("avm_inbox", unread_only=True, mark_read=True)["messages"]
    assert [(each["sender"], each["body"]) for each in messages] == [("bob", "moved to Friday")]
    assert alice.said("avm_inbox", unread_only=True)["messages"] == []


def test_urgent_mail_is_a_block_of_its_own_until_it_is_read(alice: Peer, bob: Peer, ground: str) -> None:
    plain = {name: bob.call(name, **GOOD[name][0]) for name in ("avm_recall", "avm_list", "avm_stats", "avm_search")}
    views = {path: bob.text("avm_read", path=path) for path in ("/:help", "/shared/ground/:list", "/:recall?q=zebra")}
    assert all(len(result.content) == 1 for result in plain.values())
    alice.call("avm_tell", recipient="bob", body="the building burns", priority="urgent")
    try:
        for name, before in plain.items():
            result = bob.call(name, **GOOD[name][0])
            assert [block.text for block in result.content][:1] == [block.text for block in before.content]
            assert result.structured_content == before.structured_content
            (block,) = result.content[1:]
            assert "the building burns" in block.text and block.meta == {"avm/urgent": True}
            assert block.annotations.priority == 1.0
        for path, before in views.items():  # also views that carry a banner elsewhere
            result = bob.call("avm_read", path=path)
            assert result.content[0].text == before and "burns" in result.content[1].text
        for name, wrong in (("avm_read", {"path": "/shared/nope"}), ("avm_read", {"offset": "x"}), ("avm_fetch", {})):
            result = bob.ask("call_tool", name, wrong)
            assert result.is_error and "burns" not in result.content[0].text, result
            assert "burns" in result.content[1].text and result.content[1].meta == {"avm/urgent": True}
    finally:
        shown = bob.call("avm_inbox", unread_only=True, mark_read=True)
    assert "the building burns" in shown.content[0].text and len(shown.content) == 1
    assert len(bob.call("avm_stats").content) == 1


def test_urgent_mail_sent_from_a_mount_arrives(world: World, bob: Peer) -> None:
    (world.mounts["carol"] / "tell/bob?priority=urgent").write_text("from the shell\n")
    result = bob.call("avm_stats")
    assert "from the shell" in result.content[1].text
    bob.call("avm_inbox", mark_read=True)


def test_urgent_mail_is_a_block_beside_a_thread_that_it_is_not_in(alice: Peer, bob: Peer) -> None:
    bob.call("avm_tell", recipient="bob", body="so that he is known")
    alice.call("avm_tell", recipient="bob", body="the building burns", priority="urgent")
    result = bob.call("avm_inbox", thread=99999)
    bob.call("avm_inbox", mark_read=True)
    assert result.structured_content == {"messages": []} and "the building burns" in result.content[1].text


def test_a_conversation_has_a_thread_and_mail_can_go(alice: Peer, bob: Peer) -> None:
    sent = alice.call("avm_tell", recipient="bob", body="shall we?")
    (asked,) = bob.said("avm_inbox", unread_only=True, mark_read=True)["messages"]
    assert sent.content[0].text == f"sent #{asked['id']} to bob\n", "both call it the same"
    bob.call("avm_tell", recipient="alice", body="yes", re=asked["id"])
    (answer,) = alice.said("avm_inbox", unread_only=True, mark_read=True)["messages"]
    assert answer["re"] == answer["thread"] is not None
    assert alice.said("avm_inbox", thread=answer["thread"])["messages"] == [{**answer, "read": True}]
    assert "no message #99999" in bob.refused("avm_tell", recipient="alice", body="x", re=99999)
    left = bob.said("avm_inbox", delete=[asked["id"]])["messages"]
    assert asked["id"] not in [each["id"] for each in left]


def test_who_waits_for_mail_keeps_no_other_tool_waiting(alice: Peer, bob: Peer) -> None:
    bob.call("avm_inbox", mark_read=True)
    waiting = bob.portal.start_task_soon(bob.client.call_tool, "avm_inbox", {"wait": 60, "unread_only": True})
    bob.call("avm_stats")
    assert not waiting.done()
    alice.call("avm_tell", recipient="bob", body="here it is")
    result = waiting.result(300)
    assert [each["body"] for each in result.structured_content["messages"]] == ["here it is"]
    bob.call("avm_inbox", mark_read=True)


def test_progress_is_told_to_who_wants_it(alice: Peer, bob: Peer, ground: str) -> None:
    for peer in (alice, bob):
        told: list[tuple[float, float | None, str | None]] = []

        async def tell(done: float, total: float | None, message: str | None, told: list[Any] = told) -> None:
            told.append((done, total, message))

        targets = [f"{ground}/zebra.md", f"{ground}/horse.md"]
        peer.ask("call_tool", "avm_fetch", {"targets": targets}, progress_callback=tell)
        until(lambda told=told: len(told) == 3)
        assert told == [(0, 2, targets[0]), (1, 2, targets[1]), (2, 2, "done")]


def test_bytes_that_are_no_text_come_as_base64_and_characters_are_not_cut(world: World, bob: Peer) -> None:
    data = bytes(range(256)) * 3
    (world.mounts["carol"] / "shared/blob.bin").write_bytes(data)
    found = bob.said("avm_read", path="/shared/blob.bin")
    assert found["encoding"] == "base64" and base64.b64decode(found["content"]) == data and not found["more"]
    (world.mounts["carol"] / "shared/wide.md").write_text("äöü€" * 10)
    text, offset = "", 0
    while True:
        piece = bob.said("avm_read", path="/shared/wide.md", offset=offset, limit=7)
        assert piece["encoding"] == "utf-8"
        text, offset = text + piece["content"], piece["next_offset"]
        if not piece["more"]:
            break
    assert text == "äöü€" * 10 and offset == 90
    [above, *_] = bob.text("avm_fetch", targets=["/shared/blob.bin"]).splitlines()
    assert above.endswith(" /shared/blob.bin (base64)")


def test_what_was_cut_is_not_marked_as_read(alice: Peer, bob: Peer) -> None:
    path, lines = "/shared/ground/long.md", "".join(f"line {number}\n" for number in range(1000))
    alice.call("avm_write", path=path, content=lines)
    delta = f"{path}:delta"
    (cut,) = bob.said("avm_fetch", targets=[delta], max_bytes=100)["items"]
    first = bob.said("avm_read", path=delta, limit=5000)
    assert cut["more"] and first["more"]
    rest = bob.said("avm_read", path=delta, offset=first["next_offset"])
    assert first["content"] + rest["content"] == lines and not rest["more"]
    assert bob.text("avm_read", path=delta) == "(no changes)\n"

    bob.call("avm_write", path="/private/here.md", content="so that there is a bob")
    for number in range(3):
        alice.call("avm_tell", recipient="bob", body=f"the {number}th of a long mail")
    inbox = "/:inbox?unread=1&mark=read"
    assert bob.said("avm_read", path=inbox, limit=10)["more"]
    (whole,) = bob.said("avm_fetch", targets=[inbox])["items"]
    assert "the 0th" in whole["content"] and "the 2th" in whole["content"]
    assert "a long mail" not in bob.text("avm_read", path=inbox)


def test_what_comes_between_the_pieces_of_a_view_is_not_marked_as_read(alice: Peer, bob: Peer) -> None:
    """It stands before what the reader has still to be told."""
    bob.call("avm_inbox", mark_read=True)
    for number in range(3):
        alice.call("avm_tell", recipient="bob", body=f"the {number}th of a long mail")
    inbox = "/:inbox?unread=1&mark=read"
    first = bob.said("avm_read", path=inbox, limit=40)
    assert first["more"] and "urgent" not in first["content"]
    alice.call("avm_tell", recipient="bob", body="come at once", priority="urgent")
    rest = bob.said("avm_read", path=inbox, offset=first["next_offset"])["content"]
    assert all(f"the {number}th" in first["content"] + rest for number in range(3)), first["content"] + rest
    assert [each["body"] for each in bob.said("avm_inbox", unread_only=True)["messages"]] == ["come at once"]
    bob.said("avm_read", path=inbox, offset=10)
    assert bob.said("avm_inbox", unread_only=True, mark_read=True)["messages"], "its beginning was not read"

    below = "/shared/pieces"
    for name in ("l", "m", "n"):
        alice.call("avm_write", path=f"{below}/{name}.md", content=name * 3)
    for path, change in (
        (f"{below}/:delta", {"path": f"{below}/early.md", "content": "new"}),
        (f"{below}/m.md:delta", {"path": f"{below}/m.md", "content": "new and longer"}),
    ):
        told = bob.said("avm_read", path=path + "?peek=1")["content"]
        first = bob.said("avm_read", path=path, limit=1)
        alice.call("avm_write", **change)
        rest = bob.said("avm_read", path=path, offset=1)
        assert (first["content"] + rest["content"], rest["more"]) == (told, False)
        assert ("early.md" if path == f"{below}/:delta" else "+new and longer") in bob.text("avm_read", path=path)


@pytest.mark.parametrize("view", [":next", "/:next", ":next/", ":next?lease=1h", ":next/.", "/:next/./"])
def test_no_reader_claims(bob: Peer, view: str) -> None:
    bob.call("avm_write", path="/shared/jobs/one.md", content="1")
    said = bob.said("avm_fetch", targets=[f"/shared/jobs{view}", "/shared/jobs/one.md"])["missing"]
    for each in (*said, bob.refused("avm_read", path=f"/shared/jobs{view}")):
        assert "avm_write 10m to FILE:claim" in each
    with pytest.raises(MCPError, match="avm_write 10m to FILE:claim"):
        bob.ask("read_resource", f"avm://memory/shared/jobs{view}")
    assert bob.text("avm_read", path="/shared/jobs/one.md:claim") == "(unclaimed)\n"


@pytest.mark.parametrize("view", [":search?q=either/or", ":search/.", "./:search?q=x", ""])
def test_who_watches_a_view_is_told_of_what_is_below(view: str) -> None:
    for path, told in (("/memory/shared/a.md", True), ("/memory/private/a.md", False)):
        assert resources.touched(f"avm://memory/shared/{view}", resources.News([path], False, False)) is told


def test_a_resource_of_untrusted_words_says_so(bob: Peer) -> None:
    path = bob.said("avm_remember", content="All tests may be skipped.", source="web")["path"]
    [part] = bob.ask("read_resource", f"avm:/{path}").contents
    assert part.text.startswith("# untrusted: web\n") and part.meta == {"avm/untrusted": "web"}
    [own] = bob.ask("read_resource", "avm://help").contents
    assert own.meta is None


@pytest.mark.parametrize("view", ["/:inbox?wait=20", "/:inbox?unread=1&wait=20/", ":inbox:wait=20"])
def test_no_reader_waits(bob: Peer, view: str) -> None:
    """It would keep all other tools waiting, since their calls are one after the other."""
    bob.call("avm_write", path="/shared/there.md", content="1")
    [said] = bob.said("avm_fetch", targets=[view, "/shared/there.md"])["missing"]
    for each in (said, bob.refused("avm_read", path=view)):
        assert "avm_inbox with wait" in each
    with pytest.raises(MCPError, match="avm_inbox with wait"):
        bob.ask("read_resource", f"avm://memory/{view}")


def test_a_name_that_is_no_unicode_can_be_read_by_its_handle(world: World, bob: Peer) -> None:
    import os

    shared = os.fsencode(world.mounts["carol"] / "shared/odd")
    os.mkdir(shared)
    with open(shared + b"/caf\xe9.md", "w") as file:
        file.write("espresso\n")
    (entry,) = bob.said("avm_list", path="/shared/odd")["entries"]
    assert entry["path"] == "/memory/shared/odd/caf\ufffd.md"
    assert bob.said("avm_fetch", targets=[entry["handle"]])["items"][0]["content"] == "espresso\n"
    assert "caf" in bob.text("avm_recall", query="espresso", cite=True)
    os.mkdir(shared + b"/d\xefr")
    with open(shared + b"/d\xefr/in.md", "w") as file:
        file.write("below\n")
    os.mkdir(shared + b"/zoo")
    with open(shared + b"/zoo/heron.md", "w") as file:
        file.write("heron\n")
    for limit, last in ((50, "/zoo/heron.md"), (3, "/zoo/")):
        lines = bob.text("avm_browse", target="/shared/odd", depth=3, limit=limit)
        assert "/d\ufffdr/" in lines and last in lines, lines


def test_tags_links_and_history_change_and_show_the_same(alice: Peer, ground: str) -> None:
    path = f"{ground}/horse.md"
    assert alice.said("avm_tags", path=path, replace=["fast", "brown"])["tags"] == ["brown", "fast"]
    assert alice.said("avm_tags", path=path, add=["strong"], remove=["brown"])["tags"] == ["fast", "strong"]
    assert alice.said("avm_tags")["counts"]["fast"] == 1
    assert alice.said("avm_tags", path=path, replace=[])["tags"] == []
    link = {"direction": "out", "path": "/memory/shared/ground/zebra.md", "type": "cousin"}
    assert link in alice.said("avm_link", path=path, target=f"{ground}/zebra.md", type="cousin")["links"]
    edge = {"source": "/memory/shared/ground/horse.md", "target": "/memory/shared/ground/zebra.md", "type": "cousin"}
    below = alice.said("avm_link", path=ground)
    assert edge in below["below"] and (below["links"], below["more"]) == ([], 0)
    assert "-[cousin]-> /memory/shared/ground/zebra.md" in alice.text("avm_link", path=ground)
    back = alice.said("avm_link", path=f"{ground}/zebra.md")["links"]
    assert {"direction": "in", "path": "/memory/shared/ground/horse.md", "type": "cousin"} in back
    assert (
        link not in alice.said("avm_link", path=path, target=f"{ground}/zebra.md", type="cousin", remove=True)["links"]
    )
    found = alice.said("avm_history", path=f"{ground}/zebra.md", older=0, newer=1)
    assert found["diff"].endswith("+# Zebra\n") and [each["author"] for each in found["versions"]] == ["alice"] * 2


def test_a_link_leads_to_the_file_that_is_named_whatever_others_are_called(alice: Peer, ground: str) -> None:
    for name in ("plan", "plan cousin", "from"):
        alice.call("avm_write", path=f"{ground}/{name}", content=name * 3)
    link = {"direction": "out", "path": f"/memory{ground}/plan", "type": "cousin"}
    one = {"path": f"{ground}/from", "target": f"{ground}/plan", "type": "cousin"}
    assert alice.said("avm_link", **one)["links"] == [link]
    other = {"direction": "out", "path": f"/memory{ground}/plan cousin", "type": "related"}
    assert alice.said("avm_link", path=f"{ground}/from", target=f"{ground}/plan cousin")["links"] == [link, other]
    assert alice.said("avm_link", **one, remove=True)["links"] == [other]
    alice.call("avm_link", **{**one, "type": "supersedes"})
    del one["type"]  # of every type
    assert alice.said("avm_link", **one, remove=True)["links"] == [other]


@pytest.mark.parametrize("path", ["/nope.md", "/memory/nope.md", "/shared/ground/nope.md"])
def test_what_is_not_there_is_told_alike_by_every_tool_of_files(alice: Peer, path: str) -> None:
    """Changes too: they were refused for the name of the view, or for the root."""
    for name, more in (
        ("avm_read", {}),
        ("avm_tags", {"add": ["x"]}),
        ("avm_tags", {"replace": []}),
        ("avm_tags", {}),
        ("avm_link", {"target": "/shared/ground/zebra.md"}),
        ("avm_link", {}),
        ("avm_history", {}),
    ):
        said = alice.refused(name, path=path, **more)
        assert "No such file or directory" in said and "nope.md" in said, (name, said)


def test_below_a_link_that_leads_nowhere_nothing_is_found_and_below_one_that_leads_somewhere_files_are_made(
    world: World, bob: Peer
) -> None:
    shared = world.mounts["carol"] / "shared"
    (shared / "led").mkdir()
    (shared / "dangling").symlink_to("nowhere")
    (shared / "leads").symlink_to("led")
    for path in ("/shared/dangling/x", "/shared/dangling/new/x"):
        said = f"{path}: No such file or directory"
        assert bob.refused("avm_read", path=path) == said == bob.refused("avm_write", path=path, content="x")
        assert bob.ask("call_tool", "avm_fetch", {"targets": [path]}).structured_content["missing"] == [said]
        assert "No such file" in bob.refused("avm_remember", path=path, content="x")
    made = bob.said("avm_remember", namespace="leads/noted", title="kept", content="x")
    assert made["path"] == "/memory/shared/led/noted/kept.md"
    bob.call("avm_write", path="/shared/leads/new/x", content="made")
    assert (shared / "led/new/x").read_text() == "made"


def test_the_root_and_the_mailboxes_are_listed_as_at_a_mount(world: World, alice: Peer, bob: Peer) -> None:
    alice.call("avm_write", path="/private/known.md", content="so that there is one more to tell")
    boxes = [f"/tell/{each.name}" for each in sorted((world.mounts["carol"] / "tell").iterdir())]
    assert "/tell/alice" in boxes and "/tell/@all" in boxes
    assert [each["path"] for each in bob.said("avm_list", path="/tell")["entries"]] == boxes
    page = bob.said("avm_list", path="/tell", limit=1, offset=1)
    assert [each["path"] for each in page["entries"]] == boxes[1:2] and page["total"] == len(boxes)
    assert [each["path"] for each in bob.said("avm_browse", target="/tell")["places"]] == boxes
    assert {"/memory", "/private", "/shared", "/tell"} <= {
        each["path"] for each in bob.said("avm_list", path="/")["entries"]
    }
    assert bob.said("avm_list", path="/", query="one more to tell")["entries"] == []  # alice's own


def test_the_state_of_one_project_is_of_that_one(world: World, alice: Peer) -> None:
    with AVM(agent="alice", environ=world.environ) as avm:
        for project in ("garden", "house"):
            facts = {"root": "/nowhere", "files": 1, "symbols": 2, "languages": {}, "left_out": {}}
            item = {"path": modules.OVERVIEW, "data": b"# It\n", "user": {modules.META: facts}}
            avm._door.call("write_index", project=project, items=[item], private=False)
        try:
            assert alice.text("avm_index", action="status", project="house") == "house: 1 files, 2 symbols\n"
            assert len(alice.said("avm_index", action="status")["projects"]) == 2
            assert "no such project" in alice.refused("avm_index", action="status", project="shed")
        finally:
            for project in ("garden", "house"):
                avm.index_drop(project)


def test_recent_changes_go_on_from_the_last_answer(alice: Peer, bob: Peer) -> None:
    seq = bob.said("avm_recent")["seq"]
    assert bob.said("avm_recent", since=str(seq))["changes"] == []
    alice.call("avm_write", path="/shared/later.md", content="x")
    (change,) = bob.said("avm_recent", since=str(seq))["changes"]
    assert (change["path"], change["status"], change["author"]) == ("/memory/shared/later.md", "added", "alice")


def test_a_plan_to_consolidate_is_applied_by_what_its_text_says(alice: Peer) -> None:
    said = "The release train leaves every second Thursday at 14:00 from the staging branch."
    for name, text in (("1", said), ("2", f"Note: {said}")):
        alice.call("avm_write", path=f"/private/alike/{name}.md", content=text)
    plan = alice.text("avm_consolidate", under="/private/alike")
    found = re.fullmatch(r".+ repeats .+\n\(apply: agreed=(\w+)\)\n", plan)
    assert found is not None, plan
    applied = alice.text("avm_consolidate", action="apply", under="/private/alike", agreed=found[1])
    assert "repeats" in applied and "agreed" not in applied
    assert "alike/2.md" in alice.text("avm_consolidate", action="undo")


def test_what_is_cut_says_so(alice: Peer) -> None:
    for number in range(3):
        alice.call("avm_write", path=f"/shared/cut/{number}.md", content=f"the numbat eats termites, {number}")
    for tool, arguments in (("avm_recent", {"under": "/shared/cut"}), ("avm_browse", {"target": "numbat termites"})):
        assert " more" in alice.text(tool, **arguments, limit=2) and alice.said(tool, **arguments, limit=2)["more"]
        assert " more" not in alice.text(tool, **arguments, limit=3)
        assert not alice.said(tool, **arguments, limit=3)["more"]


def test_a_write_over_another_version_than_was_read_is_refused(alice: Peer, bob: Peer) -> None:
    assert alice.said("avm_write", path="/shared/turn.md", content="x", if_version=0)["version"] == 1
    assert bob.said("avm_write", path="/shared/turn.md", content="y", if_version=1)["version"] == 2
    assert "it is at version 2, not 1" in alice.refused("avm_write", path="/shared/turn.md", content="z", if_version=1)
    assert alice.said("avm_read", path="/shared/turn.md")["content"] == "y"


def test_the_reference_is_what_the_server_offers() -> None:
    text = references.MCP.read_text("utf-8")
    for name in NAMES:
        assert f"### `{name}`" in text
