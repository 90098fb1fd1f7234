"""How long work takes on the device: events of CuPy around it, on the stream that torch uses as well when nobody chooses another."""

from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any, TypeAlias

Clock: TypeAlias = Callable[[Callable[[], Any]], float]
"""Work -> seconds."""

REPEATS, WARM = 12, 3


def on_device(work: Callable[[], Any]) -> float:
    """Seconds of one call, the median of several after some to warm up."""
    cuda: Any = import_module("cupy").cuda
    for _ in range(WARM):
        work()
    pairs = [(cuda.Event(), cuda.Event()) for _ in range(REPEATS)]
    for begin, end in pairs:
        begin.record()
        work()
        end.record()
    pairs[-1][1].synchronize()
    return float(median(cuda.get_elapsed_time(begin, end) for begin, end in pairs)) / 1e3
