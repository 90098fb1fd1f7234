"""Pairwise choice: every two values of two different axes occur together in some combination (a covering array of strength 2)."""

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any


def pairwise(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Combinations of one value per axis, greedily few, the same in every process.

    Each new row begins with the first pair that is not yet covered; every other axis takes the value that covers the most.
    """
    names = list(axes)
    left = {
        (a, i, b, j): None
        for (a, b) in combinations(range(len(names)), 2)
        for i, j in product(range(len(axes[names[a]])), range(len(axes[names[b]])))
    }
    rows = []
    while left:
        a, i, b, j = next(iter(left))
        row = {a: i, b: j}
        for axis in range(len(names)):
            if axis not in row:
                gains = [_gain(left, row, axis, value) for value in range(len(axes[names[axis]]))]
                row[axis] = gains.index(max(gains))
        for c, d in combinations(range(len(names)), 2):
            left.pop((c, row[c], d, row[d]), None)
        rows.append({name: axes[name][row[at]] for at, name in enumerate(names)})
    return rows


def _gain(left: Mapping[tuple[int, int, int, int], None], row: Mapping[int, int], axis: int, value: int) -> int:
    """How many pairs are covered for the first time when ``axis`` takes ``value``."""
    return sum(((axis, value, b, j) if axis < b else (b, j, axis, value)) in left for b, j in row.items())
