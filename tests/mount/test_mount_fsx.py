"""Random operations do the same on a mount as on the machine's own filesystem.

``AVM_FSX_STEPS`` makes the runs longer: 10000 is the long form.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.mount.fsx_steps import Names, OneFile, compare, file_steps, name_steps, whole
from tests.mount.mount_world import Place, linux_only

STEPS = int(os.environ.get("AVM_FSX_STEPS", "400"))
SEEDS = range(1, 6)
LOOK_EVERY = 50
HANGS_AFTER_S = 500 + STEPS / 20

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600 + STEPS)]
by_node = linux_only("libfuse asks by path, and an unlinked file has none")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A directory beside the mounts. umask and filesystem are those of the machine."""
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


@by_node
@pytest.mark.parametrize("seed", SEEDS)
def test_random_operations_on_a_file(place: Place, own: Path, seed: int) -> None:
    one = OneFile(place.alice)

    def look(number: int) -> None:
        if number % LOOK_EVERY == 0:  # what is closed or synced, the other mount sees
            os.fsync(one.handle)
            assert (place.bob / "file").read_bytes() == (own / "file").read_bytes()

    compare(one, OneFile(own), file_steps(seed, STEPS), look)


@by_node
@pytest.mark.parametrize("seed", SEEDS)
def test_random_operations_on_names(place: Place, own: Path, seed: int) -> None:
    def look(number: int) -> None:
        if number % LOOK_EVERY == 0:
            for descriptor in names.open:
                os.fsync(descriptor)
            assert whole(place.bob) == whole(own)

    names = Names(place.alice)
    compare(names, Names(own), name_steps(seed, STEPS), look)


def test_thousands_of_small_writes_are_all_there(place: Place, own: Path) -> None:
    """Scattered ones, more than are kept uncommitted, and then the whole file again in small pieces."""
    chance = random.Random(1)
    for path in (place.alice / "f", own / "f"):
        with path.open("w+b", buffering=0) as file:
            file.truncate(300_000)
            chance.seed(1)
            for number in range(2500):
                file.seek(chance.randrange(300_000))
                file.write(b"%010d" % number)
                if number % 100 == 0:
                    file.seek(0)
                    file.read(5000)
    assert (place.alice / "f").read_bytes() == (place.bob / "f").read_bytes() == (own / "f").read_bytes()
    data = chance.randbytes(5 << 20)
    with (place.alice / "f").open("wb", buffering=0) as file:
        for at in range(0, len(data), 4096):
            file.write(data[at : at + 4096])
        assert (place.alice / "f").read_bytes() == data
    assert (place.bob / "f").read_bytes() == data
