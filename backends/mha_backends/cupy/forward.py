"""Attention: the layer that ``choose`` names, on the query's device, enqueued on CuPy's current stream.

The host reads no array and waits for nothing. A launch that fails raises: no other layer is tried in its place.
"""

from math import prod
from typing import Any

from mha_backends.cupy import fused, unfused
from mha_backends.cupy.choose import Fused, Layer, choose, options_of
from mha_backends.cupy.devices import Cuda, require_device
from mha_backends.cupy.options import one_batch_axis
from mha_backends.cupy.params import real_of
from mha_spec.call import AttentionResult, Call, dtype_name


def attend(cuda: Cuda, tf32: bool, call: Call) -> AttentionResult:
    """The arrays that a legal call asks for."""
    require_device(cuda)
    batch, h, _, n, m, _, d_v = call.sizes
    empty: Any = cuda.cupy.empty
    with call.query.device:
        output = empty((*batch, h, n, d_v), dtype=call.query.dtype)
        weights = empty((*batch, h, n, m), dtype=call.query.dtype) if call.weights else None
        lse = empty((*batch, h, n), dtype=real_of(call.query)) if call.lse else None
        result = AttentionResult(output, weights, lse)
        if prod(batch) * h * n > 0:
            layer = _layer(call)
            for part, arrays in one_batch_axis(call, result._asdict()):
                b, into = prod(part.sizes.batch), AttentionResult(**arrays)
                if isinstance(layer, Fused):
                    fused.attend(cuda, layer, part, into, b)
                else:
                    unfused.attend(cuda, tf32, part, into, b)
    return result


def explain(call: Call) -> str:
    """Which kernel ``attend`` runs, and where it is not the fused one, why not."""
    layer = _layer(call)
    if isinstance(layer, Fused):
        return str(layer)
    batch, h, _, n, m, *_ = call.sizes
    return f"{layer}, chunks of {unfused.chunk_of(prod(batch) * h, n, m)} queries"


def _layer(call: Call) -> Layer:
    return choose(int(call.query.device.compute_capability), dtype_name(call.query), call.sizes, options_of(call))
