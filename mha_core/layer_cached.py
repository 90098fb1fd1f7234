"""The layer, 3.2.2, in two halves: keys and values are projected once, and many queries attend to them (MHA-CACHE-12)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from mha_core.backend import Backend
from mha_core.layer import concat_heads, split_heads
from mha_core.projections import Projections
from mha_spec.call import Array, AttentionResult


class ProjectedKeysValues(NamedTuple):
    """K W_i^K of every key head ``(*batch, h_kv, m, d_k)``, and V W_i^V ``(*batch, h_kv, m, d_v)``."""

    key: Array
    value: Array


def project_key_value(backend: Backend, key: Array, value: Array, projections: Projections) -> ProjectedKeysValues:
    """key ``(*batch, m, d_in_k)``, value ``(*batch, m, d_in_v)`` -> heads."""
    merged = projections.merged()
    k = split_heads(backend.linear(key, merged.w_k, merged.b_k), projections.w_k)  # (*batch, h_kv, m, d_k)
    v = split_heads(backend.linear(value, merged.w_v, merged.b_v), projections.w_v)  # (*batch, h_kv, m, d_v)
    return ProjectedKeysValues(k, v)


def multi_head_over(
    backend: Backend,
    attend: Callable[..., AttentionResult],
    query: Array,
    key: Array,
    value: Array,
    projections: Projections,
    options: dict[str, Any],
) -> AttentionResult:
    """Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, key_i, value_i), the keys and values projected before."""
    merged = projections.merged()
    q = split_heads(backend.linear(query, merged.w_q, merged.b_q), projections.w_q)  # (*batch, h, n, d_k)
    heads = attend(q, key, value, **options)  # output (*batch, h, n, d_v)
    return heads._replace(output=backend.linear(concat_heads(heads.output), merged.w_o, merged.b_o))  # (*batch, n, d_out)
