"""Operators in C for a CPU: compiled by the machine's own compiler when first needed, and kept.

Where a matrix state is so small that it fits in registers, a loop over tokens in C does in one pass what tensor
operations do in dozens, each through memory. Such a loop is a C file beside its operator. Sizes are compile-time
constants, so a shape that was never seen costs a compilation (under a second), once per machine: the library is kept
in the user's cache folder under a name that changes with everything that went into it.

The C compiler is `$CC`, or `cc`, `gcc` or `clang` on the PATH. Without one nothing fails: an operator's next form runs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

# Sums may be reordered, which vectorises them. Not -ffast-math: linked into a library, it would make the whole process
# flush subnormal numbers to zero.
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-shared", "-w"]
FLAGS += ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno"]
VECTORS = {
    "AVX512": (64, ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]),
    "AVX2": (32, ["-mavx2", "-mfma"]),
}
"""By PyTorch's name for what the CPU can do: bytes in a vector register, and the compiler flags."""

C_TYPES = {
    torch.float32: {"REAL": "float", "INDEX": "int32_t"},
    torch.float64: {"REAL": "double", "INDEX": "int64_t"},
}
"""As macros: the number, and an integer of its size."""


class Strided(ctypes.Structure):
    """A tensor `[B, L, H, ..]` as C sees it: a pointer and three strides, in numbers. No tensor is a null pointer."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("token", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )


def strided(x: Tensor | None) -> Strided:
    """The tensor must outlive what is returned."""
    return Strided() if x is None else Strided(x.data_ptr(), *x.stride()[:3])


def register_bytes() -> int:
    """Bytes in a vector register of this CPU, as far as the compiler is allowed to use it."""
    return _vectors()[0]


@functools.cache
def missing() -> str | None:
    """Why nothing can be compiled here, in words; None if it can."""
    if os.name != "posix":
        return "compiling C at run time is for Linux and macOS"
    command = _compiler()
    if command is None:
        return f"no C compiler: {os.environ.get('CC') or 'cc, gcc or clang'} is not on the PATH"
    with tempfile.TemporaryDirectory() as scratch:
        trial = Path(scratch, "trial.c")
        trial.write_text("int trial(void) { return 0; }\n")
        done = _run([*command, *_flags(), str(trial), "-o", str(Path(scratch, "trial.so"))])
    return f"{shlex.join(command)} cannot make a library: {done.stderr.strip()}" if done.returncode else None


@functools.cache
def load(source: Path, **macros: int | str) -> ctypes.CDLL:
    """The library made of `source` with these macros defined, compiled unless an earlier process has done so.

    Raises:
        RuntimeError: there is no compiler, or it fails; with its message.
    """
    if reason := missing():
        raise RuntimeError(reason)
    command = [*_compiler(), *_flags(), *(f"-D{name}={value}" for name, value in sorted(macros.items()))]
    key = hashlib.sha256(b"\0".join([source.read_bytes(), _version(), *map(str.encode, command)])).hexdigest()[:24]
    library = _folder() / f"{source.parent.name}-{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            made = Path(scratch, library.name)
            done = _run([*command, str(source), "-o", str(made)])
            if done.returncode:
                raise RuntimeError(f"{shlex.join(done.args)} failed:\n{done.stderr.strip()}")
            made.replace(library)  # Whole or not at all, also with several processes at it.
    return ctypes.CDLL(str(library))


@functools.cache
def _compiler() -> tuple[str, ...] | None:
    """The command that compiles C, or None."""
    if command := shlex.split(os.environ.get("CC", "")):
        return tuple(command) if shutil.which(command[0]) else None
    return next(((name,) for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


def _vectors() -> tuple[int, list[str]]:
    return VECTORS.get(torch.backends.cpu.get_cpu_capability(), (16, []))


def _flags() -> list[str]:
    return [*FLAGS, *_vectors()[1]]


@functools.cache
def _version() -> bytes:
    return _run([*_compiler(), "--version"]).stdout.encode()


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@functools.cache
def _folder() -> Path:
    """Where libraries are kept: the user's cache, or a folder of this process alone where that cannot be written."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ecclab", "native")
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK):
        return folder
    private = tempfile.TemporaryDirectory(prefix="ecclab-native-")
    atexit.register(private.cleanup)
    return Path(private.name)


def spread(work: Callable[[int, int], int], items: int, least: int = 1) -> None:
    """Call `work(start, stop)` on ranges that cover `range(items)`, one for each of PyTorch's threads.

    Args:
        work: a C function, or one that returns 0 as they do.
        items: how many there are.
        least: items that are worth a thread.

    Raises:
        MemoryError: `work`, a C function, returned anything but 0.
    """
    workers = max(1, min(items // least, torch.get_num_threads()))
    edges = [items * i // workers for i in range(workers + 1)]
    if workers == 1:
        failed = [work(0, items)]
    else:
        with ThreadPoolExecutor(workers) as pool:  # A C function called through ctypes does not hold the lock.
            failed = list(pool.map(work, edges[:-1], edges[1:]))
    if any(failed):
        raise MemoryError("no memory left for a native kernel's scratch space")
