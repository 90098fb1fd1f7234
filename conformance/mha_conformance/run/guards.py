"""Guard bands: each array of a call lies inside a larger allocation, whose other bytes hold what no result may be made of.

NaN stands there for floating arrays, an odd negative number for integers, True for booleans: before and behind the array, and in the
gaps that its strides leave. What is read there shows in a result; what is written there is seen after the call (MHA-CONF-17).
"""

from functools import lru_cache
from typing import Any

import numpy as np

STRANGE = -1_515_870_811
"""No position, length or segment that any case has."""
LINE = 64
"""Bytes of a cache line: arrays begin on one, as a careful caller's do."""
BAND, ROWS = 4096, 16
"""A band has at least so many bytes, and at least so many rows of its array."""
LARGEST = 2**31
"""Arrays that span more bytes than this are left where they are: pages that nobody touches surround them."""


def filler(dtype: Any, loud: bool = True) -> Any:
    """The element that stands around an array of this type; 0 where it is not to be loud."""
    kind = np.dtype(dtype)
    if not loud:
        return np.zeros((), kind)
    if kind.kind == "b":
        return np.ones((), kind)
    if kind.kind == "i":
        return np.asarray(STRANGE).astype(kind)  # of narrow integers, the last bytes of it
    return np.asarray(1 if kind.kind == "u" else np.nan, dtype=kind)


class Guards:
    """The arrays of one case, and what became of their surroundings. ``loud`` is False to ask whether a failure comes from there."""

    def __init__(self, loud: bool = True) -> None:
        self._loud = loud
        self.bands: list[Band] = []

    def around(self, x: Any, name: str) -> Any:
        """The same values with the same strides, inside a larger allocation."""
        low, span = _reach(x)
        if span > LARGEST:
            return x
        band = _up(max(BAND, ROWS * (x.shape[-1] if x.ndim else 1) * x.itemsize))
        element = filler(x.dtype, self._loud)
        memory = np.empty(2 * band + _up(span) + LINE, np.uint8)
        memory = memory[-memory.ctypes.data % LINE :][: 2 * band + _up(span)]
        np.ndarray(len(memory) // x.itemsize, x.dtype, memory).fill(element)
        inside = np.ndarray(x.shape, x.dtype, memory, band - low, x.strides)
        inside[...] = x
        self.bands.append(Band(name, memory, inside, element.tobytes(), band, span))
        if x.flags.writeable:
            return inside
        still = inside.view()
        still.setflags(write=False)
        return still

    def touched(self) -> tuple[str, ...]:
        """The names of the arrays around which, or in whose gaps, something was written."""
        return tuple(dict.fromkeys(band.name for band in self.bands if band.touched()))


class Band:
    """One array in its allocation: ``band`` bytes before it, ``span`` bytes from its first to behind its last element."""

    def __init__(self, name: str, memory: Any, inside: Any, element: Any, band: int, span: int) -> None:
        self.name, self.memory, self._inside, self._element, self._band, self._span = name, memory, inside, element, band, span

    def touched(self) -> bool:
        memory = self.memory
        if self._span != self._inside.nbytes:  # what stands in the gaps is looked at with the bands
            memory = memory.copy()
            at = self._inside.ctypes.data - self.memory.ctypes.data
            own = np.ndarray((*self._inside.shape, self._inside.itemsize), np.uint8, memory, at, (*self._inside.strides, 1))
            own[...] = np.frombuffer(self._element, np.uint8)
            return bool(memory.tobytes() != _repeated(self._element, len(memory)))
        ends = memory[: self._band], memory[self._band + self._span :]
        return any(end.tobytes() != _repeated(self._element, len(end)) for end in ends)


@lru_cache(maxsize=64)
def _repeated(element: bytes, size: int) -> bytes:
    """What a band of so many bytes holds."""
    return element * (size // len(element))


def _reach(x: Any) -> tuple[int, int]:
    """Where the lowest byte lies from the first element on, and how many bytes the array spans."""
    if not x.size or x.flags.c_contiguous:
        return 0, x.nbytes
    ways = [stride * (size - 1) for stride, size in zip(x.strides, x.shape, strict=True)]
    low = sum(way for way in ways if way < 0)
    return low, sum(way for way in ways if way > 0) + x.itemsize - low


def _up(size: int) -> int:
    """The next multiple of a cache line."""
    return -(-size // LINE) * LINE
