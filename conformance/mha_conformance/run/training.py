"""Asks an implementation for gradients, and brings them to the host."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mha_conformance.judge.reply import Reply
from mha_conformance.run.facts import Witness
from mha_conformance.run.implementation import OPERANDS
from mha_conformance.run.unpacked import unpacked
from mha_spec.call import AttentionGradients


def call_vjp(
    vjp: Callable[..., Any], attention: Callable[..., Any] | None, operands: list[Any], options: dict[str, Any]
) -> Any:
    """The gradients; with ``attention`` they are given output and lse of a forward call of it."""
    arriving = {name: x for name, x in options.items() if name.startswith("grad_") and name != "grad_output"}
    rest = {name: x for name, x in options.items() if not name.startswith("grad_")}
    if attention is not None:
        output, _, lse = unpacked(attention(*operands, return_lse=True, **rest))
        arriving |= {"output": output, "lse": lse}
    return vjp(*operands, options["grad_output"], **arriving, **rest)


def gradient_reply(host: Callable[[Any], Any], witness: Witness | None, result: Any, turned: bool = False) -> Reply:
    """Each gradient by the name of its operand, and what it is beside its numbers. Raises whatever a strange object raises.

    A function of strangers may give a plain tuple, in the order of MHA-GRAD-1. With ``turned`` the heads of query, key and value
    stand inside the positions.
    """
    if type(result) is tuple:
        result = AttentionGradients(*result)
    found = {name: getattr(result, name, None) for name in AttentionGradients._fields}
    if hasattr(result, "projections"):
        found |= result.projections._asdict()
    facts = {} if witness is None else witness.of_gradients(found)
    hosted = {name: host(x) for name, x in found.items() if x is not None}
    if turned:
        hosted |= {name: np.swapaxes(hosted[name], -2, -3) for name in OPERANDS if name in hosted and hosted[name].ndim >= 3}
    return Reply("ok", gradients={f"{name} gradient": x for name, x in hosted.items()}, facts=facts)
