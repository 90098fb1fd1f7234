"""Which rows are calm: their scores provably so small that the softmax needs no shift by their maximum.

The running maximum costs two passes over the scores, a tenth of the time; a calm row is spared them. By Cauchy and Schwarz
|s_ij| <= |q_i| |k_j|. If that is at most CALM for every key that row i sees, its exponentials lie in 2^+-58. If what the row
sees of V is also tame, 0 or of size 2^-40 to 2^40, each product p_ij v_jc lies in 2^+-98: nothing overflows or underflows.

A row's path may depend on nothing that the row does not see, so the bound is over the *visible* keys of each row. That is
looked at row by row only where the largest norms of all, hidden ones included, do not settle it at once. The two ways agree
to the bit: both round (|q_i| stretch) |k_j| alike, and rounding is monotone.
"""

import numpy as np

from mha_backends.numpy.plan import Task
from mha_backends.numpy.scratch import scratch
from mha_backends.numpy.visibility import Visibility
from mha_spec.call import Array

CALM = 40.0
TAME = 2.0**40
TINY = 2.0**-100
"""A square that underflows counts as this much, so that no norm is too small."""


class Bounds:
    """Bounds for the scores and products of some heads: key (items, heads, m, d_k), value (items, heads, m, d_v), m > 0."""

    def __init__(self, key: Array, value: Array, start: int) -> None:
        self._value, self._start = value, start
        self._squares = np.vecdot(key, key)  # (items, heads, m)
        self._longest = _norm(self._squares.max())
        size = self._sizes()
        self.tame = size.size == 0 or bool(size.min() >= 1 / TAME and size.max() <= TAME)
        self._reach: Array | None = None

    def of_scores(self, query: Array, stretch: float) -> Array:
        """The largest |q_i| stretch |k_j| of all; query (items, heads, r, d_k). NaN where there is one."""
        return _norm(np.vecdot(query, query).max()) * stretch * self._longest

    def calm_rows(self, query: Array, stretch: float, visible: Visibility, task: Task, i0: int, i1: int) -> Array:
        """(items, heads, r) True where |q_i| stretch |k_j| <= CALM and v_j is tame for every key j visible to i.

        A row that the longest key of its head would not disturb is calm for sure. For the others the keys that may disturb a
        row are looked at, a few hundred at a time, until no row is left to be decided.
        """
        reach = self._reaches()  # (items, heads, m)
        norms = _norm(np.vecdot(query, query)) * stretch
        sure = norms * reach.max(-1, keepdims=True) <= CALM
        calm = np.ones_like(sure)
        wild = np.flatnonzero(~(norms.max(-1, keepdims=True) * reach <= CALM).all((0, 1)))
        for at in range(0, len(wild), 512):
            if not (calm & ~sure).any():
                break
            some = wild[at : at + 512]
            disturbed = ~(norms[..., None] * reach[:, :, None, some] <= CALM)  # (items, heads, r, some keys)
            disturbed = disturbed.reshape(*norms.shape[:2], -1, i1 - i0, len(some))  # (items, heads, group, queries, some keys)
            hidden = visible.pairs(task.items, task.heads, i0, i1, some + self._start, some + self._start)
            calm &= ~(disturbed & ~hidden).any(-1).reshape(calm.shape)
        return calm

    def _sizes(self) -> Array:
        return np.abs(self._value, out=scratch("sizes", self._value.shape, self._value.dtype))

    def _reaches(self) -> Array:
        """(items, heads, m): |k_j|, or infinity where v_j is not tame."""
        if self._reach is None:
            size = self._sizes()
            tame = ((size <= TAME) & ((size >= 1 / TAME) | (size == 0))).all(-1)
            self._reach = np.where(tame, _norm(self._squares), np.inf)
        return self._reach


def _norm(squares: Array) -> Array:
    return np.sqrt(np.maximum(squares, TINY))
