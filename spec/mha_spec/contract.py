"""Chapter 2, the contract: what may be asked, and the refusal of everything else.

One function, ``attention_call``, turns arguments into a legal ``Call`` or raises ``Violation``. It looks at
types, dtypes, ranks, shapes and Python numbers, never at the contents of an array (MHA-VAL-21), so that
compilation, vectorisation and streams pass through it. The checks of the operands stand here, those of the
options in ``contract_options`` and ``contract_dropout``, those of the layer and of merging in ``contract_layer``.
"""

from numbers import Real
from typing import Any

from mha_spec.call import FLOAT_WIDTHS, Array, Call, Dropout, dtype_name
from mha_spec.contract_dropout import checked_dropout, keep_of
from mha_spec.contract_options import (
    check_flags,
    check_segments,
    check_sink_logits,
    checked_band,
    checked_bias,
    checked_lengths,
    checked_mask,
    checked_offset,
    checked_scale,
    checked_softcap,
)
from mha_spec.violation import Violation, describe, is_array, library_of

__all__ = ["Violation", "attention_call", "check_float", "check_library", "describe", "library_of"]


def attention_call(
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
    library: str | None = None,
) -> Call:
    """The legal ``Call`` that these arguments ask for.

    ``library`` is the root module of the arrays that the backend takes, such as ``"numpy"``; None takes any one library.
    Raises ``Violation`` with the clause of the first rule that is broken.
    """
    arrays = {"query": query, "key": key, "value": value}
    optional = {
        "mask": mask, "bias": bias, "sink_logits": sink_logits,
        "query_segments": query_segments, "key_segments": key_segments, "keep": keep_of(dropout),
    }  # fmt: skip
    integers = {"query_offset": query_offset, "key_lengths": key_lengths}
    arrays |= {name: x for name, x in optional.items() if x is not None}
    arrays |= {name: x for name, x in integers.items() if not (x is None or isinstance(x, Real))}
    check_library(arrays, library)
    check_float(query=query, key=key, value=value)
    _shapes_of_operands(query, key, value)

    *batch, h, n, d_k = query.shape
    m = key.shape[-2]
    scores = (*batch, h, n, m)
    if mask is not None:
        mask = checked_mask(mask, scores)
    if bias is not None:
        bias = checked_bias(bias, scores, query)
    check_flags(is_causal=is_causal, return_weights=return_weights, return_lse=return_lse)
    band = checked_band(is_causal, window)
    query_offset = checked_offset(query_offset, band, tuple(batch), n, m)
    if key_lengths is not None:
        key_lengths = checked_lengths(key_lengths, tuple(batch), m)
    check_segments(query_segments, key_segments, tuple(batch), n, m)
    if sink_logits is not None:
        check_sink_logits(sink_logits, h, query)
    if dropout is not None:
        dropout = checked_dropout(dropout, scores)
    return Call(
        query=query, key=key, value=value,
        scale=checked_scale(scale, d_k), softcap=checked_softcap(softcap),
        mask=mask, bias=bias, band=band, query_offset=query_offset, key_lengths=key_lengths,
        query_segments=query_segments, key_segments=key_segments, sink_logits=sink_logits,
        dropout=dropout, weights=return_weights, lse=return_lse,
    )  # fmt: skip


def check_library(arrays: dict[str, Any], library: str | None = None) -> None:
    """MHA-VAL-1: every array is of one library, the backend's own, and lives on one device, that of the first."""
    first_name, first = next(iter(arrays.items()))
    wanted = library or (library_of(first) if is_array(first) else "an array library, such as numpy")
    for name, x in arrays.items():
        if not is_array(x) or library_of(x) != wanted:
            raise Violation(
                "MHA-VAL-1", f"{name} of type {type(x).__module__}.{type(x).__name__}", f"a plain array of {wanted}",
                "convert it before the call; nothing is converted for you",
            )  # fmt: skip
        if getattr(x, "device", None) != getattr(first, "device", None):
            raise Violation(
                "MHA-VAL-1", f"{name} on {x.device}", f"every array on the device of {first_name}, {first.device}",
                f"move {name} there first",
            )  # fmt: skip


def check_float(**arrays: Array) -> None:
    """MHA-VAL-2: query, key and value, and the projections of a layer, share one floating type."""
    names = {name: dtype_name(x) for name, x in arrays.items()}
    kinds = set(names.values())
    if len(kinds) != 1 or not kinds <= FLOAT_WIDTHS.keys():
        given = ", ".join(f"{name} {kind}" for name, kind in names.items())
        raise Violation(
            "MHA-VAL-2", given, f"one dtype for all of them, among {', '.join(FLOAT_WIDTHS)}",
            "cast them to one dtype before the call; nothing is promoted or downcast",
        )  # fmt: skip


def _shapes_of_operands(query: Array, key: Array, value: Array) -> None:
    """MHA-VAL-3 to MHA-VAL-7: ranks, batch axes, d_k, (h_kv, m), and the ratio of the heads."""
    q, k, v = tuple(query.shape), tuple(key.shape), tuple(value.shape)
    given = f"query {q}, key {k}, value {v}"
    if len(q) < 3 or not len(q) == len(k) == len(v):
        short = next((name for name, x in (("query", q), ("key", k), ("value", v)) if len(x) == 2), None)
        raise Violation(
            "MHA-VAL-3", given, "(*batch, heads, length, width) for each, of one rank, at least 3",
            f"add a head axis: {short}[None]" if short else "give the three the same axes",
        )  # fmt: skip
    if not q[:-3] == k[:-3] == v[:-3]:
        raise Violation("MHA-VAL-4", given, "equal batch axes", "expand the smaller operand; batch axes are not broadcast")
    if q[-1] != k[-1]:
        raise Violation(
            "MHA-VAL-5", given, f"one width d_k for query and key, not {q[-1]} and {k[-1]}", "project both to one width"
        )
    if k[-3:-1] != v[-3:-1]:
        raise Violation(
            "MHA-VAL-6", given, f"one (h_kv, m) for key and value, not {k[-3:-1]} and {v[-3:-1]}",
            "give each key one value; nothing is cropped or padded",
        )  # fmt: skip
    h, h_kv = q[-3], k[-3]
    if h % h_kv if h_kv else h:
        raise Violation(
            "MHA-VAL-7", f"h = {h} query heads and h_kv = {h_kv} key heads", "h a multiple of h_kv (and h_kv > 0 unless h = 0)",
            "query head i reads key head i // (h // h_kv): choose h_kv among the divisors of h",
        )  # fmt: skip
