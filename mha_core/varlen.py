"""Sequences of unlike lengths, one behind the other without padding: ``attention_varlen``."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import array_api_compat

from mha_spec.call import Array, AttentionResult, Dropout
from mha_spec.contract_sequences import check_pack, checked_offsets, checked_pack_dropout, checked_starts, paired_sizes


class Run(NamedTuple):
    """Neighbouring sequences of one size and one offset: ``number`` of them from ``first`` on, which begins at ``query`` and ``key``."""

    first: int
    query: int
    key: int
    number: int
    n: int
    m: int
    offset: int | None


def varlen(
    attend: Callable[..., AttentionResult],
    query: Array,
    key: Array,
    value: Array,
    query_starts: Any,
    key_starts: Any,
    query_offset: Any,
    is_causal: bool,
    window: Any,
    dropout: Any,
    options: dict[str, Any],
) -> AttentionResult:
    """One call for each run of equal neighbours.

    A single call with segments would form every pair of every two sequences, in time and, on some backends, in memory; one call
    for each sequence would be slow where many are short. Neighbours of equal size are a batch without a copy, so a pack of equal
    sequences is one call, and a pack of unequal ones costs the sum of its squares. The results are joined, which needs one more copy
    of the output and nothing else.
    """
    check_pack(query, key, value)
    a = checked_starts("query_starts", query_starts, query.shape[0])
    b = checked_starts("key_starts", key_starts, key.shape[0])
    sizes = paired_sizes(a, b)
    dropout = checked_pack_dropout(dropout, len(sizes))
    offsets = checked_offsets(query_offset, is_causal, window, sizes)
    results = [
        attend(
            _batch(query, run.query, run.number, run.n), _batch(key, run.key, run.number, run.m), _batch(value, run.key, run.number, run.m),
            query_offset=run.offset, is_causal=is_causal, window=window, dropout=_from_item(dropout, run.first), **options,
        )
        for run in runs(sizes, offsets)
    ]  # fmt: skip
    xp = array_api_compat.array_namespace(query)
    output = xp.concat([_tokens(xp.moveaxis(result.output, 1, 2)) for result in results], axis=0)  # (N, h, d_v)
    if results[0].lse is None:
        return AttentionResult(output)
    return AttentionResult(output, None, xp.concat([_tokens(xp.moveaxis(r.lse, 1, 2)) for r in results], axis=0))  # (N, h)


def runs(sizes: list[tuple[int, int]], offsets: list[int] | None) -> Iterator[Run]:
    """The sequences in order, equal neighbours together; where there is no sequence, one run of none."""
    query = key = at = 0
    while at < len(sizes):
        (n, m), offset = sizes[at], None if offsets is None else offsets[at]
        end = at + 1
        while end < len(sizes) and sizes[end] == (n, m) and (offsets is None or offsets[end] == offset):
            end += 1
        yield Run(at, query, key, end - at, n, m, offset)
        query, key, at = query + (end - at) * n, key + (end - at) * m, end
    if not sizes:
        yield Run(0, 0, 0, 0, 0, 0, None)


def _from_item(dropout: Dropout | None, first: int) -> Dropout | None:
    """Dropout of the sequences from ``first`` on (MHA-VARLEN-6)."""
    return dropout if dropout is None else dropout._replace(batch_start=dropout.batch_start + first)


def _batch(x: Array, start: int, count: int, length: int) -> Array:
    """(tokens, heads, width) -> (count, heads, length, width), a view where the strides allow it."""
    xp = array_api_compat.array_namespace(x)
    part = xp.reshape(x[start : start + count * length, ...], (count, length, *x.shape[1:]))
    return xp.moveaxis(part, 1, 2)


def _tokens(x: Array) -> Array:
    """(count, length, heads, ...) -> (count * length, heads, ...)"""
    xp = array_api_compat.array_namespace(x)
    return xp.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))
