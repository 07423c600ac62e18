"""avm model: where the embedding model's weights are, and how they get here.

Called through the command table. Knows the places of ``embed.weights``, and loads no model.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from avmfs_config import EmbeddingSettings, load_settings

from avmfs.cli.main import Command, CommandGroup, subcommand
from avmfs.cli.session import locations, show, working
from avmfs.embed import weights
from avmfs.embed.protocol import EmbeddingUnavailable
from avmfs.errors import NotFound


@subcommand("model", "See, download or import the embedding model.", cls=CommandGroup)
def model_() -> None:
    """See where the embedding model's weights are, download them, or take them from a folder.

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
    hash is checked. A running daemon takes them up within minutes, at `avm warmup` at once.

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
    show(value, "".join(f"{name}: {each}\n" for name, each in value.items()))
