"""Speed of attention: forward, backward, and decoding of one query. Whoever is wrong is not timed."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from mha_conformance.gpu.clock import Clock, on_device
from mha_conformance.gpu.contestants import CONTESTANTS, Arrays, NotHere, Work
from mha_conformance.gpu.rows import Row
from mha_spec.call import Cotangents
from mha_spec.numerics import PROFILES, attention_bound, error_ratio
from mha_spec.numerics_backward import gradient_bound

CHECKED = 8
"""Queries of the last head that are held to the bound of chapter 4 (P16) before anybody is timed."""


class Workload(NamedTuple):
    """float16, self-attention unless n = 1."""

    batch: int
    heads: int
    n: int
    m: int
    d: int
    causal: bool = False

    def __str__(self) -> str:
        return f"b {self.batch}, h {self.heads}, n {self.n}, m {self.m}, d {self.d}{', causal' if self.causal else ''}"

    def flops(self, backward: bool) -> float:
        """Two products in the forward, five in the backward; half of the pairs are visible in a causal square (MHA-COST-2)."""
        pairs = self.n * self.m * (0.5 if self.causal else 1.0)
        return (10 if backward else 4) * self.batch * self.heads * pairs * self.d

    @property
    def bytes(self) -> int:
        """Keys and values, which decoding must read once."""
        return 2 * 2 * self.batch * self.heads * self.m * self.d


FORWARD = (
    Workload(4, 16, 4096, 4096, 128, True), Workload(4, 16, 4096, 4096, 64, True), Workload(4, 16, 4096, 4096, 128),
    Workload(4, 16, 4096, 4096, 64), Workload(2, 16, 4096, 4096, 256), Workload(8, 16, 1024, 1024, 64),
)  # fmt: skip
BACKWARD = FORWARD[:4]
DECODING = (Workload(16, 32, 1, 8192, 128), Workload(1, 32, 1, 65536, 128))


def rows_of(workloads: tuple[Workload, ...]) -> tuple[str, ...]:
    return tuple(f"{name}: {workload}" for workload in workloads for name in CONTESTANTS)


def forward() -> Iterator[Row]:
    return contest(FORWARD, backward=False)


def backward() -> Iterator[Row]:
    return contest(BACKWARD, backward=True)


def decoding() -> Iterator[Row]:
    return contest(DECODING, backward=False)


def contest(
    workloads: tuple[Workload, ...], backward: bool, clock: Clock = on_device,
    contestants: dict[str, Callable[[Arrays, bool, bool], Work]] = CONTESTANTS,
) -> Iterator[Row]:  # fmt: skip
    """A row for each workload and contestant: its rate, or why there is none."""
    for workload in workloads:
        arrays = drawn(workload)
        for name, make in contestants.items():
            yield _timed(f"{name}: {workload}", workload, arrays, make, backward, clock)


def _timed(
    what: str, workload: Workload, arrays: Arrays, make: Callable[[Arrays, bool, bool], Work], backward: bool, clock: Clock
) -> Row:  # fmt: skip
    try:
        work = make(arrays, workload.causal, backward)
    except NotHere as why:
        return Row(what, why=str(why))
    ratio = error(workload, arrays, work.result(), backward)
    if not ratio <= 1:
        return Row(what, "FAILS", ratio, "of the bound of P16", "it is wrong, and not timed")
    seconds = clock(work.again)
    if workload.n == 1:
        return Row(
            what, "MEASURED", workload.bytes / seconds / 1e12, "TB/s", f"{seconds * 1e6:.1f} us; error / bound {ratio:.2f}"
        )
    return Row(
        what,
        "MEASURED",
        workload.flops(backward) / seconds / 1e12,
        "TFLOP/s",
        f"{seconds * 1e3:.3f} ms; error / bound {ratio:.2f}",
    )


def drawn(workload: Workload) -> Arrays:
    """One random head, written out for every head of every batch item: equal heads cost what others cost."""
    cupy: Any = import_module("cupy")
    rng = np.random.default_rng(0)

    def of(length: int) -> Any:
        head = cupy.asarray(rng.standard_normal((1, 1, length, workload.d)).astype("float16"))
        return cupy.ascontiguousarray(cupy.broadcast_to(head, (workload.batch, workload.heads, length, workload.d)))

    return of(workload.n), of(workload.m), of(workload.m), of(workload.n)


def error(workload: Workload, arrays: Arrays, result: Any, backward: bool) -> float:
    """The largest error / bound of the last queries of the last head: of their outputs, or of the gradients of the queries."""
    cupy: Any = import_module("cupy")
    rows = min(CHECKED, workload.n)
    q, k, v, g = (cupy.asnumpy(x[-1:, -1:]).astype(np.float64) for x in arrays)
    q, g = q[..., -rows:, :], g[..., -rows:, :]
    position = workload.m - rows + np.arange(rows)[:, None]
    visible = np.arange(workload.m) <= position if workload.causal else np.ones((rows, workload.m), bool)
    ask = {"scale": workload.d**-0.5, "visible": visible}
    got = np.asarray(result)[-1:, -1:, -rows:].astype(np.float64)
    if backward:
        found = gradient_bound(q, k, v, Cotangents(g), PROFILES["P16"], **ask)
        return float(error_ratio(got, found.truth.query, found.query).max(initial=0))
    bounds = attention_bound(q, k, v, PROFILES["P16"], **ask)
    return float(error_ratio(got, bounds.truth.output, bounds.output).max(initial=0))
