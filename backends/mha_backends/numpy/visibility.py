"""Which pairs are hidden, found from the inputs alone and only for the tile that asks.

Band and lengths give each query one interval of keys, and its ends never fall from one query to the next: whole tiles can be
skipped, and only some columns of a tile need a look. Mask, bias and segments may hide any pair.
Everything here has one batch axis. Boolean results have the axes (items, kv heads, group, queries, keys), some of size 1.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mha_backends.numpy.scratch import scratch
from mha_spec.call import Array, Band, Call, Sizes


class Hidden(NamedTuple):
    """The hidden pairs of a tile, in some of its columns; the other columns are visible."""

    columns: slice
    pairs: Array
    """True where hidden."""
    band: tuple[int, int, int, int, int] | None
    """What the pairs were made from, if that is a band: the arguments of ``_outside``."""


class Visibility:
    """The visible set of a call: query i sees keys in [lo + i, min(hi + i, length)), and of those what the arrays let it see."""

    def __init__(self, call: Call, sizes: Sizes) -> None:
        self.mask, self.bias = call.mask, call.bias
        self.query_segments, self.key_segments = call.query_segments, call.key_segments
        self.m = sizes.m
        self.group = sizes.h // max(sizes.h_kv, 1)
        self.lo, self.hi, self.length = _intervals(call, sizes.n, sizes.m)
        self.scattered = not (call.mask is None and call.bias is None and call.query_segments is None)
        self.nothing = not self.scattered and self.lo is None and self.hi is None and self.length is None

    def span(self, item: int, i0: int, i1: int) -> tuple[int, int]:
        """Keys [j0, j1) outside of which queries [i0, i1) of one item see nothing."""
        if self.lo is None and self.hi is None and self.length is None:
            return 0, self.m
        lo, hi, length = self._ends(item)
        return min(max(lo + i0, 0), self.m), max(min(hi + i1 - 1, length), 0)

    def hidden(self, items: slice, heads: slice, i0: int, i1: int, j0: int, j1: int) -> Hidden | None:
        """The hidden pairs of a tile; None where it has none."""
        if self.nothing:
            return None
        alike = items.stop - items.start == 1 or all(x is None or len(x) == 1 for x in (self.lo, self.hi, self.length))
        if self.scattered or not alike:
            pairs = self.pairs(items, heads, i0, i1, np.arange(j0, j1), slice(j0, j1))
            return Hidden(slice(0, j1 - j0), pairs, None) if pairs.any() else None
        lo, hi, length = self._ends(items.start)
        first, last = min(hi + i0, length), lo + i1 - 1  # no query is cut in [last, first)
        start = j0 if last > j0 else max(first, j0)
        stop = j1 if first < j1 else min(last, j1)
        if start >= stop:
            return None
        low, high, end = (min(max(x - start, i0 - i1), stop - start) for x in (lo + i0, hi + i0, length))  # where it matters
        return _hidden(start - j0, (i1 - i0, stop - start, low, high, end))

    def pairs(self, items: slice, heads: slice, i0: int, i1: int, j: Array, keys: slice | Array) -> Array:
        """True where hidden, for queries [i0, i1) and the keys numbered ``j``, which ``keys`` selects from an axis.

        The parts are joined by OR; each is as small as its own axes allow.
        """
        i = np.arange(i0, i1)[:, None]
        parts = [np.zeros((1, 1, 1, 1, 1), np.bool_)]
        if self.lo is not None:
            parts.append(j < _over_items(self.lo, items) + i)
        if self.hi is not None:
            parts.append(j >= _over_items(self.hi, items) + i)
        if self.length is not None:
            parts.append(j >= _over_items(self.length, items))
        if self.query_segments is not None:
            theirs: Array = self.key_segments
            parts.append((self.query_segments[items, i0:i1, None] != theirs[items, None][..., keys])[:, None, None])
        if self.mask is not None:
            parts.append(~self.tile(self.mask, items, heads, i0, i1, keys))
        if self.bias is not None:
            parts.append(self.tile(self.bias, items, heads, i0, i1, keys) == -np.inf)
        hidden, *others = parts[1:] or parts
        for part in others:
            hidden = hidden | part
        return hidden

    def tile(self, x: Array, items: slice, heads: slice, i0: int, i1: int, keys: slice | Array) -> Array:
        """A tile of a mask or bias ``x``, with the five axes; those of size 1 stay."""
        if x.shape[0] > 1:
            x = x[items]
        if x.shape[1] > 1:
            x = x[:, heads.start * self.group : heads.stop * self.group]
            x = x.reshape(x.shape[0], -1, self.group, *x.shape[2:])
        else:
            x = x[:, :, None]
        if x.shape[3] > 1:
            x = x[..., i0:i1, :]
        return x[..., keys] if x.shape[4] > 1 else x

    def _ends(self, item: int) -> tuple[int, int, int]:
        """(lo, hi, length) of an item; an open end is where it no longer matters."""
        lo, hi, length = (None if x is None else x[item if len(x) > 1 else 0] for x in (self.lo, self.hi, self.length))
        return -OPEN if lo is None else lo, OPEN if hi is None else hi, self.m if length is None else length


OPEN = 2**40
"""Farther than any query or key."""


def _hidden(start: int, band: tuple[int, int, int, int, int]) -> Hidden:
    return Hidden(slice(start, start + band[1]), _outside(*band), band)


@lru_cache(maxsize=8)
def _outside(rows: int, width: int, lo: int, hi: int, length: int) -> Array:
    """(rows, width): j < lo + i or j >= min(hi + i, length). The blocks on a diagonal all ask for the same one."""
    i, j = np.arange(rows)[:, None], np.arange(width)
    pairs = (j < lo + i) | (j >= hi + i) | (j >= length)
    pairs.flags.writeable = False
    return pairs


@lru_cache(maxsize=8)
def _inside(kind: np.dtype[Any], *band: int) -> Array:
    """The same as integers: all bits set where visible, none where hidden."""
    bits = np.subtract(_outside(*band).view(np.int8), 1, dtype=kind)
    bits.flags.writeable = False
    return bits


def square_band(n: int, band: Band) -> Hidden:
    """The pairs that a band hides where n queries stand at the positions of n keys: every query sees its own."""
    left, right = band
    lo, hi = (-n if left is None else max(-left, -n)), (n if right is None else min(right + 1, n))
    return _hidden(0, (n, n, lo, hi, n))


def _intervals(call: Call, n: int, m: int) -> tuple[list[int] | None, list[int] | None, list[int] | None]:
    """(lo, hi, length), each with one number per item or one for all; None where that end is open.

    Offsets may be any int64 and windows nearly 2^62, so the sums are made with Python's integers and then clipped to where
    they still matter: an end at -n lies left of all keys for every query, one at m right of them.
    """
    lo = hi = length = None
    if call.band is not None:
        offsets = np.asarray(call.query_offset).reshape(-1).tolist()
        left, right = call.band
        if left is not None:
            lo = [min(max(offset - left, -n), m) for offset in offsets]
        if right is not None:
            hi = [min(max(offset + right + 1, -n), m) for offset in offsets]
    if call.key_lengths is not None:
        length = [min(max(x, 0), m) for x in np.asarray(call.key_lengths).reshape(-1).tolist()]
    return lo, hi, length


def _over_items(x: list[int], items: slice) -> Array:
    """(items|1, 1, 1, 1, 1)"""
    return np.asarray(x[items] if len(x) > 1 else x)[:, None, None, None, None]


_BITS: dict[int, tuple[np.dtype[Any], int]] = {4: (np.dtype(np.int32), -(2**23)), 8: (np.dtype(np.int64), -(2**52))}
"""By size of a float: the integer of that size, and -inf as such an integer."""


def keep_visible(x: Array, hidden: Hidden, instead: float) -> None:
    """``x`` stays where it is visible and becomes ``instead``, which is 0 or -inf, where it is hidden.

    Selection, so that no arithmetic meets what is hidden: NaN and infinity leave no trace. Choosing bits is five times faster
    than a copy where the pairs are scattered, and three times where they are a band, whose bits are kept.
    """
    x = x[..., hidden.columns]
    kind, minus_infinity = _BITS[x.itemsize]
    bits = x.view(kind)
    if hidden.band is not None:
        if instead:
            np.copyto(x, instead, where=hidden.pairs)
        else:
            bits &= _inside(kind, *hidden.band)
        return
    choice = np.subtract(hidden.pairs.view(np.int8), 1, out=scratch("choice", hidden.pairs.shape, kind), dtype=kind)
    bits &= choice  # all ones where visible, 0 where hidden
    if instead:
        np.invert(choice, out=choice)
        choice &= minus_infinity
        bits |= choice
