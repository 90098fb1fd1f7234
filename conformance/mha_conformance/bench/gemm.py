"""What this machine can do at the moment: the rate of NumPy's matrix product, in a process of its own, once a round.

Beside it stands the rate of the bare loop, which is the most that a blocked attention could reach (``loop``).
"""

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from mha_conformance.bench.loop import loop_rate

SIZE = 2048


@dataclass(frozen=True, slots=True)
class Gemm:
    """FLOP per second of one square product: with all threads of the BLAS, with one, and with two (0 where it has one).

    ``loop`` is that of the bare loop in all threads; 0 where the workload is not attention on heads.
    """

    threads: int
    all: float
    one: float
    two: float
    loop: float = 0.0


def serve(dtype: str, size: int, d: int, pipe: Connection) -> None:
    """Answer every request with a ``Gemm`` until the pipe closes; ``d`` is the width of a head, 0 for no bare loop."""
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
        pipe.send(("rate", Gemm(threads, every, one, two, loop_rate(dtype, d, threads, size) if d else 0.0)))
