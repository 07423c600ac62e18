"""Tools about memory as a whole: topics, ask, digest, bundle."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from avmfs.mcp.registry import Answer, Call, Result, tool
from avmfs.node import notice

Latest = Annotated[str | None, Field(description="Why the latest changes had no part in it.")]


class Topic(Result):
    topic: str
    files: int = Field(description="How many are about it.")


class AboutTopic(Result):
    path: str
    handle: str
    line: str = Field(description="Its first line.")


class Topics(Result):
    topics: list[Topic]
    files: list[AboutTopic] = Field(description="The files of one topic, newest first, where one was named.")
    degraded: Latest


@tool("Topics", reads=True)
def avm_topics(
    call: Call,
    under: Annotated[str, Field(description="Only below this directory.", min_length=1)] = "/memory",
    name: Annotated[str | None, Field(description="A topic: list its files.", min_length=1)] = None,
    limit: Annotated[int, Field(description="At most so many.", ge=1, le=1000)] = 30,
) -> Answer[Topics]:
    """What memory is about, without a keyword: topics and how many files have them, or the files of one topic."""
    found = call.door("topics", path=under, name=name, limit=limit)
    return Answer(found["text"], Topics.of(found))


class Knows(Result):
    agent: str | None = Field(description="null: somebody who stays unnamed.")
    host: str | None = Field(description="null: this one.")
    how: Literal["files", "private", "digest"] = Field(
        description="files: you can read them; private: you cannot; digest: perhaps."
    )
    files: int
    topics: list[str]
    handle: str | None = Field(description="Of the newest file that you can read.")
    path: str | None


class Asked(Result):
    recipient: str
    id: int


class Answered(Result):
    recalled: str = Field(description="The packed memories, empty when nothing is relevant.")
    tokens: int = Field(description="Of these, exactly.")
    degraded: str | None = Field(description="What had no part in the answer, and why: vectors, the re-ranker.")
    knows: list[Knows] = Field(description="Who knows about it, best first.")
    asked: Asked | None = Field(description="The message that carries the question, where one was sent.")


@tool("Ask")
def avm_ask(
    call: Call,
    question: Annotated[str, Field(description="In plain words.", min_length=1)],
    max_tokens: Annotated[int | None, Field(description="Budget of the whole answer.", ge=1, le=200_000)] = None,
    to: Annotated[str | None, Field(description="An agent to send the question to.", min_length=1)] = None,
    forward: Annotated[bool, Field(description="Send it to whoever else knows best.")] = False,
) -> Answer[Answered]:
    """What memory holds on a question, and which agents know about it; sends them nothing unless told to."""
    found = call.door("ask", question=question, max_tokens=max_tokens, to=to, forward=forward)
    return Answer(found["text"], Answered.of(found))


Below = Annotated[str, Field(description="Only below this directory.", min_length=1)]


class Noted(Result):
    path: str
    handle: str
    author: str
    at: str = Field(description="ISO 8601, UTC.")
    line: str = Field(description="Its first words.")


class Disputed(Result):
    handles: list[str]
    paths: list[str] = Field(description="The two that contradict each other.")
    agent: str = Field(description="Who says so.")


class Left(Result):
    urgent: int
    new: int
    disputes: int
    cold: int


class Digest(Result):
    text: str
    unread: int | None = Field(description="Messages but those of low priority; null where you may not read mail.")
    urgent: int = Field(description="Of these, urgent ones; the text has the first.")
    new: list[Noted]
    disputes: list[Disputed]
    cold: list[Noted]
    more: Left = Field(description="How many of each were left out.")
    degraded: Latest


@tool("Digest", reads=True)
def avm_digest(
    call: Call,
    under: Below = "/memory",
    days: Annotated[float, Field(description="New: of so many days.")] = 1,
    cold: Annotated[float, Field(description="Cold: older than so many.")] = 90,
    limit: Annotated[int, Field(description="Of each at most so many.", ge=1, le=1000)] = 10,
) -> Answer[Digest]:
    """What to know today: urgent mail, what is new, disputed and cold in memory."""
    found = call.door("digest", path=under, days=days, cold=cold, limit=limit)
    left = found["more"]["urgent"]
    if not left:
        call.urgent_is_shown()
    return Answer(found["text"], Digest(**{**found, "urgent": len(found["urgent"]) + left}))


class Bundle(Result):
    text: str = Field(description="Empty when nothing is relevant.")
    tokens: int = Field(description="Its exact size in tokens.")
    paths: list[str] = Field(description="Of the notes in it.")
    degraded: str | None = Field(description="What had no part in the answer, and why: vectors, the re-ranker.")
    seq: int = Field(description="The state of the memory that it was made from.")


@tool("Bundle", reads=True)
def avm_bundle(
    call: Call,
    query: Annotated[str, Field(description="What it is about.", min_length=1)],
    max_tokens: Annotated[int, Field(description="Budget of the whole.", ge=100, le=200_000)] = 4000,
    under: Below = "/",
) -> Answer[Bundle]:
    """A handoff: notes, what happened to them, their links, in a token budget.

    With your private notes, unless ``under`` leaves them out."""
    found = call.door("bundle", q=query, max_tokens=max_tokens, under=under)
    above = notice(found["degraded"])
    return Answer(found["text"] or f"{above}(nothing relevant)\n", Bundle(**found))
