"""What all blocks of a call share."""

from typing import Any, NamedTuple

import numpy as np

from mha_backends.numpy.dropout import Drops, drops_of
from mha_backends.numpy.plan import Blocks, Plan, plan, usual_blocks
from mha_backends.numpy.visibility import Visibility
from mha_spec.call import Array, AttentionResult, Call, Sizes, dtype_name

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
MOST = {kind: kind.type(np.finfo(kind).max) for kind in (SINGLE, DOUBLE)}
"""The largest number of each compute type."""


class Job(NamedTuple):
    """A call with one batch axis, where its results go, and how it is computed."""

    call: Call
    result: AttentionResult
    sizes: Sizes
    group: int
    visible: Visibility
    plan: Plan
    kind: np.dtype[Any]
    """The compute type: float32 or float64."""
    factor: float
    """What q is multiplied with."""
    cap: float | None
    sinks: Array | None
    """(h,) in the compute type."""
    drops: Drops | None

    def query_heads(self, heads: slice) -> slice:
        """The query heads that read these kv heads."""
        return slice(heads.start * self.group, heads.stop * self.group)


def make_job(call: Call, result: AttentionResult, threads: int | None, blocks: Blocks | None) -> Job:
    kind, factor, cap = arithmetic(call)
    sizes = call.sizes
    blocks = blocks or usual_blocks(call, kind.itemsize)
    visible = Visibility(call, sizes)
    return Job(
        call, result, sizes, sizes.h // max(sizes.h_kv, 1), visible, plan(sizes, blocks, threads),
        kind, factor, cap, sinks_of(call, kind), drops_of(call, visible),
    )  # fmt: skip


def arithmetic(call: Call) -> tuple[np.dtype[Any], float, float | None]:
    """The compute type, the factor of q, and the softcap where it does anything.

    Half types are computed in float32. A factor so large or small that q might leave float32 is carried in float64. A cap from
    2^100 on moves no score by a rounding and is left out; another goes into the factor: c tanh((scale / c) q k).
    """
    cap = call.softcap if call.softcap is not None and call.softcap < 2.0**100 else None
    factor = call.scale if cap is None else call.scale / cap
    if not (2.0**-60 <= abs(factor) <= 2.0**60 or factor == 0):
        most = float(MOST[DOUBLE])
        return DOUBLE, min(max(factor, -most), most), cap
    return DOUBLE if dtype_name(call.query) == "float64" else SINGLE, factor, cap


def bounded(x: Array, out: Array) -> Array:
    """``x`` in ``out`` and its type, with what is finite or infinite made finite; NaN stays."""
    np.copyto(out, x, casting="unsafe")
    most = MOST[out.dtype]
    return out.clip(-most, most, out=out)


def sinks_of(call: Call, kind: np.dtype[Any]) -> Array | None:
    """(h,) in the compute type. A sink of -inf is none; any finite one stays finite."""
    given = call.sink_logits
    return (
        None if given is None else np.where(given == -np.inf, kind.type(-np.inf), bounded(given, np.empty(given.shape, kind)))
    )
