"""What this machine can do at the moment: the rate of NumPy's matrix product, in a process of its own, once a round."""

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

SIZE = 2048


@dataclass(frozen=True, slots=True)
class Gemm:
    """FLOP per second of one square product: with all threads of the BLAS, with one, and with two (0 where it has one)."""

    threads: int
    all: float
    one: float
    two: float


def serve(dtype: str, size: int, pipe: Connection) -> None:
    """Answer every request with a ``Gemm`` until the pipe closes."""
    a = np.ones((size, size), dtype=dtype)
    out = np.empty_like(a)
    threads = max((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)

    def rate(count: int) -> float:
        with threadpool_limits(count, user_api="blas"):
            np.matmul(a[:64], a, out=out[:64])  # wakes the threads
            began = time.perf_counter()
            np.matmul(a, a, out=out)
            return 2.0 * size**3 / (time.perf_counter() - began)

    rate(threads)
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        every, one = rate(threads), rate(1)
        two = every if threads == 2 else rate(2) if threads > 2 else 0.0
        pipe.send(("rate", Gemm(threads, every, one, two)))
