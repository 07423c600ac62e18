"""Editors and the usual programs, run for real inside a mount. What is not installed is skipped, and said."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.mount_world import LIMIT_S, Place, cat, linux_only, needs, python, sh, view

pytestmark = pytest.mark.mount

GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "A",
    "GIT_COMMITTER_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_EDITOR": "true",
}
VIM = "vim -N -u NONE -i NONE -es"


@contextmanager
def background(command: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def versions(path: Path) -> int:
    return len([line for line in cat(view(path, ":history")).splitlines() if line.startswith("v")])


# Editors ----------------------------------------------------------------------------------------------------------


@needs("vim")
@pytest.mark.parametrize("how", ["backupcopy=auto", "backupcopy=yes", "backupcopy=no", "backup", "nowritebackup"])
def test_vim_saves_and_leaves_nothing_behind(place: Place, how: str) -> None:
    path = place.alice / "note.md"
    path.write_text("one\n")
    path.chmod(0o640)
    sh(
        f"{VIM} -c 'set {how} swapfile backupskip=' -c 'silent! set undofile' -c 'normal Gotwo' -c wq note.md",
        cwd=place.alice,
    )
    assert (place.bob / "note.md").read_text() == "one\ntwo\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    left = set(os.listdir(place.bob)) - {".note.md.un~"}  # vim.tiny has no undo files
    assert left == ({"note.md", "note.md~"} if how == "backup" else {"note.md"})
    assert versions(path) == 2  # the document goes on


@needs("emacs")
def test_emacs_saves_with_a_backup_and_a_lock(place: Place) -> None:
    path = place.alice / "note.md"
    path.write_text("one\n")
    save = '(progn (goto-char (point-max)) (insert "two\\n") (set-buffer-modified-p t) (save-buffer))'
    sh(
        f"emacs -Q --batch --eval '(setq backup-enable-predicate (lambda (name) t))' note.md --eval '{save}'",
        cwd=place.alice,
    )
    assert (place.bob / "note.md").read_text() == "one\ntwo\n"
    assert (place.bob / "note.md~").read_text() == "one\n"
    assert versions(path) == 2
    assert not any(name.startswith(".#") for name in os.listdir(place.bob))


@needs("nano", "script")
def test_nano_saves(place: Place) -> None:
    (place.alice / "n").write_text("a\n")
    keys = r"(sleep 1; printf hello; sleep .4; printf '\x0f'; sleep .4; printf '\r'; sleep .4; printf '\x18'; sleep .4)"
    sh(
        f"{keys} | timeout 10 script -qec 'nano -I n' /dev/null > /dev/null",
        cwd=place.alice,
        check=False,
        env={"TERM": "xterm"},
    )
    assert (place.bob / "n").read_text() == "helloa\n"


@needs("ed", "sed", "perl")
def test_line_editors_keep_mode_and_document(place: Place) -> None:
    path = place.alice / "f"
    path.write_text("a\nb\n")
    path.chmod(0o600)
    sh(r"printf '2c\nZ\n.\nw\nq\n' | ed -s f", cwd=place.alice)
    sh(
        "sed -i s/a/A/ f && sed -i.bak s/Z/z/ f && perl -pi -e 's/A/AA/' f && perl -pi.orig -e 's/z/zz/' f",
        cwd=place.bob,
    )
    assert path.read_text() == "AA\nzz\n"
    assert (place.alice / "f.bak").read_text() == "A\nZ\n" and (place.alice / "f.orig").read_text() == "AA\nz\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert versions(path) == 6


# Version control, databases ---------------------------------------------------------------------------------------


@needs("git")
def test_git_stash_rebase_worktree_and_gc(place: Place) -> None:
    sh(
        "git init -q -b main g && cd g && for i in $(seq 20); do echo $i > f$i; done && git add -A && git commit -qm 1"
        " && echo x >> f1 && git stash -q && test $(wc -l < f1) = 1 && git stash pop -q && git commit -qam 2"
        " && git checkout -qb topic && echo t > t && git add t && git commit -qm t"
        " && git checkout -q main && echo z > z && git add z && git commit -qm z"
        " && git checkout -q topic && git rebase -q main"
        " && git worktree add -q ../wt main && (cd ../wt && echo w > w && git add w && git commit -qm w)"
        " && git worktree remove ../wt && git repack -adq && git gc -q --prune=now && git fsck --strict"
        " && git clone -q . ../clone && cd ../clone && git fsck && git reset -q --hard HEAD~1 && git clean -fdxq"
        " && git pull -q && git tag v1 && git archive HEAD > ../a.tar && git bundle create -q ../b HEAD",
        cwd=place.alice,
        env=GIT,
        limit_s=300,
    )
    assert sh("git status --porcelain && git fsck --no-dangling", cwd=place.bob / "clone", env=GIT).stdout == ""
    assert sh("git log --format=%s", cwd=place.bob / "clone", env=GIT).stdout.split() == ["t", "z", "2", "1"]


def test_two_processes_share_a_wal_database_that_is_mapped(place: Place) -> None:
    code = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=300)
db.execute("pragma mmap_size=10000000")
for number in range(30):
    with db:
        db.execute("insert into t values(?, randomblob(3000))", (int(sys.argv[2]),))
    assert db.execute("select count(*) from t where who = ?", (int(sys.argv[2]),)).fetchone() == (number + 1,)
print(db.execute("pragma integrity_check").fetchone()[0])
"""
    path = place.alice / "w.db"
    with sqlite3.connect(path) as db:
        assert db.execute("pragma journal_mode=wal").fetchone() == ("wal",)
        db.execute("create table t(who, data)")
    db.close()
    processes = [
        subprocess.Popen(["python3", "-c", code, path, str(who)], stdout=subprocess.PIPE, text=True) for who in (1, 2)
    ]
    assert [process.communicate(timeout=300)[0].strip() for process in processes] == ["ok", "ok"]
    db = sqlite3.connect(path)
    assert db.execute("select count(*) from t").fetchone() == (60,)
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    db.execute("delete from t")
    db.commit()
    db.execute("vacuum")
    db.close()


def test_a_wal_database_is_refused_through_a_second_mount_until_it_is_closed_at_the_first(place: Place) -> None:
    """Its index is a shared mapping, of which each mount's kernel has a copy: rows would be lost."""
    here = sqlite3.connect(place.alice / "w.db", isolation_level=None)
    assert here.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    here.execute("create table t(n)")
    there = sqlite3.connect(place.bob / "w.db", isolation_level=None, timeout=0)
    here.execute("insert into t values(0)")
    with pytest.raises(sqlite3.OperationalError, match=r"locking protocol|database is locked"):
        there.execute("insert into t values(1)")
    here.execute("insert into t values(2)")
    here.close()
    there.execute("insert into t values(3)")
    there.close()
    with sqlite3.connect(place.alice / "w.db") as db:
        assert db.execute("select n from t order by n").fetchall() == [(0,), (2,), (3,)]
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    db.close()


def test_who_reads_a_database_finds_what_another_mount_has_committed_and_goes_on_reading(place: Place) -> None:
    """Its journal was there yet, for all that the other mount knew, and taken for that of a crash."""
    here, there = (sqlite3.connect(at / "j.db", isolation_level=None, timeout=0) for at in (place.alice, place.bob))
    here.execute("pragma journal_mode=truncate")
    here.execute("pragma synchronous=normal")
    here.execute("create table t(n)")
    here.execute("insert into t values(0), (1)")
    reading = here.execute("select n from t")
    assert reading.fetchone() == (0,)
    here.execute("insert into t values(2)")
    assert there.execute("select max(n) from t").fetchone() == (2,)
    here.close()
    there.close()


# Building, packing ------------------------------------------------------------------------------------------------


@needs("gcc", "make", "ar")
def test_make_builds_once_and_a_stamp_counts(place: Place) -> None:
    (place.alice / "Makefile").write_text(
        "p: a.o b.o\n\tgcc -o p a.o b.o\n%.o: %.c\n\tgcc -c -o $@ $<\nstamp: p\n\t: > stamp\n"
    )
    (place.alice / "a.c").write_text("int f(void); int main(void) { return f() - 3; }\n")
    (place.alice / "b.c").write_text("int f(void) { return 3; }\n")
    sh("make -j2 stamp && ./p && ar rcs lib.a a.o b.o && strip p && ./p", cwd=place.alice)
    assert "up to date" in sh("touch stamp && make stamp", cwd=place.bob).stdout
    time.sleep(0.02)
    sh("touch b.c", cwd=place.bob)
    assert "gcc -c -o b.o" in sh("make stamp", cwd=place.alice).stdout
    assert "up to date" in sh("make stamp", cwd=place.alice).stdout  # `: > stamp` of an empty file is newer


@needs("zip", "unzip")
def test_zip_and_unzip(place: Place) -> None:
    sh(
        "mkdir -p t/a && seq 1000 > t/a/n && ln -s n t/a/l && zip -qry z.zip t && unzip -q z.zip -d out",
        cwd=place.alice,
    )
    sh("diff -r --no-dereference t out/t && zip -qd z.zip t/a/n && seq 10 > t/a/n && zip -qru z.zip t", cwd=place.bob)
    assert "t/a/n" in sh("unzip -l z.zip", cwd=place.alice).stdout


@linux_only("libfuse asks by path, and an unlinked file has none")
def test_python_s_own_library(place: Place) -> None:
    code = """
import dbm.dumb, filecmp, fileinput, gzip, mailbox, os, pathlib, shelve, shutil, sys, tarfile, tempfile, zipfile
os.chdir(sys.argv[1])
with tempfile.NamedTemporaryFile(dir=".") as file:
    file.write(b"x"); file.flush()
    assert pathlib.Path(file.name).read_bytes() == b"x"
with tempfile.TemporaryFile(dir=".") as file:
    file.write(b"x" * 10); file.seek(0)
    assert file.read() == b"x" * 10 and os.fstat(file.fileno()).st_nlink == 0
with tempfile.TemporaryDirectory(dir=".") as top:
    pathlib.Path(top, "a").write_text("1")
    shutil.copytree(top, "copied"); shutil.move("copied/a", "moved"); shutil.rmtree("copied")
with zipfile.ZipFile("z.zip", "w") as z:
    z.writestr("a/b", "c" * 1000); z.write("moved")
with zipfile.ZipFile("z.zip", "a") as z:
    z.writestr("c", "d")
with zipfile.ZipFile("z.zip") as z:
    assert z.testzip() is None
    z.extractall("out")
box = mailbox.Maildir("maildir"); box.lock(); key = box.add("From: a\\n\\nhi"); box.flush()
assert len(box) == 1
box.remove(key); box.unlock()
box = mailbox.mbox("mbox"); box.lock(); box.add("From: a\\n\\nhi"); box.flush(); box.unlock(); box.close()
with shelve.open("shelf") as shelf:
    shelf["a"] = 1
with shelve.open("shelf") as shelf:
    assert shelf["a"] == 1
with gzip.open("g.gz", "wb") as file:
    file.write(b"q" * 100000)
with gzip.open("g.gz") as file:
    assert len(file.read()) == 100000
with tarfile.open("t.tar", "w") as tar:
    tar.add("out")
with tarfile.open("t.tar", "a") as tar:
    tar.add("mbox")
shutil.copy2("mbox", "mbox2")
assert filecmp.cmp("mbox", "mbox2", shallow=False)
with fileinput.input(["moved"], inplace=True) as lines:
    for line in lines:
        print(line + "2", end="")
assert pathlib.Path("moved").read_text() == "12"
print(sorted(os.listdir(".")))
"""
    python(code, place.alice, limit_s=300)
    assert (place.bob / "moved").read_text() == "12"


# Watching, locking ------------------------------------------------------------------------------------------------


@needs("tail")
def test_tail_follows_appends_of_both_mounts(place: Place) -> None:
    (place.alice / "log").write_text("begun\n")
    with background("tail -f -s 0.1 log", place.alice) as tail:
        assert tail.stdout is not None and tail.stdout.readline() == "begun\n"
        sh("echo mine >> log", cwd=place.alice)
        assert tail.stdout.readline() == "mine\n"
        sh("echo theirs >> log", cwd=place.bob)
        assert tail.stdout.readline() == "theirs\n"


@needs("flock")
def test_flock_excludes_the_other_mount(place: Place) -> None:
    (place.alice / "lock").touch()
    with background("flock -o lock sh -c 'echo held; exec cat'", place.alice) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert sh("flock -n lock true", cwd=place.bob, check=False).returncode == 1
        assert sh("flock -n lock true", cwd=place.alice, check=False).returncode == 1
        assert sh("flock -w 0.3 lock true", cwd=place.bob, check=False).returncode == 1
    sh("flock -w 10 lock true", cwd=place.bob)


@needs("inotifywait")
def test_inotify_tells_of_changes_on_its_own_mount(place: Place) -> None:
    with background("inotifywait -m -e create,close_write,moved_to,delete --format '%e %f' .", place.alice) as watch:
        assert watch.stdout is not None
        for line in watch.stdout:
            if "established" in line:
                break
        sh("echo a > x && mv x y && rm y", cwd=place.alice)
        told = [watch.stdout.readline().strip() for _ in range(4)]
    assert told == ["CREATE x", "CLOSE_WRITE,CLOSE x", "MOVED_TO y", "DELETE y"]


# Small tools ------------------------------------------------------------------------------------------------------


def test_dd_truncate_and_fallocate(place: Place, tmp_path: Path) -> None:
    data = os.urandom(100_000)
    (tmp_path / "data").write_bytes(data)
    for flags in ("", "conv=fsync", "conv=fdatasync", "oflag=sync", "oflag=dsync", "oflag=direct bs=4096"):
        sh(f"rm -f out && dd if={tmp_path}/data of=out status=none bs=10000 {flags}", cwd=place.alice)
        assert (place.bob / "out").read_bytes() == data, flags
    sh("dd if=out of=out2 iflag=direct bs=4096 status=none && cmp out out2", cwd=place.bob)
    for _ in range(2):
        sh("dd if=/dev/zero bs=10 count=5 of=log oflag=append conv=notrunc status=none", cwd=place.alice)
    assert (place.bob / "log").stat().st_size == 100
    sh("dd if=/dev/zero bs=10 seek=2 count=1 conv=notrunc of=out status=none", cwd=place.alice)
    assert (place.bob / "out").read_bytes() == data[:20] + bytes(10) + data[30:]
    sh("truncate -s 1G big && truncate -s -1M big && fallocate -l 100000 full", cwd=place.alice)
    assert (place.bob / "big").stat().st_size == 1023 << 20 and (place.bob / "full").stat().st_size == 100_000
    assert (place.bob / "full").read_bytes() == bytes(100_000)
    (place.alice / "full").write_bytes(b"x" * 100_000)
    sh("fallocate -p -o 0 -l 4096 full", cwd=place.alice)
    assert (place.bob / "full").read_bytes() == bytes(4096) + b"x" * 95_904


def test_cp_mv_install_and_touch(place: Place, tmp_path: Path) -> None:
    (place.alice / "f").write_bytes(bytes(300_000) + b"end")
    sh(
        "cp --sparse=always f s && cmp f s && cp --reflink=auto f r && cmp f r && cp -b f s && cmp f s~",
        cwd=place.alice,
    )
    assert "not permitted" in sh("cp -l f hard", cwd=place.alice, check=False).stderr
    sh(f"mkdir d && cp f d/f && mv d {tmp_path}/out && mv {tmp_path}/out back && cmp f back/f", cwd=place.bob)
    sh(f"mv back {place.bob}/back2 && mv {place.bob}/back2/f {place.alice}/moved && cmp f moved", cwd=place.alice)
    sh("install -m 640 -D f ins/a/b && install -d -m 2755 ins/d && ln -s a ins/l && ln -sfn b ins/l", cwd=place.alice)
    assert stat.S_IMODE((place.bob / "ins/a/b").stat().st_mode) == 0o640
    assert stat.S_IMODE((place.bob / "ins/d").stat().st_mode) == 0o2755
    assert os.readlink(place.bob / "ins/l") == "b"
    sh(
        "chmod -R u=rwX,go= ins && touch -d '2001-02-03 04:05:06.789' f && touch -r f s && touch -c nothing",
        cwd=place.bob,
    )
    assert stat.S_IMODE((place.alice / "ins/a").stat().st_mode) & 0o777 == 0o700
    assert (place.alice / "s").stat().st_mtime_ns == (place.alice / "f").stat().st_mtime_ns
    assert (place.alice / "f").stat().st_mtime_ns % 10**9 == 789_000_000
    assert not (place.alice / "nothing").exists()


def test_find_du_df_and_stat(place: Place) -> None:
    sh("mkdir -p t/a/b t/c && seq 5000 > t/a/n && : > t/c/empty && ln -s a t/l", cwd=place.alice)
    assert sh("find t -noleaf | sort", cwd=place.bob).stdout == sh("find t | sort", cwd=place.bob).stdout
    assert sh("find t -empty -o -size +10k | sort", cwd=place.bob).stdout.split() == ["t/a/b", "t/a/n", "t/c/empty"]
    assert int(sh("du -s --apparent-size --block-size=1 t/a/n", cwd=place.bob).stdout.split()[0]) == 23893
    assert int(sh("du -s --block-size=1 t", cwd=place.bob).stdout.split()[0]) >= 23893
    assert sh("stat -f -c %T . && df . && stat -c '%h %F' t", cwd=place.bob).stdout.endswith("4 directory\n")
    sh("find t -delete && test ! -e t", cwd=place.bob)
    assert os.listdir(place.alice) == []


@needs("rg")
def test_ripgrep_maps_files_and_finds_what_grep_finds(place: Place) -> None:
    for number in range(20):
        (place.alice / f"f{number}").write_text("needle\n" * (number % 3) + "hay\n" * 10_000)
    found = [
        sorted(sh(f"{command} needle .", cwd=place.bob, check=False).stdout.split())
        for command in ("rg --mmap -l", "rg --no-mmap -l", "grep -rl")
    ]
    assert [name.removeprefix("./") for name in found[0]] == [name.removeprefix("./") for name in found[2]]
    assert found[0] == found[1] and len(found[0]) == 13


def test_sort_split_and_patch(place: Place) -> None:
    sh(
        "seq 20000 | sort -R -T . > s && sort -n -T . s -o s && split -l 3000 s part_ && cat part_* | cmp - s"
        " && tee t < s > u && cmp t u && cp s v && sed -i 5d v && (diff -u s v > p || true)",
        cwd=place.alice,
    )
    if shutil.which("patch"):
        sh("patch -s s p && cmp s v && test ! -e s.rej", cwd=place.bob)
    refused = "exec 7<>t; echo ZZ >&7; read -u 7 x; echo $x; set -o noclobber; echo y > t"
    assert sh(refused, cwd=place.bob, check=False).returncode == 1
