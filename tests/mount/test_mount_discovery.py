"""Who knows what, through mounts: read and written like files."""

from __future__ import annotations

import pytest

from tests.mount.mount_world import World, cat, echo, until

pytestmark = pytest.mark.mount


def test_a_mode_is_written_and_what_it_tells_is_read(world: World) -> None:
    alice, bob = world.mounts["alice"], world.mounts["bob"]
    echo("# Quinoa and #amaranth", alice / "private/grains.md")
    echo("# Quinoa", alice / "shared/quinoa.md")
    assert cat(alice / ":who") == "privacy: none\n"
    assert cat(bob / ":who?q=quinoa").startswith("alice  1 file: Quinoa  @")
    assert "alice" not in cat(bob / ":who?q=amaranth")
    echo("full", alice / ":who")
    assert cat(bob / ":who?q=amaranth").endswith("alice  private: amaranth (1)\n")
    with pytest.raises(OSError, match="Invalid argument"):
        echo("everything", alice / ":who")
    assert "expected one of full" in cat(alice / ":error")
    assert cat(alice / ":who") == "privacy: full\n"
    until(lambda: cat(bob / ":who?q=amaranth&via=gossip") == "alice  perhaps\n")
    assert "alice  digest 128 bytes  here: mount" in cat(bob / ":agents") and "bob  (you)" in cat(bob / ":agents")
    echo("none", alice / ":who")
    assert "alice" not in cat(bob / ":who?q=amaranth&via=gossip") + cat(bob / ":who?q=amaranth")


def test_a_long_question_goes_through_ask(world: World) -> None:
    alice, bob = world.mounts["alice"], world.mounts["bob"]
    echo("the quinoa harvest was late in 2024", alice / "shared/harvest.md")
    echo("when was the quinoa harvest late? " + "please " * 100, bob / ":ask/harvest")
    assert "quinoa harvest was late" in cat(bob / ":ask/harvest")
