"""A client that expects a mount never to fail: any error is its end. Run as a program by the kill tests.

Arguments: the mount, a journal outside it, this client's name, how many clients there are. It works until a line comes
on stdin, and then checks what it did. The journal has one JSON line per acknowledged effect, and the longest time that
any system call took in each tenth of a second, for recovery times.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
import traceback


class Client:
    def __init__(self, mount: str, journal: str, name: str, clients: int) -> None:
        self.at = f"{mount}/memory/soak"
        self.mount, self.name, self.clients = mount, name, clients
        self.log = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.number = 0
        self.mine: set[str] = set()
        self.lasting = -1
        self.pieces = b""
        self.checked = 0

    def say(self, **what: object) -> None:
        os.write(self.log, (json.dumps(what) + "\n").encode())

    def run(self) -> None:
        steps = (
            self.create,
            self.append,
            self.save,
            self.read,
            self.list,
            self.contest,
            self.piecewise,
            self.remove,
            self.directory,
            self.tell,
        )
        last, slowest = time.monotonic(), 0.0
        while not select.select([sys.stdin], [], [], 0)[0]:
            self.number += 1
            for step in steps:
                began = time.monotonic()
                step()
                now = time.monotonic()
                slowest = max(slowest, now - began)
                if now - last > 0.1:
                    self.say(at=last, slowest=slowest)
                    last, slowest = now, 0.0
        self.close_pieces()
        self.list()
        self.say(over=self.number)

    def create(self) -> None:
        name = f"{self.name}-{self.number}"
        with open(f"{self.at}/{name}", "x") as file:
            file.write(name * 50)
        self.mine.add(name)
        self.say(created=name)

    def append(self) -> None:
        line = f"{self.name} {self.number}\n"
        descriptor = os.open(f"{self.at}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        assert os.write(descriptor, line.encode()) == len(line)
        os.close(descriptor)
        self.say(appended=self.number)

    def save(self) -> None:
        with open(f"{self.at}/{self.name}.tmp", "w") as file:
            file.write(f"{self.name} {self.number}")
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{self.at}/{self.name}.tmp", f"{self.at}/{self.name}.saved")
        self.mine.add(f"{self.name}.saved")
        self.say(saved=self.number)

    def read(self) -> None:
        with open(f"{self.at}/{self.name}.saved") as file:
            assert file.read() == f"{self.name} {self.number}"
        name = f"{self.name}-{self.number}"
        with open(f"{self.at}/{name}") as file:
            half = file.read(10)
            assert half + file.read() == name * 50
        assert os.stat(f"{self.at}/{name}").st_size == len(name) * 50

    def list(self) -> None:
        found = os.listdir(self.at)
        own = [name for name in found if name.split("-")[0].split(".")[0] == self.name]
        assert len(own) == len(set(own)), "a name is listed twice"
        missing, extra = self.mine - set(own), set(own) - self.mine - {f"{self.name}.pieces"}
        assert not missing and not extra, (missing, extra)

    def contest(self) -> None:
        try:
            os.close(os.open(f"{self.at}/race/{self.number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return
        self.say(won=self.number)

    def piecewise(self) -> None:
        """A file that stays open over many steps, with bytes that nobody has flushed."""
        if self.lasting < 0:
            self.lasting = os.open(f"{self.at}/{self.name}.pieces", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        piece = f"{self.number},".encode() * 20
        assert os.write(self.lasting, piece) == len(piece)
        self.pieces += piece
        assert os.fstat(self.lasting).st_size == len(self.pieces), (os.fstat(self.lasting).st_size, len(self.pieces))
        if self.number % 20 == 0:
            self.close_pieces()

    def close_pieces(self) -> None:
        if self.lasting < 0:
            return
        assert os.pread(self.lasting, len(self.pieces) + 1, 0) == self.pieces
        os.close(self.lasting)
        with open(f"{self.at}/{self.name}.pieces", "rb") as file:
            assert file.read() == self.pieces
        self.lasting, self.pieces = -1, b""

    def remove(self) -> None:
        if self.number % 3 == 0:
            name = f"{self.name}-{self.number}"
            os.unlink(f"{self.at}/{name}")
            self.mine.discard(name)
            self.say(removed=name)
            assert not os.path.exists(f"{self.at}/{name}")

    def directory(self) -> None:
        name = f"{self.at}/{self.name}-dir"
        os.mkdir(name)
        os.rename(name, name + "2")
        os.rmdir(name + "2")

    def tell(self) -> None:
        if self.number % 25 == 0 and self.number < 1000:
            with open(f"{self.mount}/tell/bob", "w") as file:
                file.write(f"{self.name} {self.number}")
            self.say(told=self.number)


if __name__ == "__main__":
    client = Client(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    try:
        client.run()
    except BaseException:
        client.say(failed=traceback.format_exc(), number=client.number)
        raise
