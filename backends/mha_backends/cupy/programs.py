"""The CUDA programs of this package: their source, compiled once for each set of constants, and how a kernel is launched."""

from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from mha_backends.cupy.devices import Cuda

LEAST_THREADS, MOST_THREADS = 32, 256
SHARED_BY_DEFAULT = 48 * 1024
"""Bytes of dynamic shared memory that a kernel may have without asking for more."""


class Program(NamedTuple):
    """Files of ``kernels`` that stand one behind another, and the constants they are compiled with."""

    parts: tuple[str, ...]
    constants: tuple[tuple[str, str], ...] = ()

    @property
    def source(self) -> str:
        """One text without includes, in which the compiler still counts lines by file."""
        folder = files(__package__).joinpath("kernels")
        return "".join(f'#line 1 "{part}"\n{folder.joinpath(part).read_text(encoding="utf-8")}' for part in self.parts)

    @property
    def options(self) -> tuple[str, ...]:
        return ("-std=c++17", *(f"-D{name}={value}" for name, value in self.constants))


UNFUSED = Program(("call.cu", "dropout.cu", "softmax.cu", "gradients.cu"))


def launch(cuda: Cuda, program: Program, kernel: str, blocks: int, threads: int, params: Any, shared: int = 0) -> None:
    """Enqueue a kernel on CuPy's current stream. The first launch on a device compiles; CuPy keeps the result on disk."""
    function = _function(cuda.cupy, program, kernel)
    if shared > SHARED_BY_DEFAULT:
        function.max_dynamic_shared_size_bytes = shared  # of the function on the current device
    function((blocks,), (threads,), (params,), shared_mem=shared)


@lru_cache
def _function(cupy: Any, program: Program, kernel: str) -> Any:
    return cupy.RawModule(code=program.source, options=program.options).get_function(kernel)


def threads_for(width: int) -> int:
    """The threads of a block that works on a row of this width: a power of two, four elements a thread and more."""
    threads = LEAST_THREADS
    while threads < MOST_THREADS and threads * 4 < width:
        threads *= 2
    return threads
