"""The section `agents` of config.yaml: groups, capabilities and quotas of each agent.

Owns its values and its readers; the loader reads it with the others. Values only in the dataclasses: what a capability
means is the policy's business (avmfs.access).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from avmfs_config.agent_id import check_agent_id
from avmfs_config.parse import Range, Reader, Readers, Value, reader_of

Capability = Literal["search_all", "write", "sudo"]
Most = Annotated[int | None, Range(0)]

ANYBODY = "*"
_GROUP = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """The most that an agent may have; None is no limit. `bytes` counts sizes, holes too; `history_bytes` what older
    versions take, each of a large file whole; `unread` messages in its inbox."""

    nodes: Most = None
    bytes: Most = None
    history_bytes: Most = None
    unread: Most = None


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """One agent, or with the key "*" every agent without an entry of its own.

    `capabilities`: "write" (without it, read-only everywhere), "search_all" (reads what is private to others or not
    shared with it, as far as the rules allow), "sudo" (may ask to be the operator).
    """

    groups: tuple[str, ...] = ()
    capabilities: tuple[Capability, ...] = ("write",)
    quota: QuotaSettings = field(default_factory=QuotaSettings)


def read_agents(value: Value) -> dict[str, AgentSettings]:
    """The section `agents`."""
    found: dict[str, AgentSettings] = {}
    for name, entry in value.entries().items():
        if name != ANYBODY:
            try:
                check_agent_id(str(name))
            except ValueError as problem:
                raise entry.error(f"{problem}") from None
        each = found[str(name)] = entry.record(AgentSettings, AGENT)
        if name == ANYBODY and each.groups:
            raise entry.child("groups").error("name the members of a group one by one")
        for capability in each.capabilities if name == ANYBODY else ():
            if capability != "write":
                raise entry.child("capabilities").error(f"{capability} for everybody would leave nothing to protect")
    return found


def read_group(value: Value) -> str:
    """The name of a group: as an agent's, but any word will do."""
    text = value.text()
    if not _GROUP.fullmatch(text):
        raise value.error(f"a group is 1 to 64 of a-z 0-9 . _ -, first a letter or digit, not {text!r}")
    return text


def check_groups(rules: Value, named: Mapping[int, tuple[str, ...]], agents: Mapping[str, AgentSettings]) -> None:
    """A rule about a group that nobody is in is a typing error: raises ConfigError at its place."""
    known = {group for each in agents.values() for group in each.groups}
    for index, groups in named.items():
        for place, group in enumerate(groups):
            if group not in known:
                where = rules.child(index).child("groups").child(place)
                raise where.error(f"no agent is in a group {group!r} (see agents.NAME.groups)")


def _once(read: Reader[str]) -> Reader[tuple[str, ...]]:
    """A list without repetitions, in order of name: the order says nothing."""
    return lambda value: tuple(sorted(set(value.items(read))))


AGENT: Readers = {"groups": _once(read_group), "capabilities": _once(reader_of(Capability))}
