"""cuBLAS, played by NumPy, so that the unfused layer of the CuPy backend runs where there is no GPU.

It sees what cuBLAS would see, pointers and strides, and reads and writes memory through those alone, so a wrong pointer or stride
gives wrong numbers here too.
"""

import ctypes

import ml_dtypes
import numpy as np

SUPPORTED = {(68, 0, 0), (68, 2, 0), (68, 14, 0), (77, 0, 0), (70, 1, 1)}
"""(compute type, type of both factors, type of the result) of a product, as far as this backend may ask for it."""

DATA_TYPES = {0: np.dtype("float32"), 1: np.dtype("float64"), 2: np.dtype("float16"), 14: np.dtype(ml_dtypes.bfloat16)}


def memory(pointer, dtype, shape, strides=None):
    """The array that lies at an address; strides in bytes, contiguous by default."""
    dtype = np.dtype(dtype)
    if 0 in shape:
        return np.empty(shape, dtype)
    if strides is None:
        strides = [int(np.prod(shape[i + 1 :], dtype=int)) * dtype.itemsize for i in range(len(shape))]
    first = np.frombuffer((ctypes.c_char * dtype.itemsize).from_address(int(pointer)), dtype)
    return np.lib.stride_tricks.as_strided(first, shape, strides)


class FakeCublas:
    """``gemmStridedBatchedEx`` as cuBLAS documents it: column-major, strides in elements, sums in the compute type."""

    def __init__(self):
        self.calls = []

    def gemmStridedBatchedEx(
        self, handle, trans_a, trans_b, m, n, k, alpha,
        a, type_a, lda, stride_a, b, type_b, ldb, stride_b, beta,
        c, type_c, ldc, stride_c, count, compute, algorithm,
    ):  # fmt: skip
        assert handle == 7
        assert algorithm == -1
        assert type_a == type_b
        assert (compute, type_a, type_c) in SUPPORTED
        assert min(m, n, k, count) > 0
        assert lda >= (k if trans_a else m)
        assert ldb >= (n if trans_b else k)
        assert ldc >= m
        assert min(stride_a, stride_b) >= 0
        assert count == 1 or stride_c >= n * ldc, "results of one batch overlap"
        self.calls.append({"m": m, "n": n, "k": k, "count": count, "compute": compute, "type": type_a})
        real = ctypes.c_double if compute == 70 else ctypes.c_float
        assert real.from_address(alpha).value == 1
        kept = real.from_address(beta).value
        assert kept in (0, 1)

        def matrices(pointer, kind, leading, stride, rows, columns):
            size = DATA_TYPES[kind].itemsize
            strides = (stride * size, size, leading * size)
            return memory(pointer, DATA_TYPES[kind], (count, rows, columns), strides)

        left = matrices(a, type_a, lda, stride_a, *((k, m) if trans_a else (m, k)))
        right = matrices(b, type_b, ldb, stride_b, *((n, k) if trans_b else (k, n)))
        left = (left.swapaxes(1, 2) if trans_a else left).astype(DATA_TYPES[type_c])
        right = (right.swapaxes(1, 2) if trans_b else right).astype(DATA_TYPES[type_c])
        with np.errstate(all="ignore"):  # written out: a BLAS may skip a factor of 0, and 0 * NaN must be NaN
            product = (left[:, :, :, None] * right[:, None]).sum(2, initial=-0.0)  # -0 + -0 stays -0
        into = matrices(c, type_c, ldc, stride_c, m, n)
        into[...] = into + product if kept else product
