"""The most memory that a call holds, seen from outside: how far the resident memory of the process rises above where it was.

The kernel keeps the highest mark of a process in ``VmHWM``, and Linux lowers it to the present size when 5 is written to
``clear_refs`` (proc(5)). That sees every library alike, which counters of one allocator do not. Where there is no such file the
answer is None: not measured.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_PROCESS = Path("/proc/self")
_M_MMAP_THRESHOLD = -3

RESOLUTION = 2**20
"""Bytes below which a rise says nothing: the kernel counts pages in batches for each core, and small objects find a place anyway."""


def give_back_what_is_freed() -> None:
    """Have glibc map each array by itself (mallopt(3), M_MMAP_THRESHOLD), so that it is gone when it is freed.

    Otherwise free memory stays in the heap, where a later call finds it without any rise, or finds none that fits. That makes
    allocations slower: it is for a process that is not timed. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if _PROCESS.exists() else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 64 * 1024)


def rise(call: Callable[[], T]) -> tuple[T, int | None]:
    """The result of ``call`` and the bytes that it held at most, its result included."""
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")
        before = _status("VmRSS")
    except OSError:
        return call(), None
    result = call()
    return result, max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    """A field of the process's status in bytes; the file says kB and means 1024."""
    for line in (_PROCESS / "status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in {_PROCESS / 'status'}")
