"""Runs the requests of a case on an implementation, and notes what happened beside the numbers."""

import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from mha_conformance.cases.case import Request
from mha_conformance.run.arrays import Inexpressible, laid_out, numpy_dtype
from mha_conformance.run.implementation import OPERANDS, Implementation
from mha_core import BackendUnavailable, Projections, Unsupported
from mha_spec.call import dtype_name
from mha_spec.contract import library_of

CONCURRENT = "MHA-EXEC-7"
ALONE = "options "
"""The prefix of a layout that is meant for mask and bias alone."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What one request gave: arrays on the host, or an error; and the facts that are no numbers."""

    status: Literal["ok", "refused", "unsupported", "inexpressible", "not run"]
    output: Any = None
    weights: Any = None
    lse: Any = None
    error: str = ""
    clause: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    kernel: str = ""
    """Which kernel answered, in the implementation's own words; empty where it does not say."""


def perform(implementation: Implementation, clause: str, requests: tuple[Request, ...]) -> list[Reply]:
    """One reply per request of a case of the clause, in order; those of MHA-EXEC-7 run at once."""
    if clause == CONCURRENT:
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda request: answer(implementation, request), requests))
    return [answer(implementation, request) for request in requests]


def answer(implementation: Implementation, request: Request) -> Reply:
    """Convert, call, convert back."""
    try:
        operands, options = prepared(implementation, request)
    except Inexpressible as error:
        return Reply("inexpressible", error=str(error))
    given = {**dict(zip(OPERANDS, operands, strict=False)), **{k: v for k, v in options.items() if hasattr(v, "shape")}}
    before = {name: implementation.host(x).tobytes() for name, x in given.items()}
    state, kernel = global_state(), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel = _kernel(implementation, request, operands, options)
            _prepare(implementation, request)
            result = _call(implementation, request, operands, options)
    except BackendUnavailable as error:
        return Reply("not run", error=error.reason, kernel=kernel)
    except Unsupported as error:
        return Reply("unsupported", error=str(error), clause=error.clause)
    except Exception as error:  # an implementation may fail in any way; it is judged, not obeyed
        return Reply("refused", error=f"{type(error).__name__}: {error}", clause=getattr(error, "clause", None))
    try:
        return replace(_reply(implementation, request, operands, given, before, state, result), kernel=kernel)
    except Exception as error:
        return Reply("refused", error=f"a result that is no array: {type(result).__name__} ({type(error).__name__}: {error})")


def _reply(
    implementation: Implementation, request: Request, operands: list[Any], given: dict[str, Any], before: dict[str, bytes],
    state: Any, result: Any,
) -> Reply:  # fmt: skip
    """What came back, on the host. Raises whatever a strange object raises."""
    output, weights, lse = _unpacked(result, request)
    facts = {
        "library": library_of(output) if hasattr(output, "dtype") else type(output).__name__,
        "asked library": library_of(operands[0]) if operands else "",
        "dtype": dtype_name(output) if hasattr(output, "dtype") else type(output).__name__,
        "device": str(getattr(output, "device", None)) == str(getattr(operands[0], "device", None)) if operands else True,
        "modified": sorted(name for name, x in given.items() if implementation.host(x).tobytes() != before[name]),
        "shared": sorted(name for name, x in given.items() if _shared(output, x)),
        "state": global_state() == state,
        "lse dtype": dtype_name(lse) if hasattr(lse, "dtype") else None,
        "weights dtype": dtype_name(weights) if hasattr(weights, "dtype") else None,
    }
    host = [None if x is None else implementation.host(x) for x in (output, weights, lse)]
    if strange := [x.dtype for x in host if x is not None and x.dtype.kind not in "bfiuc"]:
        raise TypeError(f"its elements are {strange[0]}")
    if implementation.layout == "bnhd" and request.target == "attention" and host[0] is not None and host[0].ndim >= 3:
        host[0] = np.swapaxes(host[0], -2, -3)
    return Reply("ok", host[0], host[1], host[2], facts=facts)


def prepared(implementation: Implementation, request: Request) -> tuple[list[Any], dict[str, Any]]:
    """Operands and options as the implementation takes them."""
    kinds = dtypes(request)

    def native(name: str, x: Any, dtype: str) -> Any:
        with np.errstate(all="ignore"):
            values = np.asarray(x).astype(numpy_dtype(dtype))
        if request.target == "attention" and name in OPERANDS:
            values = laid_out(values, "contiguous" if request.layout.startswith(ALONE) else request.layout, name)
            if implementation.layout == "bnhd":
                values = np.swapaxes(values, -2, -3)
        elif name in ("mask", "bias") and request.layout.startswith(ALONE):
            values = laid_out(values, request.layout.removeprefix(ALONE), name)
        return implementation.convert(values, name)

    if request.target == "merge":
        return [native(f"part {at}", x, kinds[f"part {at}"]) for at, x in enumerate(request.operands)], {}
    operands = [native(name, x, request.dtype) for name, x in zip(OPERANDS, request.operands, strict=True)]
    options = {name: native(name, x, kinds[name]) for name, x in request.arrays.items()}
    options |= request.options
    if request.target == "layer":
        operands.append(Projections(**{name: native(name, x, request.dtype) for name, x in request.projections.items()}))
    if implementation.declared.native_offset is not None:
        options.pop("query_offset", None)
    return operands, options


def dtypes(request: Request) -> dict[str, str]:
    """The dtype of every array option, and of the parts of a merge: booleans, 64-bit integers, or the call's own."""
    if request.target == "merge":
        wide = "float64" if request.dtype == "float64" else "float32"
        return {f"part {at}": wide if at % 2 else request.dtype for at in range(len(request.operands))}
    kinds = {
        name: "bool" if x.dtype == bool else "int64" if x.dtype.kind == "i" else request.dtype
        for name, x in request.arrays.items()
    }
    return kinds | dict(request.dtypes)


def _call(implementation: Implementation, request: Request, operands: list[Any], options: dict[str, Any]) -> Any:
    if request.target == "merge":
        assert implementation.merge is not None
        return implementation.merge(list(zip(operands[::2], operands[1::2], strict=True)))
    if request.target == "layer":
        assert implementation.layer is not None
        return implementation.layer(*operands, **options)
    return implementation.attention(*operands, **options)


def _prepare(implementation: Implementation, request: Request) -> None:
    """Tell a system that compiles for its shapes which ones come; it is called many times, since stale buffers show on reuse."""
    if implementation.prepare is not None and request.target == "attention":
        arrays = dict(zip(OPERANDS, request.operands, strict=True)) | dict(request.arrays)
        implementation.prepare({name: tuple(x.shape) for name, x in arrays.items()})


def _kernel(implementation: Implementation, request: Request, operands: list[Any], options: dict[str, Any]) -> str:
    """What the implementation says of the call; it may say nothing of one that it refuses."""
    if implementation.explain is None or request.target != "attention":
        return ""
    try:
        return str(implementation.explain(*operands, **options))
    except Exception:
        return ""


def _unpacked(result: Any, request: Request) -> tuple[Any, Any, Any]:
    """(output, weights, lse) of what came back: an array, a result with these names, or a tuple in this order."""
    if request.target == "merge":
        return result[0], None, result[1]
    if hasattr(result, "output"):
        return result.output, getattr(result, "weights", None), getattr(result, "lse", None)
    if isinstance(result, tuple):
        return (*result, None, None, None)[:3]
    return result, None, None


def _shared(output: Any, x: Any) -> bool:
    try:
        return bool(np.shares_memory(np.asarray(output), np.asarray(x)))
    except Exception:  # arrays that NumPy cannot look into are told apart by their addresses
        return hasattr(output, "data_ptr") and output.data_ptr() == x.data_ptr()


def global_state() -> Any:
    """What a call must leave as it is: random generators and error modes."""
    return random.getstate(), np.random.get_state()[1].tobytes(), tuple(sorted(np.geterr().items()))  # type: ignore[index]
