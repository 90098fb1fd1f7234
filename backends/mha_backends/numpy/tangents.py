"""How fast the results move when the operands do, by blocks: memory linear in n and m, three tiles of scores at a time.

``_move_block`` is the algorithm. Each weight is computed again from the lse of the forward, p = exp(s - lse), and the tiles of keys
pass by a block of queries. Each query sums three things over the keys that it sees (MHA-GRAD-21):

    dl = sum of p ds        mean = p v        do = (p ds) v + p dv        with ds = scale (dq k + q dk), its slope, and db

Dropout multiplies p by its factors in ``mean`` and ``do``. When all have passed, the rate of the output is do - dl mean. What a
query does not see is taken out by selection, as in ``forward``; values and their tangents are multiplied by what is finite of
them, and NaN is given back to the rows that see one.

Axes as in ``forward``: items of the batch, kv heads, r = (query heads of the group, queries), and w keys or d channels.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np

from mha_backends.numpy.forward import attend
from mha_backends.numpy.job import MOST, bounded
from mha_backends.numpy.keys import covers
from mha_backends.numpy.plan import Blocks, Task, views_with_one_batch_axis
from mha_backends.numpy.scratch import ones, scratch
from mha_backends.numpy.tangents_job import Job, Keys, Rows, keys_of, make_job, rows_of
from mha_backends.numpy.threads import each, one_blas_thread
from mha_backends.numpy.visibility import Hidden, keep_visible
from mha_spec.call import Array, AttentionResult, Call, Tangents


def attend_jvp(
    call: Call, tangents: Tangents, *, threads: int | None = None, blocks: Blocks | None = None
) -> tuple[AttentionResult, AttentionResult]:
    """The results of a legal call, and their rates. ``blocks`` is for tests, which want the borders of tiles within small arrays."""
    result = attend(replace(call, lse=True), threads=threads, blocks=blocks)
    rate = AttentionResult(*(None if x is None else np.zeros_like(x) for x in result))  # tiles that are skipped stay 0
    moving = {f"d{name}": x for name, x in tangents._asdict().items() if x is not None and name != "sink_logits"}
    arrays = {name: x for name, x in rate._asdict().items() if x is not None} | moving | {"forward": result.lse}
    with np.errstate(all="ignore"):
        for part, views in views_with_one_batch_axis(call, arrays):
            job = make_job(part, tangents, views, threads, blocks)
            with one_blas_thread() if job.plan.limit_blas else nullcontext():
                each(partial(_move_task, job), job.plan.tasks(job.sizes), job.plan.threads)
    return (result, rate) if call.lse else (result._replace(lse=None), rate._replace(lse=None))


def _move_task(job: Job, task: Task) -> None:
    keys = keys_of(job, task)
    for i0 in task.starts:
        _move_block(job, keys, rows_of(job, task, i0, min(i0 + job.plan.rows, job.sizes.n)))


def _move_block(job: Job, keys: Keys, rows: Rows) -> None:
    """``do`` and ``mean`` are (items, heads, r, d_v), ``dl`` and ``some`` (items, heads, r, 1)."""
    *lead, _ = rows.scaled.shape
    do, mean, dl = (np.zeros((*lead, width), job.kind) for width in (job.sizes.d_v, job.sizes.d_v, 1))
    some, nans = np.zeros((*lead, 1), np.bool_), None
    look = job.dsinks is not None or keys.bad is not None
    for j0, j1, hidden in _tiles(job, rows):
        p, pds = _weights_and_rates(job, keys, rows, j0, j1, hidden)  # (items, heads, r, w)
        pds *= p
        if hidden:
            keep_visible(rows.split(pds), hidden, 0)  # also where a hidden tangent is NaN
        value = keys.value[:, :, j0:j1]
        dl += np.matmul(pds, ones(j1 - j0, job.kind))[..., None]
        if job.drops:
            factors = job.drops.factors(rows.task, rows.i0, rows.i1, j0, j1, job.kind)
            for weights in (p, pds):
                rows.split(weights)[...] *= factors
        do += np.matmul(pds, value, out=scratch("do", do.shape, job.kind))
        mean += np.matmul(p, value, out=scratch("mean", do.shape, job.kind))
        if keys.dvalue is not None:
            do += np.matmul(p, keys.dvalue[:, :, j0:j1], out=scratch("dv", do.shape, job.kind))
        if look:
            sees = _sees(rows, hidden, p.shape)
            some |= sees.any(-1, keepdims=True)
            if keys.bad is not None:
                met = np.matmul(sees.astype(np.float32), keys.bad[:, :, j0:j1]) > 0
                nans = met if nans is None else nans | met
    if job.dsinks is None:
        mean *= dl
    else:
        dl += _through_sink(job, rows, some)
        np.multiply(mean, dl, out=mean, where=some)  # an empty row keeps its 0, also where the sink's tangent is NaN
    do -= mean
    if nans is not None:
        np.copyto(do, np.nan, where=nans)
    job.part("output", rows)[...] = rows.split(do)
    if "lse" in job.views:
        job.part("lse", rows)[...] = rows.split(dl)
    if "weights" in job.views:
        _move_weights(job, keys, rows, dl)


def _move_weights(job: Job, keys: Keys, rows: Rows, dl: Array) -> None:
    """dA = p (ds - dl), a tile at a time, once dl is whole."""
    into = job.part("weights", rows)
    for j0, j1, hidden in _tiles(job, rows):
        p, ds = _weights_and_rates(job, keys, rows, j0, j1, hidden)
        ds -= dl
        ds *= p
        if hidden:
            keep_visible(rows.split(ds), hidden, 0)
        into[..., j0:j1] = rows.split(ds)


def _weights_and_rates(job: Job, keys: Keys, rows: Rows, j0: int, j1: int, hidden: Hidden | None) -> tuple[Array, Array]:
    """p = exp(s - lse), 0 where hidden, and ds, anything where hidden; (items, heads, r, w)."""
    shape = (*rows.scaled.shape[:-1], j1 - j0)
    key = keys.key[:, :, j0:j1]
    s = np.matmul(rows.scaled, key.mT, out=scratch("p", shape, job.kind))
    ds = scratch("ds", shape, job.kind)
    if rows.dquery is None:
        ds[...] = 0
    else:
        np.matmul(rows.dquery, key.mT, out=ds)
    if keys.dkey is not None:
        ds += np.matmul(rows.query, keys.dkey[:, :, j0:j1].mT, out=scratch("more", shape, job.kind))
    if job.cap is not None:
        np.tanh(s, out=s)
        slope = np.multiply(s, s, out=scratch("more", shape, job.kind))
        ds *= np.subtract(1, slope, out=slope)
        s *= job.kind.type(job.cap)
    if job.call.bias is not None:
        five, bias = rows.split(s), job.tile(job.call.bias, rows, j0, j1)
        five += bounded(bias, scratch("bias", bias.shape, job.kind))
    if "dbias" in job.views:
        five = rows.split(ds)
        five += job.tile(job.views["dbias"], rows, j0, j1)
    s.clip(-MOST[job.kind], MOST[job.kind], out=s)  # an overflow hides nothing
    s -= rows.lse
    np.exp(s, out=s)
    if hidden:
        keep_visible(rows.split(s), hidden, 0)
    return s, ds


def _through_sink(job: Job, rows: Rows, some: Array) -> Array | float:
    """What the sink adds to dl: its weight times its tangent. All of the weight is its own where the row sees nothing."""
    if job.dsinks is None:
        return 0.0
    heads = job.query_heads(rows.task.heads)
    sinks, dsinks = (_per_row(x[heads], rows) for x in (job.sinks, job.dsinks))  # type: ignore[index]
    return np.where(sinks == -np.inf, 0, np.where(some, np.exp(sinks - rows.lse), 1) * dsinks)


def _sees(rows: Rows, hidden: Hidden | None, shape: tuple[int, ...]) -> Array:
    """(items, heads, r, w): which pairs of a tile are visible."""
    sees = np.ones(shape, np.bool_)
    if hidden:
        rows.split(sees)[..., hidden.columns] = ~hidden.pairs
    return sees


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


def _per_row(x: Array, rows: Rows) -> Array:
    """(h,) -> (heads, r, 1): a number per query head, for each of its rows."""
    return np.repeat(x.reshape(rows.scaled.shape[1], -1), rows.i1 - rows.i0, axis=-1)[..., None]
