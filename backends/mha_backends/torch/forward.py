"""Attention of one block of queries, by the formula: every option, every device, differentiable to any order."""

import torch
from torch import Tensor

from mha_backends.torch.dropout import factors
from mha_backends.torch.pairs import combine, dot
from mha_backends.torch.precision import COMPUTE
from mha_backends.torch.visibility import Block, cut, visible
from mha_spec.call import AttentionResult, Call


def attend_block(call: Call, block: Block) -> AttentionResult:
    """output (*b, h, r, d_v), weights (*b, h, r, c), lse (*b, h, r) for the r queries and c keys of the block.

    The order is MHA-ATTN-9: scale, softcap, bias, select, softmax with the sink, dropout, times V.
    """
    compute = COMPUTE[call.query.dtype]
    query = _heads(call, call.query[..., slice(*block.rows), :].to(compute))  # (*b, h_kv, g, r, d_k)
    key = call.key[..., slice(*block.keys), :].to(compute)  # (*b, h_kv, c, d_k)
    value = call.value[..., slice(*block.keys), :].to(compute)  # (*b, h_kv, c, d_v)
    seen = visible(call, block)
    if seen is not None:
        seen = _heads(call, seen)

    scores = _scores(call, block, query, key, seen)  # (*b, h_kv, g, r, c)
    sink = None if call.sink_logits is None else _as(compute, call.sink_logits)
    weights, lse = _softmax(scores, seen, None if sink is None else _heads(call, sink[:, None, None]), call.lse)
    shares = weights if call.dropout is None else weights * _heads(call, factors(call, block, compute))
    output = combine(shares, value, seen) if seen is not None else _fold_product(shares, value)
    kind = call.query.dtype
    return AttentionResult(
        output.flatten(-4, -3).to(kind),
        weights.flatten(-4, -3).to(kind) if call.weights else None,
        lse.flatten(-3, -2) if lse is not None else None,
    )


def _scores(call: Call, block: Block, query: Tensor, key: Tensor, seen: Tensor | None) -> Tensor:
    """scale, softcap, bias. A score that overflows is the largest number, not infinity: it hides nothing (MHA-MASK-6)."""
    limits = torch.finfo(query.dtype)
    query = query * max(limits.min, min(call.scale, limits.max))
    scores = dot(query, key, seen) if seen is not None else _fold_product(query, key.mT)
    if call.softcap is not None:
        # A cap beyond these ends would make s/c 0/0 or subnormal; scores never come near them.
        cap = max(limits.tiny, min(call.softcap, limits.max * 2.0**-30))
        scores = cap * torch.tanh(scores / cap)
    if call.bias is not None:
        scores = scores + _heads(call, _as(query.dtype, cut(call.bias, block)))
    return scores.nan_to_num(torch.nan, limits.max, limits.min)  # clamp would send nothing back where a score is NaN


def _softmax(scores: Tensor, seen: Tensor | None, sink: Tensor | None, want_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Weights over the visible keys and the sink, and the logarithm of their normaliser.

    Hidden scores become -inf and their weights 0, each by selection, so that neither an empty row, whose softmax is 0/0,
    nor a NaN row reaches a hidden pair, forward or backward.
    """
    if seen is not None:
        scores = torch.where(seen, scores, -torch.inf)
    m = scores.shape[-1]
    if sink is not None:
        # A sink of -inf is no sink; selecting it keeps its gradient 0 where the row is empty as well.
        sink = torch.where(sink == -torch.inf, -torch.inf, sink)
        scores = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], -1)
    weights = torch.softmax(scores, -1)[..., :m]
    lse = torch.logsumexp(scores, -1) if want_lse else None
    if seen is not None:
        weights = torch.where(seen, weights, 0.0)
    return weights, lse


def _fold_product(rows: Tensor, columns: Tensor) -> Tensor:
    """(*b, h_kv, g, n, c) x (*b, h_kv, c, d) -> (*b, h_kv, g, n, d): a group of heads is one taller product."""
    *lead, g, n, c = rows.shape
    return (rows.reshape(*lead, g * n, c) @ columns).reshape(*lead, g, n, columns.shape[-1])


def _heads(call: Call, x: Tensor) -> Tensor:
    """(..., h or 1, r, c) -> (..., h_kv or 1, g or 1, r, c): query head i reads key head i // g (MHA-HEAD-2)."""
    if x.shape[-3] != call.sizes.h:
        return x.unsqueeze(-3)
    h, h_kv = call.sizes.h, call.sizes.h_kv
    return x.reshape(*x.shape[:-3], h_kv, h // h_kv if h_kv else 1, *x.shape[-2:])


def _as(kind: torch.dtype, x: Tensor) -> Tensor:
    """A wider bias in the compute type: what is finite stays finite, so that no finite bias hides a pair."""
    if torch.finfo(x.dtype).max <= torch.finfo(kind).max:
        return x.to(kind)
    limits = torch.finfo(kind)
    return torch.where(x.isinf(), x, x.clamp(limits.min, limits.max)).to(kind)
