"""The device, its driver and the libraries: what a result must name, and why there may be none."""

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mha_conformance.gpu.rows import Row
from mha_core.errors import BackendUnavailable

LIBRARIES = ("cupy-cuda13x", "cupy-cuda12x", "torch", "cuda-tile", "numpy", "ml_dtypes")
ROWS = ("device", "compute capability", "driver", "CUDA runtime", "NVRTC", "memory", *LIBRARIES)


def missing() -> str:
    """Why nothing can run on a GPU here; empty where something can."""
    try:
        from mha_backends.cupy.devices import find_cuda

        cuda = find_cuda()
    except BackendUnavailable as error:
        return f"{error.reason}; do: {error.install}"
    return "" if cuda.cupy.is_available() else "no CUDA device or no driver"


def run() -> Iterator[Row]:
    cupy: Any = import_module("cupy")
    runtime = cupy.cuda.runtime
    found = runtime.getDeviceProperties(cupy.cuda.Device().id)
    yield Row("device", "MEASURED", why=_text(found["name"]))
    yield Row("compute capability", "MEASURED", found["major"] + found["minor"] / 10)
    yield Row("driver", "MEASURED", runtime.driverGetVersion() / 1000, "CUDA")
    yield Row("CUDA runtime", "MEASURED", runtime.runtimeGetVersion() / 1000, "CUDA")
    yield Row("NVRTC", "MEASURED", why=".".join(map(str, cupy.cuda.nvrtc.getVersion())))
    yield Row("memory", "MEASURED", found["totalGlobalMem"] / 2**30, "GiB")
    for name in LIBRARIES:
        try:
            yield Row(name, "MEASURED", why=version(name))
        except PackageNotFoundError:
            yield Row(name, why="it is not installed")


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
