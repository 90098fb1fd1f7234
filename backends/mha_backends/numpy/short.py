"""A short call: the operations of ``forward``, in the same order and to the same bits, and nothing around them.

Blocks, tiles and tasks cost 50 microseconds, which is several times what such a call computes.
"""

import math

import numpy as np

from mha_backends.numpy.job import MOST, arithmetic
from mha_backends.numpy.keys import MANY, for_blas, product
from mha_backends.numpy.scratch import ones, scratch
from mha_backends.numpy.visibility import keep_visible, square_band
from mha_spec.call import Array, Call


def is_short(call: Call, most: int) -> bool:
    """Whether ``attend_short`` may be asked: no option but a band on equal positions, no empty axis but d_v, few rows, and at
    most so many scores."""
    *batch, h, n, _ = call.query.shape
    h_kv, m, _ = call.key.shape[-3:]
    few = 0 < math.prod(batch) * h * n * m <= most and h // h_kv * n < MANY
    return (
        few
        and _plain(call)
        and (call.band is None or (n == m and isinstance(call.query_offset, int) and call.query_offset == 0))
    )


def _plain(call: Call) -> bool:
    """Whether no option but a band is there."""
    others = (call.mask, call.bias, call.key_lengths, call.query_segments, call.softcap, call.sink_logits, call.dropout)
    return not (call.weights or call.lse) and all(x is None for x in others)


def attend_short(call: Call) -> Array | None:
    """(*batch, h, n, d_v), or None where something is not finite, which ``forward`` knows how to mend."""
    *batch, h, n, d_k = call.query.shape
    h_kv, m, d_v = call.value.shape[-3:]
    kind, factor, _ = arithmetic(call)
    q = call.query.reshape(*batch, h_kv, h // h_kv * n, d_k)
    q = np.multiply(q, kind.type(factor), out=scratch("query", q.shape, kind))
    if abs(factor) > 1:
        q.clip(-MOST[kind], MOST[kind], out=q)
    p = product(q, for_blas(call.key.astype(kind, copy=False)).mT, scratch("p", (*q.shape[:-1], m), kind))
    p.clip(-MOST[kind], MOST[kind], out=p)
    if call.band is not None:
        keep_visible(p.reshape(*batch, h, n, m), square_band(n, call.band), -np.inf)
    p -= p.max(-1, keepdims=True)
    np.exp(p, out=p)
    out = np.matmul(p, for_blas(call.value.astype(kind, copy=False)))
    if call.band is not None:
        out += 0
    out /= np.matmul(p, ones(m, kind))[..., None]
    if not np.isfinite(out).all():
        return None
    return out.reshape(*batch, h, n, d_v).astype(call.query.dtype, copy=False)
