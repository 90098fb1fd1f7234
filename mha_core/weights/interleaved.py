"""One matrix for query, key and value, head by head: GPT-NeoX, BLOOM, Falcon, Megatron."""

from collections.abc import Mapping, Sequence

import array_api_compat

from mha_core.projections import Projections
from mha_core.weights.packed import Packed, linear_pair, packed_widths, read_packed, write_packed
from mha_core.weights.reading import Reader, all_or_none, head_counts, holds
from mha_spec.call import Array

GPT_NEOX = linear_pair("query_key_value, interleaved per head", "query_key_value", "dense")
MEGATRON = linear_pair("linear_qkv, interleaved per group", "linear_qkv", "linear_proj")


def from_interleaved(arrays: Mapping[str, Array], *, heads: int, kv_heads: int, layout: Packed = GPT_NEOX) -> Projections:
    """``weight (h_kv (g d_k + d_k + d_v), d_model)`` with g = h / h_kv: for each key head its g queries, then its key, then its value.

    With h_kv = h that is (q, k, v) of head 0, then of head 1, ...: the shape of ``from_packed`` in another order (MHA-PROJ-20).
    Megatron before its version 2 of this matrix interleaved channel by channel; such a checkpoint has to be brought up to date first.
    """
    h, h_kv = head_counts(layout.form, heads, kv_heads)
    g = h // h_kv
    read = Reader(layout.form, arrays)
    w, b, w_o, b_o = read_packed(read, layout)
    d_k, d_v = packed_widths(layout, w, w_o, h, h_kv)
    read.done()
    xp = array_api_compat.array_namespace(w)
    weights = _split(w, h_kv, g, d_k)
    b_q, b_k, b_v = (None, None, None) if b is None else (x[:, 0, :] for x in _split(b[None, :], h_kv, g, d_k))
    return Projections(*weights, xp.reshape(w_o, (h, d_v, w_o.shape[1])), b_q, b_k, b_v, b_o)


def to_interleaved(projections: Projections, *, layout: Packed = GPT_NEOX) -> dict[str, Array]:
    """The interleaved matrix and the output's, with their biases."""
    holds(layout.form, projections, one_input=True, one_width=layout.one_width)
    h, h_kv = head_counts(layout.form, projections.w_q.shape[0], projections.w_k.shape[0])
    g = h // h_kv
    p = projections.merged()
    w = _join(projections[:3], g)
    biased = all_or_none(layout.form, projections, ("b_q", "b_k", "b_v"))
    vectors = [x[:, None, :] for x in projections[4:7] if x is not None]
    b = _join(vectors, g)[0, :] if biased else None
    return write_packed(layout, w, b, p.w_o, p.b_o)


def _split(w: Array, h_kv: int, g: int, d_k: int) -> tuple[Array, Array, Array]:
    """(i, h_kv (g d_k + d_k + d_v)) -> (h, i, d_k), (h_kv, i, d_k), (h_kv, i, d_v)"""
    xp = array_api_compat.array_namespace(w)
    groups = xp.reshape(w, (w.shape[0], h_kv, w.shape[1] // h_kv))
    queries = xp.reshape(groups[:, :, : g * d_k], (w.shape[0], h_kv * g, d_k))
    keys, values = groups[:, :, g * d_k : (g + 1) * d_k], groups[:, :, (g + 1) * d_k :]
    return xp.moveaxis(queries, 1, 0), xp.moveaxis(keys, 1, 0), xp.moveaxis(values, 1, 0)


def _join(per_head: Sequence[Array], g: int) -> Array:
    """w_q (h, i, d_k), w_k (h_kv, i, d_k), w_v (h_kv, i, d_v) -> (i, h_kv (g d_k + d_k + d_v))"""
    xp = array_api_compat.array_namespace(per_head[0])
    w_q, w_k, w_v = (xp.moveaxis(w, 0, 1) for w in per_head)  # (i, heads, d)
    i, h_kv, d_k = w_k.shape
    groups = xp.concat([xp.reshape(w_q, (i, h_kv, g * d_k)), w_k, w_v], axis=2)
    return xp.reshape(groups, (i, groups.shape[1] * groups.shape[2]))
