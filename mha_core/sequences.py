"""The functions of chapter 7 that a backend computes: packed sequences, statistics, and the layer in two halves."""

from collections.abc import Callable
from typing import Any, NamedTuple

from mha_core.backend import Backend
from mha_core.layer_cached import ProjectedKeysValues, multi_head_over, project_key_value
from mha_core.projections import Projections
from mha_core.statistics import AttentionStatistics, statistics
from mha_core.varlen import varlen
from mha_spec.call import Array, AttentionResult, Call, Dropout
from mha_spec.contract_layer import check_projected, check_projections


class Sequences(NamedTuple):
    """The functions: each validates once, then computes."""

    attention_varlen: Callable[..., Any]
    attention_statistics: Callable[..., AttentionStatistics]
    project_keys_values: Callable[[Array, Array, Projections], ProjectedKeysValues]
    multi_head_attention_over: Callable[..., Any]


def bind_sequences(backend: Backend, legal: Callable[..., Call], check_claimed: Callable[[Array], None]) -> Sequences:
    """``legal`` is the door of attention; ``check_claimed`` refuses an array for a layer that the backend does not claim."""

    no_values = "d_v" in backend.claims.features  # weights need none, where a backend takes values of no width

    def attend(query: Array, key: Array, value: Array, **options: Any) -> AttentionResult:
        return backend.attend(legal(query, key, value, **options))

    def attention_varlen(
        query: Array,
        key: Array,
        value: Array,
        query_starts: Any,
        key_starts: Any,
        *,
        is_causal: bool = False,
        query_offset: Any = None,
        window: tuple[int | None, int | None] | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sink_logits: Array | None = None,
        dropout: Dropout | None = None,
        return_lse: bool = False,
    ) -> Any:
        """Attention of packed sequences: what a call of ``attention`` for each of them gives (MHA-VARLEN-1).

        query ``(tokens, h, d_k)``, key ``(tokens, h_kv, d_k)``, value ``(tokens, h_kv, d_v)``, tokens first and without
        padding; sequence s has the queries ``query_starts[s] .. query_starts[s + 1]`` and the keys of ``key_starts`` likewise.
        Starts, and ``query_offset`` where it is one for each sequence, are host integers. Output ``(tokens, h, d_v)``; with
        ``return_lse`` an ``AttentionResult`` whose lse is ``(tokens, h)``. Sequence s drops what batch item s would
        (MHA-VARLEN-6). Raises ``Violation``: MHA-VARLEN-3, MHA-VARLEN-4, and for each sequence what ``attention`` refuses.
        """
        options = {"scale": scale, "softcap": softcap, "sink_logits": sink_logits, "return_lse": return_lse}
        result = varlen(attend, query, key, value, query_starts, key_starts, query_offset, is_causal, window, dropout, options)
        return result if return_lse else result.output

    def attention_statistics(
        query: Array,
        key: Array,
        *,
        column_mass: bool = False,
        row_entropy: bool = False,
        top_k: int | None = None,
        head_mean: tuple[int, int] | None = None,
        mask: Array | None = None,
        bias: Array | None = None,
        is_causal: bool = False,
        query_offset: int | Array | None = None,
        window: tuple[int | None, int | None] | None = None,
        key_lengths: int | Array | None = None,
        query_segments: Array | None = None,
        key_segments: Array | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sink_logits: Array | None = None,
    ) -> AttentionStatistics:
        """Of the weights of ``attention(query, key, ...)``: sums, entropies, the largest, a mean over heads; never the matrix.

        query ``(*batch, h, n, d_k)``, key ``(*batch, h_kv, m, d_k)``. ``column_mass`` sums the weights of each key over the
        queries (MHA-STAT-1); ``row_entropy`` is that of each row in nats (MHA-STAT-2); ``top_k`` gives the largest weights of
        each row and their keys (MHA-STAT-3); ``head_mean=(start, stop)`` the mean over heads for these keys (MHA-STAT-4). The
        other options are those of ``attention``. Extra memory is O(n + m) (MHA-STAT-5). Raises ``Violation`` (MHA-STAT-8).
        """
        call = legal(
            query, key, key[..., :0] if no_values and hasattr(key, "shape") else key, return_weights=True,
            mask=mask, bias=bias, is_causal=is_causal, query_offset=query_offset, window=window, key_lengths=key_lengths,
            query_segments=query_segments, key_segments=key_segments, scale=scale, softcap=softcap, sink_logits=sink_logits,
        )  # fmt: skip
        return statistics(backend.attend, call, column_mass, row_entropy, top_k, head_mean)

    def project_keys_values(key: Array, value: Array, projections: Projections) -> ProjectedKeysValues:
        """Keys and values of a layer, projected once for many calls: ``(*batch, m, d_in_k)``, ``(*batch, m, d_in_v)`` -> heads.

        Pass the two to ``multi_head_attention_over``, as they are (cross-attention) or through a ``KVCache``. Raises
        ``Violation`` (MHA-PROJ-2).
        """
        check_projections(projections, {"key": key, "value": value}, backend.claims.arrays)
        check_claimed(key)
        return project_key_value(backend, key, value, projections)

    def multi_head_attention_over(query: Array, key: Array, value: Array, projections: Projections, **options: Any) -> Any:
        """``multi_head_attention`` whose keys and values were projected before (MHA-CACHE-12).

        query ``(*batch, n, d_model)``; key ``(*batch, h_kv, m, d_k)`` and value ``(*batch, h_kv, m, d_v)`` as
        ``project_keys_values`` gives them; output ``(*batch, n, d_out)``. Options and errors are those of ``multi_head_attention``.
        """
        check_projections(projections, {"query": query}, backend.claims.arrays)
        check_projected(key, value, projections)
        check_claimed(query)
        result = multi_head_over(backend, attend, query, key, value, projections, options)
        return result if options.get("return_weights") or options.get("return_lse") else result.output

    return Sequences(attention_varlen, attention_statistics, project_keys_values, multi_head_attention_over)
