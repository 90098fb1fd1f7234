"""cuda-tile, played by NumPy: the Python bodies of the cuTile kernels run on arrays, one block after another.

As much of ``cuda.tile`` as ``cutile_kernels`` uses, and stricter where that finds faults: types do not mix, what is read beyond an
array without a padding is NaN, a maximum passes over NaN where it may, and a product takes equal types and sums in float32.
Products are exact and rounded once, which tensor cores do otherwise; nothing is seen of speed, layouts or the compiler.
"""

import itertools
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np

SCALARS = (int, float, bool, np.bool_)


class Tile(np.ndarray):
    """An array with the methods of a tile. Operators are NumPy's, after a look at the types."""

    def astype(self, dtype):
        with np.errstate(all="ignore"):
            return np.asarray(self).astype(dtype).view(Tile)

    def reshape(self, shape):
        return np.asarray(self).reshape(shape).view(Tile)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        kinds = {x.dtype for x in inputs if isinstance(x, np.ndarray)}
        assert len(kinds) == 1, f"{ufunc.__name__} of {kinds}"
        assert all(isinstance(x, (Tile, *SCALARS)) for x in inputs), f"{ufunc.__name__} of {[type(x) for x in inputs]}"
        (kind,) = kinds
        given = [np.asarray(x) if isinstance(x, np.ndarray) else np.asarray(x, kind) for x in inputs]
        with np.errstate(all="ignore"):
            return np.asarray(getattr(ufunc, method)(*given, **options)).view(Tile)


def tile(x):
    return np.asarray(x).view(Tile)


class _Constant:
    def __getitem__(self, kind):
        return kind


def module():
    """A fresh ``cuda.tile``. ``launched`` lists (kernel, blocks) of what was launched."""
    ct = ModuleType("cuda.tile")
    block = [0, 0, 0]

    def window(x, index, shape):
        """Where a tile begins and ends in an array, and how much of it lies inside."""
        assert len(index) == len(shape) == x.ndim
        return [
            (i * size, max(i * size, min((i + 1) * size, length)))
            for i, size, length in zip(index, shape, x.shape, strict=True)
        ]

    def load(x, *, index, shape, padding_mode=None, latency=None):
        assert all(size & (size - 1) == 0 for size in shape), f"a tile of {shape} is no power of two"
        out = np.full(shape, 0 if padding_mode == "zero" else np.nan, x.dtype)
        spans = window(x, index, shape)
        out[tuple(slice(0, high - low) for low, high in spans)] = np.asarray(x)[tuple(slice(*span) for span in spans)]
        return tile(out)

    def store(x, *, index, tile):
        assert tile.dtype == x.dtype, f"{tile.dtype} stored into {x.dtype}"
        spans = window(x, index, tile.shape)
        np.asarray(x)[tuple(slice(*span) for span in spans)] = np.asarray(tile)[
            tuple(slice(0, high - low) for low, high in spans)
        ]

    def mma(x, y, acc):
        assert x.dtype == y.dtype and acc.dtype == np.float32
        assert x.dtype.name in ("float16", "bfloat16", "float32")
        with np.errstate(all="ignore"):
            product = np.matmul(np.asarray(x).astype("f8"), np.asarray(y).astype("f8"))
            return tile((product + np.asarray(acc)).astype("f4"))

    def where(condition, x, y):
        kind = next((a.dtype for a in (x, y) if isinstance(a, Tile)), np.dtype("float32"))
        assert all(a.dtype == kind for a in (x, y) if isinstance(a, Tile))
        return tile(np.where(np.asarray(condition), np.asarray(x, kind), np.asarray(y, kind)))

    def extreme(over_nan, with_nan):
        def choose(x, y, *, propagate_nan=False):
            return (with_nan if propagate_nan else over_nan)(x, y)

        return choose

    def run(stream, grid, kernel, arguments):
        ct.launched.append((kernel.function.__name__, grid))
        for at in itertools.product(*map(range, grid)):
            block[:] = at
            kernel.function(*arguments)

    ct.launched = []
    ct.PaddingMode = SimpleNamespace(ZERO="zero")
    ct.Constant = _Constant()
    ct.float32, ct.int32 = np.dtype("float32"), np.dtype("int32")
    ct.float16, ct.bfloat16 = np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)
    ct.bid = block.__getitem__
    ct.cdiv = lambda a, b: -(-a // b)
    ct.arange = lambda size, dtype: tile(np.arange(size, dtype=dtype))
    ct.full = lambda shape, value, dtype: tile(np.full(shape, value, dtype))
    ct.load, ct.store, ct.mma, ct.where = load, store, mma, where
    ct.maximum, ct.minimum = extreme(np.fmax, np.maximum), extreme(np.fmin, np.minimum)
    ct.exp2, ct.log2 = np.exp2, np.log2
    ct.transpose = lambda x: tile(np.asarray(x).T)
    ct.max = lambda x, axis, keepdims=False: tile(np.fmax.reduce(np.asarray(x), axis=axis, keepdims=keepdims))
    ct.sum = lambda x, axis, keepdims=False: tile(np.asarray(x).sum(axis=axis, keepdims=keepdims, dtype=x.dtype))
    ct.kernel = lambda function, **hints: SimpleNamespace(function=function, hints=hints)
    ct.launch = run
    return ct


@contextmanager
def installed():
    """``cuda.tile`` is this module; what was imported before is put back afterwards."""
    names = ("cuda", "cuda.tile", "mha_backends.cupy.cutile", "mha_backends.cupy.cutile_kernels")
    saved = {name: sys.modules[name] for name in names if name in sys.modules}
    _forget(names)
    package, played = ModuleType("cuda"), module()
    package.tile = played
    sys.modules |= {"cuda": package, "cuda.tile": played}
    yield played
    _forget(names)
    sys.modules.update(saved)


def _forget(names):
    """A package keeps its modules as attributes, and an import by ``from`` finds them there."""
    for name in names:
        sys.modules.pop(name, None)
        package, _, last = name.rpartition(".")
        vars(sys.modules.get(package, sys)).pop(last, None) if package else None
