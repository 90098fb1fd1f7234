"""Asks an implementation for gradients, and brings them to the host."""

from collections.abc import Callable
from typing import Any

from mha_conformance.run.reply import Reply
from mha_spec.call import AttentionGradients, dtype_name
from mha_spec.contract import library_of


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


def gradient_reply(host: Callable[[Any], Any], given: dict[str, Any], before: dict[str, bytes], result: Any) -> Reply:
    """Each gradient by the name of its operand, and what it is beside its numbers. Raises whatever a strange object raises."""
    found = {name: getattr(result, name, None) for name in AttentionGradients._fields}
    if hasattr(result, "projections"):
        found |= result.projections._asdict()
    there = {name: x for name, x in found.items() if x is not None}
    facts = {
        "dtypes": {name: (dtype_name(x), dtype_name(given[name])) for name, x in there.items()},
        "libraries": {name: (library_of(x), library_of(given[name])) for name, x in there.items()},
        "devices": {
            name: (str(getattr(x, "device", None)), str(getattr(given[name], "device", None))) for name, x in there.items()
        },
        "absent": sorted(name for name in found if (name in given) != (name in there)),
        "modified": sorted(name for name, x in given.items() if host(x).tobytes() != before[name]),
    }
    return Reply("ok", gradients={f"{name} gradient": host(x) for name, x in there.items()}, facts=facts)
