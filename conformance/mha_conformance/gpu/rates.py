"""What the device can do at best: the rate of cuBLAS, and the bandwidth of a copy. The speeds of attention are shares of them."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from mha_conformance.gpu.clock import Clock, on_device
from mha_conformance.gpu.rows import Row

SIDE, BYTES = 8192, 2**30
ROWS = ("cuBLAS, float16, 8192^3", "copy of 1 GiB")


def run(clock: Clock = on_device, side: int = SIDE, size: int = BYTES) -> Iterator[Row]:
    cupy: Any = import_module("cupy")
    a, b = (cupy.ones((side, side), dtype="float16") for _ in range(2))
    yield Row(ROWS[0], "MEASURED", 2 * side**3 / clock(lambda: cupy.matmul(a, b)) / 1e12, "TFLOP/s")
    x, y = (cupy.zeros(size, dtype="uint8") for _ in range(2))
    yield Row(ROWS[1], "MEASURED", 2 * size / clock(lambda: cupy.copyto(y, x)) / 1e12, "TB/s", "bytes read and written")
