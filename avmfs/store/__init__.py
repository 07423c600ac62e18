"""The store: SQL, and everything between a command and the disk.

Rooms, each with what it owns and which process runs it in its own docstring; `tests/unit/test_layers.py` holds which
room may import which. Beside them: `store` (`Store`, the whole as the layers above see it), `identity` (for whom
a process speaks), `nonce`. Nothing outside this package speaks SQL.
"""
