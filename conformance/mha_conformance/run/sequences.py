"""Runs the requests of chapter 7: attention seen through a cache, packs, statistics. ``Request.plan`` says how."""

from collections.abc import Callable, Mapping
from typing import Any

import array_api_compat
import numpy as np

from mha_core import AttentionResult
from mha_spec.call import Array

TARGETS = ("cache", "varlen", "statistics")

NOISE = 64.0
"""The factor on tokens that are appended and taken back: what of them is still seen, shows."""


def through_cache(
    attend: Callable[..., AttentionResult], make_cache: Callable[..., Any], host: Callable[[Any], Any], operands: list[Array],
    options: Mapping[str, Any], plan: Mapping[str, Any],
) -> AttentionResult:  # fmt: skip
    """The rows of one call over the whole sequence, from calls over a cache that is filled step by step; on the host.

    A step of ``plan["steps"]`` is a number of tokens, or one number for each sequence; or ``("speculate", t)``: t wrong tokens come
    and are rolled back; or ``("reorder", order)``: the sequences change places. ``plan["cache"]`` are the settings of the cache.
    """
    query, key, value = operands
    cache = make_cache(**plan.get("cache", {}))
    batch = query.shape[0]
    places = list(range(batch))  # which sequence of the operands lies where
    done = np.zeros(batch, dtype=int)
    found: dict[str, Any] = {}
    for step in plan["steps"]:
        if isinstance(step, tuple) and step[0] == "speculate":
            before = cache.lengths
            cache.append(*(NOISE * _chunk(x, places, done * 0, step[1]) for x in (key, value)))
            cache.rollback(before)
            continue
        if isinstance(step, tuple) and step[0] == "reorder":
            cache.reorder(step[1])
            places = [places[b] for b in step[1]]
            continue
        counts = np.broadcast_to(np.asarray(step), (batch,))  # of each sequence of the operands
        t = int(counts.max())
        here = counts[places].tolist()
        held = cache.append(*(_chunk(x, places, done, t) for x in (key, value)), counts=None if min(here) == t else here)
        lengths = {} if held.key_lengths is None else {"key_lengths": held.key_lengths}
        result = attend(
            _chunk(query, places, done, t), held.key, held.value, query_offset=held.query_offset, **lengths, **options
        )
        _put(found, result, host, query.shape[-2], places, done, counts)
        done = done + counts
    return AttentionResult(found["output"], None, found.get("lse"))


def _chunk(x: Array, places: list[int], done: Any, t: int) -> Array:
    """The next t tokens of each sequence, where it lies now; a sequence that is nearly done repeats earlier ones as padding."""
    xp = array_api_compat.array_namespace(x)
    m = x.shape[-2]
    starts = [min(int(done[b]), m) for b in places]
    if len(set(starts)) == 1 and starts[0] + t <= m and places == sorted(places):
        return x[..., starts[0] : starts[0] + t, :]
    parts = [x[b : b + 1, :, start : start + t, :] for b, start in zip(places, starts, strict=True)]
    parts = [part if part.shape[-2] == t else xp.concat([part, x[b : b + 1, :, : t - part.shape[-2], :]], axis=-2)
             for b, part in zip(places, parts, strict=True)]  # fmt: skip
    return xp.concat(parts, axis=0)


def _put(
    found: dict[str, Any], result: AttentionResult, host: Callable[[Any], Any], n: int, places: list[int], done: Any, counts: Any
) -> None:  # fmt: skip
    """Rows where they stand in the whole; rows of padding are dropped."""
    for name in ("output", "lse"):
        x = getattr(result, name)
        if x is None:
            continue
        rows = np.moveaxis(np.asarray(host(x)), 2, 1)  # (b, t, h, ...)
        if name not in found:
            found[name] = np.full((rows.shape[0], rows.shape[2], n, *rows.shape[3:]), np.nan, dtype=rows.dtype)
        for at, b in enumerate(places):
            now = slice(int(done[b]), int(done[b] + counts[b]))
            found[name][b, :, now] = np.moveaxis(rows[at, : int(counts[b])], 0, 1)


def one_statistic(
    statistics: Callable[..., Any], query: Array, key: Array, options: Mapping[str, Any], plan: Mapping[str, Any]
) -> Any:
    """The one that ``plan["statistic"]`` names, of those that ``plan["asked"]`` asks for."""
    return getattr(statistics(query, key, **plan["asked"], **options), plan["statistic"])
