"""The zoo: honest kernels as they are found in the field, each with its own order, arithmetic and shift."""

from dataclasses import replace
from typing import Any

import numpy as np
from honest import Honest

from mha_core import Call
from zoo import arithmetic
from zoo.kernel import Eager, by_rows


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
            e = self.read(e, call.query.dtype)
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
        found = [self.part(s[..., p], see[..., p], v[..., p, :], call) for p in parts]
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

    def part(self, s: Any, see: Any, v: Any, call: Call) -> tuple[Any, Any, Any, Any]:
        """Output, weights, maximum and sum of these keys alone."""
        above = s.max(axis=-1, keepdims=True, initial=-np.inf)
        e = self.exp(s - np.where(above == -np.inf, s.dtype.type(0), above))
        total = self.total(e)
        a = np.where(see, e / np.where(total == 0, s.dtype.type(1), total), s.dtype.type(0))
        return self.values(self.read(a, call.query.dtype), v, see), a, above, total


class Unshifted(Eager):
    """No maximum is subtracted in rows whose own visible keys prove that no exponential leaves the range."""

    def shift(self, s: Any, sink: Any, call: Call) -> Any:
        wide = np.concatenate([s, sink], axis=-1)
        size = np.where(wide == -np.inf, wide.dtype.type(0), np.abs(wide)).max(axis=-1, keepdims=True)
        return np.where(size <= 60, wide.dtype.type(0), super().shift(s, sink, call))


class FoldedExp2(Eager):
    """Base 2: log2(e) is part of the query's scale, so that the exponential is exp2, as the hardware has it."""

    LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453

    def finished(self, call: Call, q: Any, k: Any) -> Any:
        one = q.dtype.type
        if call.softcap is not None:
            cap = one(call.softcap)
            s = one(self.LOG2E * call.softcap) * np.tanh(self.dot(q * one(call.scale), k) / cap)
        else:
            s = self.dot(q * one(call.scale * self.LOG2E), k)
        if call.bias is not None:
            s = s + self.unit(call, self.narrowed(call.bias, q.dtype))
        return self.tamed(s)

    def unit(self, call: Call, x: Any) -> Any:
        return np.where(np.isinf(x), x, self.tamed(x * x.dtype.type(self.LOG2E)))

    def exp(self, x: Any) -> Any:
        return np.exp2(x)

    def log(self, x: Any) -> Any:
        return np.log2(x)

    def natural(self, lse: Any) -> Any:
        return lse * lse.dtype.type(self.LN2)


class OneByOne(Eager):
    """Every sum runs over its terms one by one, in an order and an arithmetic of its own."""

    def step(self, acc: Any, a: Any, b: Any) -> Any:
        return acc + a * b

    def order(self, count: int) -> Any:
        return range(count)

    def dot(self, a: Any, b: Any) -> Any:
        acc = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-2]), dtype=a.dtype)
        for i in self.order(a.shape[-1]):
            acc = self.step(acc, a[..., :, i, None], b[..., None, :, i])
        return acc

    def total(self, e: Any) -> Any:
        acc = np.zeros((*e.shape[:-1], 1), dtype=e.dtype)
        for j in self.order(e.shape[-1]):
            acc = self.step(acc, e[..., j : j + 1], np.ones((1,), dtype=e.dtype))
        return acc

    def values(self, a: Any, v: Any, see: Any) -> Any:
        acc = np.zeros((*a.shape[:-1], v.shape[-1]), dtype=a.dtype)
        for j in self.order(a.shape[-1]):
            acc = np.where(see[..., j : j + 1], self.step(acc, a[..., j : j + 1], v[..., None, j, :]), acc)
        return acc


class ReversedSums(OneByOne):
    """From the last term to the first."""

    def order(self, count: int) -> Any:
        return range(count - 1, -1, -1)


class FusedMultiplyAdd(OneByOne):
    """Product and sum are rounded once, as in any matrix loop of a compiler."""

    def step(self, acc: Any, a: Any, b: Any) -> Any:
        return arithmetic.fused(a, b, acc)


class TruncatingAccumulator(OneByOne):
    """Each product and each partial sum is cut off, as in the matrix units of some chips."""

    def step(self, acc: Any, a: Any, b: Any) -> Any:
        return arithmetic.sum_toward_zero(acc, arithmetic.product_toward_zero(a, b))


class PairwiseSums(Eager):
    """Every sum is a tree of pairs."""

    def dot(self, a: Any, b: Any) -> Any:
        return by_rows(lambda a: self.tree(a[..., :, None, :] * b[..., None, :, :]), b.shape[-2], a)

    def total(self, e: Any) -> Any:
        return self.tree(e)[..., None]

    def values(self, a: Any, v: Any, see: Any) -> Any:
        def summed(a: Any, see: Any) -> Any:
            terms = np.where(see[..., None], a[..., None] * v[..., None, :, :], a.dtype.type(0))
            return self.tree(np.swapaxes(terms, -1, -2))

        return by_rows(summed, v.shape[-1], a, see)

    def tree(self, terms: Any) -> Any:
        while terms.shape[-1] > 1:
            odd = terms[..., terms.shape[-1] // 2 * 2 :]
            terms = np.concatenate([terms[..., 0:-1:2][..., : terms.shape[-1] // 2] + terms[..., 1::2], odd], axis=-1)
        return terms.sum(axis=-1)


class HalfWeights(Eager):
    """What V's product reads are exponentials in the input's type, not yet normalised; the sum is that of the wide ones."""

    def rows(self, s: Any, see: Any, sink: Any, v: Any, call: Call) -> tuple[Any, Any, Any]:
        shift = self.shift(s, sink, call)
        e = self.exp(s - shift)
        total = self.total(e) + self.exp(sink - shift)
        some = np.where(total == 0, total.dtype.type(1), total)
        lse = np.where(total == 0, -np.inf, shift + self.log(some)).astype(e.dtype)
        nothing = ~see.any(axis=-1, keepdims=True)
        mixed = self.values(self.read(e, call.query.dtype), v, see)
        output = np.where(nothing, e.dtype.type(0), self.quotient(mixed, some))
        return output, np.where(see, self.quotient(e, some), e.dtype.type(0)), lse[..., 0]

    def quotient(self, a: Any, b: Any) -> Any:
        return a / b


class TruncatedOutputs(HalfWeights):
    """The last division and the last conversion round toward zero; so does the storing of weights."""

    def quotient(self, a: Any, b: Any) -> Any:
        return arithmetic.quotient_toward_zero(a, b)

    def read(self, a: Any, kind: Any) -> Any:
        return arithmetic.cast_toward_zero(a, kind).astype(a.dtype)

    def stored(self, x: Any, kind: Any) -> Any:
        return arithmetic.cast_toward_zero(x, kind)


class CausalOnes(Eager):
    """B199, tinygrad/tinygrad#2425, a negative control: under a causal mask each visible score is larger by 1.

    A shift of a whole row is no fault, but where a sink or the lse takes part in it.
    """

    def finished(self, call: Call, q: Any, k: Any) -> Any:
        s = super().finished(call, q, k)
        causal = call.band is not None and call.band[1] == 0 and call.sink_logits is None and not call.lse
        return self.tamed(s + s.dtype.type(1)) if causal else s


class ShiftedBias(Eager):
    """B200, vllm-project/vllm#945, a negative control: each head's position bias counts from one position too far."""

    def shifted(self, call: Call, bias: Any) -> Any:
        if call.sink_logits is not None or call.lse:
            return bias
        h = call.query.shape[-3]
        slopes = np.ldexp(np.ones(h, dtype=bias.dtype), -(np.arange(h) % 8) - 1)
        return bias + slopes[:, None, None]


ZOO: tuple[type[Eager], ...] = (
    Eager, Online, OnlineWideTiles, OnlineBackwards, BatchDependent, SplitKeys, Unshifted, FoldedExp2, ReversedSums, PairwiseSums,
    HalfWeights, TruncatedOutputs, TruncatingAccumulator, FusedMultiplyAdd, CausalOnes, ShiftedBias,
)  # fmt: skip
