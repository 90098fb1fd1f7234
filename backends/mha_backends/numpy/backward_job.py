"""What all blocks of a backward call share: how it is cut, and where its gradients are summed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mha_backends.numpy.dropout import Drops, drops_of
from mha_backends.numpy.job import arithmetic, sinks_of
from mha_backends.numpy.plan import Blocks, Plan, Task, plan
from mha_backends.numpy.visibility import Visibility
from mha_spec.call import Array, AttentionGradients, Call, Sizes

if TYPE_CHECKING:
    from mha_backends.numpy.backward import Rows

FULL = Blocks(512, 256)
BAND = Blocks(256, 256)
"""By measurement: two tiles of scores are in use at once, so they are half as wide as those of the forward."""
SHARES = 8
"""Heads of an item below which the queries of one head are dealt out to several tasks, each with sums of its own."""


@dataclass(frozen=True, slots=True)
class Job:
    """A call with one batch axis. ``views`` holds what arrives ("grad_output", ...), output "o" and lse "l" of the forward, and the
    gradients "dquery", ... to be written; those that are sums are in the compute type.
    """

    call: Call
    views: dict[str, Array]
    sizes: Sizes
    group: int
    visible: Visibility
    plan: Plan
    shares: int
    threads: int
    limit_blas: bool
    kind: np.dtype[Any]
    factor: float
    """What q is multiplied with."""
    cap: float | None
    sinks: Array | None
    drops: Drops | None
    dkeys: list[Array]
    """One sum of the gradient of K per share; the first is the view that is returned."""
    dvalues: list[Array]

    def query_heads(self, heads: slice) -> slice:
        """The query heads that read these kv heads."""
        return slice(heads.start * self.group, heads.stop * self.group)

    def part(self, x: Array, task: Task, i0: int, i1: int) -> Array:
        """A block's part of x (items, h, n, ·), as a view (items, heads, group, queries, ·)."""
        x = x[task.items, self.query_heads(task.heads), i0:i1]
        return x.reshape(x.shape[0], task.heads.stop - task.heads.start, self.group, *x.shape[2:])

    def grad_lse(self, rows: "Rows") -> Array | None:
        """dL of a block, (items, heads, r, 1)."""
        x = self.views.get("grad_lse")
        return None if x is None else self.part(x[..., None], rows.task, rows.i0, rows.i1).reshape(rows.lse.shape)

    def tasks(self) -> Iterator[tuple[int, Task]]:
        """(share, task): every block of every head once. No two tasks write to one place."""
        (batch,), _, h_kv, n, *_ = self.sizes
        starts = range(0, n, self.plan.rows)
        for b in range(0, batch, self.plan.step_items):
            for g in range(0, h_kv, self.plan.step_heads):
                items, heads = slice(b, min(b + self.plan.step_items, batch)), slice(g, min(g + self.plan.step_heads, h_kv))
                for share in range(self.shares):
                    yield share, Task(items, heads, starts[share :: self.shares])

    def collect_shares(self) -> None:
        """The sums of all shares, in order."""
        for sums in (self.dkeys, self.dvalues):
            for part in sums[1:]:
                sums[0][...] += part


def make_job(call: Call, views: dict[str, Array], threads: int | None, blocks: Blocks | None) -> Job:
    kind, factor, cap = arithmetic(call)
    sizes = call.sizes
    if blocks is None:
        rows, columns, pack = FULL if call.band is None else BAND
        blocks = Blocks(rows, columns * 4 // kind.itemsize, pack)
    cut = plan(sizes, blocks, threads)
    in_one_task = cut.packed or sizes.h_kv == 0
    shares = 1 if in_one_task else max(min(SHARES // sizes.h_kv, len(range(0, sizes.n, cut.rows))), 1)
    alone = _bias_is_shared(call, shares)
    visible = Visibility(call, sizes)
    return Job(
        call=call, views=views, sizes=sizes, group=sizes.h // max(sizes.h_kv, 1), visible=visible, plan=cut,
        shares=shares, threads=1 if alone else cut.threads, limit_blas=cut.limit_blas and not (alone and threads is None),
        kind=kind, factor=factor, cap=cap, sinks=sinks_of(call, kind),
        drops=drops_of(call, visible),
        dkeys=_sums(views["dkey"], shares), dvalues=_sums(views["dvalue"], shares),
    )  # fmt: skip


def _bias_is_shared(call: Call, shares: int) -> bool:
    """Whether several tasks add to one number of the bias's gradient. Then one thread does them in order, with the BLAS's threads."""
    if call.bias is None:
        return False
    wanted = (*call.query.shape[:2], shares)
    return any(size == 1 < full for size, full in zip(call.bias.shape, wanted, strict=False))


def _sums(first: Array, shares: int) -> list[Array]:
    return [first, *(np.zeros(first.shape, first.dtype) for _ in range(1, shares))]


def own_arrays(call: Call) -> dict[str, Array]:
    """Where the gradients go. All but that of the query are sums over many tasks, from 0, in the compute type."""
    kind, *_ = arithmetic(call)
    *batch, h, _, _ = call.query.shape
    found = {"query": np.empty(call.query.shape, call.query.dtype)}
    found |= {"key": np.zeros(call.key.shape, kind), "value": np.zeros(call.value.shape, kind)}
    if call.bias is not None:
        found["bias"] = np.zeros(call.bias.shape, kind if call.bias.dtype.itemsize <= kind.itemsize else np.float64)
    if call.sink_logits is not None:
        found["sink_logits"] = np.zeros((*batch, h), np.float64)
    return found


def rounded(call: Call, found: dict[str, Array]) -> AttentionGradients:
    """Each gradient in the type of its operand, that of the sinks summed over the batch."""
    if "sink_logits" in found:
        found["sink_logits"] = found["sink_logits"].sum(axis=tuple(range(found["sink_logits"].ndim - 1)))
    return AttentionGradients(**{name: x.astype(getattr(call, name).dtype, copy=False) for name, x in found.items()})


def finite_part(x: Array) -> tuple[Array, Array | None]:
    """x itself and None; or a copy with 0 where x is not finite, and where that is."""
    bad = ~np.isfinite(x)
    return (np.where(bad, x.dtype.type(0), x), bad) if bad.any() else (x, None)


def per_row(x: Array, rows: "Rows") -> Array:
    """(h,) -> (heads, r, 1): a number per query head, for each of its rows."""
    return np.repeat(x.reshape(rows.scaled.shape[1], -1), rows.i1 - rows.i0, axis=-1)[..., None]
