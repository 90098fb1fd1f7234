"""CuPy, cuBLAS and the kernels, played by NumPy, so that the host code of the CuPy backend runs where there is no GPU.

The fakes see what the real ones would see: pointers, strides, type codes and packed structures. They read and write
memory through those alone, so a wrong pointer, stride or field gives wrong numbers here too.
"""

import ctypes
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np

SUPPORTED = {(68, 0, 0), (68, 2, 0), (68, 14, 0), (77, 0, 0), (70, 1, 1)}
"""(compute type, type of both factors, type of the result) of a product, as far as this backend may ask for it."""

DEVICE = nullcontext()
"""Stands for the one device; CuPy's is a context manager as well."""

FLOATS = {1: np.dtype("float16"), 2: np.dtype(ml_dtypes.bfloat16), 3: np.dtype("float32"), 4: np.dtype("float64")}
DATA_TYPES = {0: np.dtype("float32"), 1: np.dtype("float64"), 2: np.dtype("float16"), 14: np.dtype(ml_dtypes.bfloat16)}
INTEGERS = {size * sign: np.dtype(f"{kind}{size}") for size in (1, 2, 4, 8) for sign, kind in ((1, "i"), (-1, "u"))}


class FakeArray(np.ndarray):
    """A NumPy array with the two attributes of a CuPy array that NumPy spells otherwise."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    @property
    def device(self):
        return DEVICE


FakeArray.__module__ = "cupy"  # the door looks there for the array's library


def fake_cupy(has_device=True):
    """A module with what the backend uses of CuPy. Fresh memory holds all-ones bytes, which are NaN in every float type."""
    module = ModuleType("cupy")

    def give(x):
        return np.asarray(x).view(FakeArray)

    def empty(shape, dtype):
        x = np.empty(shape, dtype)
        x.reshape(-1).view(np.uint8)[...] = 255
        module.allocated.append(x.nbytes)
        return give(x)

    module.allocated = []
    module.ndarray = FakeArray
    module.empty = empty
    module.zeros = lambda shape, dtype: give(np.zeros(shape, dtype))
    module.asarray = lambda x: give(np.array(x))
    module.asnumpy = lambda x: np.array(x)
    module.ascontiguousarray = lambda x: give(np.array(x, order="C"))
    module.broadcast_to = lambda x, shape: np.broadcast_to(x, shape, subok=True)
    module.is_available = lambda: has_device
    module.cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=lambda: int(has_device)))
    return module


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
        assert (real.from_address(alpha).value, real.from_address(beta).value) == (1, 0)

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
        matrices(c, type_c, ldc, stride_c, m, n)[...] = product


def numpy_kernels(kernel, blocks, threads, params):
    """A model of ``kernels/softmax.cu`` in NumPy: what a launch with these parameters leaves in memory."""
    p = params[0]
    real = np.dtype("float64" if kernel.endswith("double") else "float32")
    with np.errstate(all="ignore"):
        if kernel == "clean_values":
            _clean_values(p, blocks * threads)
        elif kernel.startswith("finish_linear"):
            _finish_linear(p, real, blocks * threads)
        else:
            for x in range(0, blocks, int(p["rows"])):
                {"softmax_rows": _softmax_rows, "finish_rows": _finish_rows}[kernel.rpartition("_")[0]](p, real, x)


def _read(p, name, shape, axes, dtype=None):
    if not p[name]:
        return None
    kind = int(p[f"{name}_type"]) if dtype is None else 0
    dtype = dtype or (FLOATS[kind] if name in ("bias", "sinks") else INTEGERS[kind])
    return memory(p[name], dtype, shape, [int(p[f"{name}_{axis}"]) for axis in axes])


def _narrow(x, real):
    most = np.finfo(real).max
    wide = np.asarray(x).astype("float64")
    return np.where(np.isfinite(wide), np.clip(wide, -most, most), wide).astype(real)


def _bounded(x):
    most = np.finfo(x.dtype).max
    return np.where(np.isnan(x), x, np.clip(x, -most, most))


def _chunk(p, x):
    """Item, batch item, head, queries of the rows from block x on."""
    item, rows = x // int(p["rows"]), int(p["rows"])
    return item, item // int(p["heads"]), item % int(p["heads"]), int(p["first"]) + np.arange(rows)


def _scores_view(p, name, b, h, i, **kind):
    sizes = [int(p[s]) for s in ("batch", "heads", "n", "m")]
    found = _read(p, name, sizes, "bhij", **kind)
    return None if found is None else np.array(found[b, h, i])


def _visible(p, x):
    _, b, h, i = _chunk(p, x)
    n, m, batch = int(p["n"]), int(p["m"]), int(p["batch"])
    keys = np.arange(m)
    offsets, lengths = _read(p, "offsets", (batch,), "b"), _read(p, "lengths", (batch,), "b")
    length = int(p["length"]) if lengths is None else int(lengths[b])
    seen = np.broadcast_to(keys < length, (len(i), m)).copy()
    left, right = int(p["left"]), int(p["right"])
    offset = int(p["offset"]) if offsets is None else int(offsets[b])
    distance = np.array([[j - (offset + int(q)) for j in range(m)] for q in i], dtype=object).reshape(len(i), m)
    if left >= 0:
        seen &= (distance >= -left).astype(bool)
    if right >= 0:
        seen &= (distance <= right).astype(bool)
    queries, ids = _read(p, "query_segments", (batch, n), "bi"), _read(p, "key_segments", (batch, m), "bj")
    if queries is not None:
        seen &= queries[b, i].astype("int64")[:, None] == ids[b].astype("int64")
    mask, bias = _scores_view(p, "mask", b, h, i, dtype=np.dtype("bool")), _scores_view(p, "bias", b, h, i)
    if mask is not None:
        seen &= mask
    if bias is not None:
        seen &= bias.astype("float64") != -np.inf
    return seen, bias


def _tainted(p, x):
    _, b, h, _ = _chunk(p, x)
    batch, kv_heads, m = (int(p[s]) for s in ("batch", "kv_heads", "m"))
    found = memory(p["tainted"], "uint8", (batch, kv_heads, m)) if p["tainted"] else np.zeros((batch, kv_heads, m), "uint8")
    return found[b, h // (int(p["heads"]) // kv_heads)] != 0


def _softmax_rows(p, real, x):
    item, _, h, i = _chunk(p, x)
    rows, m, n, element = len(i), int(p["m"]), int(p["n"]), int(p["element"])
    scores = memory(p["scores"] + x * m * real.itemsize, real, (rows, m))
    seen, bias = _visible(p, x)
    s = real.type(p["scale"]) * _bounded(np.where(seen, scores, 0))
    if p["softcap"] > 0:
        s = real.type(p["softcap"]) * np.tanh(s / real.type(p["softcap"]))
    if bias is not None:
        s = s + _narrow(bias, real)
    s = np.where(seen, _bounded(s), -np.inf).astype(real)
    sinks = _read(p, "sinks", (int(p["heads"]),), "h")
    sink = real.type(-np.inf) if sinks is None else _narrow(sinks[h], real)[()]
    sink = sink if sink == -np.inf else _bounded(sink)[()]
    empty = ~seen.any(1)
    top = np.concatenate([s, np.full((rows, 1), sink)], 1).max(1)  # NaN wins
    e = np.where(seen, np.exp(s - top[:, None]), 0).astype(real)
    total = e.sum(1) + (np.exp(sink - top) if sink != -np.inf else 0)
    share = np.where(e == 0, 0, e / total[:, None]).astype(real)
    scores[...] = share
    if p["shares"]:
        kind = FLOATS[element]
        memory(p["shares"] + x * m * 2, kind, (rows, m))[...] = e if element == 1 else share
    if p["weights"]:
        memory(p["weights"], FLOATS[element], (item + 1, n, m))[item, i] = share
    memory(p["divisors"] + x * real.itemsize, real, (rows,))[...] = np.where(empty, 0, total if element == 1 else 1)
    note = ~empty * 1 | (seen & np.isnan(s)).any(1) * 2 | (seen & _tainted(p, x)).any(1) * 4
    memory(p["notes"] + x * 4, "int32", (rows,))[...] = note
    if p["lse"]:
        memory(p["lse"], real, (item + 1, n))[item, i] = np.where(empty, sink, top + np.log(total))


def _finish_rows(p, real, x):
    item, b, h, i = _chunk(p, x)
    rows, d_v, n = len(i), int(p["d_v"]), int(p["n"])
    divisor = memory(p["divisors"] + x * real.itemsize, real, (rows,))[:, None]
    acc = memory(p["acc"] + x * d_v * real.itemsize, real, (rows, d_v))
    o = np.where(divisor == 0, 0, (acc + 0) / divisor)
    suspect = memory(p["notes"] + x * 4, "int32", (rows,)) & 4 != 0
    if suspect.any():
        values = _read(p, "values", [int(p[s]) for s in ("batch", "kv_heads", "m", "d_v")], "bhjc", FLOATS[int(p["element"])])
        broken = ~np.isfinite(values[b, h // (int(p["heads"]) // int(p["kv_heads"]))].astype("float64"))
        seen = _visible(p, x)[0] & _tainted(p, x)
        o = np.where((seen[:, :, None] & broken).any(1) & suspect[:, None], np.nan, o)
    memory(p["output"], FLOATS[int(p["element"])], (item + 1, n, d_v))[item, i] = o


def _clean_values(p, threads):
    shape = [int(p[s]) for s in ("batch", "kv_heads", "m", "d_v")]
    kind = FLOATS[int(p["element"])]
    assert threads >= np.prod(shape)
    values = _read(p, "values", shape, "bhjc", kind)
    finite = np.isfinite(values.astype("float64"))
    memory(p["clean"], kind, shape)[...] = np.where(finite, values, np.zeros((), kind))
    memory(p["tainted"], "uint8", shape[:3])[~finite.all(-1)] = 1


def _finish_linear(p, real, threads):
    size, columns = int(p["size"]), int(p["columns"])
    kind = FLOATS[int(p["element"])]
    assert threads >= size
    x = memory(p["acc"], real, (size // columns, columns))
    if p["bias"]:
        x = x + memory(p["bias"], kind, (columns,), [int(p["bias_j"])]).astype(real)
    memory(p["output"], kind, (size // columns, columns))[...] = x


def compiled_kernels(library):
    """The kernels as compiled for a CPU from the source that the GPU gets."""

    def launch(kernel, blocks, threads, params):
        status = library.launch(kernel.encode(), blocks, threads, ctypes.c_void_p(params.ctypes.data), params.nbytes)
        problem = {1: "threads left a block that waits at a barrier", 2: "structures of different size", 3: "no such kernel"}
        assert status == 0, f"{kernel}: {problem[status]}"

    library.launch.argtypes = [ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t]
    return launch
