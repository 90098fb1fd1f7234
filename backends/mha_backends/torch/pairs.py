"""Products over query-key pairs that a hidden pair cannot enter, closed under differentiation.

The axes are ``(*batch, h_kv, g, n, ...)`` on the query side, g query heads to each key head, and ``(*batch, h_kv, m, ...)``
on the key side: a group is one taller matrix product, and no key is ever repeated. Three bilinear maps:

    dot(q, k)[g, i, j]       = sum_c q[g, i, c] k[j, c]
    combine(p, v)[g, i, c]   = sum_j p[g, i, j] v[j, c]        over the keys j that query i sees
    gather(p, x)[j, c]       = sum_gi p[g, i, j] x[g, i, c]    over the queries i that see key j

The derivative of each is made of the other two, so gradients of every order select as the forward does (MHA-MASK-19).
0 * NaN is NaN, so a weight of 0 is not enough: non-finite entries become 0 before the product, and NaN is given back to
those rows that see one. Nothing here asks what an array holds; that keeps compile, vmap and capture working.
"""

import math
from typing import Any

import torch
from torch import Tensor

from mha_backends.torch.precision import no_autocast


def dot(query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
    """Scores ``(*b, h_kv, g, n, m)`` of every pair; garbage where hidden, to be selected away. Its gradients are selected."""
    return _apply(_Dot, _DotForward, query, key, visible)


def combine(weights: Tensor, value: Tensor, visible: Tensor, give_back: bool = True) -> Tensor:
    """Weighted sums ``(*b, h_kv, g, n, d_v)``. Without ``give_back`` the weights carry the NaN.

    ``weights`` come from a selection, so they are 0 where hidden and their gradient is selected there.
    """
    return _apply(_Combine, _CombineForward, weights, value, visible, give_back)


def gather(weights: Tensor, rows: Tensor, visible: Tensor, give_back: bool = True) -> Tensor:
    """Sums over queries ``(*b, h_kv, m, d)``: what the rows send back to each key."""
    return _apply(_Gather, _GatherForward, weights, rows, visible, give_back)


def _apply(plain: Any, forward_mode: Any, *operands: Any) -> Tensor:
    """Dynamo refuses an autograd.Function that defines ``jvp``; everything else wants one."""
    out: Tensor = (plain if torch.compiler.is_compiling() else forward_mode).apply(*operands)
    return out


class _Pairs(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, visible, *give_back = inputs
        ctx.save_for_backward(a, b, visible)
        ctx.save_for_forward(a, b, visible)
        ctx.give_back = give_back


class _Dot(_Pairs):
    @staticmethod
    def forward(query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
        return _unfold(_fold(query) @ key.mT, query)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, visible = ctx.saved_tensors
        with no_autocast(query):
            grad = torch.where(visible, grad, 0.0)
            # A visible NaN in q or k has made the scores NaN, hence grad: it needs no giving back.
            return combine(grad, key, visible, False), gather(grad, query, visible, False), None


class _Combine(_Pairs):
    @staticmethod
    def forward(weights: Tensor, value: Tensor, visible: Tensor, give_back: bool) -> Tensor:
        out = _unfold(_fold(weights) @ _finite(value), weights)
        if not give_back:
            return out
        seen = _reached(visible, ~value.isfinite().unsqueeze(-3), stack=False)
        return out.masked_fill(seen, torch.nan)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        weights, value, visible = ctx.saved_tensors
        with no_autocast(value):
            return dot(grad, value, visible), gather(weights, grad, visible), None, None


class _Gather(_Pairs):
    @staticmethod
    def forward(weights: Tensor, rows: Tensor, visible: Tensor, give_back: bool) -> Tensor:
        out = _fold(weights).mT @ _fold(_finite(rows))
        if not give_back:
            return out
        seen = _reached(visible.mT, ~rows.isfinite(), stack=True)
        return out.masked_fill(seen, torch.nan)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        weights, rows, visible = ctx.saved_tensors
        with no_autocast(rows):
            return dot(rows, grad, visible), combine(weights, grad, visible), None, None


def _bilinear(function: Any) -> Any:
    def jvp(ctx: Any, da: Tensor, db: Tensor, *_: Any) -> Tensor:
        a, b, visible = ctx.saved_tensors
        out: Tensor = function(da, b, visible, *ctx.give_back) + function(a, db, visible, *ctx.give_back)
        return out

    return staticmethod(jvp)


class _DotForward(_Dot):
    jvp = _bilinear(dot)


class _CombineForward(_Combine):
    jvp = _bilinear(combine)


class _GatherForward(_Gather):
    jvp = _bilinear(gather)


def _finite(x: Tensor) -> Tensor:
    return x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _fold(x: Tensor) -> Tensor:
    """(*b, h_kv, g, n, c) -> (*b, h_kv, g*n, c)"""
    *lead, g, n, c = x.shape
    return x.reshape(*lead, g * n, c)


def _unfold(x: Tensor, like: Tensor) -> Tensor:
    """(*b, h_kv, g*n, c) -> (*b, h_kv, g, n, c)"""
    return x.reshape(*like.shape[:-1], x.shape[-1])


def _reached(sees: Tensor, marks: Tensor, *, stack: bool) -> Tensor:
    """Which rows see a marked entry, channel by channel: ``sees (..., g, r, c)`` and ``marks (..., g, c, d)``.

    A boolean product, done as a count in float32. ``stack`` sums over the group, too. Axes of size 1 stay small: a mask
    that all batch items and heads share is one product with all their channels side by side.
    """
    if sees.shape[-1] == 1:
        marks = marks.any(-2, keepdim=True)
    if stack:
        if sees.shape[-3] == 1:
            marks, sees = marks.any(-3), sees.squeeze(-3)
        else:
            *lead, g, c, d = marks.shape
            marks = marks.reshape(*lead, g * c, d)
            sees = sees.transpose(-3, -2).flatten(-2)
    sees, marks = sees.float(), marks.float()
    *lead, c, d = marks.shape
    if all(size == 1 for size in sees.shape[:-2]):
        columns = marks.movedim(-2, 0).reshape(c, math.prod(lead) * d)
        counts = sees.reshape(sees.shape[-2:]) @ columns
        return (counts.reshape(sees.shape[-2], *lead, d) > 0).movedim(0, -2)
    return (sees @ marks) > 0
