"""What gradients end with: a sum over rows, and one rounding to the type of the operand."""

from math import prod
from typing import Any

from mha_backends.cupy.devices import Cuda
from mha_backends.cupy.params import FLOATS, PARAMS, pack, pointer
from mha_backends.cupy.programs import MOST_THREADS, UNFUSED, launch
from mha_spec.call import Array, dtype_name


def of_type(kernel: str, real: Any) -> str:
    """The name of a kernel for sums of this type."""
    return f"{kernel}_{'double' if str(real) == 'float64' else 'float'}"


def finish(cuda: Cuda, sums: Array, output: Array, scale: float = 1.0, first: int = 0) -> None:
    """output = scale sums, rounded once: ``sums (*items, rows, width)``, ``output (*items, n, width)`` from row ``first`` on."""
    *items, rows, width = sums.shape
    if sums.size > 0:
        params = pack(
            PARAMS, acc=pointer(sums), output=pointer(output), element=FLOATS[dtype_name(output)], batch=1, heads=prod(items),
            rows=rows, n=output.shape[-2], first=first, d_v=width, scale=scale,
        )  # fmt: skip
        launch(cuda, UNFUSED, of_type("finish_gradient", sums.dtype), -(-sums.size // MOST_THREADS), MOST_THREADS, params)


def rounded(cuda: Cuda, sums: Array | None, operand: Array | None) -> Array | None:
    """Sums in the type of the operand whose gradient they are."""
    if sums is None or operand is None or sums.dtype == operand.dtype:
        return sums
    result: Array = cuda.cupy.empty(sums.shape, dtype=operand.dtype)
    finish(cuda, sums.reshape(-1, 1), result.reshape(-1, 1))
    return result


def sum_over_rows(cuda: Cuda, terms: Array | None) -> Array | None:
    """``(*batch, h, n)`` -> ``(h,)``: what all rows of a head send to its sink (MHA-GRAD-11)."""
    if terms is None:
        return None
    *batch, h, n = terms.shape
    sums: Array = cuda.cupy.zeros((h,), dtype=terms.dtype)
    if terms.size > 0:
        params = pack(PARAMS, sink_terms=pointer(terms), acc=pointer(sums), batch=prod(batch), heads=h, n=n)
        launch(cuda, UNFUSED, of_type("sum_sink_terms", terms.dtype), h, MOST_THREADS, params)
    return sums
