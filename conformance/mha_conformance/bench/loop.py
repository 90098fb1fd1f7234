"""The ceiling of a blocked attention on this machine: its two products, exp2 and the row sum, tile after tile, and nothing else.

No maximum, no mask, no check, no copy: a kernel that does its work beside these can come close to this rate and not pass it.
"""

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np
from threadpoolctl import threadpool_limits

ROWS, COLUMNS, TILES = 512, 528, 4
"""A tile of float32 scores that fits a megabyte of cache, and how many of them pass by the same queries."""


def loop_rate(dtype: str, d: int, threads: int, size: int, seconds: float = 0.1) -> float:
    """FLOP per second of ``threads`` such loops at once, each with a BLAS of one thread; tiles are no larger than ``size``."""
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda _: _one(dtype, d, size, seconds), range(threads)))


def _one(dtype: str, d: int, size: int, seconds: float) -> float:
    random = np.random.default_rng(0)
    rows, columns = min(ROWS, size), min(COLUMNS * 4 // np.dtype(dtype).itemsize, size)
    query, key, value = (random.standard_normal((count, d)).astype(dtype) for count in (rows, columns, columns))
    query /= np.asarray(d**0.5, dtype)
    key_t = np.ascontiguousarray(key.mT)
    scores, ones = np.empty((rows, columns), dtype), np.ones(columns, dtype)
    out, more = np.zeros((rows, d), dtype), np.empty((rows, d), dtype)
    flops, began = 0, perf_counter()
    while True:
        for _ in range(TILES):
            np.matmul(query, key_t, out=scores)
            np.exp2(scores, out=scores)
            np.matmul(scores, ones)
            out += np.matmul(scores, value, out=more)
            flops += 4 * rows * columns * d
        if (passed := perf_counter() - began) >= seconds:
            return flops / passed
