"""The nonce of an answer: what its first and last line carry and no note between them can know.

Owns how it is made: HMAC-SHA256 of a secret of the store over who asks, what, and of which state of the memory, cut to
six decimal digits (two tokens). So the same answer can be had again, and whoever writes a note can only guess: one in a
million for one question of one agent in one state, which his own writing changes.
"""

from __future__ import annotations

import hashlib
import hmac

DIGITS = 6


def nonce(secret: bytes, agent: str, seq: int, question: str) -> str:
    """Six digits."""
    asked = b"\0".join((agent.encode(), b"%d" % seq, question.encode("utf-8", "surrogatepass")))
    number = int.from_bytes(hmac.new(secret, asked, hashlib.sha256).digest()[:8], "big")
    return f"{number % 10**DIGITS:0{DIGITS}}"
