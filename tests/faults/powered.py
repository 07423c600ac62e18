"""Agents at work until the power goes: programs that journal what they are about to do, and when it was acknowledged.

Run as ``powered.py KIND JOURNAL HOME ...``; HOME is a directory of this program's own, which does not exist yet. The
journal is on another disk, a JSON line each: {"id", "steps", "facts"} before something is done, {"id", "done"} with
time.monotonic() once it was acknowledged. ``steps`` are the states that HOME goes through meanwhile, each a change
{name: value} with what ``seen`` finds there; who is about to do two things does them in this order. ``facts`` are what
holds elsewhere from then on.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from avmfs import AVM

Value = list[Any] | str | None
Step = dict[str, Value]
TAGGED = "notes"  # the file whose :tags are watched too


def file(data: str, mode: int = 0o644) -> Value:
    return ["f", data, mode]


def seen(home: Path) -> dict[str, Value]:
    """Everything in a program's own directory, as the steps state it; {} where there is none."""
    found: dict[str, Value] = {}
    if not os.path.lexists(home):
        return found
    found["."] = ["d"]
    for folder, folders, files in os.walk(home):
        for name in (*folders, *files):
            path = Path(folder) / name
            mode = path.lstat().st_mode
            key = os.fspath(path.relative_to(home))
            if stat.S_ISLNK(mode):
                found[key] = ["l", os.readlink(path)]
            elif stat.S_ISDIR(mode):
                found[key] = ["d"]
            else:
                found[key] = file(path.read_text("ascii"), stat.S_IMODE(mode))
    if TAGGED in found:
        tags = (home / f"{TAGGED}:tags").read_text().strip()
        if tags and not tags.startswith("("):
            found[f"{TAGGED}:tags"] = tags
    return found


class Program:
    def __init__(self, journal: str, name: str) -> None:
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.name = name
        self.number = 0
        self.chance = random.Random(name)

    def say(self, **what: Any) -> None:
        os.write(self._journal, (json.dumps(what) + "\n").encode())

    @contextlib.contextmanager
    def doing(self, *steps: Step, facts: list[list[Any]] | None = None, promised: bool = True) -> Iterator[None]:
        """``promised``: is what the block does acknowledged when it returns?"""
        self.number += 1
        number = self.number
        self.say(id=number, steps=steps, facts=facts or [])
        yield
        if promised:
            self.say(id=number, done=time.monotonic())

    def text(self) -> str:
        size = self.chance.choice((20, 700, 9000, 70_000))
        return f"{self.name} {self.number} " + "abcdefgh" * (size // 8)


class Files(Program):
    """By system calls on a mount."""

    def __init__(self, journal: str, home: str, mount: str) -> None:
        super().__init__(journal, os.path.basename(home))
        self.home, self.mount = home, mount
        self.lines = 0

    def run(self) -> None:
        with self.doing({".": ["d"]}):
            os.mkdir(self.home)
        with self.doing({TAGGED: file("")}, {TAGGED: file("x")}):
            self.put(TAGGED, "x")
        kinds = [
            self.create,
            self.replace,
            self.overwrite,
            self.append,
            self.sync,
            self.rename,
            self.unlink,
            self.folder,
            self.link,
            self.cut,
            self.mode,
            self.tag,
            self.tell,
            self.log,
            self.mark,
        ]
        while True:
            self.chance.choice(kinds)()

    def at(self, name: str) -> str:
        return f"{self.home}/{name}"

    def put(self, name: str, text: str, how: str = "w") -> None:
        with open(self.at(name), how) as out:
            out.write(text)

    def pick(self) -> str:
        return f"f{self.chance.randrange(5)}"

    def made(self) -> str:
        """The name of a file that is there."""
        name = self.pick()
        if not os.path.exists(self.at(name)):
            text = self.text()
            with self.doing({name: file("")}, {name: file(text)}):
                self.put(name, text, "x")
        return name

    def now(self, name: str) -> tuple[str, int]:
        """Bytes and mode of a file of ours."""
        with open(self.at(name)) as it:
            return it.read(), stat.S_IMODE(os.fstat(it.fileno()).st_mode)

    def create(self) -> None:
        name, text = f"new{self.number}", self.text()
        about = [["written", os.path.relpath(self.at(name), self.mount)]]
        with self.doing({name: file("")}, {name: file(text)}, facts=about):
            self.put(name, text, "x")

    def replace(self) -> None:
        """As editors save."""
        name, text = self.pick(), self.text()
        with self.doing({"tmp": file("")}, {"tmp": file(text)}), open(self.at("tmp"), "x") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        with self.doing({"tmp": None, name: file(text)}):
            os.replace(self.at("tmp"), self.at(name))

    def overwrite(self) -> None:
        """O_TRUNC and a write are one version, never an empty one."""
        name, text = self.made(), self.text()
        with self.doing({name: file(text, self.now(name)[1])}):
            self.put(name, text)

    def append(self) -> None:
        name = self.made()
        text, mode = self.now(name)
        pieces = [f"+{self.number}.{n}" * self.chance.choice((1, 400)) for n in range(3)]
        steps = [{name: file(text + "".join(pieces[: n + 1]), mode)} for n in range(3)]
        with self.doing(*steps):
            descriptor = os.open(self.at(name), os.O_WRONLY | os.O_APPEND)
            for piece in pieces:
                assert os.write(descriptor, piece.encode()) == len(piece)
            os.close(descriptor)

    def sync(self) -> None:
        """fsync alone promises it, of a file that stays open."""
        name, (one, two) = self.made(), (self.text(), self.text())
        mode = self.now(name)[1]
        with open(self.at(name), "r+") as out:
            for text in (one, one + two):
                with self.doing({name: file(text, mode)}):
                    out.seek(0)
                    out.truncate()
                    out.write(text)
                    out.flush()
                    os.fsync(out.fileno())

    def rename(self) -> None:
        old, new = self.made(), self.pick()
        if old != new:
            with self.doing({old: None, new: file(*self.now(old))}):
                os.rename(self.at(old), self.at(new))

    def unlink(self) -> None:
        name = self.made()
        with self.doing({name: None}):
            os.unlink(self.at(name))

    def folder(self) -> None:
        with self.doing({"d": ["d"]}):
            os.mkdir(self.at("d"))
        with self.doing({"d": None, "e": ["d"]}):
            os.rename(self.at("d"), self.at("e"))
        with self.doing({"e": None}):
            os.rmdir(self.at("e"))

    def link(self) -> None:
        target = f"t{self.number}"
        with self.doing({"s": ["l", target]}):
            os.symlink(target, self.at("s"))
        with self.doing({"s": None}):
            os.unlink(self.at("s"))

    def cut(self) -> None:
        name = self.made()
        text, mode = self.now(name)
        with self.doing({name: file(text[:10], mode)}), open(self.at(name), "r+") as out:
            out.truncate(10)

    def mode(self) -> None:
        """Within a second: not promised when it returns, but before whatever is promised later."""
        name, mode = self.made(), self.chance.choice((0o600, 0o644, 0o640))
        with self.doing({name: file(self.now(name)[0], mode)}, promised=False):
            os.chmod(self.at(name), mode)

    def tag(self) -> None:
        tag = f"t{self.number}"
        with self.doing({f"{TAGGED}:tags": tag}):
            self.put(f"{TAGGED}:tags", tag)

    def tell(self) -> None:
        text = f"{self.name} {self.number}"
        with self.doing(facts=[["told", text]]), open(f"{self.mount}/tell/carol", "w") as out:
            out.write(text)

    def log(self) -> None:
        """One file that all append to."""
        self.lines += 1
        line = f"{self.name} {self.lines}"
        with self.doing(facts=[["line", line]]):
            descriptor = os.open(f"{self.mount}/memory/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            assert os.write(descriptor, f"{line}\n".encode()) == len(line) + 1
            os.close(descriptor)

    def mark(self) -> None:
        """How far this agent has read the log that others write too."""
        at = f"{self.mount}/memory/log:mark"
        with open(at) as before:
            version = int(before.read().rpartition("v")[2])
        with self.doing(facts=[["marked", version]]), open(at, "w") as out:
            out.write("x")


class Doors(Program):
    """By the Python class, the command line and an MCP server."""

    def __init__(self, journal: str, home: str, agent: str) -> None:
        super().__init__(journal, os.path.basename(home))
        self.home, self.agent = home, agent
        self.server: subprocess.Popen[str] | None = None

    def run(self) -> None:
        number = 0
        with AVM(agent=self.agent) as avm:
            for key in avm.api_keys():  # of earlier rounds: an agent may have only so many
                if key["revoked"] is None:
                    avm.revoke_api_key(key["id"])
            for one in avm.subscriptions():
                avm.unsubscribe(one["pattern"])
            while True:
                number += 1
                self.python(avm, number)
                self.tool(number)
                if number % 3 == 1:
                    self.command(number)

    def python(self, avm: AVM, number: int) -> None:
        name, text = f"p{number}", self.text()
        first: list[Step] = [{".": ["d"]}] if number == 1 else []
        with self.doing(*first, {name: file(text)}):
            avm.write(f"{self.home}/{name}", text)
        with self.doing({name: file(text + "more")}):
            avm.append(f"{self.home}/{name}", "more")
        with self.doing({name: None, f"q{number}": file(text + "more")}):
            avm.move(f"{self.home}/{name}", f"{self.home}/q{number}")
        with self.doing(facts=[["linked", f"{self.home}/q{number}"]]):
            avm.link(f"{self.home}/q{number}", "/memory/log")
        with self.doing({f"r{number}": file("x")}):
            avm.write(f"{self.home}/r{number}", "x")
        with self.doing({f"r{number}": None}):
            avm.delete(f"{self.home}/r{number}")
        with self.doing(facts=[["told", f"{self.name} {number}"]]):
            avm.tell("carol", f"{self.name} {number}")
        with self.doing(facts=[["subscribed", f"/memory/{self.name}-{number}/*"]]):
            avm.subscribe(f"/memory/{self.name}-{number}/*")
        label = f"{self.name} {number}"
        with self.doing(facts=[["key", label]]):
            avm.create_api_key(label=label)

    def tool(self, number: int) -> None:
        name = f"m{number}"
        if self.server is None:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "avmfs.mcp", "--user", self.agent],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self.ask(
                "initialize",
                {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {},
                    "clientInfo": {"name": "powered", "version": "1"},
                },
            )
            self.send({"method": "notifications/initialized"})
        with self.doing({name: file("by a tool")}):
            said = self.ask(
                "tools/call",
                {"name": "avm_write", "arguments": {"path": f"{self.home}/{name}", "content": "by a tool"}},
            )
            assert not said.get("isError"), said

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        assert self.server is not None and self.server.stdout is not None
        while (said := json.loads(self.server.stdout.readline())).get("id") != self.number:
            pass
        return dict(said["result"])

    def send(self, what: dict[str, Any]) -> None:
        assert self.server is not None and self.server.stdin is not None
        self.server.stdin.write(json.dumps({"jsonrpc": "2.0", **what}) + "\n")
        self.server.stdin.flush()

    def command(self, number: int) -> None:
        name = f"c{number}"
        steps: list[tuple[Step, list[str]]] = [
            ({name: file("by a command")}, ["write", f"{self.home}/{name}", "by a command"]),
            ({name: None}, ["rm", f"{self.home}/{name}"]),
        ]
        for step, words in steps:
            with self.doing(step):
                done = subprocess.run([sys.executable, "-m", "avmfs.cli", "-a", self.agent, *words], timeout=500)
                assert done.returncode == 0


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    (Files if kind == "files" else Doors)(*arguments).run()
