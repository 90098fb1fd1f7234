"""The gradients of attention: the layer that ``choose`` names, on the query's device, enqueued on CuPy's current stream.

As in ``forward``, the host reads no array and waits for nothing.
"""

from dataclasses import replace
from math import prod
from typing import Any

from mha_backends.cupy import fused_backward, unfused_backward
from mha_backends.cupy.choose import FusedBackward, choose, options_of
from mha_backends.cupy.devices import Cuda, require_device
from mha_backends.cupy.finish import rounded, sum_over_rows
from mha_backends.cupy.forward import attend
from mha_backends.cupy.options import one_batch_axis
from mha_backends.cupy.params import real_of
from mha_spec.call import AttentionGradients, AttentionResult, Call, Cotangents, dtype_name


def attend_vjp(
    cuda: Cuda, tf32: bool, call: Call, cotangents: Cotangents, forward: AttentionResult | None
) -> AttentionGradients:
    """The gradients of a legal call (chapter 5)."""
    require_device(cuda)
    empty: Any = cuda.cupy.empty
    batch, h, _, n, *_ = call.sizes
    real = real_of(call.query)
    options = options_of(call) | {"vjp"} | ({"grad_weights"} if cotangents.weights is not None else set())
    with call.query.device:
        layer = choose(int(call.query.device.compute_capability), dtype_name(call.query), call.sizes, options)
        if forward is None and isinstance(layer, FusedBackward):
            forward = attend(cuda, tf32, replace(call, lse=True, weights=False))
        dquery, dkey, dvalue = (empty(x.shape, dtype=x.dtype) for x in (call.query, call.key, call.value))
        dbias = None if call.bias is None else cuda.cupy.zeros(call.bias.shape, dtype=real)
        sink_terms = None if call.sink_logits is None else empty((*batch, h, n), dtype=real)
        kept = forward or AttentionResult(None)
        arrays = {
            "dquery": dquery, "dkey": dkey, "dvalue": dvalue, "dbias": dbias, "sink_terms": sink_terms,
            "output": kept.output, "lse": kept.lse, "grad_output": cotangents.output, "grad_lse": cotangents.lse,
            "grad_weights": cotangents.weights,
        }  # fmt: skip
        for part, own in one_batch_axis(call, arrays):
            b = prod(part.sizes.batch)
            if isinstance(layer, FusedBackward):
                fused_backward.attend_vjp(cuda, layer, part, own, b)
            else:
                unfused_backward.attend_vjp(cuda, tf32, part, own, b)
        dsinks = sum_over_rows(cuda, sink_terms)
        dbias, dsinks = rounded(cuda, dbias, call.bias), rounded(cuda, dsinks, call.sink_logits)
        return AttentionGradients(dquery, dkey, dvalue, dbias, dsinks)
