"""The gradients by kernels of our own: ``kernels/backward.cu`` and the three behind it."""

from typing import Any

from mha_backends.cupy.choose import MOST_BLOCKS, FusedBackward
from mha_backends.cupy.devices import Cuda
from mha_backends.cupy.fused import BYTES, CHUNK, tiled
from mha_backends.cupy.options import describe, score_strides
from mha_backends.cupy.params import PARAMS, pack, pointer, reading
from mha_backends.cupy.programs import Program, launch
from mha_spec.call import AttentionResult, Call

_PASSING = 32
"""Bytes of what is kept of a query that passes by: ``struct Passing``."""


def programs(kernel: FusedBackward) -> tuple[Program, Program]:
    """What computes the gradients of query, key and value; and what computes that of a bias, for calls that have one."""
    constants = {
        "ELEMENT": kernel.element, "D_K": kernel.d_k, "D_V": kernel.d_v, "B_R": kernel.held, "B_C": kernel.passing,
        "FORM": kernel.form, "SLICES": kernel.slices,
    }  # fmt: skip
    given = tuple((name, str(value)) for name, value in constants.items())
    common = ("call.cu", "dropout.cu", "primitives.cu", "tiles.cu", "backward.cu")
    return (
        Program((*common, "backward_keys.cu", "backward_queries.cu"), given),
        Program((*common, "backward_bias.cu"), given),
    )


def shared_memory(kernel: FusedBackward) -> int:
    """Bytes: the rows that are held, of both arrays of each side, and twice those that pass by."""
    row = sum(width * BYTES + CHUNK for width in (kernel.d_k, kernel.d_v))
    return (kernel.held + 2 * kernel.passing) * row + kernel.passing * _PASSING


def shared_memory_of_bias(kernel: FusedBackward) -> int:
    """Bytes: one tile of each array; and in its place at last the sums, in float32."""
    row = sum(width * BYTES + CHUNK for width in (kernel.d_k, kernel.d_v))
    return max((kernel.held + kernel.passing) * row, kernel.held * kernel.passing * 4)


def attend_vjp(cuda: Cuda, kernel: FusedBackward, call: Call, arrays: dict[str, Any], b: int) -> None:
    """The gradients of a call of ``b`` batch items, into ``arrays``, which also hold what arrives and the forward's results."""
    _, h, h_kv, n, m, d_k, d_v = call.sizes
    given = {
        "queries": call.query.reshape(b, h, n, d_k), "keys": call.key.reshape(b, h_kv, m, d_k),
        "values": call.value.reshape(b, h_kv, m, d_v), "grads": arrays["grad_output"].reshape(b, h, n, d_v),
    }  # fmt: skip
    rows = {"outputs": arrays["output"].reshape(b, h, n, d_v), "lses": arrays["lse"].reshape(b, h, n)}
    if arrays["grad_lse"] is not None:
        rows["grad_lses"] = arrays["grad_lse"].reshape(b, h, n)
    rests = cuda.cupy.empty((b, h, n), dtype="float32")
    described = describe(call, b, AttentionResult(None))
    fields = described.fields | tiled(given) | {
        "rests": pointer(rests), "sink_terms": pointer(arrays["sink_terms"]),
        "dqueries": pointer(arrays["dquery"]), "dkeys": pointer(arrays["dkey"]), "dvalues": pointer(arrays["dvalue"]),
    }  # fmt: skip
    for name, x in rows.items():
        fields |= reading(name, x, x.strides)

    main, of_bias = programs(kernel)
    threads, shared = 2 * kernel.held, shared_memory(kernel)
    query_tiles, key_tiles = (-(-size // kernel.held) for size in (n, m))
    if b * h * n > 0:
        launch(cuda, main, "backward_rows", -(-b * h * n // kernel.held), threads, pack(PARAMS, **fields))
        launch(cuda, main, "backward_queries", b * h * query_tiles, threads, pack(PARAMS, **fields), shared)
    if b * h_kv * m > 0:
        blocks = b * h_kv * key_tiles * kernel.slices
        launch(cuda, main, "backward_keys", blocks, threads, pack(PARAMS, **fields), shared)
    dbias = arrays["dbias"]
    if dbias is not None and b * h * n * m > 0:
        strides = score_strides(dbias, call)
        assert strides is not None, "one_batch_axis gives calls whose mask and bias have one batch stride"
        fields |= reading("dbias", dbias, strides)
        blocks = 1
        for stride, size in zip(strides, (b, h, query_tiles, -(-m // kernel.passing)), strict=True):
            blocks *= size if stride else 1
        for first in range(0, blocks, MOST_BLOCKS):
            params = pack(PARAMS, **fields, first=first)
            launch(
                cuda, of_bias, "backward_bias", min(MOST_BLOCKS, blocks - first), threads, params, shared_memory_of_bias(kernel)
            )
