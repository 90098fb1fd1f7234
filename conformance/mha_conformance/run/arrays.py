"""Host arrays into the library under test and back, and the memory layouts in which they arrive."""

from collections.abc import Callable
from typing import Any

import numpy as np


class Inexpressible(Exception):
    """The library cannot hold such an input, as torch cannot hold negative strides."""


def numpy_dtype(name: str) -> Any:
    """The NumPy dtype of that name; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(name)


def to_host(array: Any) -> Any:
    """A NumPy array of the exact values: bfloat16 is widened to float32, a device array is copied."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = array.float() if str(array.dtype) == "torch.bfloat16" else array
    elif hasattr(array, "get"):
        array = array.get()
    values = np.asarray(array)
    return values.astype(np.float32) if values.dtype.name == "bfloat16" else values


def converter(library: str, device: str | None) -> Callable[[Any, str], Any]:
    """A function from NumPy arrays, strides and all, and their names, to arrays of ``library`` on ``device``.

    A library that is not known here needs hooks of its own; the converter that it gets says so when it is used.
    """
    if library == "numpy":
        return lambda x, name: x
    if library == "torch":
        return lambda x, name: _to_torch(x, device)
    if library == "jax":
        import jax

        place = jax.devices(device)[0] if device else None
        return lambda x, name: jax.device_put(x, place)
    if library == "cupy":
        import cupy

        return lambda x, name: cupy.asarray(x)
    if library == "array_api_strict":
        import array_api_strict

        return lambda x, name: array_api_strict.asarray(x)
    raise ValueError(
        f"unknown array library {library!r}; known are numpy, torch, jax, cupy, array_api_strict. For another one write the hooks "
        "to_native and from_native in a claims file, and leave --arrays out"
    )


def _to_torch(x: Any, device: str | None) -> Any:
    import torch

    if any(stride < 0 for stride in x.strides):
        raise Inexpressible("torch has no negative strides")
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.uint16).view(np.int16)).view(torch.bfloat16).to(device)
    if not x.flags.writeable:
        if 0 not in x.strides:
            raise Inexpressible("torch has no read-only tensors")
        base = torch.from_numpy(np.array(x[tuple(slice(None) if s else slice(0, 1) for s in x.strides)]))
        return base.expand(x.shape).to(device)
    return torch.from_numpy(x).to(device)


def laid_out(x: Any, layout: str, name: str) -> Any:
    """The same values in the memory layout called ``layout``; every gap between them holds NaN."""
    if layout == "contiguous" or (layout == "value only" and name != "value"):
        return np.ascontiguousarray(x)
    if layout in ("transposed", "value only"):
        return np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2)
    if layout == "heads inside positions":
        return np.ascontiguousarray(np.moveaxis(x, -3, -2)).swapaxes(-2, -3)
    if layout == "padded":
        wide = np.full((*x.shape[:-2], x.shape[-2] + 3, x.shape[-1] + 2), np.nan, dtype=x.dtype)
        wide[..., 1:-2, 1:-1] = x
        return wide[..., 1:-2, 1:-1]
    if layout == "every second":
        wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan, dtype=x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    if layout == "reversed":
        return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    if layout == "broadcast":
        first = np.ascontiguousarray(x[:1])
        return np.broadcast_to(first, x.shape) if name != "query" and x.shape[0] > 1 else np.ascontiguousarray(x)
    if layout == "read-only":
        copy = np.array(x)
        copy.setflags(write=False)
        return copy
    raise ValueError(f"unknown layout {layout!r}")
