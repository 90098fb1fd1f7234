"""Which weights of a tile are dropped: by the caller's mask, or by Philox4x32-10 for the pairs of the tile and no others (MHA-DROP-3).

A word depends on its pair alone, so the cut into tiles, tasks and threads has no say in it, forward or backward. Counters that differ
along some axes only are multiplied before they are spread over the others, and a few thousand are turned at a time, which stay in a cache.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mha_backends.numpy.visibility import Hidden, Visibility, keep_visible
from mha_spec.call import Array, Call

if TYPE_CHECKING:
    from mha_backends.numpy.plan import Task

MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
LOW, HIGH = np.uint64(2**32 - 1), np.uint64(32)
TOGETHER = 2**14
"""Counters that are turned at a time."""


class Drops:
    """Dropout of a call with one batch axis. The five axes are (items, kv heads, group, queries, keys)."""

    def __init__(self, call: Call, visible: Visibility) -> None:
        assert call.dropout is not None
        self.drop, self.visible, self.group = call.dropout, visible, visible.group
        self.threshold = np.uint64(min(math.floor(self.drop.rate * 2**32), 2**32 - 1))
        self.factor = 1.0 if self.drop.rate == 1 else 1 / (1 - self.drop.rate)
        """What a weight that is kept is multiplied with; at rate 1 there is none."""

    def dropped(self, task: "Task", i0: int, i1: int, j0: int, j1: int) -> Array:
        """True where a pair is dropped, for queries [i0, i1) and keys [j0, j1); the five axes, some of size 1."""
        if self.drop.rate == 1:
            return np.ones((1, 1, 1, 1, 1), np.bool_)
        if self.drop.keep is not None:
            return ~self.visible.tile(self.drop.keep, task.items, task.heads, i0, i1, slice(j0, j1))
        return self._drawn(task, i0, i1, j0, j1)

    def take_out(self, p: Array, task: "Task", i0: int, i1: int, j0: int, j1: int) -> None:
        """0 for the dropped weights of a tile (items, kv heads, group, queries, keys), in place. The others are still to be scaled."""
        keep_visible(p, Hidden(slice(0, j1 - j0), self.dropped(task, i0, i1, j0, j1), None), 0)

    def factors(self, task: "Task", i0: int, i1: int, j0: int, j1: int, kind: np.dtype[Any]) -> Array:
        """What the weights of a tile are multiplied with: the factor, or 0."""
        return np.where(self.dropped(task, i0, i1, j0, j1), kind.type(0), kind.type(self.factor))

    def _drawn(self, task: "Task", i0: int, i1: int, j0: int, j1: int) -> Array:
        drop = self.drop
        assert drop.seed is not None
        first = drop.key_start + j0
        j = _indices(first // 4, (drop.key_start + j1 + 3) // 4)
        heads = _indices(drop.head_start + task.heads.start * self.group, drop.head_start + task.heads.stop * self.group)
        h = heads.reshape(-1, self.group, 1, 1)
        b = _indices(drop.batch_start + task.items.start, drop.batch_start + task.items.stop)[:, None, None, None, None]
        lanes = np.empty((len(b), *h.shape[:2], i1 - i0, len(j), 4), np.bool_)
        step = max(1, TOGETHER // max(lanes[..., 0, :, 0].size, 1))
        for at in range(i0, i1, step):
            i = _indices(drop.query_start + at, drop.query_start + min(at + step, i1))[:, None]
            for lane, word in enumerate(philox(j, i, h, b, drop.seed)):
                np.less(word, self.threshold, out=lanes[..., at - i0 : at - i0 + step, :, lane])
        return lanes.reshape(*lanes.shape[:4], -1)[..., first % 4 : first % 4 + j1 - j0]


def drops_of(call: Call, visible: Visibility) -> Drops | None:
    """None without dropout."""
    return None if call.dropout is None else Drops(call, visible)


def philox(j: Array, i: Array, h: Array, b: Array, seed: int) -> tuple[Array, Array, Array, Array]:
    """The four words of each counter (j, i, h, b), whose arrays of uint64 are broadcast as late as can be."""
    c0, c1, c2, c3 = j, i, h, b
    k0, k1 = seed % 2**32, seed // 2**32
    for _ in range(10):
        p0, p2 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c2 = (p2 >> HIGH) ^ c1, (p0 >> HIGH) ^ c3
        c0 ^= np.uint64(k0)
        c2 ^= np.uint64(k1)
        p2 &= LOW
        p0 &= LOW
        c1, c3 = p2, p0
        k0, k1 = (k0 + KEY_STEPS[0]) % 2**32, (k1 + KEY_STEPS[1]) % 2**32
    return c0, c1, c2, c3


def keep_in(call: Call) -> dict[str, Array]:
    """The mask of a call, by the name that ``with_arrays`` knows; nothing where there is none."""
    return {} if call.dropout is None or call.dropout.keep is None else {"keep": call.dropout.keep}


def with_arrays(call: Call, arrays: dict[str, Array], first: int) -> Call:
    """The call with these arrays, of which "keep" is the mask of dropout, and whose first batch item was item ``first``."""
    drop = call.dropout
    if drop is not None:
        drop = drop._replace(keep=arrays.get("keep"), batch_start=drop.batch_start + first)
    return replace(call, dropout=drop, **{name: x for name, x in arrays.items() if name != "keep"})


def _indices(start: int, stop: int) -> Array:
    return np.arange(start, stop, dtype=np.uint64)
