"""What users ask of the weights, without the matrix of weights: ``attention_statistics``."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import array_api_compat

from mha_spec.call import Array, AttentionResult, Call, dtype_name
from mha_spec.contract_sequences import check_asked, checked_range, checked_top

PAIRS = 2**20
"""Weights that are held at a time, or one row of every head where that is more."""


class AttentionStatistics(NamedTuple):
    """What was asked for, and None for what was not; floats have the dtype of the lse (MHA-AUX-5).

    ``column_mass (*batch, h, m)``: the weight that each key gets from all queries together (MHA-STAT-1). ``row_entropy
    (*batch, h, n)``, in nats (MHA-STAT-2). ``top_weights (*batch, h, n, k)`` and ``top_keys``, int64, of the same shape: the
    largest weights of each row and their keys, largest first (MHA-STAT-3). ``head_mean (*batch, n, stop - start)``: the mean over
    heads of the weights of a range of keys (MHA-STAT-4).
    """

    column_mass: Array | None = None
    row_entropy: Array | None = None
    top_weights: Array | None = None
    top_keys: Array | None = None
    head_mean: Array | None = None


def statistics(
    attend: Callable[[Call], AttentionResult], call: Call, column_mass: bool, row_entropy: bool, top_k: Any, head_mean: Any
) -> AttentionStatistics:
    """Rows of weights by blocks, each forgotten when it has been read: extra memory O(n + m) (MHA-STAT-5).

    ``call`` asks for weights. It is the backend that computes them, so they obey every rule that its attention obeys.
    """
    k, span = checked_top(top_k), checked_range(head_mean, call.sizes.m)
    check_asked(column_mass, row_entropy, k, span)
    xp = array_api_compat.array_namespace(call.query)
    wide = xp.float64 if dtype_name(call.query) == "float64" else xp.float32
    batch, h, _, n, m, _, _ = call.sizes
    column = xp.zeros((*batch, h, m), dtype=wide, device=array_api_compat.device(call.query)) if column_mass else None
    parts: dict[str, list[Array]] = {name: [] for name in AttentionStatistics._fields}
    size = max(1, PAIRS // max(1, h * m * math.prod(batch)))
    for start in range(0, max(n, 1), size):
        weights = xp.astype(attend(rows(call, start, start + size)).weights, wide)  # (*batch, h, size, m)
        if column is not None:
            column = column + xp.sum(weights, axis=-2)
        if row_entropy:
            parts["row_entropy"].append(entropy(weights))
        if k is not None:
            top_weights, top_keys = top(weights, k)
            parts["top_weights"].append(top_weights)
            parts["top_keys"].append(top_keys)
        if span is not None:
            parts["head_mean"].append(xp.sum(weights[..., span[0] : span[1]], axis=-3) / max(h, 1))
    along = {"row_entropy": -1, "top_weights": -2, "top_keys": -2, "head_mean": -2}
    joined = {name: xp.concat(parts[name], axis=axis) for name, axis in along.items() if parts[name]}
    return AttentionStatistics(column_mass=column, **joined)


def rows(call: Call, start: int, stop: int) -> Call:
    """The call of the queries ``start .. stop``: they keep their positions and whatever speaks of them."""

    def cut(x: Array | None) -> Array | None:
        return x if x is None or x.shape[-2] == 1 else x[..., start:stop, :]

    segments = call.query_segments
    return replace(
        call, query=call.query[..., start:stop, :], mask=cut(call.mask), bias=cut(call.bias), query_offset=_shifted(call, start),
        query_segments=None if segments is None else segments[..., start:stop],
    )  # fmt: skip


def _shifted(call: Call, start: int) -> int | Array:
    """``query_offset + start``. An offset is first brought to where it still matters, so that no integer type overflows."""
    if call.band is None:
        return call.query_offset
    if isinstance(call.query_offset, int):
        return call.query_offset + start
    xp = array_api_compat.array_namespace(call.query_offset)
    left, right = (side or 0 for side in call.band)
    sizes = call.sizes
    offset = xp.astype(call.query_offset, xp.int64)
    return xp.clip(offset, -(sizes.n + right + 1), sizes.m + left + 1) + start


def entropy(weights: Array) -> Array:
    """(..., m) -> (...): minus the sum of A log A, where 0 log 0 = 0."""
    xp = array_api_compat.array_namespace(weights)
    nothing = weights == 0
    terms = -weights * xp.log(xp.where(nothing, xp.ones_like(weights), weights))
    return xp.sum(xp.where(nothing, xp.zeros_like(weights), terms), axis=-1)


def top(weights: Array, k: int) -> tuple[Array, Array]:
    """(..., m) -> the k largest (..., k) and their keys: NaN before all numbers, equals by their index, 0 never."""
    xp = array_api_compat.array_namespace(weights)
    m = weights.shape[-1]
    ranked = xp.where(xp.isnan(weights), xp.full_like(weights, xp.inf), weights)
    order = xp.argsort(-ranked, axis=-1, stable=True)[..., :k]
    found = xp.take_along_axis(weights, order, axis=-1)
    keys = xp.where(found == 0, -xp.ones_like(order), order)
    if k <= m:
        return found, keys
    more = (*found.shape[:-1], k - m)
    device = array_api_compat.device(weights)
    padding = xp.zeros(more, dtype=found.dtype, device=device), xp.full(more, -1, dtype=keys.dtype, device=device)
    return xp.concat([found, padding[0]], axis=-1), xp.concat([keys, padding[1]], axis=-1)
