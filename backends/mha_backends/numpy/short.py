"""A short call without options: the operations of ``forward``, in the same order and to the same bits, and nothing around them.

Blocks, tiles and tasks cost 25 microseconds, which is three times what such a call computes.
"""

import numpy as np

from mha_backends.numpy.job import MOST, arithmetic
from mha_backends.numpy.keys import MANY, for_blas, product
from mha_backends.numpy.scratch import ones, scratch
from mha_spec.call import Array, Call


def is_short(call: Call, most: int) -> bool:
    """Whether ``attend_short`` may be asked: no option, no empty axis but d_v, few rows, and at most so many scores."""
    rows, m = call.query.size // max(call.query.shape[-1], 1), call.key.shape[-2]
    return 0 < rows * m <= most and call.query.shape[-2] * (call.query.shape[-3] // call.key.shape[-3]) < MANY and not (
        call.hides or call.weights or call.lse or call.softcap is not None or call.sink_logits is not None
    )


def attend_short(call: Call) -> Array | None:
    """(*batch, h, n, d_v), or None where a sum overflowed, which ``forward`` knows how to mend."""
    *batch, h, n, d_k = call.query.shape
    h_kv, m, d_v = call.value.shape[-3:]
    kind, factor, _ = arithmetic(call)
    q = call.query.reshape(*batch, h_kv, h // h_kv * n, d_k)
    q = np.multiply(q, kind.type(factor), out=scratch("query", q.shape, kind))
    if abs(factor) > 1:
        q.clip(-MOST[kind], MOST[kind], out=q)
    p = product(q, for_blas(call.key.astype(kind, copy=False)).mT, scratch("p", (*q.shape[:-1], m), kind))
    p.clip(-MOST[kind], MOST[kind], out=p)
    p -= p.max(-1, keepdims=True)
    np.exp(p, out=p)
    out = np.matmul(p, for_blas(call.value.astype(kind, copy=False)))
    out /= np.matmul(p, ones(m, kind))[..., None]
    if not np.isfinite(out).all():
        return None
    return out.reshape(*batch, h, n, d_v).astype(call.query.dtype, copy=False)
