"""The truth of a request for gradients, and which gradients a change of hidden data may not touch."""

from typing import Any

import numpy as np

from mha_backends import reference
from mha_conformance.cases.calls import call_of, factors_of, visible_pairs, with_keep
from mha_conformance.cases.case import Request
from mha_core import Projections
from mha_spec import equations, gradients
from mha_spec.call import Cotangents
from mha_spec.numerics import profile_of
from mha_spec.numerics_backward import gradient_bound
from mha_spec.numerics_backward_layer import layer_gradient_bound


def expected_gradients(request: Request, profile: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Expected gradients and their bounds by name. Where nothing is required (MHA-GRAD-20) the expected number is NaN."""
    call = call_of(request, request.operands)
    arriving = Cotangents(*(request.arrays.get(f"grad_{name}") for name in Cotangents._fields))
    see = np.broadcast_to(equations.visible(call), (*call.query.shape[:-1], call.key.shape[-2]))
    bounds = gradient_bound(
        call.query, call.key, call.value, arriving, profile_of(profile), scale=call.scale, softcap=call.softcap, bias=call.bias,
        visible=see, sink=call.sink_logits, factors=factors_of(call),
    )  # fmt: skip
    found = gradients.attention_vjp(call, arriving)
    expected, room = {}, {}
    for name, x in found._asdict().items():
        if x is not None and (not request.gradients or name in request.gradients):
            operand = {"query": 0, "key": 1, "value": 2}.get(name)
            shape = np.shape(request.operands[operand] if operand is not None else request.arrays[name])
            B = getattr(bounds, name)
            expected[f"{name} gradient"] = np.where(np.isinf(B), np.nan, x).reshape(shape)
            room[f"{name} gradient"] = B.reshape(shape)
    return expected, room


def expected_layer_gradients(request: Request, profile: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same of a layer: its inputs, its projections, bias and sinks. The numbers are the reference's, in float64."""
    p = Projections(**request.projections)
    query, key, value = request.operands
    inputs = ((query, p.w_q, p.b_q), (key, p.w_k, p.b_k), (value, p.w_v, p.b_v))
    call = call_of(request, tuple(equations.project_heads(*each) for each in inputs))
    arriving = Cotangents(*(request.arrays.get(f"grad_{name}") for name in Cotangents._fields))
    see = np.broadcast_to(equations.visible(call), (*call.query.shape[:-1], call.key.shape[-2]))
    bounds = layer_gradient_bound(
        query, key, value, p, arriving, profile_of(profile), scale=call.scale, softcap=call.softcap, bias=call.bias, visible=see,
        sink=call.sink_logits, factors=factors_of(call),
    )  # fmt: skip
    found = reference.multi_head_attention_vjp(query, key, value, p, **with_keep({**request.arrays, **request.options}))
    flat = {**found._asdict(), **found.projections._asdict()}
    there = {name: x for name, x in flat.items() if x is not None and name != "projections"}
    room = {name: getattr(bounds, name).reshape(x.shape) for name, x in there.items()}
    return {f"{name} gradient": x for name, x in there.items()}, {f"{name} gradient": B for name, B in room.items()}


def blind_gradients(first: Request, second: Request) -> dict[str, Any]:
    """By gradient, True where what differs between the requests is hidden from it; of one axis of channels.

    A row differs in its query or in what arrives at it, a key in itself or its value.
    """
    moved = _moved(first.operands[0], second.operands[0]) | _moved(first.arrays["grad_output"], second.arrays["grad_output"])
    changed = _moved(first.operands[1], second.operands[1]) | _moved(first.operands[2], second.operands[2])
    see = visible_pairs(first)  # (*b h n m)
    group = see.shape[-3] // max(changed.shape[-2], 1)
    met = (see & np.repeat(changed, group, axis=-2)[..., None, :]).any(-1)  # rows that see a changed key: (*b h n)
    rows = moved | met
    touched = (see & rows[..., None]).any(-2)  # (*b h m)
    *b, h, m = touched.shape
    touched = touched.reshape(*b, h // group if group else h, max(group, 1), m).any(-2) | changed
    return {"query gradient": ~rows[..., None], "key gradient": ~touched[..., None], "value gradient": ~touched[..., None]}


def _moved(a: Any, b: Any) -> Any:
    """(..., r, d) -> (..., r): whether a row differs."""
    return ((a != b) & ~(np.isnan(a) & np.isnan(b))).any(-1)
