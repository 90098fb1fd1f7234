"""The most memory that a call holds, seen from outside: how far the resident memory of the process rises above where it was.

The kernel keeps the highest mark of a process in ``VmHWM``, and Linux lowers it to the present size when 5 is written to
``clear_refs`` (proc(5)). That sees every library alike, which counters of one allocator do not. Where there is no such file the
answer is None: not measured. Memory that an allocator has kept is no rise when it is used again: so the call should be the first of its
size, and the C library is asked to give back what is free (glibc's ``malloc_trim``).
"""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_PROCESS = Path("/proc/self")

RESOLUTION = 2**20
"""Bytes below which a rise says nothing: the kernel counts pages in batches for each core, and small objects find a place anyway."""


def rise(call: Callable[[], T]) -> tuple[T, int | None]:
    """The result of ``call`` and the bytes that it took at most, its result included."""
    _give_back()
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")
        before = _status("VmRSS")
    except OSError:
        return call(), None
    result = call()
    return result, max(0, _status("VmHWM") - before)


def _give_back() -> None:
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if _PROCESS.exists() else None
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _status(field: str) -> int:
    """A field of the process's status in bytes; the file says kB and means 1024."""
    for line in (_PROCESS / "status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in {_PROCESS / 'status'}")
