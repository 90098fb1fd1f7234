"""A request's host arrays as the implementation takes them: its library, its dtypes, its memory layouts."""

from typing import Any, TypeAlias

import numpy as np

from mha_conformance.cases.calls import with_keep
from mha_conformance.cases.case import AS_LIST, Request
from mha_conformance.run.arrays import Inexpressible, laid_out, numpy_dtype
from mha_conformance.run.guards import Guards
from mha_conformance.run.implementation import OPERANDS, Implementation
from mha_core import Projections

IN_PLACE = "in place"
"""The layout of a request whose arrays overwrite those of the last one of the same shapes: same memory, other values."""
ALONE = "options "
"""The prefix of a layout that is meant for array options alone."""
Native: TypeAlias = tuple[list[Any], dict[str, Any]]
"""Operands and options as the implementation takes them."""


def prepared(implementation: Implementation, request: Request, guards: Guards) -> Native:
    """Operands and options as the implementation takes them, each array between its guard bands."""
    kinds = dtypes(request)

    def native(name: str, x: Any, dtype: str) -> Any:
        if dtype == AS_LIST:
            return np.asarray(x).tolist()
        with np.errstate(all="ignore"):
            values = np.asarray(x).astype(numpy_dtype(dtype))
        if request.target in ("attention", "vjp") and name in (*OPERANDS, "grad_output"):
            values = laid_out(values, "contiguous" if request.layout.startswith((ALONE, IN_PLACE)) else request.layout, name)
            if implementation.layout == "bnhd":
                values = np.swapaxes(values, -2, -3)
        elif name in request.arrays:
            values = laid_out(
                values, request.layout.removeprefix(ALONE) if request.layout.startswith(ALONE) else "contiguous", name
            )
        return implementation.convert(guards.around(values, name), name)

    if request.target == "merge":
        parts = [laid_out(x, request.layout, "") for x in request.operands]  # a conversion of dtype keeps the order of axes
        return [native(f"part {at}", x, kinds[f"part {at}"]) for at, x in enumerate(parts)], {}
    operands = [native(name, x, kinds[name]) for name, x in zip(OPERANDS, request.operands, strict=True)]
    options = {name: native(name, x, kinds[name]) for name, x in request.arrays.items()}
    options = with_keep(options | dict(request.options))
    if request.target in ("layer", "layer vjp"):
        operands.append(Projections(**{name: native(name, x, request.dtype) for name, x in request.projections.items()}))
    if implementation.declared.native_offset is not None:
        options.pop("query_offset", None)
    return operands, options


def dtypes(request: Request) -> dict[str, str]:
    """The dtype of every operand and array option: the call's own, booleans, 64-bit integers, or what the request says."""
    if request.target == "merge":
        wide = "float64" if request.dtype == "float64" else "float32"
        kinds = {f"part {at}": wide if at % 2 else request.dtype for at in range(len(request.operands))}
    else:
        kinds = dict.fromkeys(OPERANDS, request.dtype) | {
            name: "bool" if x.dtype == bool else "int64" if x.dtype.kind == "i" else request.dtype
            for name, x in request.arrays.items()
        }
        kinds["grad_lse"] = "float64" if request.dtype == "float64" else "float32"
    return kinds | dict(request.dtypes)


def overwritten(operands: list[Any], options: dict[str, Any], held: list[Native]) -> Native:
    """These values in the arrays of the last call whose arrays had the same shapes. Raises ``Inexpressible``."""
    new = _arrays(operands, options)
    for old_operands, old_options in reversed(held):
        old = _arrays(old_operands, old_options)
        if {name: tuple(x.shape) for name, x in old.items()} != {name: tuple(x.shape) for name, x in new.items()}:
            continue
        try:
            for name, x in new.items():
                old[name][...] = x
        except TypeError as error:  # arrays of JAX, for one, cannot be written
            raise Inexpressible(f"its arrays cannot be overwritten: {error}") from error
        return old_operands, {name: old.get(name, value) for name, value in options.items()}
    raise ValueError("no call before has arrays of these shapes")


def _arrays(operands: list[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Everything of a call that can be written over, by name."""
    numbered = {f"operand {at}": x for at, x in enumerate(operands)}
    return {**numbered, **{name: x for name, x in options.items() if hasattr(x, "shape")}}
