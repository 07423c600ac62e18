"""avm export, import, sync: the ways out and in."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from avmfs.cli.main import REFUSED, subcommand
from avmfs.cli.session import LOCAL, door, show, working
from avmfs.errors import Busy, Invalid, NotFound
from avmfs.text.escapes import escaped
from avmfs.transfer import exporting, formats
from avmfs.transfer.files import all_but
from avmfs.transfer.importing import Import, Report
from avmfs.transfer.sync import Sync

_SHOWN = 1000  # lines of a list


@subcommand("export", "Take memory out: tar, jsonl, markdown, git.")
@click.argument("format")
@click.argument("out", type=LOCAL)
@click.argument("path", default="/memory")
def export_(format: str, out: Path, path: str) -> None:
    """Write all that you see below PATH to OUT: as tar (.tar.gz), jsonl, markdown (a new folder) or git.

    OUT may be - for stdout, but for a folder. avm export git - | git -C REPO fast-import makes a history with the
    agents as authors, on the branch main.
    """
    chosen = formats.found(format, formats.writers())
    with door() as memory:
        if not exporting.root_of(memory, path):
            raise NotFound(path=path)
        with working("exporting") as progress:
            left: dict[str, str] = {}
            source: Any = (exporting.history if chosen.history else exporting.records)(memory, path, left)
            count = chosen.call(
                out, progress.counted(source, 0 if chosen.history else exporting.how_many(memory, path))
            )
        if left:
            why = "; ".join(sorted({*left.values()}))
            raise (Busy if why == exporting.HALFWAY else Invalid)(all_but([*left], why))
        if out != Path("-"):
            show({"path": path, "out": str(out), "records": count}, f"{count} records in {escaped(str(out))}\n")


@subcommand("import", "Bring memory in, of this program and of others.")
@click.argument("format")
@click.argument("source", type=LOCAL)
@click.option("--into", metavar="PATH", help="Where to. [default: /memory for exports, else /private/imported/FORMAT]")
@click.option("--dry-run", "-n", is_flag=True, help="Say what would become what, and bring in nothing.")
@click.option("--replace", is_flag=True, help="A new version of what is there with other contents.")
def import_(ctx: click.Context, format: str, source: Path, into: str | None, dry_run: bool, replace: bool) -> None:
    """Bring SOURCE in; a second run adds nothing, and one that was cut off goes on.

    FORMAT is tar, jsonl or markdown (what export writes), or one of another program: avm help transfer has them.
    Dates and authors are kept; what cannot be taken is listed, and the exit code is then 1.
    """
    chosen = formats.found(format, formats.readers())
    if not source.exists():
        raise NotFound(path=str(source))
    with door() as memory:
        where = str(memory.call("locate", path=chosen.into if into is None else into)["path"])
        with working("importing") as progress:
            run = Import(memory, where, dry=dry_run, replacing=replace, progress=progress)
            report = run.run(chosen.call(source))  # type: ignore[arg-type]
        show(asdict(report), _text(report, dry_run), prose=False)
    if report.refused or report.links_refused:
        ctx.exit(REFUSED)


@subcommand("sync", "Keep a folder of Markdown in step with the memory.")
@click.argument("folder", type=LOCAL)
@click.argument("path", required=False)
@click.option("--name", "names", multiple=True, metavar="GLOB", help="What is kept in step.  [default: *.md]")
@click.option("--dry-run", "-n", is_flag=True, help="Say what would go where, and change nothing.")
@click.option("--many", is_flag=True, help="Also where most of one side is gone.")
def sync_(
    ctx: click.Context, folder: Path, path: str | None, names: tuple[str, ...], dry_run: bool, many: bool
) -> None:
    """Bring what has changed in FOLDER to PATH, and what has changed there to FOLDER.

    PATH is remembered. What both have changed stays as both, the folder's as "NAME (conflict ...).md"; what one has
    changed and the other removed comes back. Names that begin with a dot are left out.
    """
    with door() as memory, working("syncing"):
        run = Sync(memory, folder.absolute(), path, names=names or ("*.md",), many=many)
        done = run.run(dry_run)
    lines = [
        f"{what}  {escaped(name)}\n"
        for what, some in (
            ("-> memory", done.to_store),
            ("-> folder", done.to_folder),
            ("removed from the memory", done.removed_there),
            ("removed from the folder", done.removed_here),
        )
        for name in some
    ]
    lines += [f"both changed  {escaped(name)}; the folder's is now {escaped(own)}\n" for name, own in done.conflicts]
    lines += [f"refused  {escaped(each.where)}: {escaped(each.reason)}\n" for each in done.refused]
    show(asdict(done), "".join(lines) or "(nothing has changed)\n", prose=False)
    if done.refused:
        ctx.exit(REFUSED)


def _text(report: Report, dry: bool) -> str:
    lines = [f"{done:<8} {escaped(was)} -> {escaped(to)}\n" for was, to, done in report.became[:_SHOWN]] if dry else []
    if dry and len(report.became) > _SHOWN:
        lines.append(f"and {len(report.became) - _SHOWN} more (--json has all)\n")
    for refusal in (*report.refused, *report.links_refused)[:_SHOWN]:
        lines.append(f"refused  {escaped(refusal.where)}: {escaped(refusal.reason)}\n")
    if (more := len(report.refused) + len(report.links_refused) - _SHOWN) > 0:
        lines.append(f"and {more} more refusals (--json has all)\n")
    links = f", {report.linked} links" + (f" ({len(report.links_refused)} refused)" if report.links_refused else "")
    would = "would be " if dry else ""
    lines.append(
        f"{report.read} read: {report.added} {would}added, {report.updated} {would}updated, {report.same} there"
        f" already, {len(report.refused)} refused{links}\n"
    )
    return "".join(lines)
