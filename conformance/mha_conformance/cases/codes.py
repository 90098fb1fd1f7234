"""Position-coded values: what comes back tells which keys, heads and items were read."""

from typing import Any

import numpy as np

from mha_conformance.cases.build import operands


def codes(shape: tuple[int, ...], channels: bool = True) -> Any:
    """Position-coded values: the index of key, head and batch item, and of the channel where ``channels`` differ."""
    index = np.indices(shape)
    return (1.0 + index[-2]) + 16.0 * index[-3] + (64.0 * index[0] if len(shape) > 3 else 0.0) + channels * index[-1] / 8


def coded(n: int, m: int, d: int = 4, spread: float = 0.0, items: int = 1, h: int = 1) -> tuple[Any, Any, Any]:
    """Equal scores (or graded ones) over position-coded values: the output reveals the visible set."""
    query, key, _ = operands(200, "float32", batch=(items,), h=h, n=n, m=m, d=d)
    return query * spread, key, codes((items, h, m, d))
