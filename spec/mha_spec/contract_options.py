"""Chapter 2 for the options of ``attention``: each in its legal form, or a ``Violation``."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from mha_spec.call import FLOAT_WIDTHS, Array, Band, dtype_name
from mha_spec.violation import Violation, describe, shown

WINDOW_LIMIT = 2**62


def fits(x: Array, scores: Sequence[int], name: str, clause: str = "MHA-VAL-9") -> Array:
    """MHA-VAL-9: rank 2 or the scores' rank, each axis full or 1. Gives a view of the scores' rank."""
    shape, rank = tuple(x.shape), len(scores)
    wanted = tuple(scores[-2:]) if len(shape) == 2 else tuple(scores)
    if len(shape) != len(wanted) or any(a not in (b, 1) for a, b in zip(shape, wanted, strict=True)):
        raise Violation(
            clause, f"{name} {shape} for scores {tuple(scores)}",
            f"(n, m) = {tuple(scores[-2:])} or the scores' rank {tuple(scores)}, each axis full or 1",
            f"name every axis: {name}[:, None] makes a per-batch {name} (b, n, m) into (b, 1, n, m), "
            f"{name}[None] a per-head one (h, n, m) into (1, h, n, m)",
        )  # fmt: skip
    return x if len(shape) == rank else x[(None,) * (rank - 2) + (...,)]


def checked_mask(mask: Array, scores: Sequence[int]) -> Array:
    """MHA-VAL-8: a mask is boolean, True = attend."""
    kind = dtype_name(mask)
    if kind != "bool":
        raise Violation(
            "MHA-VAL-8", f"mask of dtype {kind}", "a boolean mask, True = attend",
            "write mask != 0 if 1 means attend, or pass additive values as bias",
        )  # fmt: skip
    return fits(mask, scores, "mask")


def _wide_enough(x: Array, query: Array) -> bool:
    kind, base = dtype_name(x), dtype_name(query)
    return kind == base or FLOAT_WIDTHS.get(kind, 0) > FLOAT_WIDTHS[base]


def checked_bias(bias: Array, scores: Sequence[int], query: Array) -> Array:
    """MHA-VAL-10: a bias is real, in the query's dtype or a wider one."""
    if not _wide_enough(bias, query):
        raise Violation(
            "MHA-VAL-10", f"bias of dtype {dtype_name(bias)} for {dtype_name(query)} queries",
            "a real floating bias, of query's dtype or a wider one",
            "pass a boolean as mask, or cast the bias",
        )  # fmt: skip
    return fits(bias, scores, "bias")


def check_flags(**flags: Any) -> None:
    """MHA-VAL-20: a flag is a Python bool."""
    for name, x in flags.items():
        if not isinstance(x, bool):
            raise Violation("MHA-VAL-20", f"{name}={shown(x)} ({type(x).__name__})", "True or False", f"write {name}=bool(...)")


def checked_band(is_causal: bool, window: Any) -> Band | None:
    """MHA-VAL-14: the window is a pair. A causal mask and a window are one band (MHA-MASK-11)."""
    left: int | None
    right: int | None
    if window is None:
        left = right = None
    else:
        if not (isinstance(window, tuple | list) and len(window) == 2 and all(map(_is_side, window))):
            raise Violation(
                "MHA-VAL-14", f"window={shown(window)}", "(left, right), each None or an integer from 0 to 2^62 - 1",
                "write None for an unbounded side; window_tokens(w) gives the last w tokens",
            )  # fmt: skip
        left, right = (None if side is None else int(side) for side in window)
    if is_causal:
        right = 0
    return None if left is None and right is None else (left, right)


def _is_side(side: Any) -> bool:
    return side is None or (isinstance(side, Integral) and not isinstance(side, bool) and 0 <= int(side) < WINDOW_LIMIT)


def checked_offset(offset: Any, band: Band | None, batch: tuple[int, ...], n: int, m: int) -> int | Array:
    """MHA-VAL-11, MHA-VAL-12: an offset is given exactly where it matters and has no default that the world agrees on."""
    if band is None:
        if offset is not None:
            raise Violation(
                "MHA-VAL-12", "query_offset without is_causal or a finite window side", "query_offset=None",
                "it would be ignored: leave it out, or ask for is_causal=True or a window",
            )  # fmt: skip
        return 0
    if offset is None:
        if n != m:
            raise Violation(
                "MHA-VAL-11", f"n = {n} queries, m = {m} keys and no query_offset", "the position of query 0",
                f"write query_offset=0 (top-left: torch, JAX) or query_offset=m-n={m - n} (bottom-right: FlashAttention, decoding)",
            )  # fmt: skip
        return 0
    offset = checked_integer("query_offset", offset, batch)
    if isinstance(offset, int):
        left, right = (side or 0 for side in band)
        return max(-(n + right + 1), min(offset, m + left + 1))
    return offset


def checked_lengths(lengths: Any, batch: tuple[int, ...], m: int) -> int | Array:
    """MHA-VAL-13; a Python int is clipped to 0 .. m, beyond which it says nothing more (MHA-VAL-21)."""
    lengths = checked_integer("key_lengths", lengths, batch)
    return max(0, min(lengths, m)) if isinstance(lengths, int) else lengths


def checked_integer(name: str, x: Any, batch: tuple[int, ...]) -> Any:
    """MHA-VAL-13: a Python int, or an integer array of exactly the batch shape."""
    if isinstance(x, Integral) and not isinstance(x, bool):
        return int(x)
    if isinstance(x, Real) or not _is_integer_array(x) or tuple(x.shape) != batch:
        given = f"{name}={shown(x)}" if isinstance(x, Real) else f"{name} {describe(x)}"
        raise Violation(
            "MHA-VAL-13", given, f"an int, or an integer array (up to int64) of exactly the batch shape {batch}",
            "one number per batch item, not per head or query; cast floats and uint64 yourself",
        )  # fmt: skip
    return x


def _is_integer_array(x: Any) -> bool:
    kind = dtype_name(x)
    return kind.startswith(("int", "uint")) and kind != "uint64"


def check_segments(query_segments: Any, key_segments: Any, batch: tuple[int, ...], n: int, m: int) -> None:
    """MHA-VAL-15: both or neither, integers, one per token."""
    if query_segments is None and key_segments is None:
        return
    given = f"query_segments {_or_none(query_segments)}, key_segments {_or_none(key_segments)}"
    pairs = ((query_segments, (*batch, n)), (key_segments, (*batch, m)))
    if any(x is None or not _is_integer_array(x) or tuple(x.shape) != shape for x, shape in pairs):
        raise Violation(
            "MHA-VAL-15", given, f"both or neither: integers (up to int64) of shapes {(*batch, n)} and {(*batch, m)}",
            "give each query and each key the id of its segment",
        )  # fmt: skip


def _or_none(x: Any) -> str:
    return "None" if x is None else describe(x)


def checked_scale(scale: Any, d_k: int) -> float:
    """MHA-VAL-16: a finite Python real; by default 1/sqrt(d_k), and 1 where d_k = 0 (MHA-ATTN-2, MHA-ATTN-4)."""
    if scale is None:
        return 1.0 / math.sqrt(d_k) if d_k else 1.0
    if not is_finite_real(scale):
        raise Violation(
            "MHA-VAL-16",
            f"scale={shown(scale)}",
            "a finite Python number or None for 1/sqrt(d_k)",
            "scale the query for anything else",
        )
    return float(scale)


def checked_softcap(softcap: Any) -> float | None:
    """MHA-VAL-17: a finite positive Python real, or None."""
    if softcap is None:
        return None
    if not is_finite_real(softcap) or float(softcap) <= 0:
        raise Violation(
            "MHA-VAL-17", f"softcap={shown(softcap)}", "a finite number > 0, or None for no cap", "write None, not 0 or -1"
        )
    return float(softcap)


def is_finite_real(x: Any) -> bool:
    if not isinstance(x, Real) or isinstance(x, bool):
        return False
    try:
        return math.isfinite(float(x))
    except OverflowError:
        return False


def check_sink_logits(sink_logits: Array, h: int, query: Array) -> None:
    """MHA-VAL-18: one real logit per query head."""
    if tuple(sink_logits.shape) != (h,) or not _wide_enough(sink_logits, query):
        raise Violation(
            "MHA-VAL-18", f"sink_logits {describe(sink_logits)}", f"({h},), one per query head, of {dtype_name(query)} or wider",
            "give each query head its own logit",
        )  # fmt: skip
