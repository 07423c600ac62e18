"""Methods of the door about messages between agents. Called through the registry."""

from __future__ import annotations

from typing import Any

from avmfs.agents import mail
from avmfs.memory import Memory
from avmfs.node import Message
from avmfs.rpc.methods import method


@method
def tell(
    memory: Memory, recipient: str, body: str, priority: str = "normal", expires: str | None = None
) -> dict[str, Any]:
    return {"id": memory.tell(recipient, body, priority=priority, expires=expires)}


@method
def inbox(memory: Memory, unread_only: bool = False, mark_read: bool = False) -> dict[str, Any]:
    """{"text", "messages"}; ``mark_read`` marks just what is shown."""
    messages = memory.inbox(unread_only=unread_only)
    if mark_read:
        memory.mark_read([message.id for message in messages if message.read_at is None])
    return {"text": mail.listing(messages, memory.zone), "messages": [_message(each) for each in messages]}


@method
def urgent(memory: Memory) -> str:
    """The banner of unread urgent mail, empty when there is none."""
    return memory.banner()


def _message(message: Message) -> dict[str, Any]:
    return {
        "id": message.id, "sender": message.sender, "recipient": message.recipient, "priority": message.priority,
        "body": message.body, "at": mail.iso(message.at), "expires": mail.iso(message.expires),
        "read": message.read_at is not None,
    }  # fmt: skip
