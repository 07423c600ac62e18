"""The table of veils: who may read versions that were written before a file was shown to more (see ``veils``)."""

from __future__ import annotations

from typing import Final

SQL: Final = """
-- Versions of the document with a number below `before` were written while it was in this scope; only who may see that
-- scope may read them. A row per change of scope, none while there is no version but the newest.
create table veil(document int, before int, scope int, primary key(document, before, scope)) without rowid;
"""
