"""CuPy, cuBLAS and the CUDA devices: where they are found, and what is said when they are not."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from mha_core.errors import BackendUnavailable
from mha_spec.call import Array, dtype_name

INSTALL = "pip install 'mha-core[cuda12]' or 'mha-core[cuda13]'"


@dataclass(frozen=True, slots=True, eq=False)
class Cuda:
    """What the host code reaches of the machine. Tests put their own in its place.

    ``cublas()`` gives the module with ``gemmStridedBatchedEx`` and the handle for the current device and thread.
    """

    cupy: Any
    cublas: Callable[[], tuple[Any, int]]


def find_cuda() -> Cuda:
    """CuPy, or ``BackendUnavailable`` with the command that installs it."""
    try:
        cupy = import_module("cupy")
    except ImportError as missing:
        raise BackendUnavailable("cupy", f"CuPy cannot be imported ({missing})", INSTALL) from missing
    return Cuda(cupy, _cublas)


def _cublas() -> tuple[Any, int]:
    try:
        library = import_module("cupy_backends.cuda.libs.cublas")
    except ImportError as missing:
        reason = f"CuPy is there and cuBLAS is not ({missing})"
        raise BackendUnavailable("cupy", reason, "pip install 'cupy-cuda12x[ctk]' or 'cupy-cuda13x[ctk]'") from missing
    return library, import_module("cupy.cuda.device").get_cublas_handle()


def devices(cuda: Cuda) -> tuple[str, ...]:
    """``("cuda:0", ...)``; empty where CUDA finds no device or no driver. Never raises."""
    if not cuda.cupy.is_available():
        return ()
    return tuple(f"cuda:{i}" for i in range(cuda.cupy.cuda.runtime.getDeviceCount()))


def require_device(cuda: Cuda) -> None:
    if not cuda.cupy.is_available():
        raise BackendUnavailable(
            "cupy", "NOT_RUN: no CUDA device", "run on a machine with an NVIDIA GPU and its driver, or load('numpy')"
        )


def to_host(cuda: Cuda, array: Array) -> Any:
    """A NumPy array of the exact values. It waits for the device, as reading a result must; bfloat16 becomes float32."""
    values = cuda.cupy.asnumpy(array)
    return values.astype(np.float32) if dtype_name(values) == "bfloat16" else values


def from_host(cuda: Cuda, values: Any, dtype: str) -> Array:
    """A CuPy array of the named dtype on the current device."""
    require_device(cuda)
    with np.errstate(all="ignore"):  # a number beyond the type becomes an infinity, as it would on the device
        rounded = np.asarray(values).astype(named_dtype(dtype))
    return cuda.cupy.asarray(rounded)


def named_dtype(name: str) -> Any:
    """The NumPy dtype of that name. bfloat16 is ml_dtypes' type: NumPy and CuPy have none of their own."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        return np.dtype(import_module("ml_dtypes").bfloat16)
    except ImportError as missing:
        raise BackendUnavailable("cupy", "bfloat16 arrays need ml_dtypes", "pip install ml_dtypes") from missing
