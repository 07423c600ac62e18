"""Random operations do the same on a mount as on the machine's own filesystem.

``AVM_FSX_STEPS`` makes the runs longer: 10000 is the long form.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fsx_steps import Names, OneFile, compare, file_steps, name_steps, whole
from mount_world import Place

STEPS = int(os.environ.get("AVM_FSX_STEPS", "400"))
SEEDS = range(1, 6)
LOOK_EVERY = 50

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120 + STEPS)]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A directory beside the mounts. umask and filesystem are those of the machine."""
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


@pytest.mark.parametrize("seed", SEEDS)
def test_random_operations_on_a_file(place: Place, own: Path, seed: int) -> None:
    one = OneFile(place.alice)

    def look(number: int) -> None:
        if number % LOOK_EVERY == 0:  # what is closed or synced, the other mount sees
            os.fsync(one.handle)
            assert (place.bob / "file").read_bytes() == (own / "file").read_bytes()

    compare(one, OneFile(own), file_steps(seed, STEPS), look)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_operations_on_names(place: Place, own: Path, seed: int) -> None:
    def look(number: int) -> None:
        if number % LOOK_EVERY == 0:
            for descriptor in names.open:
                os.fsync(descriptor)
            assert whole(place.bob) == whole(own)

    names = Names(place.alice)
    compare(names, Names(own), name_steps(seed, STEPS), look)
