"""One launch of a kernel: run in this process under a schedule, or recorded for a program under a sanitizer."""

import ctypes
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from emulator.compiler import build


class Schedule(NamedTuple):
    """In which order threads run and when copies in the background end. A right kernel gives the same bits under each."""

    order: Literal["first to last", "last to first", "random"] = "first to last"
    copies: Literal["late", "early"] = "late"
    seed: int = 0


USUAL = Schedule()

ORDERS, COPIES = ("first to last", "last to first", "random"), ("late", "early")
SCHEDULES = tuple(Schedule(order, copies, 1) for order in ORDERS for copies in COPIES)  # type: ignore[arg-type]

ENTRY = struct.Struct("64s7Q")
"""``struct Launch`` of entry.h."""

_one_at_a_time = threading.Lock()


class Fault(Exception):
    """What a GPU does not allow: threads that never meet, an address outside of shared memory, a lane that left."""


class Launch(NamedTuple):
    """What the host code asked for, whole: ``source`` and ``defines`` are those that a GPU's compiler would get."""

    source: str
    defines: tuple[str, ...]
    kernel: str
    blocks: int
    threads: int
    shared: int
    params: Any

    def run(self, schedule: Schedule = USUAL) -> None:
        """Compute, in the memory that the parameters point to. Raises ``Fault``."""
        library = _library(build(self.source, self.defines))
        with _one_at_a_time:
            why = library.emulate(self._entry(schedule), self.params.ctypes.data)
        if why:
            raise Fault(f"{self.kernel}: {why.decode()}")

    def sanitized(
        self, kind: Literal["thread", "address"], memory: Iterable[Any], folder: Path, schedule: Schedule = USUAL
    ) -> str:
        """What ThreadSanitizer, or AddressSanitizer with UndefinedBehaviorSanitizer, says of it: empty where nothing is wrong.

        ``memory`` are the arrays that the parameters point into.
        """
        program = build(self.source, self.defines, kind)
        record = folder / "launch"
        record.write_bytes(self._entry(schedule) + self.params.tobytes() + _pointers(self.params) + _pieces(memory))
        still = (
            [shutil.which("setarch") or "", "-R"] if shutil.which("setarch") else []
        )  # ThreadSanitizer wants fixed addresses
        settings = {"TSAN_OPTIONS": "exitcode=66", "ASAN_OPTIONS": "detect_stack_use_after_return=0:detect_leaks=0"}
        done = subprocess.run(
            [*still, str(program), str(record)], capture_output=True, text=True, env=os.environ | settings, timeout=120
        )
        return done.stderr or ("" if done.returncode == 0 else f"ended with {done.returncode}")

    def bank_conflicts(self) -> float:
        """Cycles per phase of the matrix loads since this was last asked: 1 where eight rows lie in eight banks."""
        found = (ctypes.c_ulong * 2)()
        _library(build(self.source, self.defines)).bank_conflicts(found)
        return found[1] / found[0] if found[0] else 0.0

    def _entry(self, schedule: Schedule) -> bytes:
        return ENTRY.pack(
            self.kernel.encode(), self.blocks, self.threads, self.shared, ORDERS.index(schedule.order),
            COPIES.index(schedule.copies), schedule.seed, self.params.nbytes,
        )  # fmt: skip


def _pointers(params: Any) -> bytes:
    """Where pointers stand in the parameters: the fields without a sign."""
    offsets = [params.dtype.fields[name][1] for name in params.dtype.names if params.dtype[name].kind == "u"]
    return struct.pack(f"{len(offsets) + 1}Q", len(offsets), *offsets)


def _pieces(memory: Iterable[Any]) -> bytes:
    """The memory of the arrays, pieces that overlap as one."""
    spans: list[list[int]] = []
    for low, high in sorted(np.lib.array_utils.byte_bounds(x) for x in memory if x.size):
        if spans and low < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], high)
        else:
            spans.append([low, high])
    pieces = [struct.pack("QQ", low, high - low) + ctypes.string_at(low, high - low) for low, high in spans]
    return struct.pack("Q", len(pieces)) + b"".join(pieces)


@cache
def _library(built: Path) -> Any:
    library = ctypes.CDLL(str(built))
    library.emulate.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    library.emulate.restype = ctypes.c_char_p
    return library
