"""Runs the CUDA kernels of this repository on a CPU. README.md says what it models and what it cannot see."""

import sys
from collections.abc import Sequence
from typing import Any

from emulator.arrays import fake_cupy
from emulator.compiler import missing

__all__ = ["install"]


def install() -> None:
    """From now on this process finds an emulated CuPy. Raises ``RuntimeError`` where nothing can be emulated."""
    if why := missing():
        raise RuntimeError(f"NOT_RUN: {why}")
    sys.modules["cupy"] = fake_cupy()
    sys.meta_path.insert(0, _NoCublas())


class _NoCublas:
    """Finds nothing, and says of cuBLAS why."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name.partition(".")[0] == "cupy_backends":
            raise ImportError("cuBLAS is not emulated")
