"""Attention in three steps: scores by cuBLAS, softmax by our kernel, output by cuBLAS (MHA-ATTN-9).

Scores exist for a chunk of queries at a time, so extra memory is linear in n and m.
"""

from mha_backends.cupy.cublas import multiply, ready
from mha_backends.cupy.devices import Cuda
from mha_backends.cupy.options import describe
from mha_backends.cupy.params import PARAMS, pack, pointer, reading, real_of
from mha_backends.cupy.programs import MOST_THREADS, UNFUSED, launch, threads_for
from mha_spec.call import AttentionResult, Call, dtype_name

CHUNK = 2**26
"""Scores held at once: 256 MiB in float32. A chunk has at least one query of every head of every batch item."""


def chunk_of(heads: int, n: int, m: int) -> int:
    """Queries whose scores are held at once."""
    return max(1, min(n, CHUNK // max(1, heads * m)))


def attend(cuda: Cuda, tf32: bool, call: Call, result: AttentionResult, b: int) -> None:
    """Attention whose mask and bias have one stride over the ``b`` batch items."""
    _, h, h_kv, n, m, d_k, d_v = call.sizes
    xp, group = cuda.cupy, h // h_kv
    kind, real = dtype_name(call.query), real_of(call.query)
    double = real == "float64"

    query = ready(cuda, call.query.reshape(b, h, n, d_k))
    key = ready(cuda, call.key.reshape(b, h_kv, m, d_k))
    value = call.value.reshape(b, h_kv, m, d_v)
    described = describe(call, b, result)
    fields = described.fields | reading("values", value, value.strides)

    taken, tainted = value, None
    if call.hides and value.size > 0:
        taken = xp.empty((b, h_kv, m, d_v), dtype=value.dtype)
        tainted = xp.zeros((b, h_kv, m), dtype="uint8")
        fields |= {"clean": pointer(taken), "tainted": pointer(tainted)}
        launch(cuda, UNFUSED, "clean_values", -(-value.size // MOST_THREADS), MOST_THREADS, pack(PARAMS, **fields))
    taken = ready(cuda, taken)

    chunk = chunk_of(b * h, n, m)
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
        launch(cuda, UNFUSED, "softmax_rows_double" if double else "softmax_rows_float", size, threads_for(m), params)
        if m > 0:
            multiply(cuda, tf32, probabilities, values, acc[: size * d_v].reshape(*grouped, rows, d_v))
        if d_v > 0:
            launch(cuda, UNFUSED, "finish_rows_double" if double else "finish_rows_float", size, threads_for(d_v), params)
