"""How much room a mount shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from avmfs.access import Person, Policy, Quota
from avmfs.vfs.statfs import room
from tests.unit.views_fixtures import opened


@pytest.mark.parametrize(
    "quota", [Quota(), Quota(nodes=10), Quota(bytes=10_000_000), Quota(nodes=10, bytes=10_000_000)]
)
def test_under_every_quota_statvfs_has_all_that_the_disk_tells(tmp_path: Path, quota: Quota) -> None:
    """libfuse is handed each field; one that is None is an EIO."""
    with opened(tmp_path, Policy(people={"alice": Person(quota=quota)})) as world:
        found, disk = room(world.agent("alice").memory), world.store.capacity()
    assert (found.f_fsid, found.f_namemax, found.f_flag) == (disk.f_fsid, disk.f_namemax, disk.f_flag)
    assert [name for name in dir(found) if name.startswith("f_") and getattr(found, name) is None] == []
    assert quota.nodes is None or 0 < found.f_ffree == found.f_favail <= 10
    assert quota.bytes is None or 0 < found.f_bavail * found.f_frsize <= 10_000_000
