"""Host arrays into the library under test and back, and the memory layouts in which they arrive."""

import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mha_conformance.run.guards import filler


class Inexpressible(Exception):
    """The library cannot hold such an input, as torch cannot hold negative strides."""


class NoRoom(Exception):
    """This machine grants no memory for such an input."""


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
    here = torch.from_numpy(x)
    if device is not None and max(x.strides, default=0) > FAR:  # moved as it is it would lie close together
        there = torch.empty_strided(here.shape, here.stride(), dtype=here.dtype, device=device)
        return there.copy_(here)
    return here.to(device)


def laid_out(x: Any, layout: str, name: str) -> Any:
    """The same values in the memory layout called ``layout``; every gap between them is filled as guard bands are."""
    if layout == "contiguous" or (layout == "value only" and name != "value"):
        return np.asarray(x, order="C")
    if layout in ("transposed", "value only"):
        return np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2)
    if layout == "heads inside positions":
        return np.ascontiguousarray(np.moveaxis(x, -3, -2)).swapaxes(-2, -3)
    if layout == "padded":
        wide = np.full((*x.shape[:-2], x.shape[-2] + 3, x.shape[-1] + 2), filler(x.dtype))
        wide[..., 1:-2, 1:-1] = x
        return wide[..., 1:-2, 1:-1]
    if layout == "every second":
        wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), filler(x.dtype))
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
    if layout in ("items far apart", "rows far apart"):
        return far_apart(x, axis=-2 if layout == "rows far apart" and x.shape[-2] > 1 else -3)
    raise ValueError(f"unknown layout {layout!r}")


NORESERVE = 0x4000 if sys.platform == "linux" else 0
"""Linux then grants more addresses than there is memory; Python's own name for it is newer than 3.11."""
FAR = 2**31 + 64
"""Elements between neighbours that lie far apart: an index of 32 bits does not reach from one to the next."""


def far_apart(x: Any, axis: int) -> Any:
    """The same values with ``FAR`` elements between neighbours along ``axis``, in pages that nobody has touched and that take
    no memory. Raises ``NoRoom`` where the machine does not grant so many addresses."""
    inner = int(np.prod(x.shape[axis + 1 :]))
    outer = x.size // inner
    size = ((outer - 1) * FAR + inner) * x.itemsize
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        raise NoRoom(f"no {size / 1e9:.1f} GB of addresses: {error}") from error
    rows = np.ndarray((outer, inner), x.dtype, pages, strides=(FAR * x.itemsize, x.itemsize))
    rows[...] = x.reshape(outer, inner)
    leading = x.shape[: x.ndim + axis + 1]
    strides = [FAR * x.itemsize * int(np.prod(leading[at + 1 :])) for at in range(len(leading))]
    inner_strides = np.ascontiguousarray(x).strides[len(leading) :]
    return np.ndarray(x.shape, x.dtype, pages, strides=(*strides, *inner_strides))
