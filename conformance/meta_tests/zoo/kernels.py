"""The zoo: honest kernels as they are found in the field, each with its own order, arithmetic and shift."""

from dataclasses import replace
from typing import Any

import numpy as np
from honest import Honest

from mha_core import Call
from zoo import arithmetic
from zoo.kernel import Eager, by_rows
from zoo.sums import BlockedSums, FusedMultiplyAdd, PairwiseSums, ReversedSums, TruncatingAccumulator
from zoo.tiled import BatchDependent, Online, OnlineBackwards, OnlineWideTiles, SplitKeys


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


class TensorFloat(Eager):
    """Both factors of every product are rounded to 11 bits in float32 calls, and it says so: profile PTF32.

    It claims no lse: where a score may be off by more than 709 (beside keys of 2^60 that a row sees), the bound of the lse stops
    growing and is narrower than TF32. That is a defect of the bound, which is still open, and none of this kernel.
    """

    claims = replace(
        Honest.claims, profiles={**Honest.claims.profiles, "float32": "PTF32"}, features=Honest.claims.features - {"lse"}
    )

    def attend(self, call: Call) -> Any:
        self.narrow = call.query.dtype == np.float32
        return super().attend(call)

    def dot(self, a: Any, b: Any) -> Any:
        return super().dot(self.rounded(a), self.rounded(b))

    def values(self, a: Any, v: Any, see: Any) -> Any:
        return super().values(self.rounded(a), self.rounded(v), see)

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        self.narrow = x.dtype == np.float32
        return super().linear(x, w, b)

    def rounded(self, x: Any) -> Any:
        return arithmetic.to_tensor_float(x) if self.narrow else x


class HalfWeights(Eager):
    """What V's product reads are exponentials in the input's type, not yet normalised; the sum is that of the wide ones."""

    def rows(self, s: Any, see: Any, sink: Any, v: Any, call: Call) -> tuple[Any, Any, Any]:
        shift = self.shift(s, sink, call)
        e = self.exp(s - shift)
        total = self.total(e) + self.exp(sink - shift)
        some = np.where(total == 0, total.dtype.type(1), total)
        lse = np.where(total == 0, -np.inf, shift + self.log(some)).astype(e.dtype)
        nothing = ~see.any(axis=-1, keepdims=True)
        mixed = self.values(self.read(self.spared(call, e), call.query.dtype), v, see)
        output = np.where(nothing, e.dtype.type(0), self.quotient(mixed, some))
        return output, np.where(see, self.quotient(e, some), e.dtype.type(0)), lse[..., 0]

    def quotient(self, a: Any, b: Any) -> Any:
        return a / b


class TruncatedOutputs(HalfWeights):
    """The last division and the last conversion round toward zero; so does the storing of weights."""

    claims = replace(Honest.claims, grade="ANY")

    def quotient(self, a: Any, b: Any) -> Any:
        return arithmetic.quotient_toward_zero(a, b)

    def read(self, a: Any, kind: Any) -> Any:
        return arithmetic.cast_toward_zero(a, kind).astype(a.dtype)

    def stored(self, x: Any, kind: Any) -> Any:
        return arithmetic.cast_toward_zero(x, kind)


class Flushing(Eager):
    """Whatever is smaller than the smallest normal number of its type becomes 0, where it is read and where it is made; it says so."""

    claims = replace(Honest.claims, flushes_subnormals=True)

    def attend(self, call: Call) -> Any:
        names = ("query", "key", "value", "bias", "sink_logits")
        given = {name: getattr(call, name) for name in names}
        return super().attend(replace(call, **{name: x if x is None else arithmetic.flushed(x) for name, x in given.items()}))

    def dot(self, a: Any, b: Any) -> Any:
        return arithmetic.flushed(super().dot(a, b))

    def tamed(self, s: Any) -> Any:
        return arithmetic.flushed(super().tamed(s))

    def exp(self, x: Any) -> Any:
        return arithmetic.flushed(super().exp(x))

    def read(self, a: Any, kind: Any) -> Any:
        return arithmetic.flushed(arithmetic.flushed(a).astype(kind)).astype(a.dtype)

    def values(self, a: Any, v: Any, see: Any) -> Any:
        def summed(a: Any, see: Any) -> Any:
            products = arithmetic.flushed(a[..., None] * v[..., None, :, :])
            return np.where(see[..., None], products, a.dtype.type(0)).sum(axis=-2)

        return arithmetic.flushed(by_rows(summed, v.shape[-1], a, see))

    def stored(self, x: Any, kind: Any) -> Any:
        return arithmetic.flushed(arithmetic.flushed(x).astype(kind))

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        x, w = arithmetic.flushed(x), arithmetic.flushed(w)
        return super().linear(x, w, b if b is None else arithmetic.flushed(b))


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
    BlockedSums, HalfWeights, TruncatedOutputs, TruncatingAccumulator, FusedMultiplyAdd, TensorFloat, Flushing, CausalOnes,
    ShiftedBias,
)  # fmt: skip
