"""Attention in one kernel: ``kernels/fused.cu``."""

from mha_backends.cupy.choose import QUERIES, Fused
from mha_backends.cupy.devices import Cuda
from mha_backends.cupy.options import describe
from mha_backends.cupy.params import PARAMS, pack, reading
from mha_backends.cupy.programs import Program, launch
from mha_spec.call import Array, AttentionResult, Call

THREADS = 128
BYTES, CHUNK = 2, 16
"""Of an element, and of what is copied at once."""


def program(kernel: Fused) -> Program:
    constants = {
        "ELEMENT": kernel.element, "D_K": kernel.d_k, "D_V": kernel.d_v, "B_R": QUERIES, "B_C": kernel.keys, "FORM": kernel.form,
    }  # fmt: skip
    return Program(
        ("call.cu", "dropout.cu", "primitives.cu", "tiles.cu", "fused.cu"),
        tuple((name, str(value)) for name, value in constants.items()),
    )


def shared_memory(kernel: Fused) -> int:
    """Bytes: a tile of queries, and two each of keys and values, in rows that are one chunk longer than they need be."""
    k, v = (width * BYTES + CHUNK for width in (kernel.d_k, kernel.d_v))
    return QUERIES * k + 2 * kernel.keys * (k + v)


def attend(cuda: Cuda, kernel: Fused, call: Call, result: AttentionResult, b: int) -> None:
    """Attention whose mask and bias have one stride over the ``b`` batch items."""
    _, h, h_kv, n, m, d_k, d_v = call.sizes
    query, key, value = call.query.reshape(b, h, n, d_k), call.key.reshape(b, h_kv, m, d_k), call.value.reshape(b, h_kv, m, d_v)
    described = describe(call, b, result)
    fields = described.fields | tiled({"queries": query, "keys": key, "values": value}) | {"spread": _spread(kernel, m)}
    blocks = b * h * -(-n // QUERIES)
    launch(cuda, program(kernel), "fused_forward", blocks, THREADS, pack(PARAMS, **fields), shared_memory(kernel))


def tiled(arrays: dict[str, Array]) -> dict[str, int]:
    """The fields that describe arrays whose rows are copied into tiles: queries, keys, values and grads, in this order."""
    fields = {"whole_rows": sum(2**at for at, x in enumerate(arrays.values()) if has_whole_rows(x))}
    for name, x in arrays.items():
        fields |= reading(name, x, x.strides)
    return fields


def has_whole_rows(x: Array) -> bool:
    """Whether each row (the last axis) is contiguous and begins at a multiple of 16 bytes."""
    walked = [stride for size, stride in zip(x.shape, x.strides, strict=True) if size > 1]
    contiguous = x.shape[-1] <= 1 or walked.pop() == BYTES
    return contiguous and all(at % CHUNK == 0 for at in (int(x.data.ptr), *walked))


def _spread(kernel: Fused, m: int) -> int:
    """P is kept times 2^-spread. bfloat16 holds values up to float32's largest: then no sum of P V leaves float32.

    float16 values are small enough for any sum, and its weights too few to give exponents away.
    """
    return (m - 1).bit_length() if kernel.element == "bfloat16" and m > 0 else 0
