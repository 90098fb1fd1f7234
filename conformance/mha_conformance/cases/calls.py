"""A request as a legal call in float64, and who sees whom in it."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mha_conformance.cases.case import Request
from mha_core import Call
from mha_spec import equations
from mha_spec.contract import attention_call
from mha_spec.equations_dropout import factors


def call_of(request: Request, operands: tuple[Any, ...]) -> Call:
    """The request's options on these operands, as float64 arrays."""
    query, key, value = (np.asarray(x, dtype=np.float64) for x in operands)
    arrays = {name: x for name, x in request.arrays.items() if not name.startswith("grad_")}
    return attention_call(query, key, value, **with_keep({**arrays, **request.options}))


def with_keep(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a request as a call takes them: its array ``keep`` belongs into its ``Dropout``."""
    found = dict(options)
    if "keep" in found:
        found["dropout"] = found["dropout"]._replace(keep=found.pop("keep"))
    return found


def factors_of(call: Call) -> Any:
    """What dropout multiplies each weight with, (*batch, h, n, m); None without it."""
    return None if call.dropout is None else factors(call)


def visible_pairs(request: Request) -> Any:
    """(*batch, h, n, m): who sees whom."""
    query, key, _ = request.operands
    return np.broadcast_to(equations.visible(call_of(request, request.operands)), (*query.shape[:-1], key.shape[-2]))


def some_row_is_empty(requests: Iterable[Request]) -> bool:
    """Whether some query of some request sees no key."""
    return any(not visible_pairs(request).any(axis=-1).all() for request in requests)
