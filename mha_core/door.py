"""The one door: arguments in, a legal call to the backend, arrays out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from threading import Lock
from typing import Any, Literal, Protocol, cast, overload, runtime_checkable

from mha_core.backend import FORWARD, Backend, check_claimed
from mha_core.errors import Unsupported
from mha_core.gradients import AttentionJvp, AttentionVjp, MultiHeadAttentionVjp, bind_gradients
from mha_core.layer import multi_head
from mha_core.layer_cached import ProjectedKeysValues
from mha_core.merge import merge_partials
from mha_core.projections import Projections
from mha_core.sequences import bind_sequences
from mha_core.statistics import AttentionStatistics
from mha_spec.call import Array, AttentionResult, Call, Dropout, dtype_name
from mha_spec.contract import Violation, attention_call
from mha_spec.contract_layer import check_layer
from mha_spec.contract_options import checked_scale
from mha_spec.violation import shown


@runtime_checkable
class Attention(Protocol):
    """``attention``, 3.2.1: an array, or an ``AttentionResult`` where weights or lse are asked for (MHA-AUX-11)."""

    @overload
    def __call__(
        self, query: Array, key: Array, value: Array, *, return_weights: Literal[True], **options: Any
    ) -> AttentionResult: ...
    @overload
    def __call__(
        self, query: Array, key: Array, value: Array, *, return_lse: Literal[True], **options: Any
    ) -> AttentionResult: ...
    @overload
    def __call__(self, query: Array, key: Array, value: Array, **options: Any) -> Array: ...


@runtime_checkable
class MultiHeadAttention(Protocol):
    """``multi_head_attention``, 3.2.2: as ``Attention``, with projections."""

    @overload
    def __call__(
        self, query: Array, key: Array, value: Array, projections: Projections, *, return_weights: Literal[True], **options: Any
    ) -> AttentionResult: ...
    @overload
    def __call__(
        self, query: Array, key: Array, value: Array, projections: Projections, *, return_lse: Literal[True], **options: Any
    ) -> AttentionResult: ...
    @overload
    def __call__(self, query: Array, key: Array, value: Array, projections: Projections, **options: Any) -> Array: ...


@runtime_checkable
class MergePartials(Protocol):
    """``merge_partials``: the whole from the parts of a split key axis."""

    def __call__(self, parts: Any) -> tuple[Array, Array]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """The public functions of one backend, as ``load`` and ``bind`` give them."""

    name: str
    backend: Backend
    attention: Attention
    multi_head_attention: MultiHeadAttention
    attention_vjp: AttentionVjp
    multi_head_attention_vjp: MultiHeadAttentionVjp
    attention_jvp: AttentionJvp
    merge_partials: MergePartials
    attention_varlen: Callable[..., Any]
    attention_statistics: Callable[..., AttentionStatistics]
    project_keys_values: Callable[[Array, Array, Projections], ProjectedKeysValues]
    multi_head_attention_over: Callable[..., Any]
    explain: Callable[..., str]
    """Which kernel answers ``attention`` with the same arguments; it validates them and computes nothing."""


def bind(backend: Backend) -> Api:
    """The public functions of ``backend``: each validates once, then computes. One backend, one ``Api``, whoever asks first."""
    with _binding:
        return _bound(backend)


_binding = Lock()
"""``cache`` alone lets two threads that come at once build an ``Api`` each."""


@cache
def _bound(backend: Backend) -> Api:
    library = backend.claims.arrays
    complete = backend.claims.features >= FORWARD | {"dropout"}  # then no option need be looked for

    def legal(query: Array, key: Array, value: Array, **options: Any) -> Call:
        call = attention_call(query, key, value, library=library, **options)
        _check_dtype(query, backend)
        if not complete:
            check_claimed(backend, _features(call))
        return call

    def layer_claimed(query: Array) -> None:
        _check_dtype(query, backend)
        check_claimed(backend, {"layer"})

    def attend(query: Array, key: Array, value: Array, **options: Any) -> AttentionResult:
        return backend.attend(legal(query, key, value, **options))

    def explain(query: Array, key: Array, value: Array, **options: Any) -> str:
        """Which kernel answers ``attention`` with the same arguments, without running it. Raises as ``attention`` does."""
        return backend.explain(legal(query, key, value, **options))

    def attention(
        query: Array,
        key: Array,
        value: Array,
        *,
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
        dropout: Dropout | None = None,
        return_weights: bool = False,
        return_lse: bool = False,
    ) -> Any:
        """Scaled dot-product attention on heads, section 3.2.1.

        .. math:: \\mathrm{Attention}(Q, K, V) = \\mathrm{softmax}(\\sigma Q K^T + b) V \\quad \\text{over the visible keys}

        query ``(*batch, h, n, d_k)``, key ``(*batch, h_kv, m, d_k)``, value ``(*batch, h_kv, m, d_v)`` in one dtype;
        output ``(*batch, h, n, d_v)`` in the same. ``mask`` is boolean, True = attend (MHA-MASK-2); ``bias`` is added after
        the scale, and -inf in it hides (MHA-MASK-5); ``is_causal`` shows key j to query i iff j <= query_offset + i
        (MHA-MASK-7); ``window`` is inclusive (MHA-MASK-10); ``key_lengths`` shows j < length (MHA-MASK-12); segments must be
        equal (MHA-MASK-13). ``scale`` is 1/sqrt(d_k) by default; ``softcap`` c makes s into c*tanh(s/c) before the bias;
        ``sink_logits (h,)`` take weight and give no value; a ``Dropout`` drops weights before they meet the values and scales up
        the others (MHA-DROP-1). With ``return_weights`` or ``return_lse`` the result is
        ``AttentionResult(output, weights, lse)``: weights ``(*batch, h, n, m)`` per head, lse ``(*batch, h, n)`` natural log.
        Raises ``Violation`` (a ValueError) for what the specification refuses, ``Unsupported`` for what this backend does
        not claim. Source: Vaswani et al., Attention Is All You Need, 2017; the paper has no visible set, sink, bias or cap.
        """
        result = attend(
            query, key, value, mask=mask, bias=bias, is_causal=is_causal, query_offset=query_offset, window=window,
            key_lengths=key_lengths, query_segments=query_segments, key_segments=key_segments, scale=scale, softcap=softcap,
            sink_logits=sink_logits, dropout=dropout, return_weights=return_weights, return_lse=return_lse,
        )  # fmt: skip
        return result if return_weights or return_lse else result.output

    def multi_head_attention(
        query: Array,
        key: Array,
        value: Array,
        projections: Projections,
        *,
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
        dropout: Dropout | None = None,
        return_weights: bool = False,
        return_lse: bool = False,
    ) -> Any:
        """Multi-head attention, section 3.2.2: Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

        query ``(*batch, n, d_model)``, key ``(*batch, m, d_in_k)``, value ``(*batch, m, d_in_v)``; output
        ``(*batch, n, d_out)``. ``projections`` holds one matrix per head. The options are those of ``attention`` and act on
        the heads (MHA-PROJ-12). Raises as ``attention`` does, and MHA-PROJ-2 for projections that do not fit.
        """
        check_layer(query, key, value, projections, library)
        layer_claimed(query)
        options = {
            "mask": mask, "bias": bias, "is_causal": is_causal, "query_offset": query_offset, "window": window,
            "key_lengths": key_lengths, "query_segments": query_segments, "key_segments": key_segments, "scale": scale,
            "softcap": softcap, "sink_logits": sink_logits, "dropout": dropout, "return_weights": return_weights,
            "return_lse": return_lse,
        }  # fmt: skip
        result = multi_head(backend, attend, query, key, value, projections, options)
        return result if return_weights or return_lse else result.output

    attention_varlen, attention_statistics, project_keys_values, multi_head_attention_over = bind_sequences(
        backend, legal, layer_claimed
    )
    attention_vjp, multi_head_attention_vjp, attention_jvp = bind_gradients(backend, legal)
    return Api(
        name=backend.name,
        backend=backend,
        attention=cast(Attention, attention),
        multi_head_attention=cast(MultiHeadAttention, multi_head_attention),
        attention_vjp=attention_vjp,
        multi_head_attention_vjp=multi_head_attention_vjp,
        attention_jvp=attention_jvp,
        merge_partials=merge_partials,
        attention_varlen=attention_varlen,
        attention_statistics=attention_statistics,
        project_keys_values=project_keys_values,
        multi_head_attention_over=multi_head_attention_over,
        explain=explain,
    )


def window_tokens(w: int) -> tuple[int, int]:
    """The window of the last ``w`` tokens, the query's own included: ``(w - 1, 0)`` (MHA-MASK-23)."""
    if not isinstance(w, Integral) or isinstance(w, bool) or w < 1:
        raise Violation(
            "MHA-MASK-23",
            f"window_tokens({shown(w)})",
            "an int >= 1",
            "count the query's own token: a window holds at least that",
        )
    return (int(w) - 1, 0)


def _check_dtype(query: Array, backend: Backend) -> None:
    """MHA-EXEC-9: what a backend does not claim it is not asked for."""
    kind = dtype_name(query)
    if kind not in backend.claims.dtypes:
        raise Unsupported(backend.name, f"{kind} arrays", ", ".join(backend.claims.dtypes), (kind,))


def _features(call: Call) -> set[str]:
    sizes = call.sizes
    left, right = call.band or (None, None)
    asked = {
        "mask": call.mask is not None,
        "bias": call.bias is not None,
        "causal": right == 0,
        "window": left is not None or right not in (None, 0),
        "offset": not isinstance(call.query_offset, int) or call.query_offset != 0,
        "lengths": call.key_lengths is not None,
        "segments": call.query_segments is not None,
        "grouped": sizes.h != sizes.h_kv,
        "d_v": sizes.d_k != sizes.d_v,
        "scale": call.scale != checked_scale(None, sizes.d_k),
        "softcap": call.softcap is not None,
        "sink": call.sink_logits is not None,
        "dropout": call.dropout is not None,
        "weights": call.weights,
        "lse": call.lse,
    }
    return {name for name, wanted in asked.items() if wanted}
