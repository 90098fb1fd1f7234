"""The gradients by matrix products of cuBLAS with our kernels between them (MHA-GRAD-4 to MHA-GRAD-8), in chunks of queries.

The weights are computed again by the forward's own steps, and D from them, so that nothing of the forward need be kept.
"""

from typing import Any

from mha_backends.cupy.cublas import multiply, ready
from mha_backends.cupy.devices import Cuda
from mha_backends.cupy.finish import finish, of_type
from mha_backends.cupy.options import describe, score_strides
from mha_backends.cupy.params import PARAMS, pack, pointer, reading, real_of
from mha_backends.cupy.programs import MOST_THREADS, UNFUSED, launch, threads_for
from mha_backends.cupy.unfused import chunk_of
from mha_spec.call import Array, AttentionResult, Call, dtype_name


def attend_vjp(cuda: Cuda, tf32: bool, call: Call, arrays: dict[str, Any], b: int) -> None:
    """The gradients of a call of ``b`` batch items, into ``arrays``, which also hold what arrives."""
    _, h, h_kv, n, m, d_k, d_v = call.sizes
    xp, group, real = cuda.cupy, h // max(h_kv, 1), real_of(call.query)
    query, key = ready(cuda, call.query.reshape(b, h, n, d_k)), ready(cuda, call.key.reshape(b, h_kv, m, d_k))
    value, grad = ready(cuda, call.value.reshape(b, h_kv, m, d_v)), ready(cuda, arrays["grad_output"].reshape(b, h, n, d_v))
    lse = xp.empty((b, h, n), dtype=real)
    described = describe(call, b, AttentionResult(None, None, lse))
    fields = described.fields | reading("grads", grad, grad.strides) | {"sink_terms": pointer(arrays["sink_terms"])}
    if arrays["grad_lse"] is not None:
        grad_lse = arrays["grad_lse"].reshape(b, h, n)
        fields |= reading("grad_lses", grad_lse, grad_lse.strides)
    for name in ("grad_weights", "dbias"):
        if arrays[name] is not None:
            strides = score_strides(arrays[name], call)
            assert strides is not None, "one_batch_axis gives calls whose arrays of scores have one batch stride"
            fields |= reading(name, arrays[name], strides)

    # the factors of sums over pairs are finite where an option may hide a pair, and of the type of the sums
    tainted = xp.zeros((b, h, n), dtype="uint8") if call.hides else None
    finite_query, finite_key = (_finite(cuda, call, x, fields) for x in (query, key))
    finite_grad = _finite(cuda, call, grad, fields, tainted)

    chunk = chunk_of(b * h, n, m)
    buffers = {name: xp.empty(b * h * chunk * m, dtype=real) for name in ("scores", "dscores")}
    if call.softcap is not None:
        buffers["products"] = xp.empty(b * h * chunk * m, dtype=real)
    dquery = xp.empty(b * h * chunk * d_k, dtype=real)
    dkey, dvalue = (xp.zeros((b, h_kv, m, d), dtype=real) for d in (d_k, d_v))
    rows_of = {"divisors": xp.empty(b * h * chunk, dtype=real), "notes": xp.empty(b * h * chunk, dtype="int32")}
    fields |= {name: pointer(x) for name, x in (buffers | rows_of).items()}

    # query head i reads key head i // group (MHA-HEAD-2): the head axis becomes (h_kv, group), of stride 0 in key and value
    grouped = (b, h_kv, group)

    def of_rows(x: Array, first: int, rows: int) -> Array:
        return x.reshape(*grouped, n, x.shape[-1])[..., first : first + rows, :]

    def of_group(x: Array) -> Array:
        return xp.broadcast_to(x[:, :, None], (*grouped, m, x.shape[-1]))

    for first in range(0, n if b * h > 0 else 0, chunk):
        rows = min(chunk, n - first)
        size = b * h * rows
        params = pack(PARAMS, **fields, first=first, rows=rows)
        tiles = {name: x[: size * m].reshape(*grouped, rows, m) for name, x in buffers.items()}
        for name in tiles.keys() - {"dscores"}:
            multiply(cuda, tf32, of_rows(query, first, rows), of_group(key).swapaxes(-1, -2), tiles[name])
        multiply(cuda, tf32, of_rows(grad, first, rows), of_group(value).swapaxes(-1, -2), tiles["dscores"])
        # the weights before dropout: gradient_rows drops them once it has read them
        whole = pack(PARAMS, **fields | {"keep": 0, "threshold": 0}, first=first, rows=rows)
        launch(cuda, UNFUSED, of_type("softmax_rows", real), size, threads_for(m), whole)
        launch(cuda, UNFUSED, of_type("gradient_rows", real), size, threads_for(m), params)
        if arrays["dbias"] is not None and m > 0:
            blocks = -(-arrays["dbias"].size // MOST_THREADS)
            launch(cuda, UNFUSED, of_type("add_to_bias", real), blocks, MOST_THREADS, params)

        weights, dscores = tiles["scores"], tiles.get("products", tiles["dscores"])
        sums = dquery[: size * d_k].reshape(*grouped, rows, d_k)
        multiply(cuda, tf32, dscores, of_group(finite_key), sums)
        finish(cuda, sums.reshape(b * h, rows, d_k), arrays["dquery"].reshape(b * h, n, d_k), call.scale, first)
        for g in range(group):  # MHA-GRAD-12
            queries, grads = (of_rows(x, first, rows)[:, :, g] for x in (finite_query, finite_grad))
            multiply(cuda, tf32, dscores[:, :, g].swapaxes(-1, -2), queries, dkey, add=True)
            multiply(cuda, tf32, weights[:, :, g].swapaxes(-1, -2), grads, dvalue, add=True)

    finish(cuda, dkey.reshape(b * h_kv, m, d_k), arrays["dkey"].reshape(b * h_kv, m, d_k), call.scale)
    if dvalue.size > 0:
        fields |= {"acc": pointer(dvalue), "dvalues": pointer(arrays["dvalue"]), "tainted": pointer(tainted)}
        launch(cuda, UNFUSED, of_type("finish_values", real), b * h_kv * m, threads_for(d_v), pack(PARAMS, **fields))


def _finite(cuda: Cuda, call: Call, x: Array, fields: dict[str, Any], tainted: Array | None = None) -> Array:
    """x ``(b, heads, rows, width)`` in the type of sums; 0 for NaN and infinities, whose rows are marked in ``tainted``."""
    real = real_of(x)
    if not call.hides and dtype_name(x) == real:
        return x
    result: Array = cuda.cupy.empty(x.shape, dtype=real)
    if x.size > 0:
        b, heads, rows, width = x.shape
        params = pack(
            PARAMS, **reading("values", x, x.strides), element=fields["element"], exponent=fields["exponent"],
            batch=b, kv_heads=heads, m=rows, d_v=width, clean=pointer(result), tainted=pointer(tainted),
        )  # fmt: skip
        launch(cuda, UNFUSED, of_type("finite_part", real), -(-x.size // MOST_THREADS), MOST_THREADS, params)
    return result
