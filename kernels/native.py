"""Operators in C for a CPU: compiled by the machine's own compiler when first needed, and kept.

What takes tensor operations dozens of passes through memory, C can do in one, on numbers that stay in registers and
caches. Such a form is a C file beside its operator; vectors.h is what they share. Sizes are compile-time
constants, so a shape that was never seen costs a compilation (a second; three for the largest), once per machine: the
library is kept in the user's cache folder under a name that changes with everything that went into it.

The C compiler is `$CC`, or `cc`, `gcc` or `clang` on the PATH. Without one, or where what it makes cannot be loaded,
nothing fails: `missing` says why, and an operator's next form runs.
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
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-shared"]
# Sums may be reordered, which shortens chains of additions. Not -ffast-math: linked into a library, it would make the
# whole process flush subnormal numbers to zero.
REORDERING = ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno"]
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


def call(
    function: Callable,
    job: ctypes.Structure,
    streams: dict[str, Tensor | None],
    arrays: dict[str, Tensor | None],
    items: int,
    least: int = 1,
) -> None:
    """Call a C function `int f(job, start, stop)` on all items of a job.

    Args:
        function: of a library.
        job: its first argument; its members for tensors are filled in here.
        streams: tensors of any strides by the names of their members, which are `Strided`.
        arrays: contiguous tensors by the names of theirs, which are pointers.
        items, least: as in `spread`.
    """
    # Channels have to lie next to each other. Copies live until the call is over.
    rows = {name: x if x is None or x.ndim == 3 or x.stride(-1) == 1 else x.contiguous() for name, x in streams.items()}
    for name, x in rows.items():
        setattr(job, name, Strided() if x is None else Strided(x.data_ptr(), *x.stride()[:3]))
    for name, x in arrays.items():
        setattr(job, name, None if x is None else x.data_ptr())
    function.argtypes = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    spread(partial(function, ctypes.addressof(job)), items, least)


def register_bytes() -> int:
    """Bytes in a vector register of this CPU, as far as the compiler is allowed to use it."""
    return _vectors()[0]


def missing() -> str | None:
    """Why nothing can be compiled here, in words; None if it can."""
    place = _workshop()
    return place if isinstance(place, str) else None


@functools.cache
def load(source: Path, exact: bool = False, **macros: int | str) -> ctypes.CDLL:
    """The library made of `source` with these macros defined, compiled unless an earlier process has done so.

    Args:
        source: a C file.
        exact: compute sums in the order that is written, for sources whose precision rests on it.
        macros: by name.

    Raises:
        RuntimeError: there is no compiler, or it fails; with its message.
    """
    place = _workshop()
    if isinstance(place, str):
        raise RuntimeError(place)
    return _library(place, source.parent.name, source.read_text(), macros, [] if exact else REORDERING)


HEADER = Path(__file__).with_name("vectors.h")
"""What every source includes."""

TRIAL = """
#include "vectors.h"
void trial(real *x) {
    vec y = interleave(load(x), all(*x), 1, 0);
    store(x, __builtin_convertvector(__builtin_convertvector(y, lanes), vec));
}
"""
"""What a compiler must be able to compile."""


@functools.cache
def _workshop() -> Path | str:
    """The folder to keep libraries in, after one was made there and loaded; or why there is none.

    It is the user's cache, or where that cannot be used (not writable, full, not allowed to hold programs) a folder of
    this process alone.
    """
    if os.name != "posix":
        return "compiling C at run time is for Linux and macOS"
    try:
        if _compiler() is None:
            return f"no C compiler: {os.environ.get('CC') or 'cc, gcc or clang'} is not on the PATH"
    except ValueError as error:
        return f"CC={os.environ['CC']} cannot be understood: {error}"
    for folder in (_cache, _private):
        try:
            place = folder()
            _library(place, "trial", TRIAL, {**C_TYPES[torch.float32], "LANES": 4}, REORDERING)
        except (OSError, RuntimeError) as error:
            reason = str(error)
        else:
            return place
    return reason


def _library(folder: Path, name: str, code: str, macros: dict[str, int | str], flags: list[str]) -> ctypes.CDLL:
    command = [*_compiler(), *FLAGS, *flags, *_vectors()[1]]
    command += [f"-D{key}={value}" for key, value in sorted(macros.items())]
    parts = [HEADER.read_text(), code, _version(), *command]
    kept = folder / f"{name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}.so"
    if kept.exists():
        with contextlib.suppress(OSError):  # Damaged, say by a disk that was full: made again.
            return ctypes.CDLL(str(kept))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source, made = Path(scratch, f"{name}.c"), Path(scratch, kept.name)
        source.write_text(code)
        done = _run([*command, f"-I{HEADER.parent}", str(source), "-o", str(made)])
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)} failed: {done.stderr.strip()}")
        with open(made, "rb") as file:
            os.fsync(file.fileno())
        made.replace(kept)  # Whole or not at all, also with several processes at it.
    return ctypes.CDLL(str(kept))


@functools.cache
def _compiler() -> tuple[str, ...] | None:
    """The command that compiles C, or None."""
    if command := shlex.split(os.environ.get("CC", "")):
        return tuple(command) if shutil.which(command[0]) else None
    return next(((name,) for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


@functools.cache
def _version() -> str:
    return _run([*_compiler(), "--version"]).stdout


def _vectors() -> tuple[int, list[str]]:
    return VECTORS.get(torch.backends.cpu.get_cpu_capability(), (16, []))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named if os.path.isabs(named) else Path.home() / ".cache", "ecclab", "native")


def _private() -> Path:
    folder, owner = tempfile.mkdtemp(prefix="ecclab-native-"), os.getpid()
    # A forked child leaves its parent's folder alone.
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
    return Path(folder)


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
