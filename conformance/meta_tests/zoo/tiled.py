"""Kernels that see the keys in parts: tiles in several orders and sizes, and a split that is merged."""

from dataclasses import replace
from typing import Any

import numpy as np
from honest import Honest

from mha_core import Call
from zoo.kernel import Eager


class Online(Eager):
    """Tiles of keys with a running maximum and a running sum, rescaled as they go (Milakov and Gimelshein, 2018)."""

    tile = 8
    backwards = False

    def size(self, call: Call) -> int:
        return self.tile

    def tiles(self, call: Call) -> list[slice]:
        m, size = call.key.shape[-2], self.size(call)
        found = [slice(at, min(at + size, m)) for at in range(0, m, size)]
        return found[::-1] if self.backwards else found

    def rows(self, s: Any, see: Any, sink: Any, v: Any, call: Call) -> tuple[Any, Any, Any]:
        zero = s.dtype.type(0)
        top, total = sink, np.where(sink == -np.inf, zero, zero + 1 + 0 * sink)
        acc = np.zeros((*s.shape[:-1], v.shape[-1]), dtype=s.dtype)
        for tile in self.tiles(call):
            above = np.maximum(top, s[..., tile].max(axis=-1, keepdims=True))
            shift = np.where(above == -np.inf, zero, above)
            e, rescale = self.exp(s[..., tile] - shift), self.exp(top - shift)
            total = rescale * total + self.total(e)
            e = self.read(self.spared(call, e, tile), call.query.dtype)
            acc = rescale * acc + self.values(e, v[..., tile, :], see[..., tile])
            top = above
        some, shift = np.where(total == 0, zero + 1, total), np.where(top == -np.inf, zero, top)
        lse = np.where(total == 0, -np.inf, shift + self.log(some)).astype(s.dtype)
        a = np.where(see, self.exp(s - shift) / some, zero)
        nothing = ~see.any(axis=-1, keepdims=True)
        return np.where(nothing, zero, acc / some), a, self.natural(lse[..., 0])


class OnlineWideTiles(Online):
    tile = 64


class OnlineBackwards(Online):
    """From the last tile to the first."""

    tile = 16
    backwards = True


class BatchDependent(Online):
    """The tile follows from the number of batch items and heads, so that a batch changes the bits; a repeat does not."""

    claims = replace(Honest.claims, determinism="run-to-run")

    def size(self, call: Call) -> int:
        return (8, 24, 40)[int(np.prod(call.query.shape[:-2])) % 3]


class SplitKeys(Eager):
    """Three parts of the key axis, each with a maximum, a sum and a mean of its own, then merged; a sink is the fourth.

    Parts are merged by maximum and sum. Were they merged by an lse in float32, a row of equal scores near -1e9 would lose
    the share of each part in the rounding of the lse (MHA-MASK-6).
    """

    def rows(self, s: Any, see: Any, sink: Any, v: Any, call: Call) -> tuple[Any, Any, Any]:
        m, zero = s.shape[-1], s.dtype.type(0)
        parts = [slice(m * i // 3, m * (i + 1) // 3) for i in range(3)]
        found = [self.part(s[..., p], see[..., p], v[..., p, :], call, p) for p in parts]
        top = np.concatenate([*(above for _, _, above, _ in found), sink], axis=-1).max(axis=-1, keepdims=True)
        shift = np.where(top == -np.inf, zero, top)
        sizes = [np.exp(above - shift) * total for _, _, above, total in found]
        whole = sum(sizes, start=np.exp(sink - shift))
        some = np.where(whole == 0, zero + 1, whole)
        shares = [size / some for size in sizes]
        output = sum((np.where(total == 0, zero, w * o) for w, (o, _, _, total) in zip(shares, found, strict=True)), start=zero)
        a = np.concatenate([w * part for w, (_, part, _, _) in zip(shares, found, strict=True)], axis=-1)
        lse = np.where(whole == 0, -np.inf, shift + np.log(some)).astype(s.dtype)
        return output, np.where(see, a, zero), lse[..., 0]

    def part(self, s: Any, see: Any, v: Any, call: Call, keys: slice) -> tuple[Any, Any, Any, Any]:
        """Output, weights, maximum and sum of these keys alone."""
        above = s.max(axis=-1, keepdims=True, initial=-np.inf)
        e = self.exp(s - np.where(above == -np.inf, s.dtype.type(0), above))
        total = self.total(e)
        a = np.where(see, e / np.where(total == 0, s.dtype.type(1), total), s.dtype.type(0))
        return self.values(self.read(self.spared(call, a, keys), call.query.dtype), v, see), a, above, total
