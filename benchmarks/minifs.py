"""What bench_mount has in C: its client's loop (cfs/fileops.c) and its baseline filesystem (cfs/minifs.c), mounted."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figures import BenchmarkError
from benchmarks.harness import scratch_directory, served_mount

SOURCE = Path(__file__).resolve().parent / "cfs" / "minifs.c"
CLIENT = SOURCE.with_name("fileops.c")
MOUNT_OPTIONS = "default_permissions"
"""As avmfs mounts: the kernel checks modes, and asks the server for the attributes it checks."""


def compile_client(into: Path) -> Path | None:
    """The shared library with the loop of a client; None without a C compiler."""
    compiler = shutil.which("cc")
    return _compiled([compiler, "-O2", "-shared", "-fPIC"], CLIENT, into / "fileops.so", []) if compiler else None


def compile_minifs(into: Path) -> Path:
    """The program's path. Raises BenchmarkError that says what to install."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise BenchmarkError("the baseline needs a C compiler: no `cc` on PATH")
    if shutil.which("pkg-config") is None:
        raise BenchmarkError("the baseline needs pkg-config to find libfuse3")
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, timeout=30, check=False
    )
    if flags.returncode:
        raise BenchmarkError("the baseline needs libfuse3's headers: install libfuse3-dev (or fuse3-devel)")
    return _compiled([compiler, "-O2"], SOURCE, into / "minifs", flags.stdout.split())


def _compiled(compiler: Sequence[str], source: Path, program: Path, flags: Sequence[str]) -> Path:
    command = [*compiler, str(source), "-o", str(program), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise BenchmarkError(f"cannot compile {source.name}:\n{done.stderr.strip()}")
    return program


@contextlib.contextmanager
def mounted_minifs() -> Iterator[Path]:
    """An empty minifs, single-threaded, mounted in a temporary directory."""
    if shutil.which("fusermount3") is None:
        raise BenchmarkError("the baseline needs fusermount3: install fuse3")
    with scratch_directory(Path(tempfile.gettempdir())) as folder:
        program = compile_minifs(folder)
        mountpoint = folder / "mnt"
        mountpoint.mkdir()
        command = [str(program), "-s", "-f", "-o", MOUNT_OPTIONS, str(mountpoint)]
        with served_mount(command, mountpoint, folder / "log"):
            yield mountpoint
