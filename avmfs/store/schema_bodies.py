"""The migration that gives small contents numbers of their own, one after the other.

Owns its statements; appended to ``schema.MIGRATIONS``. A node's number is random, so a body under that number came
somewhere into a full page, every third time into one that had to be divided among its neighbours: some two pages of the
log more for each new file. The number of a body is told to nobody.
"""

from __future__ import annotations

from typing import Final

BODIES: Final = """
-- body: the row of `body` with the bytes of a small file, or the target of a symlink; null: empty, or in extents.
-- Of what is there the number stays what it was, the node's; the next ones follow the greatest.
alter table node add column body int;
update node set body = id where id in (select node from body);
alter table body rename column node to id;
"""
