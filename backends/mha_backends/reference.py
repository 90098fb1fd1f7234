"""The equations as a backend, slow on purpose: any array-API library, every dtype, every option.

Whatever it is given it widens to float64, which is exact, so that the visible set is that of the arrays as they were given;
it computes there, where no product of narrower numbers overflows, and rounds on the way out (MHA-NUM-3).
"""

from dataclasses import replace
from typing import Any

import array_api_compat
import numpy as np

from mha_core import AttentionGradients, AttentionResult, Backend, Call, Claims, Cotangents, Projections, Tangents, bind
from mha_core.backend import FORWARD, STRICTEST
from mha_spec import equations, gradients
from mha_spec.call import Array, dtype_name

__all__ = [
    "attention",
    "attention_jvp",
    "attention_statistics",
    "attention_varlen",
    "attention_vjp",
    "create",
    "layer_in_a_loop",
    "merge_partials",
    "multi_head_attention",
    "multi_head_attention_over",
    "multi_head_attention_vjp",
    "project_keys_values",
]


def attend(call: Call) -> AttentionResult:
    """The equations in float64, rounded to the query's type."""
    xp = array_api_compat.array_namespace(call.query)
    with np.errstate(all="ignore"):
        output, weights, lse = equations.attention(_widened(call))
        narrow = call.query.dtype
        lse_type = xp.float64 if dtype_name(call.query) == "float64" else xp.float32
        return AttentionResult(
            xp.astype(output, narrow),
            xp.astype(weights, narrow) if call.weights else None,
            _narrowed(lse, lse_type) if call.lse else None,
        )


def attend_vjp(call: Call, cotangents: Cotangents, forward: AttentionResult | None) -> AttentionGradients:
    """The gradients in float64, each rounded to the type of its operand. The forward is computed again, whatever was kept."""
    xp = array_api_compat.array_namespace(call.query)
    with np.errstate(all="ignore"):
        arriving = Cotangents(*(x if x is None else xp.astype(x, xp.float64) for x in cotangents))
        found = gradients.attention_vjp(_widened(call), arriving)
        return AttentionGradients(
            *(None if x is None else xp.astype(x, getattr(call, name).dtype) for name, x in found._asdict().items())
        )


def attend_jvp(call: Call, tangents: Tangents) -> tuple[AttentionResult, AttentionResult]:
    """The results and how fast they move, each in float64 and rounded to its type."""
    xp = array_api_compat.array_namespace(call.query)
    with np.errstate(all="ignore"):
        moving = Tangents(*(x if x is None else xp.astype(x, xp.float64) for x in tangents))
        output, weights, lse = gradients.attention_jvp(_widened(call), moving)
        narrow, wide = call.query.dtype, xp.float64 if dtype_name(call.query) == "float64" else xp.float32
        return attend(call), AttentionResult(
            xp.astype(output, narrow),
            xp.astype(weights, narrow) if call.weights else None,
            xp.astype(lse, wide) if call.lse else None,
        )


def _widened(call: Call) -> Call:
    """The call with every floating array in float64, which is exact."""
    xp = array_api_compat.array_namespace(call.query)
    names = ("query", "key", "value", "bias", "sink_logits")
    found = {name: getattr(call, name) for name in names}
    return replace(call, **{name: xp.astype(x, xp.float64) for name, x in found.items() if x is not None})


def _narrowed(lse: Array, dtype: Any) -> Array:
    """-inf says that a row is empty (MHA-MASK-15): an lse beyond the narrower type becomes its largest number instead."""
    xp = array_api_compat.array_namespace(lse)
    return xp.astype(xp.where(xp.isinf(lse), lse, xp.clip(lse, -xp.finfo(dtype).max, xp.finfo(dtype).max)), dtype)


def linear(x: Array, w: Array, b: Array | None) -> Array:
    """(..., i), (i, o), (o,) -> (..., o): X W + b, one term at a time, in float64."""
    xp = array_api_compat.array_namespace(x, w)
    with np.errstate(all="ignore"):
        y = equations.project(*(x if x is None else xp.astype(x, xp.float64) for x in (x, w, b)))
        return xp.astype(y, x.dtype)


def layer_in_a_loop(query: Array, key: Array, value: Array, projections: Projections, **options: Any) -> Array:
    """The paper's form of 3.2.2: a loop over heads, each with its own W_i, then Concat and W^O (MHA-PROJ-5).

    Takes float32 or float64 arrays and the options of ``attention``; gives the output ``(*batch, n, d_out)``.
    """
    q = equations.project_heads(query, projections.w_q, projections.b_q)
    k = equations.project_heads(key, projections.w_k, projections.b_k)
    v = equations.project_heads(value, projections.w_v, projections.b_v)
    return equations.output_projection(attention(q, k, v, **options), projections.w_o, projections.b_o)


def to_host(array: Array) -> Any:
    """A NumPy array of the exact values; bfloat16 comes as float32."""
    if dtype_name(array) == "bfloat16":
        xp = array_api_compat.array_namespace(array)
        array = xp.astype(array, xp.float32)
    return np.asarray(array).copy()


def from_host(values: Any, dtype: str) -> Array:
    """A NumPy array of the named dtype; bfloat16 needs ml_dtypes."""
    if dtype == "bfloat16":
        from ml_dtypes import bfloat16

        return np.asarray(values).astype(bfloat16)
    return np.asarray(values).astype(dtype)


_BACKEND = Backend(
    name="reference",
    attend=attend,
    attend_vjp=attend_vjp,
    attend_jvp=attend_jvp,
    linear=linear,
    to_host=to_host,
    from_host=from_host,
    devices=lambda: ("cpu",),
    explain=lambda call: "the equations in float64",
    claims=Claims(
        arrays=None,
        dtypes=tuple(STRICTEST),
        features=FORWARD | {"dropout", "vjp", "jvp"},
        profiles=STRICTEST,
        strict=True,
        determinism="bit-exact",
        grade="RN",
    ),
)


def create() -> Backend:
    """The reference backend. It has no settings."""
    return _BACKEND


_api = bind(_BACKEND)
attention, multi_head_attention, merge_partials = _api.attention, _api.multi_head_attention, _api.merge_partials
attention_varlen, attention_statistics = _api.attention_varlen, _api.attention_statistics
project_keys_values, multi_head_attention_over = _api.project_keys_values, _api.multi_head_attention_over
attention_vjp, multi_head_attention_vjp = _api.attention_vjp, _api.multi_head_attention_vjp
attention_jvp = _api.attention_jvp
