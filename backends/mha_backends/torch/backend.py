"""The torch backend as a value: how a call is cut into blocks, and what is claimed."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mha_backends.torch import fused
from mha_backends.torch.forward import attend_block
from mha_backends.torch.precision import no_autocast
from mha_backends.torch.tangents import attend_jvp
from mha_backends.torch.visibility import Block, reach, visible
from mha_core import AttentionGradients, AttentionResult, Backend, Call, Claims, Cotangents, Violation
from mha_core.backend import FORWARD, STRICTEST

_BLOCK_SCORES = 2**22
"""Scores per block of queries: few enough to stay in a cache, many enough to keep the matrix products long."""
_LEAST_ROWS = 128


def attend(call: Call) -> AttentionResult:
    """The fused kernel where nothing can be hidden and it can answer; the formula, a block of queries at a time, elsewhere.

    The way is chosen by options, shapes, dtype and device, never by what an array holds (MHA-MASK-19).
    """
    _refuse_layouts(call)
    n, m = call.sizes.n, call.sizes.m
    with no_autocast(call.query):
        keys = reach(call, (0, n))
        if _fusable(call, keys):
            return AttentionResult(fused.attend_all(call, keys))
        parts = [
            attend_block(call, Block(rows, (0, m) if call.weights else reach(call, rows)))
            for rows in _blocks(call)
        ]  # fmt: skip
        return parts[0] if len(parts) == 1 else _concatenated(call, parts)


def attend_vjp(call: Call, cotangents: Cotangents, forward: AttentionResult | None) -> AttentionGradients:
    """The gradients of chapter 5 by torch's own autograd, through a forward of its own, whatever was kept of another.

    They are constants to autograd. Who wants to differentiate them differentiates ``attention`` itself.
    """
    given = {name: getattr(call, name) for name in AttentionGradients._fields}
    leaves = {name: x.detach().requires_grad_() for name, x in given.items() if x is not None}
    asked = replace(call, **leaves, weights=cotangents.weights is not None, lse=cotangents.lse is not None)
    with torch.enable_grad():
        results = attend(asked)
    arriving = {"output": cotangents.output, "weights": cotangents.weights, "lse": cotangents.lse}
    pairs = [(x, arriving[name]) for name, x in results._asdict().items() if x is not None]
    found = torch.autograd.grad(
        [x for x, _ in pairs], list(leaves.values()), [dx for _, dx in pairs], allow_unused=True, materialize_grads=True
    )
    return AttentionGradients(**dict(zip(leaves, found, strict=True)))


def _fusable(call: Call, keys: tuple[int, int]) -> bool:
    """Whether every query sees all these keys, and the fused kernel can answer the rest of the call."""
    return keys[0] < keys[1] and fused.takes(call) and visible(call, Block((0, call.sizes.n), keys)) is None


def explain(call: Call) -> str:
    """Which way ``attend`` takes."""
    if _fusable(call, reach(call, (0, call.sizes.n))):
        return "fused: torch's own kernel"
    blocks = _blocks(call)
    return f"formula: {len(blocks)} block{'s' if len(blocks) > 1 else ''} of {blocks[0][1]} queries"


def _blocks(call: Call) -> list[tuple[int, int]]:
    """Ranges of queries. A compiler gets one, since it would unroll the loop."""
    n = call.sizes.n
    step = n
    if not torch.compiler.is_compiling():
        rows_of_a_query = max(1, call.query.shape[:-2].numel() * call.sizes.m)
        step = max(_LEAST_ROWS, _BLOCK_SCORES // rows_of_a_query)
    return [(start, min(start + step, n)) for start in range(0, n, step)] if step < n else [(0, n)]


def _concatenated(call: Call, parts: list[AttentionResult]) -> AttentionResult:
    output, weights, lse = zip(*parts, strict=True)
    return AttentionResult(
        torch.cat(output, -2), torch.cat(weights, -2) if call.weights else None, torch.cat(lse, -1) if call.lse else None
    )


def _refuse_layouts(call: Call) -> None:
    """MHA-VAL-1: what the door cannot know of torch. Nested and sparse tensors have no strides to read."""
    given = {name: getattr(call, name) for name in Call.__slots__}
    given["keep"] = None if call.dropout is None else call.dropout.keep
    for name, x in given.items():
        if isinstance(x, Tensor) and (x.is_nested or x.layout != torch.strided):
            kind = "nested" if x.is_nested else str(x.layout)
            raise Violation(
                "MHA-VAL-1", f"{name}, a {kind} tensor", "a dense (strided) tensor",
                "pad a nested tensor and say how long each item is with key_lengths; write x.to_dense() for a sparse one",
            )  # fmt: skip


def linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x (..., i), w (i, o), b (o,) -> x w + b (..., o), accumulated in float32 or better, in x's dtype."""
    with no_autocast(x):
        return functional.linear(x, w.mT, b)


def to_host(x: Tensor) -> Any:
    """The exact values as a NumPy array; bfloat16 comes as float32."""
    x = x.detach().cpu().resolve_neg()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy().copy()


def from_host(values: Any, dtype: str) -> Tensor:
    """A tensor on the CPU, of the named dtype, from a NumPy array with any strides."""
    if values.dtype.name == "bfloat16":  # of ml_dtypes, which torch does not read
        values = values.astype("float32")
    return torch.from_numpy(values.copy(order="C")).to(getattr(torch, dtype))


def devices() -> tuple[str, ...]:
    """Where this torch can compute now. "mps" and "xpu" take the formula and were never tested."""
    others = [name for name in ("cuda", "mps", "xpu") if _present(name)]
    return ("cpu", *others)


def _present(name: str) -> bool:
    module = getattr(torch, name, None)
    return module is not None and bool(module.is_available())


_BACKEND = Backend(
    name="torch",
    attend=attend,
    attend_vjp=attend_vjp,
    attend_jvp=partial(attend_jvp, attend),
    linear=linear,
    to_host=to_host,
    from_host=from_host,
    devices=devices,
    explain=explain,
    claims=Claims(
        arrays="torch",
        dtypes=tuple(STRICTEST),
        features=FORWARD | {"dropout", "vjp", "jvp"},
        profiles=STRICTEST,
        strict=True,
        determinism="run-to-run",
    ),
)


def create() -> Backend:
    """The torch backend. It has no settings: device, dtype, grad mode and precision are torch's own."""
    return _BACKEND
