"""Multi-head attention backwards: through the output projection, the heads, and the three projections before them."""

from collections.abc import Callable
from typing import NamedTuple

import array_api_compat

from mha_core.layer import concat_heads, split_heads
from mha_core.projections import Projections
from mha_spec.call import Array, AttentionGradients, AttentionResult


class MultiHeadGradients(NamedTuple):
    """The gradients of a loss with respect to what a layer was given, in the shapes and dtypes of that.

    ``projections`` is a ``Projections`` of gradients, None where the layer has no bias of that name.
    """

    query: Array
    key: Array
    value: Array
    projections: Projections
    bias: Array | None = None
    sink_logits: Array | None = None


def multi_head_vjp(
    linear: Callable[[Array, Array, Array | None], Array],
    attend: Callable[..., AttentionResult],
    attend_vjp: Callable[..., AttentionGradients],
    query: Array,
    key: Array,
    value: Array,
    projections: Projections,
    grad_output: Array,
) -> MultiHeadGradients:
    """dY (*batch, n, d_out) -> the gradients of the layer (MHA-GRAD-17), every product by the backend's ``linear``.

    A projection y = x W + b sends back dx = dy W^T, dW = x^T dy and db = sum of dy, over all tokens of all batch items.
    """
    merged = projections.merged()
    q = split_heads(linear(query, merged.w_q, merged.b_q), projections.w_q)  # (*batch, h, n, d_k)
    k = split_heads(linear(key, merged.w_k, merged.b_k), projections.w_k)  # (*batch, h_kv, m, d_k)
    v = split_heads(linear(value, merged.w_v, merged.b_v), projections.w_v)  # (*batch, h_kv, m, d_v)
    heads = attend(q, k, v)

    def backwards(x: Array, w: Array, b: Array | None, dy: Array) -> tuple[Array, Array, Array | None]:
        tokens, dtokens = _tokens(x), _tokens(dy)
        dw = linear(tokens.mT, dtokens, None)
        db = None if b is None else linear(_ones(tokens), dtokens, None)[0, :]
        return linear(dy, w.mT, None), dw, db

    joined = concat_heads(heads.output)  # (*batch, n, h*d_v)
    dheads, dw_o, db_o = backwards(joined, merged.w_o, merged.b_o, grad_output)
    inner = attend_vjp(q, k, v, _split(dheads, projections.w_o), heads)
    dquery, dw_q, db_q = backwards(query, merged.w_q, merged.b_q, concat_heads(inner.query))
    dkey, dw_k, db_k = backwards(key, merged.w_k, merged.b_k, concat_heads(inner.key))
    dvalue, dw_v, db_v = backwards(value, merged.w_v, merged.b_v, concat_heads(inner.value))
    h, h_kv = projections.w_q.shape[0], projections.w_k.shape[0]
    gradients = Projections.from_merged(dw_q, dw_k, dw_v, dw_o, heads=h, kv_heads=h_kv, b_q=db_q, b_k=db_k, b_v=db_v, b_o=db_o)
    return MultiHeadGradients(dquery, dkey, dvalue, gradients, inner.bias, inner.sink_logits)


def _split(x: Array, w_o: Array) -> Array:
    """(*batch, n, h*d_v), w_o (h, d_v, d_out) -> (*batch, h, n, d_v)."""
    xp = array_api_compat.array_namespace(x)
    return split_heads(x, xp.matrix_transpose(w_o))


def _tokens(x: Array) -> Array:
    """(*batch, n, width) -> (tokens, width)."""
    xp = array_api_compat.array_namespace(x)
    count = 1
    for size in x.shape[:-1]:
        count *= size
    return xp.reshape(x, (count, x.shape[-1]))


def _ones(tokens: Array) -> Array:
    """(tokens, width) -> (1, tokens): a product with it is the sum over all tokens."""
    xp = array_api_compat.array_namespace(tokens)
    return xp.ones((1, tokens.shape[0]), dtype=tokens.dtype, device=array_api_compat.device(tokens))
