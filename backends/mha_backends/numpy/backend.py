"""The backend as a value: its functions and what it claims."""

from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from mha_backends.numpy.backward import attend_vjp
from mha_backends.numpy.explain import explain
from mha_backends.numpy.forward import attend
from mha_backends.numpy.tangents import attend_jvp
from mha_core.backend import FORWARD, STRICTEST, Backend, Claims
from mha_spec.call import Array, dtype_name


def create(**settings: Any) -> Backend:
    """The NumPy backend. ``threads`` is how many it may use; None means as many as the BLAS is allowed when called."""
    if unknown := settings.keys() - {"threads"}:
        raise TypeError(f"unknown settings {sorted(unknown)}; backend 'numpy' knows threads=None or an int >= 1")
    threads = settings.get("threads")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise TypeError(f"threads={threads!r}; backend 'numpy' knows threads=None or an int >= 1")
    return _create(threads)


@cache
def _create(threads: int | None) -> Backend:
    profiles = dict(STRICTEST)
    if find_spec("ml_dtypes") is None:
        del profiles["bfloat16"]
    return Backend(
        name="numpy",
        attend=partial(attend, threads=threads),
        attend_vjp=partial(attend_vjp, threads=threads),
        attend_jvp=partial(attend_jvp, threads=threads),
        linear=linear,
        to_host=to_host,
        from_host=from_host,
        devices=lambda: ("cpu",),
        explain=partial(explain, threads=threads),
        claims=Claims(
            arrays="numpy",
            dtypes=tuple(profiles),
            features=FORWARD | {"dropout", "vjp", "jvp"},
            profiles=profiles,
            strict=True,
            determinism="batch-invariant",
            grade="RN",
            memory="linear",
        ),
    )


def linear(x: Array, w: Array, b: Array | None) -> Array:
    """(..., i), (i, o), (o,) -> (..., o): X W + b.

    Half types are multiplied in float32: NumPy's own float16 product is 175 times slower, its bfloat16 product returns
    float32. Each item of a batch is a product of its own, so that its bits do not depend on the others.
    """
    wide = np.dtype(np.float64 if dtype_name(x) == "float64" else np.float32)
    with np.errstate(all="ignore"):
        y = np.matmul(x.astype(wide, copy=False), w.astype(wide, copy=False))
        if b is not None:
            y += b
        return y.astype(x.dtype, copy=False)


def to_host(array: Array) -> Any:
    """A NumPy array of the exact values; bfloat16 comes as float32."""
    return np.array(array, dtype=np.float32 if dtype_name(array) == "bfloat16" else None)


def from_host(values: Any, dtype: str) -> Array:
    """A NumPy array of the named dtype; bfloat16 needs ml_dtypes."""
    if dtype == "bfloat16":
        from ml_dtypes import bfloat16

        return np.asarray(values).astype(bfloat16)
    return np.asarray(values).astype(dtype)
