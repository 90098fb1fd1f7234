"""Attention by blocks: O = softmax(scale Q K^T + bias) V over the visible keys, one tile of scores at a time.

``_attend_block`` is the algorithm. The tiles of keys pass by a block of queries, and each query carries three things: ``top``,
the largest score so far; ``total``, the sum of p = exp(score - top); ``out``, the sum of p v. When a later tile raises the
maximum, both sums are scaled down to it (Milakov and Gimelshein, 2018; Rabe and Staats, 2021; Dao et al., 2022).
What a query does not see is taken out by selection, never by arithmetic, and never chooses the query's path.

A *calm* query provably needs no maximum (``calm``). Its shift is 0 for good, and its scores are counted in powers of
two, because exp2 takes half the time of exp where nothing underflows. Other scores are natural, and ``top`` always is.

Axes: items of the batch, kv heads, r = (query heads of the group, queries), and w keys or d channels.
"""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np

from mha_backends.numpy.calm import CALM
from mha_backends.numpy.job import MOST, Job, bounded, make_job
from mha_backends.numpy.keys import Keys, Tile, product
from mha_backends.numpy.nans import SeenNans
from mha_backends.numpy.plan import SHORT, Blocks, Task, with_one_batch_axis
from mha_backends.numpy.scratch import ones, scratch
from mha_backends.numpy.short import attend_short, is_short
from mha_backends.numpy.threads import each, one_blas_thread
from mha_backends.numpy.visibility import keep_visible
from mha_spec.call import Array, AttentionResult, Call, dtype_name

LOG2_E = math.log2(math.e)


class Ending(NamedTuple):
    """What is known of the rows of a block once all tiles have passed; (items, heads, r, 1) each."""

    empty: Array | None
    """Whether a row sees nothing; None where that cannot be."""
    shift: Array | None
    """What was subtracted from the scores; None for 0."""
    fall: Array | None
    """What p must still be multiplied with, because a sink is larger than all scores; None for 1."""
    top: Array | None
    """The shift that ``total`` refers to, sink included; None for 0."""
    total: Array


class Rows(NamedTuple):
    """A block: queries [i0, i1) of the query heads that read the kv heads of a task."""

    task: Task
    i0: int
    i1: int
    query: Array
    """(items, heads, r, d_k), scaled."""
    calm: Array | bool
    """(items, heads, r, 1), or one answer for all."""
    unit: Array | float
    """What a natural score counts in the row's exponential: log2(e) in a calm row, 1 in another."""
    clamp: bool
    """Whether a score might overflow."""

    def split(self, x: Array) -> Array:
        """(items, heads, r, ·) or (items, h, queries, ·) -> (items, heads, group, queries, ·), a view."""
        items, heads = self.query.shape[:2]
        queries = self.i1 - self.i0
        group = self.query.shape[2] // queries
        return x.reshape(items, heads, group, queries, x.shape[-1])


def attend(call: Call, *, threads: int | None = None, blocks: Blocks | None = None) -> AttentionResult:
    """A legal call, answered. ``blocks`` is for tests, which want the borders of tiles within small arrays."""
    with np.errstate(all="ignore"):
        if is_short(call, SHORT if blocks is None else 0) and (output := attend_short(call)) is not None:
            return AttentionResult(output)
        result = _empty_result(call)
        for part, to in with_one_batch_axis(call, result):
            job = make_job(part, to, threads, blocks)
            with one_blas_thread() if job.plan.limit_blas else nullcontext():
                each(partial(_attend_task, job), job.plan.tasks(job.sizes), job.plan.threads)
        return result


def _empty_result(call: Call) -> AttentionResult:
    *lead, _ = call.query.shape
    kind = call.query.dtype
    return AttentionResult(
        np.empty((*lead, call.value.shape[-1]), kind),
        np.zeros((*lead, call.key.shape[-2]), kind) if call.weights else None,  # tiles that are skipped stay 0
        np.empty(lead, np.float64 if dtype_name(call.query) == "float64" else np.float32) if call.lse else None,
    )


def _attend_task(job: Job, task: Task) -> None:
    keys = Keys(job, task)
    for i0 in task.starts:
        _attend_block(job, keys, _rows(job, keys, task, i0, min(i0 + job.plan.rows, job.sizes.n)))


def _attend_block(job: Job, keys: Keys, rows: Rows) -> None:
    """The online softmax. ``top`` and ``total`` are (items, heads, r, 1), ``out`` is (items, heads, r, d_v)."""
    *lead, _ = rows.query.shape
    nans = None if keys.bad_value is None else SeenNans(keys.bad_value, keys.start)
    top = total = p = None
    out: Array = None
    only = False
    for tile in keys.tiles(rows.task, rows.i0, rows.i1):
        p = _scores(job, rows, tile)  # (items, heads, r, w)
        fall = None
        if rows.calm is not True:
            new = p.max(-1, keepdims=True)
            if top is not None:
                np.maximum(new, top, out=new)
            if rows.calm is not False:
                new[rows.calm] = 0
            shift = new if job.visible.nothing else _finite_shift(new)
            p -= shift
            if top is not None:
                fall = np.exp(top - shift)
            top = new
        _exponential(rows, p)
        if rows.calm is True and tile.hidden:
            keep_visible(rows.split(p), tile.hidden, 0)
        sums = np.matmul(p, ones(p.shape[-1], job.kind))[..., None]  # four times as fast as p.sum(-1)
        if job.drops:
            job.drops.take_out(rows.split(p), rows.task, rows.i0, rows.i1, tile.j0, tile.j1)
        if total is None:
            only = True
            total, out = sums, np.matmul(p, tile.value, out=scratch("out", (*lead, job.sizes.d_v), job.kind))
        else:
            only = False
            if fall is not None:
                total *= fall
                out *= fall
            total += sums
            out += np.matmul(p, tile.value, out=scratch("more", out.shape, job.kind))
        if nans is not None:
            nans.note(rows, tile, p.shape)

    if total is None:  # no key is visible
        total, out = np.zeros((*lead, 1), job.kind), np.zeros((*lead, job.sizes.d_v), job.kind)
    ending = _ending(job, rows, top, total)
    if ending.fall is not None:
        out *= ending.fall
    if not job.visible.nothing:
        out += 0  # -0 becomes 0: else a hidden value would decide the sign of a sum that underflows
    into = _part(job, rows, job.result.output)
    if keys.sound and rows.calm is True and nans is None and not job.drops:  # then nothing overflowed
        np.divide(rows.split(out), rows.split(ending.total), out=into, casting="same_kind")
    else:
        out /= ending.total
        if not np.isfinite(out).all():
            if not keys.sound:
                keys.mend()
                return _attend_block(job, keys, rows)
            _sum_again(job, rows, keys, ending, out)
            only = False
        if job.drops:
            out *= job.kind.type(job.drops.factor)
        if nans is not None:
            np.copyto(out, np.nan, where=nans.channels)
        into[...] = rows.split(out)
    if job.call.lse:
        _write_lse(job, rows, ending)
    if job.call.weights:
        _write_weights(job, rows, keys, ending, p if only and not job.drops else None)
    return None


def _rows(job: Job, keys: Keys, task: Task, i0: int, i1: int) -> Rows:
    """Scale the queries of a block and decide which of them are calm and whether scores might overflow."""
    query = job.call.query[task.items, job.query_heads(task.heads), i0:i1]
    items, heads, queries, d_k = query.shape
    scaled = scratch("query", query.shape, job.kind)
    np.multiply(query, job.kind.type(job.factor), out=scaled)
    if abs(job.factor) > 1:
        scaled.clip(-MOST[job.kind], MOST[job.kind], out=scaled)
    q = scaled.reshape(items, heads // job.group, job.group * queries, d_k)
    calm, clamp = _path(job, keys, task, i0, i1, q)
    unit: Array | float = 1.0
    if calm is not False:
        unit = job.kind.type(LOG2_E) if calm is True else np.where(calm, job.kind.type(LOG2_E), job.kind.type(1))
        if job.cap is None:
            q *= unit
    return Rows(task, i0, i1, q, calm, unit, clamp)


def _path(job: Job, keys: Keys, task: Task, i0: int, i1: int, q: Array) -> tuple[Array | bool, bool]:
    """(calm, clamp): which rows need no maximum, and whether a score might overflow.

    A capped score is at most cap, and at most cap times its argument. A bias may be anything, so with one no row is calm.
    """
    if keys.bounds is None or job.call.bias is not None:
        return False, job.cap is None or job.call.bias is not None
    stretch = 1.0 if job.cap is None else job.cap if job.cap > CALM else 0.0
    bound = keys.bounds.of_scores(q, stretch)
    clamp = job.cap is None and not bound < MOST[job.kind] / 4
    sinks = None if job.sinks is None else job.sinks[job.query_heads(task.heads)] <= CALM
    if keys.bounds.tame and bound <= CALM and (sinks is None or sinks.all()):
        return True, clamp
    calm = keys.bounds.calm_rows(q, stretch, job.visible, task, i0, i1)  # (items, heads, r)
    if sinks is not None:
        calm &= np.repeat(sinks, i1 - i0).reshape(q.shape[1:3])
    if calm.all() or not calm.any():
        return bool(calm.all()), clamp
    return calm[..., None], clamp


def _scores(job: Job, rows: Rows, tile: Tile) -> Array:
    """(items, heads, r, w): scale, softcap, bias, and -inf for what is hidden from a row that needs its maximum."""
    *lead, _ = rows.query.shape
    s = product(rows.query, tile.key_t, scratch("p", (*lead, tile.key_t.shape[-1]), job.kind))
    if job.cap is not None:
        np.tanh(s, out=s)
        s *= rows.unit * job.kind.type(job.cap)
    if job.call.bias is not None:
        bias = job.visible.tile(job.call.bias, rows.task.items, rows.task.heads, rows.i0, rows.i1, slice(tile.j0, tile.j1))
        five = rows.split(s)
        five += bias if bias.itemsize <= five.itemsize else bounded(bias, scratch("bias", bias.shape, job.kind))
    if rows.clamp:
        s.clip(-MOST[job.kind], MOST[job.kind], out=s)  # an overflow hides nothing
    if tile.hidden and rows.calm is not True:
        keep_visible(rows.split(s), tile.hidden, -np.inf)
    return s


def _exponential(rows: Rows, s: Array) -> None:
    """In place: exp2 of the calm rows, exp of the others."""
    if rows.calm is True:
        np.exp2(s, out=s)
    elif rows.calm is False:
        np.exp(s, out=s)
    else:
        np.exp2(s, out=s, where=rows.calm)
        np.exp(s, out=s, where=~rows.calm)


def _finite_shift(top: Array) -> Array:
    """The shift of a row that has seen nothing yet is 0: -inf - -inf is NaN."""
    return np.where(top == -np.inf, top.dtype.type(0), top)


def _ending(job: Job, rows: Rows, top: Array | None, total: Array) -> Ending:
    """Add the sink, which is one more key of value 0, and give empty rows the total 1."""
    full = job.visible.nothing and job.sizes.m > 0
    empty = None if full else total == 0
    shift = top if top is None or full else _finite_shift(top)
    fall = None
    if job.sinks is not None:
        sink = _per_row(job.sinks[job.query_heads(rows.task.heads)], rows)
        top = np.maximum(sink, 0 if top is None else top)
        rest = _finite_shift(top)
        fall = np.exp((0 if shift is None else shift) - rest)
        total = total * fall + np.exp(sink - rest)
    if empty is not None:
        total[empty] = 1
        fall = None if fall is None else np.where(empty, job.kind.type(1), fall)  # a NaN sink touches no empty row
    return Ending(empty, shift, fall, top, total)


def _sum_again(job: Job, rows: Rows, keys: Keys, ending: Ending, out: Array) -> None:
    """A sum of p v may overflow where the mean of v does not. There, and only there, the weights are summed instead."""
    over = ~np.isfinite(out) & ~np.isnan(ending.total)  # a NaN row stays one, also where all its weights are dropped
    again = np.zeros_like(out)
    for tile, weights in _weights(job, rows, keys, ending, None):
        if job.drops:
            job.drops.take_out(rows.split(weights), rows.task, rows.i0, rows.i1, tile.j0, tile.j1)
        again += np.matmul(weights, tile.value)
    np.copyto(out, again, where=over)


def _write_lse(job: Job, rows: Rows, ending: Ending) -> None:
    """lse = top + log(total), in float64; that of an empty row is the sink as it was given, or -inf."""
    lse = np.log(ending.total.astype(np.float64)) + (0 if ending.top is None else ending.top)
    if ending.empty is not None and ending.empty.any():
        sinks: Array = job.call.sink_logits
        given = -np.inf if sinks is None else _per_row(sinks[job.query_heads(rows.task.heads)].astype(np.float64), rows)
        lse = np.where(ending.empty, given, lse)
    result: Array = job.result.lse
    _part(job, rows, result[..., None])[...] = rows.split(lse)


def _write_weights(job: Job, rows: Rows, keys: Keys, ending: Ending, p: Array | None) -> None:
    into = _part(job, rows, job.result.weights)
    for tile, weights in _weights(job, rows, keys, ending, p):
        into[..., tile.j0 : tile.j1] = rows.split(weights)


def _weights(job: Job, rows: Rows, keys: Keys, ending: Ending, p: Array | None) -> Iterator[tuple[Tile, Array]]:
    """The tiles with their weights, p fall / total. ``p`` is that of the only tile, if it was kept; else it is computed again."""
    for tile in keys.tiles(rows.task, rows.i0, rows.i1):
        w = p
        if w is None:
            w = _scores(job, rows, tile)
            if ending.shift is not None:
                w -= ending.shift
            _exponential(rows, w)
        if ending.fall is not None:
            w *= ending.fall
        w /= ending.total
        if tile.hidden:
            keep_visible(rows.split(w), tile.hidden, 0)  # also in a row whose total is NaN
        yield tile, w


def _part(job: Job, rows: Rows, result: Array) -> Array:
    """The block's part of a result (items, h, n, ·), as a view (items, heads, group, queries, ·)."""
    return rows.split(result[rows.task.items, job.query_heads(rows.task.heads), rows.i0 : rows.i1])


def _per_row(x: Array, rows: Rows) -> Array:
    """(h,) -> (heads, r, 1): a number per query head, for each of its rows."""
    return np.repeat(x.reshape(rows.query.shape[1], -1), rows.i1 - rows.i0, axis=-1)[..., None]
