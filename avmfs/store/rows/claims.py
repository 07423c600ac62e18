"""When a claim is over. Called by the commands and the queries of claims."""

from __future__ import annotations

from typing import Final

LEASE_MAX_NS: Final = 30 * 86_400 * 10**9
# One that ends later than a lease can was made by a clock that was ahead. Not by a little: clocks are set right now and
# then, and the longest lease is to outlive that.
OVER: Final = f"(until <= :now or until > :now + {LEASE_MAX_NS + 86_400 * 10**9})"
