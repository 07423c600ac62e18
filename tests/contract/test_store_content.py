"""The contract of a store: bytes. Against a bytearray, over hundreds of edits, with every old version.

A file moves between one row and blocks at 64 KiB; its versions are reverse deltas, keyframes, beginnings of the next
one, or maps of shared blocks. The audit at the end of each test counts the owners of every block.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from avmfs.access import Policy
from avmfs.errors import TooBig
from avmfs.store.identity import OPERATOR
from avmfs.store.schema import database
from avmfs.store.schema.tables import BLOCK, INLINE_LIMIT, MEMORY
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer.applier import Applier
from tests.contract.store_world import ALICE, BOB, World, faults, rows


def random_edit(random_: random.Random, model: bytearray, most: int) -> list[Any]:
    """A write or truncation, with a liking for the borders; applied to the model too."""
    size = len(model)
    borders = [0, size, max(size - 1, 0), INLINE_LIMIT - 1, INLINE_LIMIT, INLINE_LIMIT + 1, 2 * BLOCK, BLOCK + 7]
    near = min(random_.choice([*borders, random_.randrange(size + 1)]) + random_.choice([0, 0, 0, 1, 100]), most)
    if random_.random() < 0.3:
        del model[near:]
        model.extend(bytes(near - len(model)))
        return ["t", near]
    length = random_.choice([1, 10, 300, 5000, random_.randrange(1, 90_000)])
    data = random_.randbytes(length) if random_.random() < 0.5 else bytes([random_.randrange(256)]) * length
    data = data[: max(1, most - near)]
    if near > len(model):
        model.extend(bytes(near - len(model)))
    model[near : near + len(data)] = data
    return ["w", near, data]


@pytest.mark.parametrize(("seed", "most"), [(1, 3_000), (2, 70_000), (3, 150_000), (4, 400_000)])
def test_every_version_is_kept_to_the_byte(world: World, seed: int, most: int) -> None:
    random_ = random.Random(seed)
    world.create(ALICE, "/memory/f")
    node = world.node(ALICE, "/memory/f").id
    model, versions = bytearray(), []
    for step in range(130):
        edits = [random_edit(random_, model, most) for _ in range(random_.choice([1, 1, 1, 2, 4]))]
        # Some commits continue the version of the one before: the same handle, within a second.
        handle = step if random_.random() < 0.7 else step - 1
        if random_.random() < 0.15:
            data = random_.randbytes(random_.choice([1, 4096]))
            reply = world.do(ALICE, "append", node=node, handle=handle, data=bytes(data))
            for edit in edits:  # not sent: take them back
                del edit
            model = bytearray(versions[-1]) if versions else bytearray()
            assert reply["offset"] == len(model)
            model += data
        else:
            reply = world.do(ALICE, "commit", node=node, handle=handle, edits=edits)
        assert reply["size"] == len(model)
        assert reply["version"] in (len(versions), len(versions) + 1)
        if reply["version"] == len(versions):
            versions[-1] = bytes(model)
        else:
            versions.append(bytes(model))
        if random_.random() < 0.2:
            world.clock.advance(2)
        if step % 10 == 0:
            with world.reading(BOB) as reader:
                for _ in range(20):
                    offset, length = random_.randrange(most + 10), random_.randrange(70_000)
                    assert reader.read(node, offset, length) == model[offset : offset + length]
    assert len(versions) > 80
    assert world.bytes(BOB, "/memory/f") == model
    assert world.history(BOB, "/memory/f") == versions
    kinds = {row[0] for row in world.rows("select distinct encoding from version")}
    assert kinds >= ({0, 1, 2, 3} if most < INLINE_LIMIT else {0, 4})
    world.unlink(ALICE, "/memory/f")


@pytest.mark.parametrize(
    ("base", "edits", "left"),
    [
        (b"0123456789", [["t", 0]], b""),
        (b"0123456789", [["t", 5]], b"01234"),
        (b"0123456789", [["w", 10, b"AAA"]], b"0123456789AAA"),
        (b"0123456789", [["g", 12]], b"0123456789"),
        (b"0123456789", [["g", 12], ["w", 11, b"!"]], b"0123456789\0!"),
        (b"0123456789", [["t", 0], ["w", 0, b"anew"]], b"anew"),
        (b"0123456789", [["t", 4], ["w", 4, b"******"]], b"0123******"),
        (b"0123456789", [["w", 2, b"**"], ["z", 7, 9]], b"01**456\0\x009"),
        (bytes(BLOCK) + b"0123456789", [["t", BLOCK + 5]], bytes(BLOCK) + b"01234"),
        (b"0123456789", [["w", BLOCK, b"far"]], b"0123456789".ljust(BLOCK, b"\0") + b"far"),
    ],
)
@pytest.mark.parametrize("by", ["append", "path"])
def test_what_was_appended_after_edits_were_made_comes_behind_them(
    world: World, base: bytes, edits: list[Any], left: bytes, by: str
) -> None:
    world.write(ALICE, "/memory/f", base)
    node = world.node(ALICE, "/memory/f").id

    def append(data: bytes) -> None:
        world.clock.advance(1)
        if by == "append":
            world.do(BOB, "append", node=node, handle=7, data=data)
        else:
            world.do(BOB, "write_path", path=[b"memory", b"f"], data=data, mode="append")

    made = world.clock()
    append(b"ONE")
    append(b"TWO" * 1000)
    world.clock.advance(1)
    versions = len(world.history(ALICE, "/memory/f"))
    reply = world.do(ALICE, "commit", node=node, handle=1, edits=edits, mtime=made, made=made)
    wanted = left + b"ONE" + b"TWO" * 1000
    assert world.bytes(BOB, "/memory/f") == wanted and reply["size"] == len(wanted)
    assert world.history(ALICE, "/memory/f")[versions:] == [wanted], "one version"


@pytest.mark.parametrize(
    ("edits", "left"),
    [
        ([[["w", 10, b"AAA"]], [["w", 10, b"BBBBB"]]], b"0123456789BBBBB"),
        ([[["w", 0, b"*"]], [["w", 10, b"AAA"]]], b"*123456789AAA"),
        ([[["w", 10, b"AAA"]], [["w", 0, b"*"]], [["w", 13, b"BBB"]]], b"*123456789AAABBB"),
        ([[["w", 10, b"AAAAA"]], [["t", 12]], [["w", 12, b"!"]]], b"0123456789AA!"),
        ([[], [["w", 10, b"AAA"]]], b"0123456789AAA"),
    ],
)
def test_it_comes_behind_all_edits_that_were_made_before_however_many_commit_them(
    world: World, edits: list[Any], left: bytes
) -> None:
    world.write(ALICE, "/memory/f", b"0123456789")
    node = world.node(ALICE, "/memory/f").id
    made = world.clock()
    for line in (b"ONE", b"TWO"):
        world.clock.advance(1)
        world.do(BOB, "append", node=node, handle=7, data=line)
    for handle, each in enumerate(edits, 1):
        world.clock.advance(1)
        reply = world.do(ALICE, "commit", node=node, handle=handle, edits=each, mtime=made, made=made)
    assert reply["behind"] == 6 and world.bytes(BOB, "/memory/f") == left + b"ONETWO"
    made = world.clock()
    world.clock.advance(1)
    world.do(BOB, "append", node=node, handle=7, data=b"THREE")
    world.do(ALICE, "commit", node=node, handle=9, edits=[["w", len(left), b"***"]], mtime=made, made=made)
    assert world.bytes(BOB, "/memory/f") == left + b"***TWOTHREE", "what had been seen is laid over"


def test_an_append_stays_where_mode_and_name_of_the_file_have_changed_since(world: World) -> None:
    world.write(ALICE, "/memory/f", b"0123456789")
    node, made = world.node(ALICE, "/memory/f").id, world.clock()
    for data, change in ((b"ONE", "chmod"), (b"TWO", "rename")):
        world.clock.advance(1)
        world.do(BOB, "append", node=node, handle=7, data=data)
        world.clock.advance(1)
        if change == "chmod":
            world.do(BOB, "set_attributes", node=node, mode=0o600)
        else:
            world.rename(BOB, "/memory/f", "/memory/g")
    world.do(ALICE, "commit", node=node, handle=1, edits=[["t", 3]], mtime=made, made=made)
    assert world.bytes(BOB, "/memory/g") == b"012ONETWO"


def test_what_was_appended_before_the_newest_edit_or_changed_otherwise_is_laid_over(world: World) -> None:
    world.write(ALICE, "/memory/f", b"0123456789")
    node = world.node(ALICE, "/memory/f").id
    world.clock.advance(1)
    world.do(BOB, "append", node=node, handle=7, data=b"seen")
    world.clock.advance(1)
    made = world.clock()
    world.do(BOB, "append", node=node, handle=7, data=b"BEHIND")
    world.do(ALICE, "commit", node=node, handle=1, edits=[["w", 14, b"!"]], mtime=made, made=made)
    assert world.bytes(BOB, "/memory/f") == b"0123456789seen!BEHIND"
    made = world.clock()
    world.clock.advance(1)
    world.do(BOB, "append", node=node, handle=7, data=b"lost")
    world.clock.advance(1)
    world.write(BOB, "/memory/f", b"written anew")
    world.do(ALICE, "commit", node=node, handle=1, edits=[["t", 3]], mtime=made, made=made)
    assert world.bytes(BOB, "/memory/f") == b"wri"


def test_many_files_share_and_free_their_blocks(world: World) -> None:
    """Writes, replacements, exchanges, removals at random; the audit finds a block that is lost or owned twice."""
    random_ = random.Random(5)
    names = [f"/memory/{letter}" for letter in "abcde"]
    models: dict[str, bytes] = {}
    for step in range(250):
        path, other = random_.sample(names, 2)
        match random_.randrange(6):
            case 0 | 1 | 2:
                data = random_.randbytes(random_.choice([10, 60_000, 66_000, 200_000]))
                world.write(ALICE, path, data)
                models[path] = data
            case 3 if path in models:
                size = random_.choice([5, 65_000, 130_000])
                world.edit(ALICE, path, ["t", size], ["w", 1, b"!"], handle=step)
                changed = bytearray(models[path][:size].ljust(size, b"\0"))
                changed[1:2] = b"!"
                models[path] = bytes(changed)
            case 4 if path in models:
                world.rename(ALICE, path, other, 2 if other in models and random_.random() < 0.3 else 0)
                if world.exists(ALICE, path):
                    models[path], models[other] = models[other], models[path]
                else:
                    models[other] = models.pop(path)
            case 5 if path in models:
                world.unlink(ALICE, path)
                del models[path]
        world.clock.advance(random_.choice([0, 12]))
    assert {name: world.bytes(BOB, name) for name in models} == models
    for path in models:
        world.unlink(ALICE, path)
    for node, _ in world.store.orphans():
        world.do(_operator(), "reap_orphans", nodes=[node])
    world.drain()
    for table in ("block", "extent", "shared", "body", "version", "document", "lexical_queue", "passage", "ended"):
        assert rows(world.path, f"select count(*) from {table}") == [(0,)], table


def _operator() -> Any:
    from avmfs.store.identity import OPERATOR

    return OPERATOR


def test_an_append_only_file_stores_each_byte_once(world: World) -> None:
    node = world.create(ALICE, "/memory/log")["node"]
    random_ = random.Random(6)
    lines, sizes = b"", []
    for _ in range(150):
        line = random_.randbytes(1000)
        lines += line
        world.do(ALICE, "append", node=node, handle=None, data=line)
        sizes.append(len(lines))
    kept = world.rows("select coalesce(sum(length(body)), 0), count(distinct encoding) from version")
    assert kept == [(0, 2)], "each version but the newest is the beginning of the next"
    assert world.history(ALICE, "/memory/log") == [lines[:size] for size in sizes]


def test_an_append_costs_what_it_appends_however_long_the_file_is(world: World) -> None:
    """Bytes written to the database by 100 appends of 50 bytes, to files of several sizes."""
    grown = {}
    for size in (1000, 60_000, 1_000_000):
        path = f"/memory/log{size}"
        world.write(ALICE, path, b"x" * size)
        node = world.node(ALICE, path).id
        world.do(ALICE, "append", node=node, handle=1, data=b"first\n")  # this one may move the file to blocks
        before = world.rows("select coalesce(sum(length(data)), 0) from body union all select max(id) from block")
        for number in range(100):
            world.do(ALICE, "append", node=node, handle=number, data=b"%049d\n" % number)
        after = world.rows("select coalesce(sum(length(data)), 0) from body union all select max(id) from block")
        grown[size] = [(b[0] or 0) - (a[0] or 0) for a, b in zip(before, after, strict=True)]
        tail = b"first\n" + b"".join(b"%049d\n" % number for number in range(100))
        assert world.bytes(ALICE, path) == b"x" * size + tail
        world.edit(ALICE, path, ["w", 3, b"yy"])  # a change elsewhere brings it all together
        assert world.bytes(ALICE, path) == b"xxxyy" + b"x" * (size - 5) + tail
    for size in (60_000, 1_000_000):
        assert grown[size][0] <= 0 and grown[size][1] <= 1, "no row is made anew with the file in it"


def test_small_changes_of_a_small_file_take_little(world: World) -> None:
    random_ = random.Random(8)
    words = [bytes(random_.choices(b"abcdefghijklmnopqrstuvwxyz ", k=12)) for _ in range(800)]
    versions = []
    for number in range(100):
        words[random_.randrange(800)] = b"CHANGED %03d " % number
        versions.append(b"".join(words))
        world.write(ALICE, "/memory/f", versions[-1])
    assert world.history(ALICE, "/memory/f") == versions
    kept = world.rows("select sum(length(body)) from version")[0][0]
    assert kept < 0.1 * sum(map(len, versions))
    assert world.rows("select count(*) from version where encoding = 1")[0][0] >= 5, "keyframes bound the chain"


def test_a_large_files_versions_share_what_did_not_change(world: World) -> None:
    data = bytearray(random.Random(9).randbytes(20 * BLOCK + 5))
    world.write(ALICE, "/memory/f", bytes(data))
    versions = [bytes(data)]
    for number in range(10):
        world.clock.advance(2)
        world.edit(ALICE, "/memory/f", ["w", number * BLOCK, b"!"], handle=number)
        data[number * BLOCK : number * BLOCK + 1] = b"!"
        versions.append(bytes(data))
    assert world.history(ALICE, "/memory/f") == versions
    assert world.rows("select count(*) from block") == [(21 + 10,)]
    world.unlink(ALICE, "/memory/f")


def test_holes_are_zeros_and_take_no_room(world: World) -> None:
    world.create(ALICE, "/memory/sparse")
    node = world.node(ALICE, "/memory/sparse").id
    far = 1 << 40
    world.edit(ALICE, "/memory/sparse", ["w", far, b"end"], handle=1)
    assert world.node(BOB, "/memory/sparse").size == far + 3
    with world.reading(BOB) as reader:
        assert reader.read(node, 0, 10) == bytes(10)
        assert reader.read(node, far - 5, 100) == bytes(5) + b"end"
        assert reader.read(node, far + 3, 10) == b"" and reader.read(node, far + 10, 10) == b""
    assert world.rows("select count(*), sum(length(data)) from block")[0][0] == 1
    world.edit(ALICE, "/memory/sparse", ["t", 10], handle=1)
    assert world.bytes(BOB, "/memory/sparse") == bytes(10)
    world.edit(ALICE, "/memory/sparse", ["t", 100_000], ["w", 99_999, b"x"], ["t", 99_999], ["t", 100_001], handle=1)
    assert world.bytes(BOB, "/memory/sparse") == bytes(100_001), "what was cut off does not come back"
    with pytest.raises(TooBig):
        world.edit(ALICE, "/memory/sparse", ["w", (1 << 46) - 1, b"ab"], handle=1)
    with pytest.raises(TooBig):
        world.edit(ALICE, "/memory/sparse", ["t", (1 << 46) + 1], handle=1)
    assert world.node(BOB, "/memory/sparse").size == 100_001


@pytest.mark.parametrize(("data", "hole"), [(60_000, 0), (BLOCK, 0), (60_000, 40_000), (3 * BLOCK, 100_000)])
def test_what_was_appended_is_data_wherever_blocks_end(world: World, data: int, hole: int) -> None:
    """Appended pieces wait beside the blocks, and may begin in one that is there and end in one that is not."""
    world.write(ALICE, "/memory/f", b"x" * data)
    node = world.node(ALICE, "/memory/f").id
    world.edit(ALICE, "/memory/f", ["t", data + hole], handle=1)
    for _ in range(10):
        world.do(ALICE, "append", node=node, handle=1, data=b"y" * 3000)
    assert world.rows("select count(*) from tail") == [(10,)], "they wait still"
    whole = world.bytes(BOB, "/memory/f")
    begins, ends = data + hole, data + hole + 30_000
    assert len(whole) == ends
    with world.reading(BOB) as reader:
        places = (0, 1, data - 1, data, data + hole // 2, begins - 1, begins, BLOCK, 2 * BLOCK, begins + 1, ends - 1)
        for offset in (place for place in places if place < ends):
            found = reader.seek(node, offset, hole=False)
            assert found is not None and offset <= found and not whole[offset:found].strip(b"\0"), offset
            gap = reader.seek(node, offset, hole=True)
            assert gap is not None and offset <= gap, offset
            after = reader.seek(node, gap, hole=False) if gap < ends else None
            assert gap == ends or after is None or gap < after, f"no hole begins at {gap}"
            assert not whole[gap:after].strip(b"\0"), offset
            if offset >= begins:
                assert (found, gap) == (offset, ends), "all of it is data"
        blank = -(-data // BLOCK) * BLOCK  # the first block without any data, if the appended ones begin behind it
        assert reader.seek(node, 0, hole=True) == (blank if blank < begins else ends)
    world.unlink(ALICE, "/memory/f")
    if world.mode == "direct":  # nobody else has it open
        assert world.rows("select * from tail") == [] == world.rows("select * from extent")


def test_a_commit_of_many_small_edits_is_not_quadratic(world: World) -> None:
    world.create(ALICE, "/memory/f")

    def takes(count: int) -> int:
        """Nanoseconds of a processor."""
        found = []
        for handle in range(3):
            edits = [["w", number * 2, b"x"] for number in range(count)]
            started = world.processor_ns()
            world.edit(ALICE, "/memory/f", ["t", 0], *edits, handle=handle)
            found.append(world.processor_ns() - started)
            assert world.bytes(ALICE, "/memory/f") == b"x\0" * (count - 1) + b"x"
        return min(found)

    few = takes(2_000)
    assert takes(20_000) < 50 * few, "a hundred times as much where each edit looks at all before it"


def test_symlinks_and_directories_have_no_bytes_to_write(world: World) -> None:
    world.do(ALICE, "symlink", **world.at(ALICE, "/memory/l"), target=b"x")
    for path in ("/memory/l", "/memory/shared"):
        with pytest.raises((IsADirectoryError, OSError)):
            world.edit(ALICE, path, ["w", 0, b"x"], handle=1)


def test_of_a_large_file_as_many_versions_are_kept_as_fill_the_limit(tmp_path: Path) -> None:
    rules = IndexRules(versions=100, history_bytes=40 * 100_000)
    path = tmp_path / "avm.db"
    database.prepare(path)
    applier = Applier(path, Policy(), rules, orphans=True, clock=time.time_ns)
    applier.alone(OPERATOR, "settle", {})
    node = applier.alone(ALICE, "create", {"parent": MEMORY, "name": b"f", "mode": 0o644, "exclusive": True})["node"]
    for number in range(60):
        edits = [["w", 0, bytes([number]) * 100_000]]
        applier.alone(ALICE, "commit", {"node": node, "handle": number, "edits": edits})
    kept = [row[0] for row in applier.db.execute("select number from version order by number")]
    assert kept == list(range(21, 61))
    blocks = applier.db.execute("select count(*) from block").get
    assert blocks == 40 * 2, "the blocks of the versions that went are free"
    applier.close()
    assert faults(path, Policy()) == []
