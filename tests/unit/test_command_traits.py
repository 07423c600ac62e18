"""What the writer and its clients do differently because of a command: all of it, spelled out."""

from __future__ import annotations

import dataclasses

import pytest

from avmfs.store import commands
from avmfs.store.commands import Traits

# A command that comes to stand here, or no longer does, changes what a crash, a full disk or a kernel's cache means.
WITH = {
    "repeatable": "drain_lexical enroll hold sync wipe",
    "frees_space": "act_as_operator delete_mail drop_vectors empty_trash enroll extend_chain forget_clients"
    " forget_hosts forget_notices hold mark_read note_refusal outbox_tidy purge reap_all_orphans reap_expired"
    " reap_orphans release remove_snapshot revoke_key rmdir settle settle_refusals trim_mail trim_past trim_trash"
    " unlink wipe",
    "uses_reserve": "drain_lexical",
    "native": "append commit create mkdir rename rmdir set_attributes symlink unlink",
    "begins_file": "create",
    "fills_file": "commit",
    "appends": "append",
    "rewrites": "wipe",
    "only_syncs": "sync",
}
NOT_DURABLE = (
    "act_as_operator append collect_notices create drain_lexical drop_vectors extend_chain follow_model forget_clients"
    " forget_hosts hold merge_digests mirror mirror_failed mirror_names"
    " name_host note_refusal outbox_fill outbox_report outbox_take outbox_tidy"
    " publish_digests put_vectors reap_expired reap_orphans set_attributes settle_refusals skip_vectors"
    " sum_contents trim_mail trim_past trim_trash wipe"
)


@pytest.mark.parametrize("trait", [each.name for each in dataclasses.fields(Traits)])
def test_which_commands_have_a_trait(trait: str) -> None:
    found = [name for name in commands.names() if getattr(commands.traits(name), trait)]
    if trait == "durable":
        assert found == [name for name in commands.names() if name not in NOT_DURABLE.split()]
    else:
        assert found == WITH[trait].split()


@pytest.mark.parametrize("name", ["nothing", ""])
def test_what_is_no_command_has_the_safe_traits(name: str) -> None:
    assert commands.traits(name) == Traits()


def test_a_trait_that_there_is_not_is_refused() -> None:
    def nothing() -> None: ...

    with pytest.raises(TypeError, match="fast"):
        commands.command(fast=True)(nothing)
    assert "nothing" not in commands.names()
