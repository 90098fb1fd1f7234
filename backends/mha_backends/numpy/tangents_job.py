"""What all blocks of a call for tangents share, and the operands in the form in which the blocks use them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mha_backends.numpy.dropout import Drops, drops_of
from mha_backends.numpy.job import MOST, arithmetic, sinks_of
from mha_backends.numpy.keys import for_blas
from mha_backends.numpy.plan import Blocks, Plan, Task, plan
from mha_backends.numpy.scratch import scratch
from mha_backends.numpy.visibility import Visibility
from mha_spec.call import Array, Call, Sizes, Tangents

FULL = Blocks(512, 256)
BAND = Blocks(256, 256)
"""As backwards: more than one tile of scores is in use at once."""


@dataclass(frozen=True, slots=True)
class Job:
    """A call with one batch axis. ``views`` holds the tangents ("dquery", ...), the forward's "lse", and the rates to be written."""

    call: Call
    views: dict[str, Array]
    sizes: Sizes
    group: int
    visible: Visibility
    plan: Plan
    kind: np.dtype[Any]
    factor: float
    """What q is multiplied with in the forward."""
    cap: float | None
    sinks: Array | None
    dsinks: Array | None
    """(h,) each."""
    drops: Drops | None

    def query_heads(self, heads: slice) -> slice:
        """The query heads that read these kv heads."""
        return slice(heads.start * self.group, heads.stop * self.group)

    def tile(self, x: Array, rows: "Rows", j0: int, j1: int) -> Array:
        """A tile of a bias or its tangent, with the five axes; those of size 1 stay."""
        return self.visible.tile(x, rows.task.items, rows.task.heads, rows.i0, rows.i1, slice(j0, j1))

    def part(self, name: str, rows: "Rows") -> Array:
        """The block's part of a rate (items, h, n, ·), as a view (items, heads, group, queries, ·)."""
        x = self.views[name] if name != "lse" else self.views[name][..., None]
        return rows.split(x[rows.task.items, self.query_heads(rows.task.heads), rows.i0 : rows.i1])


class Keys(NamedTuple):
    """K and V of the kv heads of a task and their tangents, (items, heads, m, d); values without what is not finite."""

    key: Array
    value: Array
    dkey: Array | None
    dvalue: Array | None
    bad: Array | None
    """Where a value or its tangent is not finite; None where both are."""


class Rows(NamedTuple):
    """A block: queries [i0, i1) of the query heads that read the kv heads of a task; (items, heads, r, ·) each."""

    task: Task
    i0: int
    i1: int
    scaled: Array
    """q, times what makes scores of q k."""
    query: Array
    """q, times the scale."""
    dquery: Array | None
    """The same of its tangent."""
    lse: Array

    def split(self, x: Array) -> Array:
        """(items, heads, r, ·) or (items, h, queries, ·) -> (items, heads, group, queries, ·), a view."""
        items, heads, r, _ = self.scaled.shape
        return x.reshape(items, heads, r // (self.i1 - self.i0), self.i1 - self.i0, x.shape[-1])


def make_job(part: Call, tangents: Tangents, views: dict[str, Array], threads: int | None, blocks: Blocks | None) -> Job:
    kind, factor, cap = arithmetic(part)
    sizes = part.sizes
    if blocks is None:
        rows, columns, pack = FULL if part.band is None else BAND
        blocks = Blocks(rows, columns * 4 // kind.itemsize, pack)
    dsinks = None if tangents.sink_logits is None else tangents.sink_logits.astype(kind)
    visible = Visibility(part, sizes)
    return Job(
        part, views, sizes, sizes.h // max(sizes.h_kv, 1), visible, plan(sizes, blocks, threads), kind, factor, cap,
        sinks_of(part, kind), dsinks, drops_of(part, visible),
    )  # fmt: skip


def keys_of(job: Job, task: Task) -> Keys:
    items, heads, _ = task

    def native(x: Array | None) -> Array | None:
        return None if x is None else for_blas(x[items, heads].astype(job.kind, copy=False))

    value, dvalue = native(job.call.value), native(job.views.get("dvalue"))
    bad = None
    for x in (value, dvalue):
        if x is not None and not np.isfinite(x).all():
            bad = ~np.isfinite(x) if bad is None else bad | ~np.isfinite(x)
    if bad is not None:
        value, dvalue = (None if x is None else np.where(np.isfinite(x), x, job.kind.type(0)) for x in (value, dvalue))
        bad = bad.astype(np.float32)
    key: Array = native(job.call.key)
    return Keys(key, value, native(job.views.get("dkey")), dvalue, bad)


def rows_of(job: Job, task: Task, i0: int, i1: int) -> Rows:
    def block(x: Array, name: str) -> Array:
        """(items, h, queries, d) -> (items, heads, r, d) in the compute type."""
        x = x[task.items, job.query_heads(task.heads), i0:i1]
        out = scratch(name, x.shape, job.kind)
        np.copyto(out, x, casting="unsafe")
        return out.reshape(x.shape[0], task.heads.stop - task.heads.start, job.group * (i1 - i0), x.shape[-1])

    scale = job.kind.type(job.call.scale)
    query = block(job.call.query, "query")
    scaled = np.multiply(query, job.kind.type(job.factor), out=scratch("scaled", query.shape, job.kind))
    if abs(job.factor) > 1:
        scaled.clip(-MOST[job.kind], MOST[job.kind], out=scaled)
    query *= scale
    dquery = None
    if "dquery" in job.views:
        dquery = block(job.views["dquery"], "dquery")
        dquery *= scale
    return Rows(task, i0, i1, scaled, query, dquery, block(job.views["forward"][..., None], "lse"))
