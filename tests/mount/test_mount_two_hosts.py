"""Two mounts on two hosts of one store: some of what two mounts of one daemon show each other, once more.

All of ``test_mount_sharing.py`` and ``test_mount_coherence.py``, the contract suite and the sweeps are tried so with
AVM_TWO_HOSTS=1.
"""

from __future__ import annotations

import pytest

from tests.mount.test_mount_sharing import (  # noqa: F401
    test_a_directory_comes_and_goes_for_the_other_at_once,
    test_a_file_replaced_by_rename_is_never_missing_or_torn_for_a_reader,
    test_a_name_comes_and_goes_for_the_other_at_once,
    test_an_open_file_stays_readable_when_it_is_removed,
    test_delta_tells_exactly_the_change_and_only_once,
    test_every_write_is_in_the_next_open_of_the_other,
    test_exclusive_creation_has_one_winner,
    test_fsync_makes_bytes_visible_to_the_other_while_the_file_stays_open,
    test_two_agents_may_write_the_same_file_in_turns,
)

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module")
def two_hosts() -> bool:
    return True
