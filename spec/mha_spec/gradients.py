"""Chapter 5, the gradients: what a loss that depends on output, lse and weights sends back, one function per equation.

The forward's symbols, with a d before them for the gradient of the loss: dO, dL and dA arrive, dQ, dK, dV, db and ds leave. As in
``equations`` sums run one term at a time, and a term of a hidden pair is selected away, so that it is never touched.
"""

from typing import Any

import array_api_compat
from jaxtyping import Bool, Float

from mha_spec.call import Array, AttentionGradients, AttentionResult, Call, Cotangents, Tangents
from mha_spec.equations import biased, capped, finite, heads, scores, sink_column, softmax, visible, weighted_sum
from mha_spec.equations_dropout import dropped, factors


def attention_vjp(call: Call, arriving: Cotangents) -> AttentionGradients:
    """dO (*b h n d_v), dL (*b h n), dA (*b h n m) -> dQ (*b h n d_k), dK (*b h_kv m d_k), dV (*b h_kv m d_v), db, ds (h).

    dV = A^T dO,  dS = A * (dP - D + dL) with dP = dO V^T + dA,  dQ = scale dS K,  dK = scale dS^T Q (MHA-GRAD-4 to MHA-GRAD-7).
    With dropout A^T and dO V^T are multiplied by its factors M, pair by pair (MHA-GRAD-22).
    """
    dO, dL, dA = arriving
    h, h_kv = call.query.shape[-3], call.key.shape[-3]
    K, V, see = heads(call.key, h), heads(call.value, h), visible(call)
    X = scores(call.query, K, call.scale)
    S = X if call.softcap is None else capped(X, call.softcap)
    s = finite(S if call.bias is None else biased(S, call.bias))
    A, lse = softmax(s, see, sink_column(s, call.sink_logits))

    M = None if call.dropout is None else factors(call)
    P = A if M is None else dropped(A, M)
    dP = weight_gradient(dO, V, dA, M)
    D = row_mean(A, dP, see)
    dS = score_gradient(A, dP, D, dL, see)
    dX = dS if call.softcap is None else capped_gradient(dS, X, call.softcap)
    return AttentionGradients(
        query=call.scale * weighted_sum(dX, K, see),
        key=over_group(call.scale * weighted_sum(dX.mT, call.query, see.mT), h_kv),
        value=over_group(weighted_sum(P.mT, dO, see.mT), h_kv),
        bias=None if call.bias is None else over_broadcast(dS, call.bias),
        sink_logits=None if call.sink_logits is None else sink_gradient(call.sink_logits, lse, D, dL, see),
    )


def attention_jvp(call: Call, moving: Tangents) -> AttentionResult:
    """dQ (*b h n d_k), dK (*b h_kv m d_k), dV (*b h_kv m d_v), db, ds (h), each or None -> dO, dA, dL: how fast the results move.

    dA = A * (dS - dL) with dL_i the mean of dS_i under the weights, the sink's included;  dO = dA V + A dV (MHA-GRAD-21), where
    dropout multiplies dA and A by its factors before they meet the values (MHA-GRAD-22).
    """
    xp = array_api_compat.array_namespace(call.query)
    h = call.query.shape[-3]
    K, V, see = heads(call.key, h), heads(call.value, h), visible(call)
    dQ, dK, dV = (
        xp.zeros_like(x) if dx is None else heads(dx, h) for dx, x in zip(moving[:3], (call.query, K, V), strict=True)
    )
    X = scores(call.query, K, call.scale)
    S = X if call.softcap is None else capped(X, call.softcap)
    s = finite(S if call.bias is None else biased(S, call.bias))
    A, lse = softmax(s, see, sink_column(s, call.sink_logits))

    dS = scores(dQ, K, call.scale) + scores(call.query, dK, call.scale)
    dS = dS if call.softcap is None else capped_gradient(dS, X, call.softcap)
    dS = dS if moving.bias is None else dS + moving.bias
    dL = row_mean(A, dS, see)
    if call.sink_logits is not None and moving.sink_logits is not None:
        through = sink_weight(call.sink_logits, lse, see) * moving.sink_logits[:, None]
        dL = xp.where(call.sink_logits[:, None] == -xp.inf, dL, dL + through)  # a sink of -inf is none
    dA = xp.where(see, A * (dS - dL[..., None]), xp.zeros_like(A))
    P, dP = (A, dA) if call.dropout is None else (dropped(x, factors(call)) for x in (A, dA))
    return AttentionResult(weighted_sum(dP, V, see) + weighted_sum(P, dV, see), dA, dL)


def sink_weight(
    sink_logits: Float[Array, " h"], lse: Float[Array, "*b h n"], see: Bool[Array, "*b h n m"]
) -> Float[Array, "*b h n"]:
    """-> (*b h n): the part of the weight that the sink takes, exp(sink - lse_i); all of it in an empty row, none where it is -inf."""
    xp = array_api_compat.array_namespace(lse)
    column = sink_logits[:, None]  # (h 1)
    p = xp.where(xp.any(see, axis=-1), xp.exp(column - lse), xp.ones_like(lse))
    return xp.where(column == -xp.inf, xp.zeros_like(lse), p)


def weight_gradient(
    dO: Float[Array, "*b h n d_v"],
    V: Float[Array, "*b h m d_v"],
    dA: Float[Array, "*b h n m"] | None,
    M: Float[Array, "*b h n m"] | None,
) -> Float[Array, "*b h n m"]:
    """(*b h n d_v), (*b h m d_v) -> (*b h n m): dP_ij = M_ij sum_c dO_ic v_jc, and what arrives at the weight itself (MHA-GRAD-8)."""
    dP = scores(dO, V, 1.0)
    dP = dP if M is None else dropped(dP, M)
    return dP if dA is None else dP + dA


def row_mean(A: Float[Array, "*b h n m"], dP: Float[Array, "*b h n m"], see: Bool[Array, "*b h n m"]) -> Float[Array, "*b h n"]:
    """(*b h n m) -> (*b h n): D_i = sum over visible j of A_ij dP_ij; without dA it is the product of dO_i and O_i (MHA-GRAD-5)."""
    xp = array_api_compat.array_namespace(A)
    D = xp.zeros(A.shape[:-1], dtype=A.dtype, device=array_api_compat.device(A))
    for j in range(A.shape[-1]):
        D = xp.where(see[..., j], D + A[..., j] * dP[..., j], D)
    return D


def score_gradient(
    A: Float[Array, "*b h n m"],
    dP: Float[Array, "*b h n m"],
    D: Float[Array, "*b h n"],
    dL: Float[Array, "*b h n"] | None,
    see: Bool[Array, "*b h n m"],
) -> Float[Array, "*b h n m"]:
    """(*b h n m) -> (*b h n m): dS_ij = A_ij (dP_ij - D_i + dL_i) where i sees j, else 0 (MHA-GRAD-5, MHA-GRAD-7)."""
    xp = array_api_compat.array_namespace(A)
    from_row = -D if dL is None else dL - D
    return xp.where(see, A * (dP + from_row[..., None]), xp.zeros_like(A))


def capped_gradient(dS: Float[Array, "*b h n m"], X: Float[Array, "*b h n m"], c: float) -> Float[Array, "*b h n m"]:
    """(*b h n m) -> the same: the slope of c tanh(x / c) is 1 - tanh(x / c)^2 (MHA-GRAD-9)."""
    xp = array_api_compat.array_namespace(dS)
    return dS * (1 - xp.tanh(X / c) ** 2)


def sink_gradient(
    sink_logits: Float[Array, " h"],
    lse: Float[Array, "*b h n"],
    D: Float[Array, "*b h n"],
    dL: Float[Array, "*b h n"] | None,
    see: Bool[Array, "*b h n m"],
) -> Float[Array, " h"]:
    """-> (h): the sum over batch and rows of p_i (dL_i - D_i), p_i = exp(sink - lse_i) the sink's weight (MHA-GRAD-11).

    In an empty row the sink takes all of the weight, D_i is 0, and what is left is dL_i. A sink of -inf is none.
    """
    xp = array_api_compat.array_namespace(lse)
    p = sink_weight(sink_logits, lse, see)
    terms = xp.where(sink_logits[:, None] == -xp.inf, xp.zeros_like(lse), p * (-D if dL is None else dL - D))
    return xp.reshape(_total(terms, (*range(lse.ndim - 2), -1)), sink_logits.shape)


def over_group(x: Float[Array, "*b h m d"], h_kv: int) -> Float[Array, "*b h_kv m d"]:
    """(*b h m d) -> (*b h_kv m d): a key head collects from every query head that reads it (MHA-GRAD-12)."""
    xp = array_api_compat.array_namespace(x)
    *b, h, m, d = x.shape
    x = xp.reshape(x, (*b, h_kv, h // h_kv if h_kv else 1, m, d))
    return _total(x, -3)[..., 0, :, :]


def over_broadcast(dS: Float[Array, "*b h n m"], bias: Array) -> Array:
    """(*b h n m) -> the bias's shape: a number that was used many times collects from all its uses (MHA-GRAD-10)."""
    for axis, size in enumerate(bias.shape):
        dS = _total(dS, axis) if size == 1 and dS.shape[axis] != 1 else dS
    return dS


def _total(x: Any, axes: int | tuple[int, ...]) -> Any:
    """Sum over axes, one term at a time; each of them stays, with size 1."""
    xp = array_api_compat.array_namespace(x)
    for axis in (axes,) if isinstance(axes, int) else axes:
        x = xp.moveaxis(x, axis, -1)
        total = xp.zeros(x.shape[:-1], dtype=x.dtype, device=array_api_compat.device(x))
        for at in range(x.shape[-1]):
            total = total + x[..., at]
        x = xp.moveaxis(total[..., None], -1, axis)
    return x
