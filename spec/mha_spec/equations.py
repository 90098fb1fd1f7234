"""Chapter 3, the equations: the paper's section 3.2.1 and 3.2.2, one function per clause, in the array API standard.

Nothing here is fast. Sums over a shared axis run one term at a time, in order, so that a result depends on values alone and
a hidden value is never touched: ``0 * nan`` would be ``nan``, therefore terms are selected, not multiplied away.
Arrays are float32 or float64; h_kv key heads serve h query heads.
"""

from typing import Any, NamedTuple

import array_api_compat
from jaxtyping import Bool, Float, Integer

from mha_spec.call import Array, AttentionResult, Call
from mha_spec.equations_dropout import dropped, factors


def attention(call: Call) -> AttentionResult:
    """query (*b h n d_k), key (*b h_kv m d_k), value (*b h_kv m d_v) -> output (*b h n d_v), weights, lse.

    The order is MHA-ATTN-9: scale, softcap, bias, select the visible, softmax with the sink, dropout, values.
    """
    h = call.query.shape[-3]
    K, V = heads(call.key, h), heads(call.value, h)
    S = scores(call.query, K, call.scale)
    if call.softcap is not None:
        S = capped(S, call.softcap)
    if call.bias is not None:
        S = biased(S, call.bias)
    see = visible(call)
    s = finite(S)
    A, lse = softmax(s, see, sink_column(s, call.sink_logits))
    P = A if call.dropout is None else dropped(A, factors(call))
    return AttentionResult(weighted_sum(P, V, see), A, lse)


def heads(x: Float[Array, "*b h_kv m d"], h: int) -> Float[Array, "*b h m d"]:
    """(*b h_kv m d) -> (*b h m d): query head i reads key head i // (h / h_kv) (MHA-HEAD-2)."""
    xp = array_api_compat.array_namespace(x)
    h_kv = x.shape[-3]
    return xp.repeat(x, h // h_kv if h_kv else 1, axis=-3)


def scores(Q: Float[Array, "*b h n d_k"], K: Float[Array, "*b h m d_k"], scale: float) -> Float[Array, "*b h n m"]:
    """(*b h n d_k), (*b h m d_k) -> (*b h n m): S_ij = scale * sum_c q_ic k_jc (MHA-ATTN-1).

    The sum is kept finite, so that the scale 0 gives 0 where it overflowed (MHA-ATTN-3).
    """
    xp = array_api_compat.array_namespace(Q, K)
    *b, n, d_k = Q.shape
    S = xp.zeros((*b, n, K.shape[-2]), dtype=Q.dtype, device=array_api_compat.device(Q))
    for c in range(d_k):
        S = S + Q[..., :, c][..., :, None] * K[..., :, c][..., None, :]
    return scale * finite(S)


def capped(S: Float[Array, "*b h n m"], c: float) -> Float[Array, "*b h n m"]:
    """(*b h n m) -> the same: s becomes c tanh(s / c) (MHA-ATTN-10)."""
    xp = array_api_compat.array_namespace(S)
    return c * xp.tanh(S / c)


def biased(S: Float[Array, "*b h n m"], bias: Float[Array, "..."]) -> Float[Array, "*b h n m"]:
    """(*b h n m), broadcastable bias -> (*b h n m): S + bias (MHA-ATTN-11)."""
    return S + bias


def finite(S: Float[Array, "*b h n m"]) -> Float[Array, "*b h n m"]:
    """(*b h n m) -> the same: a score that overflowed is the largest number, not hidden (MHA-MASK-6). NaN stays."""
    xp = array_api_compat.array_namespace(S)
    largest = xp.finfo(S.dtype).max
    return xp.clip(S, -largest, largest)


def visible(call: Call) -> Bool[Array, "*b h n m"]:
    """-> (*b h n m): the visible set, the intersection of every constraint that was given (MHA-MASK-1)."""
    xp = array_api_compat.array_namespace(call.query)
    batch, h, _, n, m, _, _ = call.sizes
    device = array_api_compat.device(call.query)
    see = xp.ones((*batch, h, n, m), dtype=xp.bool, device=device)
    i = xp.arange(n, dtype=xp.int64, device=device)[:, None]  # (n, 1)
    j = xp.arange(m, dtype=xp.int64, device=device)[None, :]  # (1, m)
    if call.mask is not None:
        see = see & call.mask
    if call.bias is not None:
        see = see & (call.bias != -xp.inf)
    if call.band is not None:
        see = see & in_band(i, j, call.band, call.query_offset)
    if call.key_lengths is not None:
        see = see & within_length(j, call.key_lengths)
    if call.query_segments is not None:
        see = see & same_segment(call.query_segments, call.key_segments)
    return see


def in_band(
    i: Integer[Array, "n 1"], j: Integer[Array, "1 m"], band: tuple[int | None, int | None], offset: Any
) -> Bool[Array, "..."]:
    """(n 1), (1 m) -> (n m), or (*b 1 n m) for an offset per batch item: -left <= j - (offset + i) <= right (MHA-MASK-10).

    A causal mask is the band (None, 0) (MHA-MASK-7). An array offset is first clipped to where it can still matter, so that
    offset + i cannot overflow.
    """
    xp = array_api_compat.array_namespace(i, j)
    left, right = band
    if not isinstance(offset, int):
        lowest, highest = -(i.shape[0] + (right or 0) + 1), j.shape[1] + (left or 0) + 1
        offset = xp.clip(xp.astype(offset, xp.int64), lowest, highest)[..., None, None, None]
    distance = j - (offset + i)
    see = xp.ones_like(distance, dtype=xp.bool)
    if left is not None:
        see = see & (distance >= -left)
    if right is not None:
        see = see & (distance <= right)
    return see


def within_length(j: Integer[Array, "1 m"], lengths: Any) -> Bool[Array, "..."]:
    """(1 m) -> (1 m), or (*b 1 1 m) for a length per batch item: j < length (MHA-MASK-12)."""
    xp = array_api_compat.array_namespace(j)
    return j < (lengths if isinstance(lengths, int) else xp.astype(lengths, xp.int64)[..., None, None, None])


def same_segment(query_segments: Integer[Array, "*b n"], key_segments: Integer[Array, "*b m"]) -> Bool[Array, "*b 1 n m"]:
    """(*b n), (*b m) -> (*b 1 n m): visible iff the ids are equal (MHA-MASK-13)."""
    xp = array_api_compat.array_namespace(query_segments, key_segments)
    q, k = xp.astype(query_segments, xp.int64), xp.astype(key_segments, xp.int64)
    return q[..., None, :, None] == k[..., None, None, :]


def sink_column(S: Float[Array, "*b h n m"], sink_logits: Float[Array, " h"] | None) -> Float[Array, "*b h n 1"]:
    """-> (*b h n 1): one more logit per row, the head's sink; -inf where there is none (MHA-ATTN-12)."""
    xp = array_api_compat.array_namespace(S)
    column = xp.full((*S.shape[:-1], 1), -xp.inf, dtype=S.dtype, device=array_api_compat.device(S))
    return column if sink_logits is None else xp.where(column == -xp.inf, sink_logits[:, None, None], column)


class Softmax(NamedTuple):
    """Weights A (*b h n m) and lse (*b h n)."""

    weights: Array
    lse: Array


def softmax(S: Float[Array, "*b h n m"], see: Bool[Array, "*b h n m"], sink: Float[Array, "*b h n 1"]) -> Softmax:
    """(*b h n m) -> A (*b h n m), lse (*b h n): A_ij = exp(S_ij) / l_i, l_i = sum over visible j of exp(S_ij) + exp(sink).

    MHA-ATTN-5, MHA-AUX-4. The shift by the row's maximum cancels (MHA-ATTN-13). A row that sees nothing has the maximum
    -inf and the sum 0: both are replaced, so that its weights come out 0 and its lse is the sink's (MHA-MASK-15, MHA-MASK-17).
    """
    xp = array_api_compat.array_namespace(S)
    nothing = xp.full_like(S, -xp.inf)
    top = xp.max(xp.concat([xp.where(see, S, nothing), sink], axis=-1), axis=-1, keepdims=True)  # (*b h n 1)
    shift = xp.where(top == -xp.inf, xp.zeros_like(top), top)
    E = xp.where(see, xp.exp(S - shift), xp.zeros_like(S))
    total = xp.exp(sink - shift)[..., 0]  # (*b h n)
    for j in range(S.shape[-1]):
        total = total + E[..., j]
    safe = xp.where(total == 0, xp.ones_like(total), total)
    A = xp.where(see, E / safe[..., None], xp.zeros_like(S))
    lse = xp.where(total == 0, xp.full_like(total, -xp.inf), shift[..., 0] + xp.log(safe))
    return Softmax(A, lse)


def weighted_sum(
    A: Float[Array, "*b h n m"], V: Float[Array, "*b h m d_v"], see: Bool[Array, "*b h n m"]
) -> Float[Array, "*b h n d_v"]:
    """(*b h n m), (*b h m d_v) -> (*b h n d_v): O_i = sum over visible j of A_ij v_j (MHA-ATTN-6)."""
    xp = array_api_compat.array_namespace(A, V)
    O = xp.zeros((*A.shape[:-1], V.shape[-1]), dtype=A.dtype, device=array_api_compat.device(A))
    for j in range(V.shape[-2]):
        term = A[..., :, j][..., :, None] * V[..., j, :][..., None, :]
        O = xp.where(see[..., :, j][..., :, None], O + term, O)
    return O


def project(
    X: Float[Array, "*b n d_in"], W_i: Float[Array, "d_in d"], b_i: Float[Array, " d"] | None
) -> Float[Array, "*b n d"]:
    """(*b n d_in), (d_in d) -> (*b n d): X W_i + b_i, from the full width of X (MHA-PROJ-1, MHA-PROJ-4)."""
    xp = array_api_compat.array_namespace(X, W_i)
    Y = xp.zeros((*X.shape[:-1], W_i.shape[-1]), dtype=X.dtype, device=array_api_compat.device(X))
    for c in range(X.shape[-1]):
        Y = Y + X[..., c][..., None] * W_i[c, :]
    return Y if b_i is None else Y + b_i


def project_heads(
    X: Float[Array, "*b n d_in"], W: Float[Array, "h d_in d"], b: Float[Array, "h d"] | None
) -> Float[Array, "*b h n d"]:
    """(*b n d_in), one W_i per head -> (*b h n d): the loop over heads that the merged form replaces (MHA-PROJ-5)."""
    xp = array_api_compat.array_namespace(X, W)
    projected = [project(X, W[i, :, :], None if b is None else b[i, :]) for i in range(W.shape[0])]
    empty = xp.zeros((*X.shape[:-2], 0, X.shape[-2], W.shape[-1]), dtype=X.dtype, device=array_api_compat.device(X))
    return xp.stack(projected, axis=-3) if projected else empty


def concatenate(head: Float[Array, "*b h n d_v"]) -> Float[Array, "*b n hd_v"]:
    """(*b h n d_v) -> (*b n h*d_v): Concat(head_1, ..., head_h), head 0 first (MHA-PROJ-3)."""
    xp = array_api_compat.array_namespace(head)
    *b, h, n, _ = head.shape
    empty = xp.zeros((*b, n, 0), dtype=head.dtype, device=array_api_compat.device(head))
    return xp.concat([empty, *(head[..., i, :, :] for i in range(h))], axis=-1)


def output_projection(
    head: Float[Array, "*b h n d_v"], W_O: Float[Array, "h d_v d_out"], b_O: Float[Array, " d_out"] | None
) -> Float[Array, "*b n d_out"]:
    """(*b h n d_v), (h d_v d_out) -> (*b n d_out): Concat(head_1, ..., head_h) W^O + b^O (MHA-PROJ-3)."""
    xp = array_api_compat.array_namespace(head, W_O)
    h, d_v, d_out = W_O.shape
    return project(concatenate(head), xp.reshape(W_O, (h * d_v, d_out)), b_O)
