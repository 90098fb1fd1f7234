"""A request in one line, for a person who looks at a failure."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mha_conformance.cases.case import Request

OPERANDS = ("query", "key", "value")
_FUNCTIONS = {
    "layer": "multi_head_attention: ", "vjp": "attention_vjp: ", "layer vjp": "multi_head_attention_vjp: ",
    "cache": "through a KVCache: ", "varlen": "attention_varlen: ", "statistics": "attention_statistics: ",
}  # fmt: skip


def described(requests: Sequence[Request]) -> str:
    """Shapes, dtype and options of the request; of several, of the first, with their number."""
    if not requests:
        return ""
    more = f" (the first of {len(requests)} requests)" if len(requests) > 1 else ""
    return f"{_one(requests[0])}{more}"


def _one(request: Request) -> str:
    if request.target == "merge":
        outputs = ", ".join(_shape(x) for x in request.operands[::2])
        return (
            f"merge_partials of {len(request.operands) // 2} parts{f', outputs {outputs}' if outputs else ''}, {request.dtype}"
        )
    operands = ", ".join(f"{name} {_shape(x)}" for name, x in zip(OPERANDS, request.operands, strict=False))
    words = [f"{_FUNCTIONS.get(request.target, '')}{operands}, {request.dtype}"]
    words += [f"{name} {value!r}" for name, value in request.plan.items()]
    words += [f"{name} {_shape(x)}" for name, x in {**request.arrays, **request.projections}.items() if x is not None]
    words += [f"{name}={value!r}" for name, value in request.options.items()]
    if request.layout != "contiguous":
        words.append(f"layout {request.layout}")
    return "; ".join(words)


def _shape(array: Any) -> str:
    return str(tuple(np.shape(array))).replace(" ", "")
