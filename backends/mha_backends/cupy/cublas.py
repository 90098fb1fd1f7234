"""Batched matrix products by cuBLAS, called directly.

CuPy's own ``matmul`` copies half types to float32, copies transposed views, and cannot multiply bfloat16 in batches.
Here the factors stay as they are: transposition is a flag, heads and batch items are strides, grouped heads are stride 0.
"""

from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mha_backends.cupy.devices import Cuda, require_device
from mha_backends.cupy.params import FLOATS, LINEAR, pack, pointer, real_of
from mha_backends.cupy.programs import MOST_THREADS, UNFUSED, launch
from mha_spec.call import Array, dtype_name

# cuBLAS' numbers: cudaDataType_t, cublasComputeType_t, cublasOperation_t, cublasGemmAlgo_t.
DATA_TYPE = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
PLAIN, TRANSPOSED = 0, 1
DEFAULT_ALGORITHM = -1
LARGEST_INT = 2**31 - 1


def linear(cuda: Cuda, tf32: bool, x: Array, w: Array, b: Array | None) -> Array:
    """x W + b: ``x (..., i)``, ``w (i, o)``, ``b (o,)`` -> ``(..., o)`` in x's dtype (MHA-PROJ-1).

    The sum is kept in float32 (float64) until the bias is in it. A half output of cuBLAS would be rounded once more,
    and cuBLAS may then add partial sums in the half type.
    """
    require_device(cuda)
    with x.device:
        rows, (inner, columns) = prod(x.shape[:-1]), w.shape
        output = cuda.cupy.empty((*x.shape[:-1], columns), dtype=x.dtype)
        if output.size == 0:
            return output
        direct = b is None and dtype_name(x) in ("float32", "float64")
        acc = output.reshape(rows, columns) if direct else cuda.cupy.empty((rows, columns), dtype=real_of(x))
        multiply(cuda, tf32, ready(cuda, x.reshape(rows, inner)), ready(cuda, w), acc)
        if not direct:
            params = pack(
                LINEAR, acc=pointer(acc), bias=pointer(b), bias_j=0 if b is None else b.strides[0], output=pointer(output),
                element=FLOATS[dtype_name(x)], size=output.size, columns=columns,
            )  # fmt: skip
            kernel = "finish_linear_double" if real_of(x) == "float64" else "finish_linear_float"
            launch(cuda, UNFUSED, kernel, -(-output.size // MOST_THREADS), MOST_THREADS, params)
        return output


def compute_type(kind: str, tf32: bool) -> int:
    """In what cuBLAS multiplies and adds: TF32 factors only where they are asked for (MHA-NUM-11)."""
    if kind == "float64":
        return COMPUTE_64F
    return COMPUTE_32F_FAST_TF32 if tf32 and kind == "float32" else COMPUTE_32F


class Layout(NamedTuple):
    """A matrix as cuBLAS sees it: rows or columns are contiguous, ``leading`` elements apart; batch axes have strides."""

    transposed: bool
    leading: int
    batch: tuple[int, ...]


def layout(x: Array) -> Layout | None:
    """How cuBLAS can read ``x (..., rows, columns)`` in place; None where it cannot."""
    size = x.dtype.itemsize
    if any(stride % size for stride in x.strides):
        return None
    *batch, down, across = (stride // size for stride in x.strides)
    batch = [0 if length == 1 else stride for length, stride in zip(x.shape, batch, strict=False)]
    rows, columns = x.shape[-2:]
    if min(batch, default=0) < 0:
        return None
    # an axis of length 1 is never stepped along: its stride says nothing
    if (across == 1 or columns == 1) and (rows == 1 or columns <= down <= LARGEST_INT):
        return Layout(False, columns if rows == 1 else down, tuple(batch))
    if (down == 1 or rows == 1) and (columns == 1 or rows <= across <= LARGEST_INT):
        return Layout(True, rows if columns == 1 else across, tuple(batch))
    return None


def ready(cuda: Cuda, x: Array) -> Array:
    """x itself where cuBLAS can read it in place, else a contiguous copy of the same type."""
    return x if x.size == 0 or layout(x) else cuda.cupy.ascontiguousarray(x)


def multiply(cuda: Cuda, tf32: bool, a: Array, b: Array, out: Array, *, add: bool = False) -> None:
    """out = a b: ``a (*batch, r, k)``, ``b (*batch, k, c)``, ``out (*batch, r, c)``; a and b ``ready``, out contiguous.

    With ``add`` the product is added to what ``out`` holds.
    """
    if out.size == 0:
        return
    if a.shape[-1] == 0:
        if not add:
            out.fill(0)
        return
    left, right, into = layout(a), layout(b), layout(out)
    assert left is not None, "the first factor must be ready"
    assert right is not None, "the second factor must be ready"
    assert into is not None, "the result must be contiguous"
    compute = compute_type(dtype_name(a), tf32)
    one, kept = np.ones(1, real_of(out)), np.full(1, float(add), real_of(out))
    cublas, handle = cuda.cublas()
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    sizes, strides = merge_axes(tuple(out.shape[:-2]), (right.batch, left.batch, into.batch))

    # one call takes one batch axis: the longest, the others are looped over
    axis = max(range(len(sizes)), key=sizes.__getitem__)
    looped = [range(1) if i == axis else range(size) for i, size in enumerate(sizes)]
    for index in product(*looped):
        # cuBLAS counts along columns, so it is asked for out^T = b^T a^T: its first factor is b
        at = [
            pointer(x) + x.dtype.itemsize * sum(i * stride for i, stride in zip(index, steps, strict=True))
            for x, steps in zip((b, a, out), strides, strict=True)
        ]
        cublas.gemmStridedBatchedEx(
            handle, TRANSPOSED if right.transposed else PLAIN, TRANSPOSED if left.transposed else PLAIN,
            columns, rows, inner, one.ctypes.data,
            at[0], DATA_TYPE[dtype_name(b)], right.leading, strides[0][axis],
            at[1], DATA_TYPE[dtype_name(a)], left.leading, strides[1][axis], kept.ctypes.data,
            at[2], DATA_TYPE[dtype_name(out)], into.leading, strides[2][axis],
            sizes[axis], compute, DEFAULT_ALGORITHM,
        )  # fmt: skip


def merge_axes(sizes: tuple[int, ...], operands: Any) -> tuple[list[int], list[list[int]]]:
    """The fewest batch axes that walk all operands: neighbours become one where that holds for the strides of each."""
    merged, strides = [1], [[0] for _ in operands]
    for i, size in enumerate(sizes):
        if size == 1:
            continue
        steps = [operand[i] for operand in operands]
        if merged[-1] == 1 or all(s[-1] == size * step for s, step in zip(strides, steps, strict=True)):
            merged[-1] *= size
            for s, step in zip(strides, steps, strict=True):
                s[-1] = step
        else:
            merged.append(size)
            for s, step in zip(strides, steps, strict=True):
                s.append(step)
    return merged, strides
