"""How a call is cut: one batch axis, blocks of queries, tiles of keys, tasks for threads.

Every size that can move a bit follows from shapes and from the visible set of one batch item. Neither the number of items nor
that of threads enters: they only decide who computes a block, and in which order. So results are batch-invariant.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mha_backends.numpy.dropout import keep_in, with_arrays
from mha_backends.numpy.threads import allowed
from mha_spec.call import Array, AttentionResult, Call, Sizes

TASKS_PER_THREAD = 2
WORTH_A_THREAD = 6_000_000
"""Multiplications below which waking a thread costs more than it brings."""
WHOLE = 2**16
"""Numbers in the keys and values of an item up to which it is quicker to compute the hidden ones than to cut them off."""
SHORT = 2**15
"""Scores up to which a call without options is not cut at all."""
SINGLE_BELOW = 2**13
"""Multiplications in one matrix product below which no BLAS starts threads, so that none need be held back."""


class Blocks(NamedTuple):
    """A tile is ``rows`` queries, those of a group together, by ``columns`` keys.

    A head of up to half ``pack`` scores is packed: it is one tile, and with other heads and items, up to ``pack`` scores,
    one task. Larger heads share a task, and what each step costs in Python, where their tiles have up to twice ``pack``
    scores: that is a tenth of a causal call at 512 tokens.
    """

    rows: int
    columns: int
    pack: int = 2**17


FULL = Blocks(512, 528)
BAND = Blocks(256, 784)
"""By measurement. Under a band the rows decide how much is computed in vain beside the diagonal: there are at most these many,
a sixteenth of what the longest row sees if that is less, and never less than half."""


def usual_blocks(call: Call, bytes_each: int) -> Blocks:
    """Blocks whose scores, of this many bytes each, fit a megabyte of cache."""
    rows, columns, pack = FULL if call.band is None else BAND
    if call.band is not None:
        n, (left, right) = call.query.shape[-2], call.band
        seen = n if left is None or right is None else min(n, left + right + 1)
        rows = min(rows, max(seen // 256 * 16, rows // 2))
    return Blocks(rows, columns * 4 // bytes_each, pack * 4 // bytes_each)


class Task(NamedTuple):
    """Some kv heads of some items, and the first queries of the blocks to be done."""

    items: slice
    heads: slice
    starts: range


class Plan(NamedTuple):
    """The sizes by which a call is cut."""

    rows: int
    columns: int
    packed: bool
    """The heads are so small that all queries and keys of one make one tile, and a task computes several at once."""
    whole: bool
    """Several items may be computed together. Then no key is skipped: what one item sees must not cut another's tiles."""
    step_items: int
    step_heads: int
    threads: int
    limit_blas: bool

    def tasks(self, sizes: Sizes) -> Iterator[Task]:
        """Every block of every head once. Where heads are few, several tasks share one; its blocks are dealt out in turn,
        since under a band they differ in size."""
        (batch,), _, h_kv, n, *_ = sizes
        items, heads, starts = range(0, batch, self.step_items), range(0, h_kv, self.step_heads), range(0, n, self.rows)
        whole_heads = len(items) * len(heads)
        shares = 1 if self.threads == 1 else min(max(TASKS_PER_THREAD * self.threads // whole_heads, 1), len(starts))
        for b in items:
            for g in heads:
                for share in range(shares):
                    yield Task(
                        slice(b, min(b + self.step_items, batch)),
                        slice(g, min(g + self.step_heads, h_kv)),
                        starts[share::shares],
                    )


def plan(sizes: Sizes, blocks: Blocks, threads: int | None) -> Plan:
    """The plan for a call with one batch axis."""
    (batch,), h, _, n, m, d_k, d_v = sizes
    worth = batch * h * n * m * (d_k + d_v + 64) // WORTH_A_THREAD
    return _plan(sizes, blocks, 1 if worth < 2 else min(threads or allowed(), worth))


@lru_cache(maxsize=256)
def _plan(sizes: Sizes, blocks: Blocks, threads: int) -> Plan:
    (batch,), h, h_kv, n, m, d_k, d_v = sizes
    group = h // max(h_kv, 1)
    per_head = max(group * n * m, 1)
    packed = 2 * per_head <= blocks.pack
    whole = 8 * per_head * h_kv <= blocks.pack and h_kv * m * (d_k + d_v) <= WHOLE
    if packed:
        rows, columns = max(n, 1), max(m, 1)
        task = min(blocks.pack, batch * h_kv * per_head // threads)
    else:
        count = math.ceil(max(n, 1) / max(blocks.rows // group, 1))  # blocks of nearly equal size, none a small rest
        rows = math.ceil(max(n, 1) / count)
        columns = max(blocks.columns, blocks.rows * blocks.columns // (group * rows))  # few queries make a wide tile
        fit = 2 * blocks.pack // (group * rows * min(columns, max(m, 1)))
        task = per_head * min(fit, batch * h_kv // (TASKS_PER_THREAD * threads))
    step_heads = max(min(task // per_head, h_kv), 1)
    step_items = max(task // (per_head * h_kv), 1) if whole and h_kv else 1
    limit_blas = group * rows * columns * max(d_k, d_v) > SINGLE_BELOW
    return Plan(rows, columns, packed, whole, step_items, step_heads, threads, limit_blas)


def with_one_batch_axis(call: Call, result: AttentionResult) -> Iterator[tuple[Call, AttentionResult]]:
    """The call and its result arrays as views with exactly one batch axis: one pair, or several where strides forbid it."""
    results = {name: x for name, x in result._asdict().items() if x is not None}
    for part, views in views_with_one_batch_axis(call, results):
        yield part, AttentionResult(*(views.get(name) for name in AttentionResult._fields))


def views_with_one_batch_axis(call: Call, others: dict[str, Array]) -> Iterator[tuple[Call, dict[str, Array]]]:
    """The same with any other arrays that have the batch axes of the call, each axis full or 1."""
    batch = call.query.shape[:-3]
    names = ("query", "key", "value", "mask", "bias", "query_offset", "key_lengths", "query_segments", "key_segments")
    own = {name: x for name in names if isinstance(x := getattr(call, name), np.ndarray)} | keep_in(call)
    if len(batch) == 1:
        yield call, others
        return
    try:
        views = [{name: _joined(x, batch) for name, x in arrays.items()} for arrays in (own, others)]
    except ValueError:  # the batch axes of some array are no single axis without a copy
        for first, lead in enumerate(np.ndindex(batch[:-1])):
            mine, theirs = ({name: _at(x, lead) for name, x in arrays.items()} for arrays in (own, others))
            yield with_arrays(call, mine, first * batch[-1]), theirs
    else:
        yield with_arrays(call, views[0], 0), views[1]


def _joined(x: Array, batch: tuple[int, ...]) -> Array:
    """The batch axes as one, of full size or of size 1; ValueError where that is no view."""
    size, own = math.prod(x.shape[: len(batch)]), x.shape[: len(batch)]
    if own != batch and size != 1:
        raise ValueError("broadcast along some batch axes only")
    return np.reshape(x, (size, *x.shape[len(batch) :]), copy=False)


def _at(x: Array, lead: tuple[int, ...]) -> Array:
    return x[tuple(at if size > 1 else 0 for at, size in zip(lead, x.shape, strict=False))]
