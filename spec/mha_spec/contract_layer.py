"""Chapter 2 for the layer and for merging: projections that fit, parts that fit, heads that divide."""

import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from mha_spec.call import FLOAT_WIDTHS, Array, dtype_name
from mha_spec.contract import check_float, check_library
from mha_spec.violation import Violation, describe, shown

_MATRICES = ("w_q", "w_k", "w_v", "w_o")


class SmallHeadWarning(UserWarning):
    """A layer constructor derived heads of fewer than 16 channels (MHA-PROJ-11)."""


def head_size(d_model: int, n_heads: int) -> int:
    """d_k = d_model / h, where a constructor derives it (MHA-PROJ-10). Raises ``Violation``; warns below 16 channels."""
    integers = isinstance(d_model, Integral) and isinstance(n_heads, Integral)
    if not integers or n_heads < 1 or d_model < 1 or d_model % n_heads:
        raise Violation(
            "MHA-PROJ-10", f"d_model = {shown(d_model)} and n_heads = {shown(n_heads)}", "d_model a positive multiple of n_heads",
            "choose a divisor, or give d_k and d_v yourself: the paper's W_i need no divisibility",
        )  # fmt: skip
    d_k = d_model // n_heads
    if d_k < 16:
        warnings.warn(
            f"MHA-PROJ-11: {n_heads} heads of {d_k} channels: a head below 16 channels can express little",
            SmallHeadWarning, stacklevel=3,
        )  # fmt: skip
    return d_k


def check_layer(query: Array, key: Array, value: Array, projections: Any, library: str | None = None) -> None:
    """MHA-PROJ-2: X ``(*batch, n, d_model)`` and the eight arrays of ``Projections`` fit together, in one dtype and library."""
    check_projections(projections, {"query": query, "key": key, "value": value}, library)


def check_projections(projections: Any, inputs: Mapping[str, Array] | None = None, library: str | None = None) -> None:
    """MHA-PROJ-2: the eight arrays fit together, and the inputs query, key and value fit them, where there are any."""
    if getattr(projections, "_fields", ())[:4] != _MATRICES:
        raise Violation("MHA-PROJ-2", f"projections of type {type(projections).__name__}", "Projections(w_q, w_k, w_v, w_o, ...)",
                        "build them with Projections or Projections.from_merged")  # fmt: skip
    arrays = dict(inputs or {})
    arrays |= {name: x for name, x in projections._asdict().items() if x is not None or name in _MATRICES}
    check_library(arrays, library)
    check_float(**arrays)
    for name in inputs or ():
        if len(arrays[name].shape) < 2:
            raise Violation(
                "MHA-PROJ-2", f"{name} {tuple(arrays[name].shape)}", "(*batch, length, width)", f"give {name} a length axis"
            )
    for name in _MATRICES:
        if len(arrays[name].shape) != 3:
            raise Violation("MHA-PROJ-2", f"{name} {tuple(arrays[name].shape)}", "one matrix per head: rank 3",
                            "split a merged matrix with Projections.from_merged")  # fmt: skip
    h, d_model, d_k = projections.w_q.shape
    h_kv = projections.w_k.shape[0]
    d_v, d_out = projections.w_v.shape[-1], projections.w_o.shape[-1]
    d_in_k, d_in_v = projections.w_k.shape[1], projections.w_v.shape[1]
    own = {"query": d_model, "key": d_in_k, "value": d_in_v}
    d_model, d_in_k, d_in_v = (arrays[name].shape[-1] if name in (inputs or ()) else width for name, width in own.items())
    wanted = {
        "w_q": (h, d_model, d_k), "w_k": (h_kv, d_in_k, d_k), "w_v": (h_kv, d_in_v, d_v),
        "w_o": (h, d_v, d_out), "b_q": (h, d_k), "b_k": (h_kv, d_k), "b_v": (h_kv, d_v), "b_o": (d_out,),
    }  # fmt: skip
    for name, shape in wanted.items():
        if name in arrays and tuple(arrays[name].shape) != tuple(shape):
            raise Violation(
                "MHA-PROJ-2", f"{name} {tuple(arrays[name].shape)}", f"{tuple(shape)} beside w_q {tuple(projections.w_q.shape)}",
                "every head has a matrix of its own from the full width of its input",
            )  # fmt: skip


def check_projected(key: Array, value: Array, projections: Any) -> None:
    """MHA-CACHE-12: keys and values that these projections made; what else must hold of them, chapter 2 says."""
    check_library({"key": key, "value": value})
    (h_kv, _, d_k), d_v = projections.w_k.shape, projections.w_v.shape[-1]
    for name, x, wanted in (("key", key, (h_kv, d_k)), ("value", value, (h_kv, d_v))):
        if len(x.shape) < 3 or (x.shape[-3], x.shape[-1]) != wanted:
            raise Violation(
                "MHA-CACHE-12", f"{name} {tuple(x.shape)}", f"(*batch, {wanted[0]}, m, {wanted[1]}), heads that are projected already",
                "pass what project_keys_values gave, or call multi_head_attention",
            )  # fmt: skip


def check_parts(parts: Sequence[tuple[Array, Array]]) -> None:
    """MHA-AUX-12: at least one part; outputs of one shape and dtype, each with the lse that belongs to it."""
    if not isinstance(parts, Sequence) or not parts or any(not isinstance(p, tuple | list) or len(p) != 2 for p in parts):
        raise Violation("MHA-AUX-12", f"parts of type {type(parts).__name__}", "a non-empty sequence of (output, lse) pairs",
                        "write merge_partials([(part.output, part.lse) for part in results])")  # fmt: skip
    arrays = {f"{name} {i}": x for i, part in enumerate(parts) for name, x in zip(("output", "lse"), part, strict=True)}
    check_library(arrays)
    output = parts[0][0]
    kind = dtype_name(output)
    lse_kind = "float64" if kind == "float64" else "float32"
    for i, (o, lse) in enumerate(parts):
        fits = (
            kind in FLOAT_WIDTHS
            and len(o.shape) >= 1
            and tuple(o.shape) == tuple(output.shape)
            and dtype_name(o) == kind
            and tuple(lse.shape) == tuple(o.shape[:-1])
            and dtype_name(lse) == lse_kind
        )
        if not fits:
            raise Violation(
                "MHA-AUX-12", f"part {i}: output {describe(o)}, lse {describe(lse)}",
                f"output {describe(output)} with lse {lse_kind} {tuple(output.shape[:-1])}",
                "merge parts of one attention, with the lse that return_lse gave",
            )  # fmt: skip
