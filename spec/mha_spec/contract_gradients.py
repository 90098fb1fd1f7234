"""Chapter 5 at the door: what arrives from behind fits the results of the call (MHA-GRAD-2, MHA-GRAD-3, MHA-GRAD-21)."""

from typing import Any

from mha_spec.call import Array, AttentionResult, Call, Cotangents, Tangents, dtype_name
from mha_spec.contract import check_library
from mha_spec.violation import Violation, describe


def checked_cotangents(call: Call, output: Array, lse: Array | None, weights: Array | None, library: str | None) -> Cotangents:
    """MHA-GRAD-2: each gradient has the shape and dtype of the result that it belongs to. Raises ``Violation``."""
    given = {"grad_output": output, "grad_lse": lse, "grad_weights": weights}
    _check_fit(
        "MHA-GRAD-2", call, given, library, "give the gradient of the loss with respect to that result, element by element"
    )
    return Cotangents(output, lse, weights)


def checked_forward(call: Call, output: Array | None, lse: Array | None, library: str | None) -> AttentionResult | None:
    """MHA-GRAD-3: output and lse of the forward call, both or neither. Raises ``Violation``."""
    if output is None and lse is None:
        return None
    if output is None or lse is None:
        missing = "output" if output is None else "lse"
        raise Violation(
            "MHA-GRAD-3", f"{'lse' if output is None else 'output'} without {missing}", "output and lse, both or neither",
            "pass both as attention gave them with return_lse=True, or neither, and the forward is run again",
        )  # fmt: skip
    given = {"output": output, "lse": lse}
    _check_fit("MHA-GRAD-3", call, given, library, "pass output and lse as attention gave them for this very call")
    return AttentionResult(output, None, lse)


def checked_tangents(call: Call, tangents: Any, library: str | None) -> Tangents:
    """MHA-GRAD-21: a ``Tangents``, each in the shape and dtype of its operand, none for what the call was not given.

    Raises ``Violation``. That of a bias of rank 2 gets the rank of the scores, as the bias does.
    """
    do = "give the direction of each operand, element by element, or None where it stays as it is"
    if getattr(tangents, "_fields", None) != Tangents._fields:
        raise Violation(
            "MHA-GRAD-21", f"tangents of type {type(tangents).__name__}", "Tangents(query, key, value, bias, sink_logits)", do
        )
    given = {name: x for name, x in tangents._asdict().items() if x is not None}
    check_library({"query": call.query, **given}, library)
    found = dict(given)
    for name, x in given.items():
        operand = getattr(call, name)
        if operand is not None and name == "bias" and len(x.shape) == 2:
            found[name] = x = x[(None,) * (len(operand.shape) - 2) + (...,)]
        if operand is None or tuple(x.shape) != tuple(operand.shape) or dtype_name(x) != dtype_name(operand):
            wanted = "None, as the call has no such operand" if operand is None else describe(operand)
            raise Violation("MHA-GRAD-21", f"a tangent of {name}, {describe(x)}", wanted, do)
    return Tangents(**found)


def check_layer_cotangent(query: Array, projections: Any, grad_output: Array, library: str | None) -> None:
    """MHA-GRAD-2 for the layer: ``(*batch, n, d_out)`` in the query's dtype. Raises ``Violation``."""
    check_library({"query": query, "grad_output": grad_output}, library)
    shape, kind = (*query.shape[:-1], projections.w_o.shape[-1]), dtype_name(query)
    if tuple(grad_output.shape) != shape or dtype_name(grad_output) != kind:
        raise Violation(
            "MHA-GRAD-2", f"grad_output {describe(grad_output)}", f"{kind} {shape}",
            "give the gradient of the loss with respect to the layer's output, element by element",
        )  # fmt: skip


def _check_fit(clause: str, call: Call, given: dict[str, Any], library: str | None, do: str) -> None:
    sizes, kind = call.sizes, dtype_name(call.query)
    rows = (*sizes.batch, sizes.h, sizes.n)
    wide = "float64" if kind == "float64" else "float32"
    wanted = {"output": ((*rows, sizes.d_v), kind), "lse": (rows, wide), "weights": ((*rows, sizes.m), kind)}
    arrays = {name: x for name, x in given.items() if x is not None or name == "grad_output"}
    check_library({"query": call.query, **arrays}, library)
    for name, x in arrays.items():
        shape, dtype = wanted[name.removeprefix("grad_")]
        if tuple(x.shape) != shape or dtype_name(x) != dtype:
            raise Violation(clause, f"{name} {describe(x)}", f"{dtype} {shape}", do)
