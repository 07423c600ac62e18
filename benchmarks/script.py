"""What every benchmark script is around its measurement: options, the order of printing, exit codes.

A script gives `run_script` a parser (from `options`) and a function that measures; here its facts are printed before
and its findings after, the JSON is written, and whatever it started is taken away.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import BenchmarkError
from benchmarks.harness import stop_on_terminate
from benchmarks.results import Report, Table, Target, machine, print_facts, print_findings, write_json


@dataclass
class Run:
    """What a script's function gets: its options, and a stack that ends what it starts."""

    options: argparse.Namespace
    ending: contextlib.ExitStack
    title: str
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def quick(self) -> bool:
        return bool(self.options.quick)

    @property
    def local(self) -> Path:
        """A directory on the disk that is measured."""
        return Path(self.options.local).resolve()

    def begin(self, **facts: str) -> None:
        """Print what is going to be measured on what; call it once everything has started."""
        self.facts = {**machine(), **{name.replace("_", " "): fact for name, fact in facts.items()}}
        print_facts(self.title, self.facts)


@dataclass(frozen=True)
class Findings:
    """What a script's function returns; see `Report`."""

    tables: Sequence[Table]
    targets: Sequence[Target] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


def options(doc: str | None, program: str, quick: str) -> argparse.ArgumentParser:
    """A parser with what all scripts have; `quick` says what --quick does."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}", description=(doc or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{quick}: does it run, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--local", type=Path, metavar="DIR", default=Path("/var/tmp"), help="the disk (%(default)s)")
    parser.add_argument("--rounds", type=positive, metavar="N", help="how often every variant has its turn")
    return parser


def add_models(parser: argparse.ArgumentParser) -> None:
    """The option of a script that asks models: where they are kept from one run to the next."""
    default = Path("/var/tmp/avmfs-models")
    parser.add_argument("--cache", type=Path, default=default, metavar="DIR", help="of models (%(default)s)")


def run_script(
    title: str, parser: argparse.ArgumentParser, measure: Callable[[Run], Findings], arguments: Sequence[str] | None
) -> int:
    """0; 1 when a variant broke off (the others are reported); 2 when the run could not start."""
    chosen = parser.parse_args(arguments)
    stop_on_terminate()
    began = time.monotonic()
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with contextlib.ExitStack() as ending:
            run = Run(chosen, ending, title)
            found = measure(run)
    except BenchmarkError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    lasted = f"{(time.monotonic() - began) / 60:.1f} min; load {load} at the end"
    report = Report(
        benchmark=parser.prog.rpartition(".")[2].removeprefix("bench_"),
        title=title,
        command=command(parser.prog, words),
        facts={**run.facts, "lasted": lasted},
        tables=found.tables,
        targets=found.targets,
        failures=found.failures,
        data=found.data,
    )
    print_findings(report)
    if chosen.json:
        write_json(chosen.json, report)
    return 1 if found.failures else 0


def command(program: str, words: Sequence[str]) -> str:
    """As a report names it."""
    return shlex.join([*program.split(), *map(_named, _without_json(words))])


def _named(word: str) -> str:
    """Where a file lay is nobody's business either."""
    return Path(word).name if word.startswith("/") else word


def _without_json(words: Sequence[str]) -> Iterator[str]:
    """The command that makes the figure again; where it put its JSON is nobody's business."""
    skip = False
    for word in words:
        if skip or word.startswith("--json="):
            skip = False
        elif word == "--json":
            skip = True
        else:
            yield word


def positive(text: str) -> int:
    """An argparse type."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def positive_numbers(text: str) -> list[int]:
    """An argparse type: '1,4' as [1, 4]."""
    return [positive(number) for number in text.split(",")]


def names_among(known: Sequence[str]) -> Callable[[str], list[str]]:
    """An argparse type: some of `known`, comma-separated, kept in the order of `known`."""

    def parse(text: str) -> list[str]:
        given = text.split(",")
        for name in given:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return [name for name in known if name in given]

    return parse
