"""The contract of a store: documents, the lineage of a name, and when a version begins."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

import pytest

from avmfs.errors import Denied, NotFound, Stale
from avmfs.node import Document
from avmfs.store.commands import versions
from avmfs.store.identity import OPERATOR
from avmfs.store.schema.tables import MEMORY
from avmfs.store.tx import random_ids
from tests.behind import connect
from tests.contract.store_world import ALICE, BOB, World

Build = Callable[..., World]


def known(world: World, path: str, big: bytes = b"") -> Document:
    """A file with everything that belongs to a document: two versions, tags, a link, :shared, ttl, marks."""
    world.write(ALICE, path, b"first" + big)
    world.clock.advance(2)
    world.write(BOB, path, b"second" + big)
    world.tag(ALICE, path, "keep")
    node = world.node(ALICE, path).id
    world.write(ALICE, "/memory/other.md", b"other")
    world.do(ALICE, "add_link", node=node, target=world.node(ALICE, "/memory/other.md").id, type="see")
    world.do(ALICE, "add_link", node=world.node(ALICE, "/memory/other.md").id, target=node, type="back")
    world.do(ALICE, "set_ttl", node=node, expires=world.clock() + 10**12)
    world.do(ALICE, "merge_meta", node=node, importance=0.7, user={"k": "v"})
    world.share(ALICE, path, "bob")
    world.do(BOB, "mark", node=node, version=1)
    world.clock.advance(2)
    return world.document(ALICE, path)


def still_known(world: World, path: str, before: Document, versions: list[bytes]) -> None:
    """The document goes on under ``path``, with these further versions."""
    after = world.document(ALICE, path)
    assert (after.id, after.handle, after.creator, after.created) == (
        before.id,
        before.handle,
        before.creator,
        before.created,
    )
    assert (after.shared, after.importance, after.user) == (before.shared, 0.7, {"k": "v"})
    assert "keep" in world.tags(ALICE, path)
    node = world.node(ALICE, path)
    assert node.expires is not None and node.document == before.id
    with world.reading(BOB) as reader:
        mark = reader.mark(before.id)
        assert mark is not None and mark.version == 1
        assert [(link.outgoing, link.path) for link in reader.links(before.id)] == [
            (True, b"/memory/other.md"),
            (False, b"/memory/other.md"),
        ]
        found = reader.by_handle(before.handle)
        assert found is not None and found.id == node.id
    old = world.history(ALICE, path)
    assert [old[0][:5], old[1][:6]] == [b"first", b"second"] and old[2:] == versions
    assert not world.exists(OPERATOR.__class__("eve"), path), ":shared still holds"


BIG = bytes(range(256)) * 800  # 200 KiB


@pytest.mark.parametrize("old", [b"", BIG], ids=["small", "large"])
@pytest.mark.parametrize("new", [b"third", b"third" + BIG[:90_000]], ids=["by_small", "by_large"])
def test_replacing_by_rename_continues_the_targets_document(world: World, old: bytes, new: bytes) -> None:
    before = known(world, "/memory/d/f.md", old)
    world.write(BOB, "/memory/d/f.md.tmp", new)
    world.tag(BOB, "/memory/d/f.md.tmp", "joins")
    gone = world.document(BOB, "/memory/d/f.md.tmp")
    world.rename(BOB, "/memory/d/f.md.tmp", "/memory/d/f.md")
    still_known(world, "/memory/d/f.md", before, [new])
    assert world.tags(ALICE, "/memory/d/f.md") == ["joins", "keep"]
    assert world.bytes(BOB, "/memory/d/f.md") == new
    with world.reading(OPERATOR) as reader:
        assert reader.by_handle(gone.handle) is None
        assert reader.versions(before.id)[0].author == "bob"


def test_replacing_joins_links_and_leaves_those_of_others(world: World) -> None:
    names = ("a", "b", "c", "target", "temporary")
    nodes = {name: world.write(BOB, f"/memory/{name}", b"x")["node"] for name in names}
    pairs = "a b,b c,a temporary,temporary c,temporary target,target temporary,b target"
    for pair in pairs.split(","):
        source, target = pair.split()
        world.do(BOB, "add_link", node=nodes[source], target=nodes[target], type="see")
    world.rename(BOB, "/memory/temporary", "/memory/target")
    known = {world.document(BOB, f"/memory/{name}").id: name for name in ("a", "b", "c", "target")}
    links = {f"{known[source]} {known[target]}" for source, target in world.rows("select source, target from link")}
    assert links == {"a b", "b c", "a target", "target c", "b target"}
    for there, ways in (("a", "b temporary"), ("b", "temporary c")):  # what has links in one direction only
        nodes["temporary"] = world.write(BOB, "/memory/temporary", b"x")["node"]
        nodes |= {name: world.node(BOB, f"/memory/{name}").id for name in "abc"}
        source, target = ways.split()
        world.do(BOB, "add_link", node=nodes[source], target=nodes[target], type="new")
        world.rename(BOB, "/memory/temporary", f"/memory/{there}")
    links = {
        f"{known[one]} {known[two]}" for one, two in world.rows("select source, target from link where type = 'new'")
    }
    assert links == {"b a", "b c"}


@pytest.mark.parametrize("seed", [1, 2])
def test_of_tags_and_links_as_many_join_as_a_document_may_have(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The first of the document that ends, by name and by target; what leads to it leads to the one that goes on."""
    if world.mode != "direct":
        pytest.skip("the limits are those of another process")
    random_, most = random.Random(seed), 4
    for round_ in range(12):
        names = [f"/memory/{round_}{name}" for name in ("kept", "gone", "a", "b", "c", "d")]
        nodes = [world.write(ALICE, name, b"x")["node"] for name in names]
        ids = [world.document(ALICE, name).id for name in names]
        tags = [random_.sample("stuvwxyz", random_.randrange(most + 1)) for _ in range(3)]
        for name, chosen in zip(names, tags, strict=False):
            if chosen:
                world.tag(ALICE, name, *chosen)
        pairs = [(one, other, kind) for one in range(6) for other in range(6) for kind in "pq" if one != other]
        count = dict.fromkeys(range(6), 0)
        links = set()
        for one, other, kind in random_.sample(pairs, 22):
            if one > 1 or count[one] < most:
                count[one] += 1
                links.add((ids[one], ids[other], kind))
                world.do(ALICE, "add_link", node=nodes[one], target=nodes[other], type=kind)
        kept, gone, *_ = ids
        with monkeypatch.context() as patch:
            patch.setattr(versions, "TAGS_MAX", most)
            patch.setattr(versions, "LINKS_MAX", most)
            world.rename(ALICE, names[1], names[0])
        joined = {*tags[0], *sorted(tags[1])[: most - len(tags[0])]}
        assert (world.tags(ALICE, names[0]), world.tags(ALICE, names[2])) == (sorted(joined), sorted(tags[2]))
        own = {(target, kind) for source, target, kind in links if source == kept}
        own |= {*sorted((target, kind) for source, target, kind in links if source == gone)[: most - len(own)]}
        expected = {(kept, target, kind) for target, kind in own if target not in (kept, gone)}
        expected |= {
            (source, kept if target == gone else target, kind)
            for source, target, kind in links
            if source not in (kept, gone)
        }
        among = str(tuple(ids))
        assert {*world.rows(f"select source, target, type from link where source in {among}")} == expected


@pytest.mark.parametrize("pair", ["temporary c", "c temporary"])
def test_the_only_link_there_is_joins(world: World, pair: str) -> None:
    nodes = {name: world.write(BOB, f"/memory/{name}", b"x")["node"] for name in ("c", "target", "temporary")}
    source, target = pair.split()
    world.do(BOB, "add_link", node=nodes[source], target=nodes[target], type="see")
    world.rename(BOB, "/memory/temporary", "/memory/target")
    known = {world.document(BOB, f"/memory/{name}").id: name for name in ("c", "target")}
    links = [f"{known[source]} {known[target]}" for source, target in world.rows("select source, target from link")]
    assert links == [pair.replace("temporary", "target")]


def test_words_of_a_file_that_replaced_another_are_found_once_and_by_its_new_name_alone(world: World) -> None:
    for name, text in (("note", b"finch"), ("draft", b"heron"), ("other", b"heron")):
        world.write(ALICE, f"/memory/{name}", text)
    world.drain()

    def found(word: str) -> int:
        index = world.store.search_index(BOB)
        return len({*index.postings([word])[0].passages} & {*index.table().passages})

    assert (found("finch"), found("heron")) == (1, 2)
    world.rename(ALICE, "/memory/draft", "/memory/note")
    assert found("heron") <= 2 - (world.mode == "direct"), "where nothing is drained meanwhile, that of the other file"
    world.drain()
    assert (found("finch"), found("heron")) == (0, 2)
    world.write(ALICE, "/memory/other", b"\0\xff\0")
    world.drain()
    assert world.store.search_index(BOB).table().documents.tolist() == [world.document(BOB, "/memory/note").id]


def test_who_waits_for_its_words_to_be_indexed_keeps_its_turn(still: World) -> None:
    names = [f"/memory/{number}" for number in range(8)]
    for name in (*names, names[2], names[0]):
        still.write(ALICE, name, b"finch")
    still.do(OPERATOR, "drain_lexical", limit=3)
    still.write(ALICE, names[1], b"heron")
    for count in range(4, 9):
        waiting = {still.document(ALICE, name).id for name in (*names[count - 1 :], names[1])}
        assert waiting == {document for (document,) in still.rows("select id from document where due is not null")}
        still.do(OPERATOR, "drain_lexical", limit=1)
    assert still.rows("select id from document where due is not null") == [(still.document(ALICE, names[1]).id,)]


def test_what_is_said_of_a_document_goes_with_it_and_what_is_said_of_others_stays(still: World) -> None:
    ids = {}
    for name in ("f", "g", "other"):
        still.write(ALICE, f"/memory/{name}", name.encode())
        ids[name] = still.document(ALICE, f"/memory/{name}").id
    for name in ("f", "g"):
        node, other = still.node(ALICE, f"/memory/{name}").id, still.node(ALICE, "/memory/other").id
        still.tag(ALICE, f"/memory/{name}", "t")
        still.do(BOB, "mark", node=node)
        for source, target in ((node, other), (other, node)):
            still.do(ALICE, "add_link", node=source, target=target, type="see")
    rows = {
        "semantic_queue(document)": "values(?1)",
        "unindexed(document, reason)": "values(?1, 'binary')",
        "claim(document, agent, since, until)": "values(?1, 'bob', 1, 2)",
        "consolidated(document, run, agent, kind, path, said)": "values(?1, 1, 'bob', 'cold', x'2f', '{}')",
    }
    db = connect(still.path)
    for name in ("f", "g"):
        for table, values in rows.items():
            db.execute(f"insert or ignore into {table} {values}", (ids[name],))
    db.close()

    def said(name: str) -> list[int]:
        return [still.rows(f"select count(*) from {table} where {of}", ids[name])[0][0] for table, of in versions._SAYS]

    assert said("f") == said("g") == [1] * len(versions._SAYS)
    still.unlink(ALICE, "/memory/f")
    assert said("f") == [0] * len(versions._SAYS) and said("g") == [1] * len(versions._SAYS)
    still.unlink(ALICE, "/memory/g")
    assert [count for count in said("g") if count] == []


def test_blocks_of_a_file_that_comes_back_to_its_name_and_goes_unwritten_are_free(world: World) -> None:
    world.write(ALICE, "/memory/f", BIG)
    world.rename(ALICE, "/memory/f", "/memory/f~")
    world.create(ALICE, "/memory/f")
    assert world.history(ALICE, "/memory/f") == [BIG]
    for name in ("f", "f~"):
        world.unlink(ALICE, f"/memory/{name}")
    world.do(OPERATOR, "reap_orphans", nodes=[node for node, _ in world.store.orphans()])
    assert world.rows("select id from block") == []


def test_a_handle_is_as_long_as_it_must_be(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if world.mode != "direct":
        pytest.skip("handles are drawn in another process")
    drawn: list[int] = []

    def number(bits: int) -> int:
        """Letters: the first, the second, and so on; for ids what it is else."""
        if bits == 63:
            return 1000 + len(drawn) + len(world.rows("select id from node")) * 100
        drawn.append(bits // 5)
        return sum(place << 5 * place for place in range(bits // 5))

    monkeypatch.setattr(random_ids, "number", number)
    handles = []
    for name in ("/memory/a", "/memory/b", "/memory/c"):
        world.write(ALICE, name, b"x")
        handles.append(world.document(ALICE, name).handle)
    assert handles == ["abcd", "abcde", "abcdef"]
    assert drawn == [4, *[4, 4, 4, 4, 5], *[4, 4, 4, 4, 5, 5, 5, 5, 6]], "each length is tried four times"


def test_a_file_never_written_comes_back_to_its_name_from_a_backup(world: World) -> None:
    world.create(ALICE, "/memory/f")
    document = world.document(ALICE, "/memory/f").id
    world.rename(ALICE, "/memory/f", "/memory/f~")
    world.create(ALICE, "/memory/f")
    assert world.document(ALICE, "/memory/f").id == document != world.document(ALICE, "/memory/f~").id


def test_replacing_by_an_empty_file_and_of_a_file_never_written(world: World) -> None:
    before = known(world, "/memory/f")
    world.create(ALICE, "/memory/new")
    world.rename(ALICE, "/memory/new", "/memory/f")
    still_known(world, "/memory/f", before, [b""])
    world.create(ALICE, "/memory/blank")
    document = world.document(ALICE, "/memory/blank")
    world.write(ALICE, "/memory/text", b"text")
    world.rename(ALICE, "/memory/text", "/memory/blank")
    assert world.document(ALICE, "/memory/blank").id == document.id
    assert world.history(ALICE, "/memory/blank") == [b"text"]


def test_replacing_from_a_private_space_takes_the_targets_scope(world: World) -> None:
    before = known(world, "/memory/f")
    world.write(ALICE, "/memory/private/alice/tmp", b"third")
    world.drain()
    world.rename(ALICE, "/memory/private/alice/tmp", "/memory/f")
    still_known(world, "/memory/f", before, [b"third"])
    assert world.bytes(BOB, "/memory/f") == b"third"


def test_a_link_between_the_two_files_does_not_become_a_loop(world: World) -> None:
    world.write(ALICE, "/memory/a", b"1")
    world.write(ALICE, "/memory/b", b"2")
    a, b = world.node(ALICE, "/memory/a").id, world.node(ALICE, "/memory/b").id
    world.do(ALICE, "add_link", node=a, target=b, type="x")
    world.do(ALICE, "add_link", node=b, target=a, type="x")
    world.rename(ALICE, "/memory/b", "/memory/a")
    assert world.rows("select * from link") == []


@pytest.mark.parametrize("big", [b"", BIG], ids=["small", "large"])
def test_moving_a_document_keeps_it(world: World, big: bytes) -> None:
    before = known(world, "/memory/f", big)
    world.mkdir(ALICE, "/memory/d")
    world.rename(ALICE, "/memory/f", "/memory/d/g")
    world.clock.advance(11)
    still_known(world, "/memory/d/g", before, [])
    world.write(ALICE, "/memory/f", b"a stranger under the old name")
    assert world.document(ALICE, "/memory/f").id != before.id
    still_known(world, "/memory/d/g", before, [])


def test_private_space_drops_shared_and_scope_follows(world: World) -> None:
    before = known(world, "/memory/f")
    world.drain()
    world.rename(ALICE, "/memory/f", "/memory/private/alice/f")
    after = world.document(ALICE, "/memory/private/alice/f")
    assert (after.id, after.shared) == (before.id, None)
    assert not world.exists(BOB, "/memory/private/alice/f")
    assert not len(world.store.search_index(BOB).postings(["second"])[0])
    world.rename(ALICE, "/memory/private/alice/f", "/memory/f")
    assert world.bytes(BOB, "/memory/f") == b"second", "back in shared space it is everybody's"
    with world.reading(BOB) as reader:
        assert [(c.op, c.path, c.other) for c in reader.changes(MEMORY, limit=1)] == [("create", b"/memory/f", None)]


# Editors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "backups", "others"),
    [
        (
            "f.md",
            "f.md~ f.md.bak f.md.orig f.md.old f.md.swp f.md.tmp .f.md.swp .f.md~ #f.md# f.mz~ f.ma~"
            " f.mdAbC123.bck f.md.~1~ f.md.~12~ f.md___jb_old___",
            "f.mdAbC12.bck f.mdAbC1234.bck f.mdAbC-23.bck f.md.bck f.mdAbC123 .f.mdAbC123.bck"
            " f.md.~~ f.md.~0~ f.md.~x~ f.md.~1 f.md~1~ .f.md.~1~ g.md.~1~"
            " f.md___jb_tmp___ f.md_jb_old_ .f.md___jb_old___ g.md___jb_old___ f.md___jb_old___x"
            " f.md f.m~ f.mdz~ g.md~ f.md# #f.md f.md~~ #g.md# xf.md~ f.md.bakx f.mZ~ f.m1~ ..f.md~ f.z f.mz",
        ),
        (
            ".rc",
            ".rc~ .rc.bak .rc.orig .rc.swp ..rc.swp #.rc# .rz~ .rcAbC123.bck .rc.~1~ .rc___jb_old___",
            "rc~ rc.bak #rc# .r.bak rcAbC123.bck rc.~1~ rc___jb_old___",
        ),
        ("f.md.~1", "f.md.~1~ f.md.~1.~2~", "f.md.~2~"),
        ("x", "x~ x.bak a~ z~ #x#", "~ # ## .bak xy~ y.bak"),
        ("a\nb", "a\nb~ #a\nb# a\nz~", "b~ a~ a\n~"),
    ],
)
def test_a_backup_is_called_after_what_an_editor_saves(name: str, backups: str, others: str) -> None:
    for other, is_one in (
        *((each, True) for each in backups.split(" ")),
        *((each, False) for each in others.split(" ")),
    ):
        assert versions.is_backup(name.encode(), other.encode()) is is_one, other


def test_a_name_is_an_editors_for_ten_seconds(still: World) -> None:
    for seconds, comes_back in ((9.5, True), (10, False)):
        path = f"/memory/{seconds}"
        still.write(ALICE, path, b"x")
        still.write(ALICE, f"{path} beside", b"x")
        before = still.document(ALICE, path).id
        still.rename(ALICE, f"{path} beside", f"{path} beside.bak")
        still.rename(ALICE, path, f"{path}~")
        still.clock.advance(seconds)
        still.create(ALICE, path)
        assert (still.document(ALICE, path).id == before) is comes_back
        assert still.rows("select count(*) from document where away_name = ?", path[8:].encode()) == [(not comes_back,)]


def test_what_is_no_backup_any_more_does_not_come_back(still: World) -> None:
    """By exchange it has got a name that no editor gives."""
    for path in ("/memory/f", "/memory/g"):
        still.write(ALICE, path, b"x")
    documents = {still.document(ALICE, path).id for path in ("/memory/f", "/memory/g")}
    still.rename(ALICE, "/memory/f", "/memory/f~")
    still.rename(ALICE, "/memory/f~", "/memory/g", 2)
    still.create(ALICE, "/memory/f")
    assert still.document(ALICE, "/memory/f").id not in documents


@pytest.mark.parametrize(
    "backup",
    [
        "f.md~",
        "f.md.bak",
        "f.md.orig",
        ".f.md.swp",
        "#f.md#",
        "f.mz~",
        "f.mdAbC123.bck",
        "f.md.~1~",
        "f.md___jb_old___",
    ],
)
@pytest.mark.parametrize("big", [b"", BIG], ids=["small", "large"])
def test_an_editor_that_renames_away_and_creates_continues_the_document(world: World, backup: str, big: bytes) -> None:
    before = known(world, "/memory/d/f.md", big)
    world.rename(BOB, "/memory/d/f.md", f"/memory/d/{backup}")
    world.create(BOB, "/memory/d/f.md")
    assert not world.exists(OPERATOR.__class__("eve"), "/memory/d/f.md"), ":shared holds before the first byte"
    still_known(world, "/memory/d/f.md", before, [])
    world.edit(BOB, "/memory/d/f.md", ["w", 0, b"third"], handle=5)
    still_known(world, "/memory/d/f.md", before, [b"third"])
    own = world.document(BOB, f"/memory/d/{backup}")
    assert own.id != before.id and own.shared == before.shared
    with world.reading(BOB) as reader:
        assert [version.number for version in reader.versions(own.id)] == [1]
    assert world.history(BOB, f"/memory/d/{backup}") == [b"second" + big]
    assert not world.exists(OPERATOR.__class__("eve"), f"/memory/d/{backup}"), "nor does the backup show it"
    world.rename(BOB, f"/memory/d/{backup}", "/memory/d/elsewhere")
    assert not world.exists(OPERATOR.__class__("eve"), "/memory/d/elsewhere")
    world.unlink(BOB, "/memory/d/elsewhere")
    still_known(world, "/memory/d/f.md", before, [b"third"])
    world.drain()
    assert len(world.store.search_index(ALICE).postings(["third"])[0]) == 1
    assert not len(world.store.search_index(OPERATOR.__class__("eve")).postings(["third"])[0])


def test_an_editor_that_keeps_its_backup_continues_the_document_every_time(world: World) -> None:
    """vim with 'backup' set and emacs replace last time's backup by rename."""
    before = known(world, "/memory/f")
    texts = []
    for number in range(3):
        world.clock.advance(60)
        world.rename(ALICE, "/memory/f", "/memory/f~")
        world.create(ALICE, "/memory/f")
        texts.append(b"save %d" % number)
        world.edit(ALICE, "/memory/f", ["w", 0, texts[-1]], handle=100 + number)
        still_known(world, "/memory/f", before, texts)


def test_what_was_saved_stays_where_an_editor_begins_twice_before_it_writes(world: World) -> None:
    before = known(world, "/memory/f")
    world.rename(ALICE, "/memory/f", "/memory/f~")
    world.create(ALICE, "/memory/f")
    world.rename(ALICE, "/memory/f", "/memory/f.bak")
    world.create(ALICE, "/memory/f")
    still_known(world, "/memory/f", before, [])
    world.edit(ALICE, "/memory/f", ["w", 0, b"third"], handle=5)
    still_known(world, "/memory/f", before, [b"third"])


def test_of_two_that_were_renamed_away_from_a_name_the_later_one_comes_back(world: World) -> None:
    world.write(ALICE, "/memory/f", b"alice's")
    world.share(ALICE, "/memory/f", "alice")
    world.rename(ALICE, "/memory/f", "/memory/f~")
    world.write(BOB, "/memory/f", b"bob's")
    document = world.document(BOB, "/memory/f")
    world.rename(BOB, "/memory/f", "/memory/f.bak")
    world.create(ALICE, "/memory/f")
    assert world.document(ALICE, "/memory/f").id == document.id


@pytest.mark.parametrize(
    ("new", "old", "removes"), [("sedXYZ", "f.bak", False), ("f___jb_tmp___", "f___jb_old___", True)]
)
def test_a_save_that_writes_beside_and_renames_twice_continues_the_document(
    world: World, new: str, old: str, removes: bool
) -> None:
    """sed with a backup suffix, and the older safe write of JetBrains, which removes the old file in the end."""
    before = known(world, "/memory/f")
    texts = []
    for number in range(3):
        world.clock.advance(60)
        texts.append(b"edited %d" % number)
        world.write(ALICE, f"/memory/{new}", b"half of it")
        world.clock.advance(60)  # a slow one, in several steps: what counts is when it was written last
        world.write(ALICE, f"/memory/{new}", texts[-1])
        world.rename(ALICE, "/memory/f", f"/memory/{old}")
        world.rename(ALICE, f"/memory/{new}", "/memory/f")
        if removes:
            world.unlink(ALICE, f"/memory/{old}")
        still_known(world, "/memory/f", before, texts)


@pytest.mark.parametrize(
    "what",
    ["written a minute ago", "made yesterday", "by whom it is for", "a tag", "a link", "a key", "a ttl", "a claim"],
)
def test_a_document_that_is_moved_to_a_name_just_left_for_a_backups_keeps_what_it_has(still: World, what: str) -> None:
    """mv plan plan.old; mv draft plan: no editor's save, as what is moved is more than bytes just written."""
    old = still.write(ALICE, "/memory/plan", b"public")["node"]
    node = still.write(ALICE, "/memory/draft", b"first")["node"]
    still.clock.advance(86400 if what == "made yesterday" else 0)
    still.write(ALICE, "/memory/draft", b"second")
    if what == "written a minute ago":
        still.clock.advance(60)
    elif what == "by whom it is for":
        still.share(ALICE, "/memory/draft", "alice")
    elif what == "a tag":
        still.tag(ALICE, "/memory/draft", "roadmap")
    elif what == "a link":
        still.do(ALICE, "add_link", node=old, target=node, type="see")
    elif what == "a key":
        still.do(ALICE, "merge_meta", node=node, importance=None, user={"k": "v"})
    elif what == "a ttl":
        still.do(ALICE, "set_ttl", node=node, expires=still.clock() + 10**12)
    elif what == "a claim":
        still.do(ALICE, "claim", nodes=[node], lease=10**12)
    plan, draft = still.document(ALICE, "/memory/plan"), still.document(ALICE, "/memory/draft")
    still.rename(ALICE, "/memory/plan", "/memory/plan.old")
    still.rename(ALICE, "/memory/draft", "/memory/plan", 1)  # as mv(1) asks for it
    after = still.document(ALICE, "/memory/plan")
    assert (after.id, after.handle, after.shared, after.user) == (draft.id, draft.handle, draft.shared, draft.user)
    assert still.history(ALICE, "/memory/plan") == [b"first", b"second"]
    assert still.exists(BOB, "/memory/plan") is (what != "by whom it is for")
    assert (still.node(ALICE, "/memory/plan").expires is not None) is (what == "a ttl")
    assert still.document(ALICE, "/memory/plan.old").id == plan.id
    still.unlink(ALICE, "/memory/plan")
    still.create(ALICE, "/memory/plan")
    assert still.document(ALICE, "/memory/plan.old").id == plan.id, "nor is that one's the next file of the name"


def test_two_documents_that_change_places_by_way_of_a_backups_name_keep_what_they_have(still: World) -> None:
    for name in "ab":
        still.write(ALICE, f"/memory/{name}", name.encode())
        still.tag(ALICE, f"/memory/{name}", f"of-{name}")
    a, b = (still.document(ALICE, f"/memory/{name}").id for name in "ab")
    for old, new in (("a", "a.tmp"), ("b", "a"), ("a.tmp", "b")):
        still.rename(ALICE, f"/memory/{old}", f"/memory/{new}")
    assert (still.document(ALICE, "/memory/a").id, still.document(ALICE, "/memory/b").id) == (b, a)
    assert (still.tags(ALICE, "/memory/a"), still.tags(ALICE, "/memory/b")) == (["of-b"], ["of-a"])


def test_what_is_to_be_new_is_so_under_a_name_just_left_for_a_backups(still: World) -> None:
    for name in ("said", "made"):
        still.write(ALICE, f"/memory/{name}", b"old")
        still.tag(ALICE, f"/memory/{name}", "old")
        node, expires = still.node(ALICE, f"/memory/{name}").id, still.clock() + 10**12
        still.do(ALICE, "set_ttl", node=node, expires=expires)
        before = still.document(ALICE, f"/memory/{name}").id
        still.rename(ALICE, f"/memory/{name}", f"/memory/{name}.bak")
        if name == "said":
            still.do(ALICE, "remember", path=[b"memory", b"said"], data=b"new", tags=["new"])
        else:
            still.write(ALICE, "/memory/made", b"new", mode="create")
        assert still.document(ALICE, f"/memory/{name}.bak").id == before
        assert still.tags(ALICE, f"/memory/{name}") == ["new"] * (name == "said")
        assert still.node(ALICE, f"/memory/{name}").expires is None


def test_a_file_that_is_made_for_some_is_none_that_was_renamed_away(world: World) -> None:
    world.write(BOB, "/memory/plan.md", b"for all")
    world.rename(BOB, "/memory/plan.md", "/memory/plan.md~")
    world.write(ALICE, "/memory/plan.md", b"secret", shared=["alice"])
    assert not world.exists(BOB, "/memory/plan.md")
    assert world.document(ALICE, "/memory/plan.md").shared == ("alice",)


def test_what_an_operator_has_limited_to_nobody_stays_so(world: World) -> None:
    def hidden(path: str) -> None:
        assert world.document(OPERATOR, path).shared == () and not world.exists(BOB, path)

    world.mkdir(OPERATOR, "/memory/d")
    world.write(OPERATOR, "/memory/d/pay", b"secret", shared=[])
    world.rename(OPERATOR, "/memory/d/pay", "/memory/d/pay.md")
    hidden("/memory/d/pay.md")
    world.do(OPERATOR, "set_sources", node=world.node(OPERATOR, "/memory/d/pay.md").id, sources=["web"])
    hidden("/memory/d/pay.md")
    world.restart(rules=[("/memory/e/*", "ro", ("bob",))])
    hidden("/memory/d/pay.md")
    world.rename(OPERATOR, "/memory/d", "/memory/e")
    hidden("/memory/e/pay.md")
    world.rename(OPERATOR, "/memory/e/pay.md", "/memory/e/pay.md~")
    world.create(OPERATOR, "/memory/e/pay.md")
    hidden("/memory/e/pay.md")
    world.rename(OPERATOR, "/memory/e/pay.md", "/memory/private/bob/pay.md")
    assert world.document(BOB, "/memory/private/bob/pay.md").shared is None


def test_a_backup_whose_time_is_over_is_not_taken_up_again(world: World) -> None:
    """Its own name, and one that a new file comes to by rename, are new documents, which can be written."""
    for name, backup in (("f", "f~"), ("g", "g.bak")):
        world.write(ALICE, f"/memory/{name}", b"old")
        node = world.node(ALICE, f"/memory/{name}").id
        world.do(ALICE, "set_ttl", node=node, expires=world.clock() + 2 * 10**9)
        before = world.document(ALICE, f"/memory/{name}").id
        world.rename(ALICE, f"/memory/{name}", f"/memory/{backup}")
        world.clock.advance(3)
        if name == "f":
            world.create(ALICE, "/memory/f")
        else:
            world.create(ALICE, "/memory/tmp")
            world.rename(ALICE, "/memory/tmp", "/memory/g")
        world.edit(ALICE, f"/memory/{name}", ["w", 0, b"new"], handle=5)
        assert world.history(ALICE, f"/memory/{name}") == [b"new"]
        assert world.node(ALICE, f"/memory/{name}").expires is None
        assert world.document(ALICE, f"/memory/{name}").id != before


def test_a_name_used_anew_later_or_by_a_stranger_is_a_new_document(world: World) -> None:
    before = known(world, "/memory/f")
    world.rename(ALICE, "/memory/f", "/memory/f~")
    world.clock.advance(11)
    world.write(ALICE, "/memory/f", b"new")
    assert world.document(ALICE, "/memory/f").id != before.id
    still_known(world, "/memory/f~", before, [])
    world.write(ALICE, "/memory/g", b"alice's")
    world.share(ALICE, "/memory/g", "alice")
    document = world.document(ALICE, "/memory/g")
    world.rename(ALICE, "/memory/g", "/memory/g~")
    world.write(BOB, "/memory/g", b"bob's")
    assert world.document(BOB, "/memory/g").id != document.id, "who may not see it does not get its history"
    assert world.history(BOB, "/memory/g") == [b"bob's"]
    assert world.document(ALICE, "/memory/g~").id == document.id
    world.write(ALICE, "/memory/h", b"1")
    document = world.document(ALICE, "/memory/h")
    world.rename(ALICE, "/memory/h", "/memory/h2")
    world.write(ALICE, "/memory/h", b"2")
    assert world.document(ALICE, "/memory/h2").id == document.id, "h2 is no backup's name: that was a move"


# Versions ------------------------------------------------------------------------------------------------------


def test_one_handle_within_a_second_is_one_version(world: World) -> None:
    world.create(ALICE, "/memory/f")
    for number in range(5):
        reply = world.edit(ALICE, "/memory/f", ["w", number * 3, b"abc"], handle=7)
        assert reply["version"] == 1
        world.clock.advance(0.6)  # idle less than a second each time
    world.clock.advance(1.1)
    assert world.edit(ALICE, "/memory/f", ["w", 0, b"X"], handle=7)["version"] == 2, "sealed by idleness"
    assert world.edit(ALICE, "/memory/f", ["w", 1, b"Y"], handle=8)["version"] == 3, "another handle"
    assert world.edit(ALICE, "/memory/f", ["w", 2, b"Z"], handle=7)["version"] == 4, "and the first one again"
    assert world.edit(ALICE, "/memory/f", ["w", 3, b"W"])["version"] == 5, "without a handle: always a new one"
    assert world.edit(ALICE, "/memory/f", ["w", 3, b"W"])["version"] == 6
    assert world.edit(BOB, "/memory/f", ["w", 4, b"U"], handle=9)["version"] == 7
    assert world.edit(BOB, "/memory/f", ["w", 5, b"V"], handle=9)["version"] == 7, "whoever has made the file"
    assert world.history(BOB, "/memory/f")[0] == b"abc" * 5
    world.do(ALICE, "append", node=world.node(ALICE, "/memory/f").id, handle=10, data=b"1")
    assert world.do(ALICE, "append", node=world.node(ALICE, "/memory/f").id, handle=10, data=b"2") == {
        "size": 17,
        "version": 8,
        "seq": world.newest_seq(),
        "offset": 16,
    }


def test_a_version_is_open_to_its_handle_for_a_second_after_its_last_write(still: World) -> None:
    still.create(ALICE, "/memory/f")
    for at, (seconds, handle, version) in enumerate(
        [(0, 7, 1), (1, 7, 1), (1.5, 7, 2), (0, 8, 3), (0, None, 4), (0, None, 5)]
    ):
        still.clock.advance(seconds)
        assert still.edit(ALICE, "/memory/f", ["w", at, b"x"], handle=handle)["version"] == version


def test_marks_on_other_versions_and_files_seal_nothing(still: World) -> None:
    both = ("/memory/f", "/memory/g")
    for path in both:
        still.write(ALICE, path, b"one")
        still.do(BOB, "mark", node=still.node(BOB, path).id)
    still.clock.advance(2)
    for path in both:
        still.edit(ALICE, path, ["w", 0, b"two"], handle=7)
    still.do(BOB, "mark", node=still.node(BOB, "/memory/g").id)
    assert still.edit(ALICE, "/memory/f", ["w", 0, b"six"], handle=7)["version"] == 2, "one is what he has read"
    assert still.edit(ALICE, "/memory/g", ["w", 0, b"six"], handle=7)["version"] == 3
    assert still.history(ALICE, "/memory/f") == [b"one", b"six"]
    still.create(ALICE, "/memory/h")
    node = still.node(BOB, "/memory/h").id
    still.edit(BOB, "/memory/h", ["w", 0, b"bob's"], handle=9)
    still.do(BOB, "mark", node=node)
    assert still.edit(BOB, "/memory/h", ["w", 5, b"!"], handle=9)["version"] == 1, "his own mark, of a file not his"
    still.do(ALICE, "mark", node=node)
    assert still.edit(BOB, "/memory/h", ["w", 5, b"?"], handle=9)["version"] == 2, "its maker has read it"


def test_a_version_that_another_agent_has_read_is_never_amended(world: World) -> None:
    world.create(ALICE, "/memory/f")
    node = world.node(ALICE, "/memory/f").id
    world.edit(ALICE, "/memory/f", ["w", 0, b"one"], handle=7)
    world.do(ALICE, "mark", node=node)
    assert world.edit(ALICE, "/memory/f", ["w", 3, b" two"], handle=7)["version"] == 1, "its own mark is no reader"
    world.do(BOB, "mark", node=node)
    assert world.edit(ALICE, "/memory/f", ["w", 7, b" three"], handle=7)["version"] == 2
    assert world.edit(ALICE, "/memory/f", ["w", 0, b"ONE"], handle=7)["version"] == 2
    assert world.history(BOB, "/memory/f") == [b"one two", b"ONE two three"]


def test_what_is_gone_is_written_by_nobody(world: World) -> None:
    node = world.write(ALICE, "/memory/f", b"x")["node"]
    world.unlink(ALICE, "/memory/f")
    world.do(OPERATOR, "reap_orphans", nodes=[node])
    for command, more in (("commit", {"edits": [["w", 0, b"y"]]}), ("append", {"data": b"y"})):
        with pytest.raises(Stale):
            world.do(OPERATOR, command, node=node, handle=None, **more)


@pytest.mark.parametrize("big", [b"", BIG], ids=["small", "large"])
def test_truncating_and_writing_is_one_version_never_an_empty_one(world: World, big: bytes) -> None:
    world.write(ALICE, "/memory/f", b"old" + big)
    world.clock.advance(2)
    world.edit(ALICE, "/memory/f", ["t", 0], ["w", 0, b"new" + big], handle=7)
    world.clock.advance(2)
    world.edit(ALICE, "/memory/f", ["t", 0], handle=8)
    world.edit(ALICE, "/memory/f", ["w", 0, b"newer" + big], handle=8)
    assert world.history(ALICE, "/memory/f") == [b"old" + big, b"new" + big, b"newer" + big]


def test_amending_restates_the_version_before(world: World) -> None:
    """Version 1 is kept as the beginning of version 2; then the amended version 2 no longer begins with it."""
    world.write(ALICE, "/memory/f", b"hello")
    world.clock.advance(2)
    world.edit(ALICE, "/memory/f", ["w", 5, b" world"], handle=7)
    world.edit(ALICE, "/memory/f", ["w", 0, b"J"], handle=7)
    world.edit(ALICE, "/memory/f", ["t", 2], handle=7)
    world.edit(ALICE, "/memory/f", ["w", 0, BIG], handle=7)
    world.edit(ALICE, "/memory/f", ["w", 0, b"K"], ["t", 100_000], handle=7)
    world.edit(ALICE, "/memory/f", ["t", 3], handle=7)
    assert world.history(ALICE, "/memory/f") == [b"hello", b"K\x01\x02"]


def test_what_is_appended_within_a_second_is_one_version_of_a_large_file_too(still: World) -> None:
    node = still.write(ALICE, "/memory/f", BIG)["node"]
    for number in range(3):
        reply = still.do(ALICE, "append", node=node, handle=7, data=b"%d" % number)
        assert reply["version"] == 2
    assert still.history(ALICE, "/memory/f") == [BIG, BIG + b"012"]


def test_an_own_write_moves_a_current_mark_only(world: World) -> None:
    world.write(ALICE, "/memory/f", b"1")
    document = world.document(ALICE, "/memory/f").id
    for number in (2, 3):
        world.clock.advance(2)
        world.write(ALICE, "/memory/f", b"%d" % number)
    with world.reading(ALICE) as reader:
        mark = reader.mark(document)
        assert mark is not None and mark.version == 3
    world.clock.advance(2)
    world.write(BOB, "/memory/f", b"4")
    world.clock.advance(2)
    world.write(ALICE, "/memory/f", b"5")
    with world.reading(ALICE) as reader:
        mark = reader.mark(document)
        assert mark is not None and mark.version == 3, "she has not seen bob's"


# Writing by path -----------------------------------------------------------------------------------------------


def test_write_path_modes(world: World) -> None:
    made = world.write(ALICE, "/memory/a/b/c.md", b"1")
    assert made["new"] is True and made["version"] == 1
    assert world.write(BOB, "/memory/a/b/c.md", b"22", mode="append")["size"] == 3
    assert world.write(BOB, "/memory/a/b/c.md", b"3")["new"] is False
    with pytest.raises(FileExistsError):
        world.write(BOB, "/memory/a/b/c.md", b"4", mode="create")
    with pytest.raises(IsADirectoryError):
        world.write(BOB, "/memory/a/b", b"4")
    with pytest.raises(NotADirectoryError):
        world.write(BOB, "/memory/a/b/c.md/d", b"4")
    with pytest.raises(NotFound):
        world.write(BOB, "/memory/x/y", b"4", make_parents=False)
    with pytest.raises(IsADirectoryError):
        world.do(BOB, "write_path", path=[], data=b"")
    assert world.history(BOB, "/memory/a/b/c.md") == [b"1", b"122", b"3"]


def test_of_two_writers_over_one_version_the_second_is_refused(world: World) -> None:
    with pytest.raises(Stale):
        world.write(ALICE, "/memory/f", b"one", if_version=1)
    assert world.write(ALICE, "/memory/f", b"one", if_version=0)["version"] == 1
    assert world.write(BOB, "/memory/f", b"two", if_version=1)["version"] == 2
    for stale in (0, 1, 3):
        with pytest.raises(Stale, match=f"at version 2, not {stale}"):
            world.write(ALICE, "/memory/f", b"lost", if_version=stale)
    assert world.history(BOB, "/memory/f") == [b"one", b"two"]


def test_write_path_over_just_what_was_read(world: World) -> None:
    def sha(data: bytes) -> bytes:
        return hashlib.sha256(data).digest()

    world.write(ALICE, "/memory/f", b"one")
    assert world.write(ALICE, "/memory/f", b"two", instead_of=sha(b"one"))["size"] == 3
    with pytest.raises(Stale):
        world.write(BOB, "/memory/f", b"three", instead_of=sha(b"one"))
    with pytest.raises(Stale):
        world.write(BOB, "/memory/gone", b"", instead_of=sha(b""))
    big = b"x" * 200_000
    world.write(ALICE, "/memory/f", big, instead_of=sha(b"two"))
    world.write(ALICE, "/memory/f", b"four", instead_of=sha(big))
    assert world.history(BOB, "/memory/f") == [b"one", b"two", big, b"four"]


def test_remember_takes_a_free_name_and_all_that_is_known(world: World) -> None:
    where = [b"memory", b"private", b"alice", b"note.md"]
    first = world.do(
        ALICE, "remember", path=where, data=b"one\n", title="T\xfc", tags=["a", "b"], importance=0.3, created=5
    )
    assert first["path"] == b"/memory/private/alice/note.md"
    for number in range(2, 40):
        again = world.do(ALICE, "remember", path=where, data=b"x\n")
        assert again["path"] == b"/memory/private/alice/note-%d.md" % number
    document = world.document(ALICE, "/memory/private/alice/note.md")
    assert (document.created, document.importance, document.user) == (5, 0.3, {"title": "T\xfc"})
    world.do(ALICE, "remember", path=[b"memory", b"brief.md"], data=b"x\n", expires=world.clock() + 10**9)
    assert world.exists(BOB, "/memory/brief.md")
    world.clock.advance(1)
    assert not world.exists(BOB, "/memory/brief.md")
    assert world.tags(ALICE, "/memory/private/alice/note.md") == ["a", "b"]
    assert world.node(ALICE, "/memory/private/alice/note.md").mtime == 5
    long = world.do(ALICE, "remember", path=[b"memory", "ü".encode() * 127], data=b"x")
    again = world.do(ALICE, "remember", path=[b"memory", "ü".encode() * 127], data=b"x")
    assert len(again["path"].rpartition(b"/")[2]) <= 255 and again["path"].decode() and long["path"] != again["path"]
    for name in (b".hidden", b"noext", b"a.tar.gz"):
        world.do(ALICE, "remember", path=[b"memory", name], data=b"x")
        assert world.do(ALICE, "remember", path=[b"memory", name], data=b"x")["path"] != b"/memory/" + name


def test_write_many_is_all_or_nothing(world: World) -> None:
    before = world.newest_seq()
    with pytest.raises(Denied):
        world.do(
            ALICE,
            "write_many",
            items=[[[b"memory", b"new", b"%d.md" % number], b"x" * 70_000] for number in range(5)]
            + [[[b"memory", b"private", b"x"], b""]],
        )
    assert world.newest_seq() == before and not world.exists(ALICE, "/memory/new")
    assert world.rows("select count(*) from block") == [(0,)]
