"""Tools about what there is and who knows: topics, ask."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from avmfs.mcp.registry import Answer, Call, Result, tool


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


@tool("Topics", reads=True)
def avm_topics(
    call: Call,
    under: Annotated[str, Field(description="Only below this directory.", min_length=1)] = "/memory",
    name: Annotated[str | None, Field(description="A topic: list its files.", min_length=1)] = None,
    limit: Annotated[int, Field(description="At most so many.", ge=1, le=1000)] = 30,
) -> Answer[Topics]:
    """What memory is about, without a keyword: topics and how many files have them, or the files of one topic."""
    found = call.door("topics", path=under, name=name, limit=limit)
    value = Topics(
        topics=[Topic(**each) for each in found["topics"]], files=[AboutTopic(**each) for each in found["files"]]
    )
    return Answer(found["text"], value)


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
    value = Answered(
        recalled=found["recalled"],
        tokens=found["tokens"],
        degraded=found["degraded"],
        knows=[Knows(**each) for each in found["knows"]],
        asked=None if found["asked"] is None else Asked(**found["asked"]),
    )
    return Answer(found["text"], value)
