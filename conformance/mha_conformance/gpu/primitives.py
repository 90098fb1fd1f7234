"""The instructions of a warp on the device, against golden data."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_conformance.gpu import golden
from mha_conformance.gpu.rows import Row

ROWS = tuple(primitive.name for primitive in golden.PRIMITIVES)


def run() -> Iterator[Row]:
    from mha_backends.cupy.devices import find_cuda

    yield from on(find_cuda())


def on(cuda: Any) -> Iterator[Row]:
    from mha_backends.cupy.programs import Program, launch

    x = cuda.cupy.asarray(golden.inputs())
    out = cuda.cupy.zeros((golden.WORDS, 32), dtype="uint32")
    params = np.array([(int(x.data.ptr), int(out.data.ptr))], np.dtype([("x", "<u8"), ("out", "<u8")]))
    launch(cuda, Program(("primitives.cu", "check_primitives.cu")), golden.KERNEL, 1, 32, params, golden.SHARED)
    for name, wrong in golden.compared(cuda.cupy.asnumpy(out), golden.golden()):
        yield Row(name, "FAILS" if wrong else "HOLDS", why=wrong or "bit for bit")
