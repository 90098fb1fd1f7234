"""Asks an implementation for gradients, and brings them to the host."""

from collections.abc import Callable
from typing import Any

from mha_conformance.judge.reply import Reply
from mha_conformance.run.facts import Witness
from mha_spec.call import AttentionGradients


def call_vjp(
    vjp: Callable[..., Any], attention: Callable[..., Any] | None, operands: list[Any], options: dict[str, Any]
) -> Any:
    """The gradients; with ``attention`` they are given output and lse of a forward call of it."""
    arriving = {name: x for name, x in options.items() if name.startswith("grad_") and name != "grad_output"}
    rest = {name: x for name, x in options.items() if not name.startswith("grad_")}
    if attention is not None:
        kept = attention(*operands, return_lse=True, **rest)
        arriving |= {"output": kept.output, "lse": kept.lse}
    return vjp(*operands, options["grad_output"], **arriving, **rest)


def gradient_reply(host: Callable[[Any], Any], witness: Witness | None, result: Any) -> Reply:
    """Each gradient by the name of its operand, and what it is beside its numbers. Raises whatever a strange object raises."""
    found = {name: getattr(result, name, None) for name in AttentionGradients._fields}
    if hasattr(result, "projections"):
        found |= result.projections._asdict()
    facts = {} if witness is None else witness.of_gradients(found)
    return Reply("ok", gradients={f"{name} gradient": host(x) for name, x in found.items() if x is not None}, facts=facts)
