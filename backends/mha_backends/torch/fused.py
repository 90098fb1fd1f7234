"""torch's fused kernel for the call in which no key can be hidden, made differentiable to any order.

The kernel is fast and its memory is linear in the sequence, but it has no second derivative and no forward mode, lets a NaN
of a hidden key through (so it is used where nothing is hidden), and takes a row whose scores overflow for an empty one. Here:
gradients come from the fused backward, and from the formula where a derivative of them may be asked for; on the CPU
the kernel's own normaliser tells which rows overflowed, and those rows are taken from the formula (MHA-MASK-6). What a row
gets depends on that row alone: the one branch below only skips a replacement that no row needs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mha_backends.torch.precision import COMPUTE, no_autocast
from mha_spec.call import Call

_HALVES = (torch.float16, torch.bfloat16)
_CPU_FORWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_CPU_BACKWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def takes(call: Call) -> bool:
    """Whether the kernel can answer a call that hides nothing: by options, shapes, dtype and device.

    Elsewhere than on the CPU there is no normaliser to look at without waiting for the device, so only halves go there:
    a float16 score cannot overflow float32, a bfloat16 score beyond 3.4e38 is the one thing that comes out wrong.
    """
    sizes = call.sizes
    if call.weights or call.lse or not (call.softcap is None and call.sink_logits is None and call.dropout is None):
        return False
    if sizes.d_k != sizes.d_v or 0 in (*call.query.shape, *call.key.shape):
        return False
    if call.scale != 0 and not 2.0**-60 <= abs(call.scale) <= 2.0**60:
        return False
    if call.query.device.type == "cuda" or torch.compiler.is_compiling():
        return call.query.dtype in _HALVES and call.query.device.type in ("cpu", "cuda")
    ours = (Tensor, torch.nn.Parameter)  # a subclass (fake, functional, ...) may have no values to look at
    return (
        call.query.device.type == "cpu"
        and _CPU_FORWARD is not None
        and all(type(x) in ours for x in (call.query, call.key, call.value))
    )


def attend_all(call: Call, keys: tuple[int, int]) -> Tensor:
    """softmax(scale Q K^T) V over a range of keys that every query sees: (*b, h, n, d)."""
    *batch, h, n, d = call.query.shape
    h_kv = call.sizes.h_kv
    query = call.query.reshape(*batch, h_kv, h // h_kv * n, d)  # a group of heads is one head of g*n queries
    key, value = call.key[..., slice(*keys), :], call.value[..., slice(*keys), :]
    if torch.compiler.is_compiling():
        output = _kernel(query, key, value, call.scale)
    elif torch.is_inference_mode_enabled() and not torch._C._are_functorch_transforms_active():
        output, _ = _Fused.forward(query, key, value, call.scale)  # nobody can ask for a derivative, and apply() costs 50 µs
    else:
        output, _ = _Fused.apply(query, key, value, call.scale)  # type: ignore[no-untyped-call]
    return output.reshape(*batch, h, n, d)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Output, and the logarithm of each row's normaliser (empty where the device is not asked for it)."""
        if query.device.type != "cpu":
            return _kernel(query, key, value, scale), query.new_empty(0)
        output, lse = _CPU_FORWARD(_four(query), _four(key), _four(value), scale=scale)
        output, lse = output.reshape(query.shape), lse.reshape(query.shape[:-1])
        sound = _sound(lse)
        if not bool(sound.all()):
            output = torch.where(sound.unsqueeze(-1), output, _formula(query, key, value, scale))
        return output, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        query, key, value, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(query, key, value, *output)
        ctx.save_for_forward(query, key, value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        query, key, value, output, lse = ctx.saved_tensors
        with no_autocast(query):
            if torch.is_grad_enabled():  # create_graph=True, torch.func: these gradients are differentiated in turn
                return *_formula_vjp(query, key, value, grad, ctx.scale), None
            if query.device.type != "cpu":
                return *_kernel_vjp(query, key, value, grad, ctx.scale), None
            if not bool(_sound(lse).all()):
                return *_formula_vjp(query, key, value, grad, ctx.scale), None
            four = [_four(x) for x in (grad, query, key, value, output, lse.unsqueeze(-1))]
            grads = _CPU_BACKWARD(*four[:5], four[5].squeeze(-1), 0.0, False, scale=ctx.scale)
            return *(g.reshape(x.shape) for g, x in zip(grads, (query, key, value), strict=True)), None

    @staticmethod
    def jvp(ctx: Any, dquery: Tensor, dkey: Tensor, dvalue: Tensor, _: None) -> Any:
        query, key, value = ctx.saved_tensors[:3]
        with no_autocast(query):
            return _formula_jvp((query, key, value), (dquery, dkey, dvalue), ctx.scale), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Any:
        """One more batch axis."""
        lifted = (
            x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)
            for x, axis in zip((query, key, value), in_dims, strict=False)
        )
        return _Fused.apply(*lifted, scale), (0, 0)  # type: ignore[no-untyped-call]


def _sound(lse: Tensor) -> Tensor:
    """Rows that the CPU kernel surely got right. It calls a row of -inf, or of fewer than 16 NaN, empty: output 0, lse 0."""
    return lse.isfinite() & (lse != 0)


def _kernel(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    four = scaled_dot_product_attention(_four(query), _four(key), _four(value), scale=scale)
    return four.reshape(query.shape)


def _kernel_vjp(query: Tensor, key: Tensor, value: Tensor, grad: Tensor, scale: float) -> tuple[Tensor, ...]:
    """The kernel's own gradients, through a second forward: public functions alone, memory linear in the sequence."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (query, key, value)]
        return torch.autograd.grad(_kernel(leaves[0], leaves[1], leaves[2], scale), leaves, grad)


def _weights(query: Tensor, key: Tensor, scale: float) -> Tensor:
    limits = torch.finfo(query.dtype)
    return torch.softmax(((query * scale) @ key.mT).clamp(limits.min, limits.max), -1)


def _formula(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    wide = COMPUTE[query.dtype]
    return (_weights(query.to(wide), key.to(wide), scale) @ value.to(wide)).to(query.dtype)


def _formula_vjp(query: Tensor, key: Tensor, value: Tensor, grad: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """dV = A^T dO,  dS = A * (dO V^T - rowsum),  dQ = scale dS K,  dK = scale dS^T Q."""
    kind, wide = query.dtype, COMPUTE[query.dtype]
    query, key, value, grad = (x.to(wide) for x in (query, key, value, grad))
    weights = _weights(query, key, scale)
    dscores = _softmax_derivative(weights, grad @ value.mT) * scale
    return (dscores @ key).to(kind), (dscores.mT @ query).to(kind), (weights.mT @ grad).to(kind)


def _formula_jvp(operands: tuple[Tensor, ...], tangents: tuple[Tensor, ...], scale: float) -> Tensor:
    kind, wide = operands[0].dtype, COMPUTE[operands[0].dtype]
    query, key, value = (x.to(wide) for x in operands)
    dquery, dkey, dvalue = (x.to(wide) for x in tangents)
    weights = _weights(query, key, scale)
    dweights = _softmax_derivative(weights, (dquery @ key.mT + query @ dkey.mT) * scale)
    return (dweights @ value + weights @ dvalue).to(kind)


def _softmax_derivative(weights: Tensor, x: Tensor) -> Tensor:
    """The Jacobian of a softmax is symmetric: one product serves both directions."""
    return weights * (x - (weights * x).sum(-1, keepdim=True))


def _four(x: Tensor) -> Tensor:
    """(*b, h, n, d) -> (b, h, n, d) with channels side by side, as the kernels want it."""
    x = x.reshape(-1, *x.shape[-3:])
    return x if x.stride(-1) == 1 else x.contiguous()
