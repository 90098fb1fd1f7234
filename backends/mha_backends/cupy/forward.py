"""Attention in three steps: scores by cuBLAS, softmax by our kernel, output by cuBLAS (MHA-ATTN-9).

Scores exist for a chunk of queries at a time, so extra memory is linear in n and m. Which kernels run is decided by
shapes and by which options are given, never by what an array holds: the host reads no array and waits for nothing.
"""

from math import prod
from typing import Any

import numpy as np

from mha_backends.cupy.cublas import multiply, ready, real_of
from mha_backends.cupy.devices import Cuda, require_device
from mha_backends.cupy.options import describe, one_batch_axis
from mha_backends.cupy.softmax import EXPONENT, FLOATS, MOST_THREADS, PARAMS, pack, pointer, reading, threads_for
from mha_spec.call import AttentionResult, Call, dtype_name

CHUNK = 2**26
"""Scores held at once: 256 MiB in float32. A chunk has at least one query of every head of every batch item."""


def attend(cuda: Cuda, tf32: bool, call: Call) -> AttentionResult:
    """The arrays that a legal call asks for, on the query's device, enqueued on CuPy's current stream."""
    require_device(cuda)
    batch, h, _, n, m, _, d_v = call.sizes
    empty = cuda.cupy.empty
    with call.query.device:
        output = empty((*batch, h, n, d_v), dtype=call.query.dtype)
        weights = empty((*batch, h, n, m), dtype=call.query.dtype) if call.weights else None
        lse = empty((*batch, h, n), dtype=real_of(call.query)) if call.lse else None
        if prod(batch) * h * n > 0:
            for part in one_batch_axis(call, AttentionResult(output, weights, lse)):
                _attend(cuda, tf32, *part)
    return AttentionResult(output, weights, lse)


def explain(call: Call) -> str:
    """There is one way: unfused, a chunk of queries at a time."""
    batch, h, _, n, m, *_ = call.sizes
    return f"unfused: cuBLAS and softmax_rows, chunks of {_chunk(prod(batch) * h, n, m)} queries"


def _chunk(heads: int, n: int, m: int) -> int:
    """Queries whose scores are held at once."""
    return max(1, min(n, CHUNK // max(1, heads * m)))


def _attend(cuda: Cuda, tf32: bool, call: Call, result: AttentionResult) -> None:
    """Attention whose batch axes are walked by one stride in every array that is not copied."""
    batch, h, h_kv, n, m, d_k, d_v = call.sizes
    xp, b, group = cuda.cupy, prod(batch), h // h_kv
    kind, real = dtype_name(call.query), real_of(call.query)
    double = real == "float64"

    query = ready(cuda, call.query.reshape(b, h, n, d_k))
    key = ready(cuda, call.key.reshape(b, h_kv, m, d_k))
    value = call.value.reshape(b, h_kv, m, d_v)
    described = describe(call, b)
    fields: dict[str, Any] = described.fields | reading("values", value, value.strides)
    fields |= {
        "element": FLOATS[kind], "exponent": EXPONENT[kind],
        "batch": b, "heads": h, "kv_heads": h_kv, "n": n, "m": m, "d_v": d_v,
        "scale": _within(call.scale, real),
        "softcap": 0.0 if call.softcap is None else _within(call.softcap, real, positive=True),
        "weights": pointer(result.weights), "lse": pointer(result.lse), "output": pointer(result.output),
    }  # fmt: skip

    taken, tainted = value, None
    if call.hides and value.size > 0:
        taken = xp.empty((b, h_kv, m, d_v), dtype=value.dtype)
        tainted = xp.zeros((b, h_kv, m), dtype="uint8")
        fields |= {"clean": pointer(taken), "tainted": pointer(tainted)}
        cuda.launch("clean_values", -(-value.size // MOST_THREADS), MOST_THREADS, pack(PARAMS, **fields))
    taken = ready(cuda, taken)

    chunk = _chunk(b * h, n, m)
    scores = xp.empty(b * h * chunk * m, dtype=real)
    shares = xp.empty(b * h * chunk * m, dtype=query.dtype) if kind != real else None
    acc = xp.empty(b * h * chunk * d_v, dtype=real)
    divisors = xp.empty(b * h * chunk, dtype=real)
    notes = xp.empty(b * h * chunk, dtype="int32")
    fields |= {
        "scores": pointer(scores), "shares": pointer(shares), "acc": pointer(acc),
        "divisors": pointer(divisors), "notes": pointer(notes),
    }  # fmt: skip

    # query head i reads key head i // group (MHA-HEAD-2): the head axis becomes (h_kv, group), of stride 0 in key and value
    grouped = (b, h_kv, group)
    queries = query.reshape(*grouped, n, d_k)
    keys = xp.broadcast_to(key[:, :, None], (*grouped, m, d_k)).swapaxes(-1, -2)  # (b, h_kv, group, d_k, m)
    values = xp.broadcast_to(taken[:, :, None], (*grouped, m, d_v))
    for first in range(0, n, chunk):
        rows = min(chunk, n - first)
        size = b * h * rows
        products = scores[: size * m].reshape(*grouped, rows, m)
        probabilities = products if shares is None else shares[: size * m].reshape(*grouped, rows, m)
        params = pack(PARAMS, **fields, first=first, rows=rows)

        multiply(cuda, tf32, queries[..., first : first + rows, :], keys, products)
        cuda.launch("softmax_rows_double" if double else "softmax_rows_float", size, threads_for(m), params)
        if m > 0:
            multiply(cuda, tf32, probabilities, values, acc[: size * d_v].reshape(*grouped, rows, d_v))
        if d_v > 0:
            cuda.launch("finish_rows_double" if double else "finish_rows_float", size, threads_for(d_v), params)


def _within(x: float, real: str, *, positive: bool = False) -> float:
    """A Python number brought into the range of ``real``: an infinity or a cap of 0 would change what is asked."""
    limits = np.finfo(real)
    least = float(limits.smallest_normal) if positive else -float(limits.max)
    return max(least, min(x, float(limits.max)))
