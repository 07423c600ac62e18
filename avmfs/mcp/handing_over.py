"""Tools that hand memory over: digest, bundle."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from avmfs.mcp.registry import Answer, Call, Result, tool
from avmfs.node import notice

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
