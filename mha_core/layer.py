"""Multi-head attention, 3.2.2, in its merged form: three projections, heads, attention, one output projection."""

from collections.abc import Callable
from typing import Any

import array_api_compat

from mha_core.backend import Backend
from mha_core.projections import Projections
from mha_spec.call import Array, AttentionResult


def multi_head(
    backend: Backend,
    attend: Callable[..., AttentionResult],
    query: Array,
    key: Array,
    value: Array,
    projections: Projections,
    options: dict[str, Any],
) -> AttentionResult:
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    The merged form equals the loop over heads (MHA-PROJ-5): one product per operand, then a view per head.
    """
    merged = projections.merged()
    q = split_heads(backend.linear(query, merged.w_q, merged.b_q), projections.w_q)  # (*batch, h, n, d_k)
    k = split_heads(backend.linear(key, merged.w_k, merged.b_k), projections.w_k)  # (*batch, h_kv, m, d_k)
    v = split_heads(backend.linear(value, merged.w_v, merged.b_v), projections.w_v)  # (*batch, h_kv, m, d_v)
    heads = attend(q, k, v, **options)  # output (*batch, h, n, d_v)
    output = backend.linear(concat_heads(heads.output), merged.w_o, merged.b_o)  # (*batch, n, d_out)
    return heads._replace(output=output)


def split_heads(x: Array, w: Array) -> Array:
    """(*batch, n, h*d), the heads' matrices (h, d_in, d) -> (*batch, h, n, d): head i takes columns i*d .. (i+1)*d."""
    xp = array_api_compat.array_namespace(x)
    h, _, d = w.shape
    return xp.moveaxis(xp.reshape(x, (*x.shape[:-1], h, d)), -2, -3)


def concat_heads(x: Array) -> Array:
    """(*batch, h, n, d_v) -> (*batch, n, h*d_v): head 0 first."""
    xp = array_api_compat.array_namespace(x)
    x = xp.moveaxis(x, -3, -2)  # (*batch, n, h, d_v)
    return xp.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))
