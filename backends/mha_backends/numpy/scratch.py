"""Arrays that a thread keeps between blocks: fresh ones of this size would be mapped and cleared by the kernel each time."""

import math
import threading
from typing import Any

import numpy as np

from mha_spec.call import Array

KEPT = 2**21
"""Bytes up to which an array is kept after the call; a larger one is made anew and let go."""

_own = threading.local()


def scratch(name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
    """An array of this shape whose contents are whatever was left there. A name is one place: its last user has it."""
    size = math.prod(shape)
    if size * kind.itemsize > KEPT:
        return np.empty(shape, kind)
    kept = _own.__dict__
    at = name + kind.char
    flat = kept.get(at)
    if flat is None or flat.size < size:
        flat = kept[at] = np.empty(size, kind)
    return flat[:size].reshape(shape)


def ones(size: int, kind: np.dtype[Any]) -> Array:
    """(size,) ones: p @ ones is the row sum at the speed of a matrix product, a quarter of the time of ``np.sum``."""
    kept = _own.__dict__
    at = "ones" + kind.char
    flat = kept.get(at)
    if flat is None or flat.size < size:
        flat = kept[at] = np.ones(size, kind)
        flat.flags.writeable = False
    return flat[:size]
