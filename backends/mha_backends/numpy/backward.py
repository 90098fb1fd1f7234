"""The gradients by blocks, from output and lse of the forward: memory linear in n and m, two tiles of scores at a time.

``_through_tile`` is the algorithm (Dao, Fu, Ermon, Rudra and Ré, 2022). Blocks of queries pass by the tiles of keys. Each weight is
computed again, p = exp(s - lse), and D_i = dO_i O_i stands for a sum over the whole row. Five matrix products per tile:

    s = q k^T    dp = dO v^T    dv += p^T dO    dk += ds^T q    dq += ds k        with ds = p (dp - (D - dL))

What a query does not see is taken out by selection, as in ``forward``. The last three are sums over pairs, and a weight of 0 keeps no NaN
out of a sum; they multiply what is finite of dO, q and k. A row that sees a NaN has it in p or ds, for all keys that it sees. Only
the NaN of a channel of dO is not among these, and is given back.

Axes as in ``forward``: items of the batch, kv heads, r = (query heads of the group, queries), and w keys or d channels.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mha_backends.numpy.backward_job import Job, finite_part, make_job, own_arrays, per_row, rounded
from mha_backends.numpy.forward import attend
from mha_backends.numpy.job import MOST, bounded
from mha_backends.numpy.keys import covers, for_blas
from mha_backends.numpy.plan import Blocks, Task, views_with_one_batch_axis
from mha_backends.numpy.scratch import scratch
from mha_backends.numpy.threads import each, one_blas_thread
from mha_backends.numpy.visibility import Hidden, keep_visible
from mha_spec.call import Array, AttentionGradients, AttentionResult, Call, Cotangents


@dataclass(slots=True)
class Keys:
    """K and V of the kv heads of a task, (items, heads, m, d), and the sums of their gradients."""

    key: Array
    finite_key: Array
    value: Array
    dkey: Array
    dvalue: Array
    reach: Array
    """The length of the longest key."""
    nan_value: Array | None = None
    """Where a NaN of dO must be given back to dvalue."""


@dataclass(slots=True)
class Rows:
    """A block: queries [i0, i1) of the query heads that read the kv heads of a task; (items, heads, r, ·) each."""

    task: Task
    i0: int
    i1: int
    scaled: Array
    """q, times what makes scores of q k."""
    query: Array
    """What is finite of q."""
    grad: Array
    finite_grad: Array
    bad_grad: Array | None
    """Where dO is not finite; None where it is."""
    lse: Array
    rest: Array
    """D - dL."""
    clamp: bool
    """Whether a score might overflow."""

    def split(self, x: Array) -> Array:
        """(items, heads, r, ·) or (items, h, queries, ·) -> (items, heads, group, queries, ·), a view."""
        items, heads, r, _ = self.scaled.shape
        return x.reshape(items, heads, r // (self.i1 - self.i0), self.i1 - self.i0, x.shape[-1])


def attend_vjp(
    call: Call,
    cotangents: Cotangents,
    forward: AttentionResult | None,
    *,
    threads: int | None = None,
    blocks: Blocks | None = None,
) -> AttentionGradients:
    """The gradients of a legal call. ``blocks`` is for tests, which want the borders of tiles within small arrays."""
    if forward is None:
        forward = attend(replace(call, lse=True, weights=False), threads=threads, blocks=blocks)
    with np.errstate(all="ignore"):
        found = own_arrays(call)
        arrays = {f"d{name}": x for name, x in found.items()}
        arrays |= {"o": forward.output, "l": forward.lse}
        arrays |= {f"grad_{name}": x for name, x in cotangents._asdict().items() if x is not None}
        for part, views in views_with_one_batch_axis(call, arrays):
            job = make_job(part, views, threads, blocks)
            with one_blas_thread() if job.limit_blas else nullcontext():
                each(partial(_attend_task, job), job.tasks(), job.threads)
                job.collect_shares()
        return rounded(call, found)


def _attend_task(job: Job, share_and_task: tuple[int, Task]) -> None:
    share, task = share_and_task
    keys = _keys(job, share, task)
    for i0 in task.starts:
        _attend_block(job, keys, _rows(job, keys, task, i0, min(i0 + job.plan.rows, job.sizes.n)))
    keys.dkey *= job.kind.type(job.call.scale)
    for x in (keys.dkey, keys.dvalue):
        x += 0  # -0 becomes 0: else what is hidden would decide the sign of a sum that underflows
    if keys.nan_value is not None:
        keys.dvalue[keys.nan_value] = np.nan


def _attend_block(job: Job, keys: Keys, rows: Rows) -> None:
    if job.views.get("grad_weights") is not None:
        for j0, j1, hidden in _tiles(job, rows):
            p, _ = _weights(job, keys, rows, j0, j1, hidden)
            p *= _grad_weights(job, rows, j0, j1)
            if hidden:
                keep_visible(rows.split(p), hidden, 0)
            rows.rest += p.sum(-1, keepdims=True)
    dquery = np.zeros(rows.scaled.shape, job.kind)
    for j0, j1, hidden in _tiles(job, rows):
        _through_tile(job, keys, rows, dquery, j0, j1, hidden)
    dquery *= job.kind.type(job.call.scale)
    dquery += 0
    job.part(job.views["dquery"], rows.task, rows.i0, rows.i1)[...] = rows.split(dquery)
    if job.sinks is not None:
        _through_sink(job, rows)


def _through_tile(job: Job, keys: Keys, rows: Rows, dquery: Array, j0: int, j1: int, hidden: Hidden | None) -> None:
    """Queries [i0, i1) and keys [j0, j1): what they send back to each other."""
    p, slope = _weights(job, keys, rows, j0, j1, hidden)  # (items, heads, r, w)
    if rows.bad_grad is not None:
        _note_nan(keys, rows, p.shape, j0, j1, hidden)
    factors, kept = None, p
    if job.drops:
        factors = job.drops.factors(rows.task, rows.i0, rows.i1, j0, j1, job.kind)
        kept = np.multiply(rows.split(p), factors).reshape(p.shape)
    into = keys.dvalue[:, :, j0:j1]
    into += np.matmul(kept.mT, rows.finite_grad, out=scratch("dv", into.shape, job.kind))

    ds = np.matmul(rows.grad, keys.value[:, :, j0:j1].mT, out=scratch("ds", p.shape, job.kind))
    if factors is not None:
        rows.split(ds)[...] *= factors
    if job.views.get("grad_weights") is not None:
        ds += _grad_weights(job, rows, j0, j1)
    ds -= rows.rest
    ds *= p
    if hidden:
        keep_visible(rows.split(ds), hidden, 0)
    if "dbias" in job.views:
        _through_bias(job, rows, ds, j0, j1)
    if slope is not None:
        ds *= slope
        if hidden:
            keep_visible(rows.split(ds), hidden, 0)
    into = keys.dkey[:, :, j0:j1]
    into += np.matmul(ds.mT, rows.query, out=scratch("dk", into.shape, job.kind))
    dquery += np.matmul(ds, keys.finite_key[:, :, j0:j1], out=scratch("dq", dquery.shape, job.kind))


def _weights(job: Job, keys: Keys, rows: Rows, j0: int, j1: int, hidden: Hidden | None) -> tuple[Array, Array | None]:
    """p = exp(s - lse), 0 where hidden, and the slope of the softcap; (items, heads, r, w)."""
    shape = (*rows.scaled.shape[:-1], j1 - j0)
    s = np.matmul(rows.scaled, keys.key[:, :, j0:j1].mT, out=scratch("p", shape, job.kind))
    slope = None
    if job.cap is not None:
        np.tanh(s, out=s)
        slope = np.multiply(s, s, out=scratch("slope", shape, job.kind))
        np.subtract(1, slope, out=slope)
        s *= job.kind.type(job.cap)
    if job.call.bias is not None:
        bias = job.visible.tile(job.call.bias, rows.task.items, rows.task.heads, rows.i0, rows.i1, slice(j0, j1))
        five = rows.split(s)
        five += bias if bias.itemsize <= five.itemsize else bounded(bias, scratch("bias", bias.shape, job.kind))
    if rows.clamp:
        s.clip(-MOST[job.kind], MOST[job.kind], out=s)
    s -= rows.lse
    np.exp(s, out=s)
    if hidden:
        keep_visible(rows.split(s), hidden, 0)
    return s, slope


def _through_bias(job: Job, rows: Rows, ds: Array, j0: int, j1: int) -> None:
    """Each use of a number of the bias adds to its gradient."""
    into = job.visible.tile(job.views["dbias"], rows.task.items, rows.task.heads, rows.i0, rows.i1, slice(j0, j1))
    five = rows.split(ds)
    shared = tuple(axis for axis in range(5) if into.shape[axis] == 1 and five.shape[axis] != 1)
    into += five.sum(axis=shared, keepdims=True) if shared else five


def _through_sink(job: Job, rows: Rows) -> None:
    """p_i (dL_i - D_i) of each row, and dL_i of one that sees nothing, whose sink has all of the weight."""
    sinks: Array = per_row(job.sinks[job.query_heads(rows.task.heads)], rows)  # type: ignore[index]
    some = np.zeros(rows.split(rows.rest).shape[:-1], np.bool_)
    for j0, j1, hidden in _tiles(job, rows):
        whole = hidden is None or hidden.columns.stop - hidden.columns.start < j1 - j0
        some |= True if whole else ~hidden.pairs.all(-1)  # type: ignore[union-attr]
    some = some.reshape(rows.rest.shape)
    arrived = job.grad_lse(rows)
    terms = np.where(some, np.exp(sinks - rows.lse) * -rows.rest, 0 if arrived is None else arrived)
    terms = rows.split(np.where(sinks == -np.inf, 0, terms))[..., 0].sum(-1, dtype=np.float64)  # (items, heads, group)
    into = job.views["dsink_logits"][rows.task.items, job.query_heads(rows.task.heads)]
    into += terms.reshape(into.shape)


def _note_nan(keys: Keys, rows: Rows, shape: tuple[int, ...], j0: int, j1: int, hidden: Hidden | None) -> None:
    """A NaN in channel c of dO_i belongs in channel c of dv_j for every key j that i sees."""
    sees = np.ones(shape, np.float32)
    if hidden:
        rows.split(sees)[..., hidden.columns] = ~hidden.pairs
    if keys.nan_value is None:
        keys.nan_value = np.zeros(keys.dvalue.shape, np.bool_)
    bad: Array = rows.bad_grad
    keys.nan_value[:, :, j0:j1] |= np.matmul(sees.mT, bad) > 0


def _tiles(job: Job, rows: Rows) -> Iterator[tuple[int, int, Hidden | None]]:
    """(j0, j1, hidden pairs) of the tiles in which the block sees something, cut to the keys that it sees."""
    items, heads, _ = rows.task
    m, columns = job.sizes.m, job.plan.columns
    first, last = (0, m) if job.plan.whole else job.visible.span(items.start, rows.i0, rows.i1)
    for at in range(0, m, columns):
        j0, j1 = max(first, at), min(last, at + columns, m)
        if j0 < j1:
            hidden = job.visible.hidden(items, heads, rows.i0, rows.i1, j0, j1)
            if not (hidden and covers(hidden, j1 - j0)):
                yield j0, j1, hidden


def _keys(job: Job, share: int, task: Task) -> Keys:
    items, heads, _ = task
    key, value = (for_blas(x[items, heads].astype(job.kind, copy=False)) for x in (job.call.key, job.call.value))
    finite_key, _ = finite_part(key)
    dkey, dvalue = (x[share][items, heads] for x in (job.dkeys, job.dvalues))
    longest = np.sqrt(np.vecdot(key, key).max(initial=0))
    return Keys(key, finite_key, value, dkey, dvalue, longest)


def _rows(job: Job, keys: Keys, task: Task, i0: int, i1: int) -> Rows:
    def block(x: Array, name: str) -> Array:
        """(items, h, queries, d) -> (items, heads, r, d) in the compute type."""
        x = x[task.items, job.query_heads(task.heads), i0:i1]
        out = scratch(name, x.shape, job.kind)
        np.copyto(out, x, casting="unsafe")
        return out.reshape(x.shape[0], task.heads.stop - task.heads.start, job.group * (i1 - i0), x.shape[-1])

    query, grad = block(job.call.query, "query"), block(job.views["grad_output"], "grad")
    scaled = np.multiply(query, job.kind.type(job.factor), out=scratch("scaled", query.shape, job.kind))
    if abs(job.factor) > 1:
        scaled.clip(-MOST[job.kind], MOST[job.kind], out=scaled)
    longest = np.sqrt(np.vecdot(scaled, scaled).max(initial=0))
    clamp = job.call.bias is not None or (job.cap is None and not longest * keys.reach < MOST[job.kind] / 4)
    finite_query, _ = finite_part(query)
    finite_grad, bad_grad = finite_part(grad)
    lse = block(job.views["l"][..., None], "lse")
    rest = np.vecdot(grad, block(job.views["o"], "o"))[..., None]
    rows = Rows(task, i0, i1, scaled, finite_query, grad, finite_grad, bad_grad, lse, rest, clamp)
    if (arrived := job.grad_lse(rows)) is not None:
        rows.rest = rest - arrived
    return rows


def _grad_weights(job: Job, rows: Rows, j0: int, j1: int) -> Array:
    """dA of a tile, (items, heads, r, w)."""
    part = job.part(job.views["grad_weights"], rows.task, rows.i0, rows.i1)[..., j0:j1]
    return part.reshape(*rows.scaled.shape[:-1], j1 - j0)
