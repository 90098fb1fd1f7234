"""As much of CuPy as the backend uses, on NumPy arrays: ``RawModule`` compiles for this CPU, and a launch is emulated.

cuBLAS is not emulated. What needs it says so, and is not run.
"""

from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from emulator.launches import Launch

STATIC_SHARED_LIMIT = 48 * 1024
"""Bytes of dynamic shared memory that a kernel gets without asking for more."""


class _Device(nullcontext[None]):
    """The one device there is; CuPy's is a context manager as well."""

    compute_capability = "80"

    def __str__(self) -> str:
        return "emulator"


DEVICE = _Device()


class Array(np.ndarray):
    """A NumPy array with the two attributes of a CuPy array that NumPy spells otherwise."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    @property
    def device(self) -> Any:
        return DEVICE


Array.__module__ = "cupy"  # the door looks there for the array's library


class Kernel:
    """One function of a module, called as CuPy's: ``kernel(grid, block, arguments, shared_mem=...)``."""

    def __init__(self, code: str, options: tuple[str, ...], name: str, run: Callable[[Launch], None]) -> None:
        self._code, self._name, self._run = code, name, run
        self._defines = tuple(option for option in options if option.startswith("-D"))
        self.max_dynamic_shared_size_bytes = STATIC_SHARED_LIMIT

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        (blocks,), (threads,), (params,) = grid, block, arguments
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise ValueError(
                f"{self._name} asks for {shared_mem} bytes of shared memory; set max_dynamic_shared_size_bytes first"
            )
        if not (0 < blocks < 2**31 and 0 < threads <= 1024):
            raise ValueError(f"{self._name} is launched with {blocks} blocks of {threads} threads")
        self._run(Launch(self._code, self._defines, self._name, blocks, threads, shared_mem, params.copy()))


def fake_cupy(run: Callable[[Launch], None] = Launch.run, has_device: bool = True) -> Any:
    """The module. Fresh memory holds all-ones bytes, which are NaN in every float type; ``allocated`` notes its sizes."""
    module: Any = ModuleType("cupy")

    def give(x: Any) -> Any:
        return np.asarray(x).view(Array)

    def empty(shape: Any, dtype: Any) -> Any:
        x = np.empty(shape, dtype)
        x.reshape(-1).view(np.uint8)[...] = 255
        module.allocated.append(x.nbytes)
        return give(x)

    class RawModule:
        def __init__(self, *, code: str, options: tuple[str, ...]) -> None:
            self._code, self._options = code, options

        def get_function(self, name: str) -> Kernel:
            return Kernel(self._code, self._options, name, run)

    module.allocated = []
    module.ndarray = Array
    module.RawModule = RawModule
    module.empty = empty
    module.zeros = lambda shape, dtype: give(np.zeros(shape, dtype))
    module.asarray = lambda x: give(x if isinstance(x, np.ndarray) else np.array(x))
    module.asnumpy = lambda x: np.array(x)
    module.ascontiguousarray = lambda x: give(np.array(x, order="C"))
    module.broadcast_to = lambda x, shape: np.broadcast_to(x, shape, subok=True)
    module.is_available = lambda: has_device
    module.cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=lambda: int(has_device)))
    module.__version__ = "emulated"
    return module
