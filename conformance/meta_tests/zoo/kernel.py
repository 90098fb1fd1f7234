"""A kernel in the arithmetic that its profile promises: float64 for float64, float32 for all else. Steps to replace."""

from collections.abc import Callable
from typing import Any

import numpy as np
from honest import Honest

from mha_core import AttentionResult, Call

TERMS = 2**24
"""More products than this are not held at once."""


def by_rows(step: Callable[..., Any], depth: int, a: Any, *others: Any) -> Any:
    """``step(a, *others)`` a few rows of ``a`` (..., n, m) at a time, each pair of which has ``depth`` products.

    Arrays of ``others`` that have the shape of ``a`` go with its rows. No row's arithmetic changes.
    """
    n = a.shape[-2]
    rows = max(1, TERMS // max(1, a[..., :1, :].size * depth))
    if rows >= n:
        return step(a, *others)
    cuts = [slice(at, at + rows) for at in range(0, n, rows)]
    return np.concatenate(
        [step(a[..., cut, :], *(x[..., cut, :] if x.shape == a.shape else x for x in others)) for cut in cuts], axis=-2
    )


class Eager(Honest):
    """Scores, softmax, weights in the input's type, times V: whole matrices, and nothing wider than the profile says."""

    def attend(self, call: Call) -> AttentionResult:
        with np.errstate(all="ignore"):
            wide, h = self.wide(call.query), call.query.shape[-3]
            q = call.query.astype(wide)
            k, v = self.heads(call.key.astype(wide), h), self.heads(call.value.astype(wide), h)
            s = self.finished(call, q, k)  # (*b h n m)
            see = np.broadcast_to(self.visible(call), s.shape)
            sink = np.full((*s.shape[:-1], 1), -np.inf, dtype=wide)
            if call.sink_logits is not None:
                sink = np.broadcast_to(self.unit(call, self.narrowed(call.sink_logits, wide)[:, None, None]), sink.shape)
            assert s.dtype == v.dtype == sink.dtype == wide
            output, a, lse = self.rows(np.where(see, s, -np.inf).astype(wide), see, sink, v, call)
            assert output.dtype == a.dtype == lse.dtype == wide
            kind = call.query.dtype
            return AttentionResult(
                self.stored(output, kind), self.stored(a, kind) if call.weights else None, lse if call.lse else None
            )

    def wide(self, x: Any) -> Any:
        """The type of every intermediate result."""
        return np.dtype(np.float64 if x.dtype == np.float64 else np.float32)

    def narrowed(self, x: Any, wide: Any) -> Any:
        """A bias or sink in the wide type; a finite number stays finite (MHA-MASK-6)."""
        top = np.finfo(wide).max
        return np.where(np.isfinite(x), np.clip(x, -top, top), x).astype(wide)

    def finished(self, call: Call, q: Any, k: Any) -> Any:
        """(*b h n m) in the order of MHA-ATTN-9; a visible score that overflows is the largest number, for -inf hides."""
        s = self.dot(q, k) * q.dtype.type(call.scale)
        if call.softcap is not None:
            cap = q.dtype.type(call.softcap)
            s = cap * np.tanh(s / cap)
        if call.bias is not None:
            s = s + self.shifted(call, self.narrowed(call.bias, q.dtype))
        return self.tamed(s)

    def shifted(self, call: Call, bias: Any) -> Any:
        return bias

    def unit(self, call: Call, x: Any) -> Any:
        """The unit in which scores are: natural logarithms."""
        return x

    def tamed(self, s: Any) -> Any:
        top = np.finfo(s.dtype).max
        return np.clip(s, -top, top)

    def rows(self, s: Any, see: Any, sink: Any, v: Any, call: Call) -> tuple[Any, Any, Any]:
        """(*b h n m) scores, -inf where hidden -> output, weights, lse."""
        shift = self.shift(s, sink, call)
        e, e_sink = self.exp(s - shift), self.exp(sink - shift)
        total = self.total(e) + e_sink
        some = np.where(total == 0, total.dtype.type(1), total)
        a = np.where(see, e / some, e.dtype.type(0))
        lse = np.where(total == 0, -np.inf, shift + self.log(some)).astype(e.dtype)
        return self.values(self.read(self.spared(call, a), call.query.dtype), v, see), a, self.natural(lse[..., 0])

    def spared(self, call: Call, a: Any, keys: slice = slice(None)) -> Any:
        """The weights of these keys after dropout."""
        if call.dropout is None:
            return a
        whole = np.broadcast_to(self.factors(call), (*call.query.shape[:-1], call.key.shape[-2]))
        return a * whole[..., keys].astype(a.dtype)

    def shift(self, s: Any, sink: Any, call: Call) -> Any:
        top = np.concatenate([s, sink], axis=-1).max(axis=-1, keepdims=True)
        return np.where(top == -np.inf, top.dtype.type(0), top)

    def exp(self, x: Any) -> Any:
        return np.exp(x)

    def log(self, x: Any) -> Any:
        return np.log(x)

    def natural(self, lse: Any) -> Any:
        return lse

    def read(self, a: Any, kind: Any) -> Any:
        """The weights as V's product reads them: rounded to the input's type."""
        return a.astype(kind).astype(a.dtype)

    def dot(self, a: Any, b: Any) -> Any:
        """(..., n, d), (..., m, d) -> (..., n, m)."""
        return a @ np.swapaxes(b, -1, -2)

    def total(self, e: Any) -> Any:
        return e.sum(axis=-1, keepdims=True)

    def values(self, a: Any, v: Any, see: Any) -> Any:
        """(..., n, m), (..., m, d) -> (..., n, d), over what is seen: 0 * NaN is not 0."""

        def summed(a: Any, see: Any) -> Any:
            return np.where(see[..., None], a[..., None] * v[..., None, :, :], a.dtype.type(0)).sum(axis=-2)

        return by_rows(summed, v.shape[-1], a, see)

    def stored(self, x: Any, kind: Any) -> Any:
        return x.astype(kind)

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        wide = self.wide(x)
        with np.errstate(all="ignore"):
            y = self.dot(x.astype(wide), np.swapaxes(w.astype(wide), -1, -2))
            return self.stored(y if b is None else y + b.astype(wide), x.dtype)
