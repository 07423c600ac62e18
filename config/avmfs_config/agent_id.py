"""What a valid agent id is.

Called by the loader for every id in a file, and by whoever takes an id from a command line or a request. It
must not know which agents exist.
"""

import re

AGENT_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
RESERVED = ("all", "shared", "private", "me", "avmfs")


def check_agent_id(name: str) -> str:
    """Return `name` if it can name an agent; else raise ValueError with the reason.

    An id is 1 to 64 of ``a-z 0-9 . _ -``, begins with a letter or a digit, and is none of the words that
    paths and mailboxes use for something else, nor the name by which the system itself acts.
    """
    if not name:
        raise ValueError("an agent id cannot be empty")
    if len(name) > 64:
        raise ValueError(f"an agent id has at most 64 characters, this one has {len(name)}")
    if name in RESERVED:
        raise ValueError(f"{name!r} is reserved and cannot be an agent id")
    if not AGENT_ID.fullmatch(name):
        lowered = name.lower()
        hint = f"; did you mean {lowered!r}?" if AGENT_ID.fullmatch(lowered) and lowered not in RESERVED else ""
        raise ValueError(f"{name!r} is not an agent id: a-z 0-9 . _ - only, first a letter or digit{hint}")
    return name
