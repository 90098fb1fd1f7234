"""How a call is cut: one batch axis, blocks of queries, tiles of keys, tasks for threads.

Every size that can move a bit follows from shapes and from the visible set of one batch item. Neither the number of items nor
that of threads enters: they only decide who computes a block, and in which order. So results are batch-invariant.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mha_backends.numpy.threads import allowed
from mha_spec.call import Array, AttentionResult, Call, Sizes

TASKS_PER_THREAD = 4
WORTH_A_THREAD = 6_000_000
"""Multiplications below which waking a thread costs more than it brings."""
SINGLE_BELOW = 2**13
"""Multiplications in one matrix product below which no BLAS starts threads, so that none need be held back."""


class Blocks(NamedTuple):
    """A tile is ``rows`` queries, those of a group together, by ``columns`` keys. ``pack`` scores of small heads go in one go."""

    rows: int
    columns: int
    pack: int = 2**16


FULL = Blocks(512, 512)
BAND = Blocks(128, 1024)
"""By measurement. Under a band the rows decide how much is computed in vain beside the diagonal."""


def usual_blocks(call: Call, bytes_each: int) -> Blocks:
    """Blocks whose scores, of this many bytes each, fit a megabyte of cache."""
    rows, columns, pack = FULL if call.band is None else BAND
    return Blocks(rows, columns * 4 // bytes_each, pack)


class Task(NamedTuple):
    """Some kv heads of some items, and the first queries of the blocks to be done."""

    items: slice
    heads: slice
    starts: range


class Plan(NamedTuple):
    rows: int
    columns: int
    packed: bool
    """The heads are so small that all queries and keys of one make one tile, and a task computes several at once."""
    whole: bool
    """Several items are computed together. Then no key is skipped: what one item sees must not cut another's tiles."""
    tasks: tuple[Task, ...]
    threads: int
    limit_blas: bool


def plan(sizes: Sizes, blocks: Blocks, threads: int | None) -> Plan:
    """The plan for a call with one batch axis."""
    (batch,), h, _, n, m, d_k, d_v = sizes
    work = batch * h * n * m * (d_k + d_v + 64)
    worth = work // WORTH_A_THREAD
    return _plan(sizes, blocks, 1 if worth < 2 else min(threads or allowed(), worth))


@lru_cache(maxsize=256)
def _plan(sizes: Sizes, blocks: Blocks, threads: int) -> Plan:
    """A tile of few queries is wide, and one of tiny heads holds many of them."""
    (batch,), h, h_kv, n, m, d_k, d_v = sizes
    if not (batch and h and n):
        return Plan(1, 1, True, True, (), 1, False)
    group = h // h_kv
    per_head = max(group * n * m, 1)
    step_heads = min(max(blocks.pack // per_head, 1), h_kv)
    step_items = max(blocks.pack // (per_head * h_kv), 1)
    packed = per_head <= blocks.pack
    if packed:
        rows, columns = n, max(m, 1)
    else:
        count = math.ceil(n / max(blocks.rows // group, 1))  # blocks of nearly equal size, none a small rest
        rows = math.ceil(n / count)
        columns = max(blocks.columns, blocks.rows * blocks.columns // (group * rows))
    heads, items, starts = range(0, h_kv, step_heads), range(0, batch, step_items), range(0, n, rows)
    shares = min(len(starts), max(TASKS_PER_THREAD * threads // (len(heads) * len(items)), 1)) if threads > 1 else 1
    tasks = tuple(
        Task(slice(b, min(b + step_items, batch)), slice(g, min(g + step_heads, h_kv)), starts[share::shares])
        for b in items
        for g in heads
        for share in range(shares)
    )
    return Plan(rows, columns, packed, step_items > 1, tasks, threads, group * rows * columns * max(d_k, d_v) > SINGLE_BELOW)


def with_one_batch_axis(call: Call, result: AttentionResult) -> Iterator[tuple[Call, AttentionResult]]:
    """The call and its result arrays as views with exactly one batch axis: one pair, or several where strides forbid it."""
    batch = call.query.shape[:-3]
    if len(batch) == 1:
        yield call, result
        return
    arrays = _arrays(call, result)
    try:
        views = {name: _joined(x, batch) for name, x in arrays.items()}
    except ValueError:  # the batch axes of some array are no single axis without a copy
        for lead in np.ndindex(batch[:-1]):
            yield _with(call, result, {name: _at(x, lead) for name, x in arrays.items()})
    else:
        yield _with(call, result, views)


def _arrays(call: Call, result: AttentionResult) -> dict[str, Array]:
    names = ("query", "key", "value", "mask", "bias", "query_offset", "key_lengths", "query_segments", "key_segments")
    found = {name: getattr(call, name) for name in names} | result._asdict()
    return {name: x for name, x in found.items() if isinstance(x, np.ndarray)}


def _with(call: Call, result: AttentionResult, views: dict[str, Array]) -> tuple[Call, AttentionResult]:
    given = {name: x for name, x in views.items() if name not in AttentionResult._fields}
    return replace(call, **given), AttentionResult(*(views.get(name) for name in AttentionResult._fields))


def _joined(x: Array, batch: tuple[int, ...]) -> Array:
    """The batch axes as one, of full size or of size 1; ValueError where that is no view."""
    size, own = math.prod(x.shape[: len(batch)]), x.shape[: len(batch)]
    if own != batch and size != 1:
        raise ValueError("broadcast along some batch axes only")
    return np.reshape(x, (size, *x.shape[len(batch) :]), copy=False)


def _at(x: Array, lead: tuple[int, ...]) -> Array:
    return x[tuple(at if size > 1 else 0 for at, size in zip(lead, x.shape, strict=False))]
