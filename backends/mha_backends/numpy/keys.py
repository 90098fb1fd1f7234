"""The keys and values of a task, in the form in which the blocks use them."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mha_backends.numpy.calm import Bounds
from mha_backends.numpy.job import Job
from mha_backends.numpy.plan import Task
from mha_backends.numpy.scratch import scratch
from mha_backends.numpy.visibility import Hidden
from mha_spec.call import Array

MANY = 96
"""From so many rows on, the look at norms that may make rows calm pays."""
OFTEN = 512
"""From so many rows on, a copy of K^T pays: with it Q K^T takes 7 % less time."""
FEW = 32
"""Up to so many rows K Q^T is computed and turned: in Q K^T the BLAS would spend its time on rearranging K."""


class Tile(NamedTuple):
    """Keys [j0, j1): their K^T (items, heads, d_k, w), V (items, heads, w, d_v) and the pairs that are hidden."""

    j0: int
    j1: int
    key_t: Array
    value: Array
    hidden: Hidden | None


class Keys:
    """K and V of some heads in the compute type, cut into tiles.

    A key may hold NaN or infinity: it spoils its own scores only, and where they are hidden they are replaced. A value may not,
    because a hidden one is multiplied with a weight of 0, and 0 * inf is NaN. That shows in the output, so nothing is searched
    beforehand; ``mend`` is called when it has shown.
    """

    def __init__(self, job: Job, task: Task) -> None:
        self.visible, self.whole = job.visible, job.plan.whole
        items, heads, _ = task
        n, m = job.sizes.n, job.sizes.m
        self.start, self.stop = (0, m) if self.whole else job.visible.span(items.start, 0, n)
        key = for_blas(job.call.key[items, heads, self.start : self.stop].astype(job.kind, copy=False))
        self.value = for_blas(job.call.value[items, heads, self.start : self.stop].astype(job.kind, copy=False))
        look = job.group * n >= MANY and key.size and job.call.bias is None
        self.bounds = Bounds(key, self.value, self.start) if look else None
        self.sound = job.visible.nothing or (self.bounds is not None and self.bounds.tame)
        """Whether no value that is hidden from a row can be other than finite."""
        self.bad_value: Array | None = None
        self.columns = job.plan.columns
        self.key_t = key.mT if job.group * n < OFTEN else turned(key)  # (items, heads, d_k, m)

    def mend(self) -> None:
        """Put 0 for values that are not finite, in a copy, and remember them for the rows that do see them."""
        finite = np.isfinite(self.value)
        if not finite.all():
            self.value, self.bad_value = np.where(finite, self.value, self.value.dtype.type(0)), ~finite
        self.sound = True

    def tiles(self, task: Task, i0: int, i1: int) -> Iterator[Tile]:
        """The tiles in which queries [i0, i1) see something, cut to the keys they see."""
        first, last = (self.start, self.stop) if self.whole else self.visible.span(task.items.start, i0, i1)
        width = tile_width(last - first, self.columns)
        for j0 in range(first, last, width):
            j1 = min(j0 + width, last)
            hidden = self.visible.hidden(task.items, task.heads, i0, i1, j0, j1)
            if not (hidden and covers(hidden, j1 - j0)):
                own = slice(j0 - self.start, j1 - self.start)
                yield Tile(j0, j1, self.key_t[..., own], self.value[:, :, own], hidden)


def tile_width(keys: int, most: int) -> int:
    """At most ``most`` keys, in tiles of nearly one width, none of which is a small rest.

    A width is no multiple of 256: rows of scores a multiple of 1024 bytes apart share lines of the cache, which costs Q K^T 5 %
    at 512 keys and 20 % at 1024.
    """
    if keys <= most:
        return max(keys, 1)
    width = 16 * math.ceil(keys / math.ceil(keys / most) / 16)
    return min(width if width % 256 else width + 16, most)


def covers(hidden: Hidden, width: int) -> bool:
    """Whether a tile is hidden as a whole."""
    return hidden.columns.stop - hidden.columns.start == width and bool(hidden.pairs.all())


def for_blas(x: Array) -> Array:
    """``x`` itself where a BLAS takes its strides, a contiguous copy where NumPy would multiply without one."""
    row, column = x.strides[-2:]
    if column == x.itemsize and row >= x.itemsize * x.shape[-1] and row % x.itemsize == 0 and x.flags.aligned:
        return x
    return np.ascontiguousarray(x)


def turned(key: Array) -> Array:
    """A copy of K^T, (items, heads, d_k, m); its rows are not a power of two apart, for the sake of the cache."""
    *lead, m, d_k = key.shape
    room = m + 16 if m % 256 == 0 else m
    copy = scratch("key_t", (*lead, d_k, room), key.dtype)[..., :m]
    np.copyto(copy, key.mT)
    return copy


def product(query: Array, key_t: Array, out: Array) -> Array:
    """Q K^T into ``out``."""
    if not 1 < query.shape[-2] <= FEW:
        return np.matmul(query, key_t, out=out)
    np.copyto(out, np.matmul(key_t.mT, query.mT).mT)
    return out
