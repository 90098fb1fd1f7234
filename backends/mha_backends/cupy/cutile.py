"""The host side of ``cutile_kernels``: arrays of four axes, launches on CuPy's current stream.

Opt-in, because they have not been measured on a GPU. cuda-tile compiles a kernel when it is first launched, and keeps it.
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import cuda.tile as ct

from mha_backends.cupy import cutile_kernels
from mha_backends.cupy.cutile_choice import HINTS, Tiled, chosen
from mha_backends.cupy.devices import Cuda, require_device
from mha_spec.call import Array, AttentionGradients, AttentionResult, Call, Cotangents


def attend(cuda: Cuda, others: Callable[[Call], AttentionResult], call: Call) -> AttentionResult:
    """The arrays that a legal call asks for; a call that is not for these kernels goes to the ``others``."""
    require_device(cuda)
    tiled = chosen(call)
    if isinstance(tiled, str):
        return others(call)
    with call.query.device:
        output, lse = _forward(cuda, tiled, call)
    return AttentionResult(output, None, lse if call.lse else None)


def attend_vjp(
    cuda: Cuda, others: Callable[..., AttentionGradients], call: Call, cotangents: Cotangents, forward: AttentionResult | None
) -> AttentionGradients:
    """The gradients of chapter 5; a call that is not for these kernels goes to the ``others``."""
    require_device(cuda)
    tiled = chosen(call)
    if isinstance(tiled, str):
        return others(call, cotangents, forward)
    with call.query.device:
        output, lse = (forward.output, forward.lse) if forward is not None else _forward(cuda, tiled, call)
        return _backward(cuda, tiled, call, cotangents, output, lse)


def _forward(cuda: Cuda, tiled: Tiled, call: Call) -> tuple[Array, Array]:
    """output (*batch, h, n, d_v) and lse (*batch, h, n)."""
    batch, h, h_kv, n, m, _, d_v = call.sizes
    b, (t_q, t_k) = prod(batch), tiled.tiles["forward"]
    output = cuda.cupy.empty((b, h, n, d_v), dtype=call.query.dtype)
    lse = cuda.cupy.empty((b, h, n), dtype="float32")
    # P is kept times 2^-spread: bfloat16 holds values up to float32's largest, and a sum of P V may then not leave float32
    spread = float((m - 1).bit_length()) if tiled.element == "bfloat16" else 0.0
    tiles = -(-n // t_q)
    _launch(
        cuda, "forward", tiles * b * h, *_operands(cuda, call), output, lse, call.scale * cutile_kernels.LOG2_E, spread,
        _offset(tiled, call), tiles, h, h // h_kv, t_q, t_k, tiled.width, tiled.width, tiled.bounded,
    )  # fmt: skip
    return output.reshape(*batch, h, n, d_v), lse.reshape(*batch, h, n)


def _backward(
    cuda: Cuda, tiled: Tiled, call: Call, cotangents: Cotangents, output: Array, lse: Array | None
) -> AttentionGradients:
    batch, h, h_kv, n, m, *_ = call.sizes
    b, empty = prod(batch), cuda.cupy.empty
    delta = empty((b, h, n), dtype="float32")
    grads = [empty((b, *x.shape[-3:]), dtype=x.dtype) for x in (call.query, call.key, call.value)]
    arrives, lse = _readable(cuda, cotangents.output, b, 3), _readable(cuda, lse, b, 2)

    t_q, _ = tiled.tiles["deltas"]
    tiles, of_lse = -(-n // t_q), cotangents.lse is not None
    d_lse = _readable(cuda, cotangents.lse, b, 2) if of_lse else delta  # one that is not read
    output = _readable(cuda, output, b, 3)
    _launch(cuda, "deltas", tiles * b * h, output, arrives, d_lse, delta, tiles, h, t_q, tiled.width, of_lse)

    given = (*_operands(cuda, call), arrives, lse, delta)
    t_q, t_k = tiled.tiles["keys"]
    tiles = -(-m // t_k)
    sizes = (call.scale, _offset(tiled, call), tiles, h_kv, h // h_kv)
    _launch(cuda, "keys", tiles * b * h_kv, *given, *grads[1:], *sizes, t_q, t_k, tiled.width, tiled.width)

    t_q, t_k = tiled.tiles["queries"]
    tiles = -(-n // t_q)
    sizes = (call.scale, _offset(tiled, call), tiles, h, h // h_kv)
    _launch(cuda, "queries", tiles * b * h, *given, grads[0], *sizes, t_q, t_k, tiled.width, tiled.width)
    query, key, value = (x.reshape(like.shape) for x, like in zip(grads, (call.query, call.key, call.value), strict=True))
    return AttentionGradients(query, key, value)


def _operands(cuda: Cuda, call: Call) -> tuple[Array, ...]:
    return tuple(_readable(cuda, x, prod(call.sizes.batch), 3) for x in (call.query, call.key, call.value))


def _readable(cuda: Cuda, x: Array, b: int, axes: int) -> Array:
    """x as (b, its last ``axes``); a copy where it cannot be, or where cuda-tile could not read it: strides that go backwards."""
    x = x.reshape(b, *x.shape[-axes:])
    return cuda.cupy.ascontiguousarray(x) if any(s < 0 or s % x.dtype.itemsize for s in x.strides) else x


def _offset(tiled: Tiled, call: Call) -> int:
    """Clipped to where it still matters, which fits 32 bits; where no key is hidden, one with which every query sees them all."""
    _, _, _, n, m, _, _ = call.sizes
    return max(-n, min(call.query_offset, m)) if tiled.causal and isinstance(call.query_offset, int) else m


def _launch(cuda: Cuda, name: str, blocks: int, *arguments: Any) -> None:
    ct.launch(cuda.cupy.cuda.get_current_stream().ptr, (blocks, 1, 1), _kernel(name), arguments)


@lru_cache
def _kernel(name: str) -> Any:
    return ct.kernel(getattr(cutile_kernels, name), **({} if name == "deltas" else HINTS))
