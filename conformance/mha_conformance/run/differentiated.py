"""Gradients of a callable by the automatic differentiation of the library whose arrays it takes.

What is judged is then the derivative that somebody gets who trains with it: of the callable's own code, or of the rule that
its authors have registered for it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from mha_conformance.run.unpacked import unpacked
from mha_core import AttentionGradients

RESULTS = ("output", "weights", "lse")


def differentiated(attention: Callable[..., Any], library: str) -> Callable[..., AttentionGradients]:
    """A function that is called as ``attention_vjp`` is (MHA-GRAD-1). Output and lse of an earlier forward are of no use to it."""
    if library not in BACKWARDS:
        raise ValueError(
            f"differentiable is for arrays of {' and '.join(BACKWARDS)}; given {library}. Name a function for its gradients: "
            'vjp = "module:function"'
        )
    backwards = BACKWARDS[library]

    def vjp(
        query: Any, key: Any, value: Any, grad_output: Any, *, grad_lse: Any = None, grad_weights: Any = None, output: Any = None,
        lse: Any = None, **options: Any,
    ) -> AttentionGradients:  # fmt: skip
        operands = {"query": query, "key": key, "value": value}
        operands |= {name: options.pop(name) for name in ("bias", "sink_logits") if options.get(name) is not None}
        arriving = {"output": grad_output, "weights": grad_weights, "lse": grad_lse}
        arriving = {name: x for name, x in arriving.items() if x is not None}
        asked = {f"return_{name}": True for name in arriving if name != "output"}

        def results(operands: Mapping[str, Any]) -> dict[str, Any]:
            first = (operands[name] for name in ("query", "key", "value"))
            rest = {name: x for name, x in operands.items() if name in ("bias", "sink_logits")}
            found = dict(zip(RESULTS, unpacked(attention(*first, **rest, **asked, **options)), strict=True))
            return {name: found[name] for name in arriving}

        return AttentionGradients(**backwards(results, operands, arriving))

    return vjp


def _torch(results: Callable[..., dict[str, Any]], operands: dict[str, Any], arriving: dict[str, Any]) -> dict[str, Any]:
    import torch

    leaves = {name: x.detach().requires_grad_() for name, x in operands.items()}
    with torch.enable_grad():
        found = results(leaves)
    names = list(arriving)
    grads = torch.autograd.grad(
        [found[name] for name in names], list(leaves.values()), [arriving[name] for name in names], allow_unused=True,
        materialize_grads=True,
    )  # fmt: skip
    return dict(zip(leaves, grads, strict=True))


def _jax(results: Callable[..., dict[str, Any]], operands: dict[str, Any], arriving: dict[str, Any]) -> dict[str, Any]:
    import jax

    _, pull = jax.vjp(results, operands)
    return dict(pull(arriving)[0])


BACKWARDS: Mapping[str, Callable[..., dict[str, Any]]] = {"torch": _torch, "jax": _jax}
