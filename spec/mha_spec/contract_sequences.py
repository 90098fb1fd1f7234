"""Chapter 7, what may be asked: host integers, tokens for a cache, starts and offsets of a pack, statistics.

Lengths, counts, starts and the like decide shapes, so their values are read, and reading them must wait for no device: they are
Python or NumPy integers (MHA-CACHE-10). The arrays of keys, values and queries are looked at as chapter 2 looks at them.
"""

import itertools
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from mha_spec.call import Array, Dropout
from mha_spec.contract import check_float, check_library
from mha_spec.contract_dropout import checked_dropout
from mha_spec.contract_options import check_flags, checked_band
from mha_spec.violation import Violation, describe, is_array, library_of, shown

Integers = np.ndarray[Any, np.dtype[np.int64]]


def host_integers(clause: str, name: str, x: Any, shape: tuple[int, ...], meaning: str) -> Integers:
    """``x`` as int64 of exactly ``shape``; one Python int stands for all of them. Raises ``Violation``: ``clause``, MHA-CACHE-10."""
    if is_array(x) and library_of(x) != "numpy":
        raise Violation(
            "MHA-CACHE-10", f"{name} {describe(x)}", f"Python or NumPy integers: {meaning}",
            "write x.tolist(), which waits for its device where you can see it",
        )  # fmt: skip
    try:
        found = np.asarray(x)
    except ValueError:  # a ragged list
        found = None
    if found is not None and found.size == 0 and found.dtype.kind == "f":
        found = found.astype(np.int64)  # an empty list has no type of its own
    if (
        found is None
        or found.dtype.kind not in "iu"
        or found.shape not in ((), shape)
        or (is_array(x) and not found.shape == shape)
    ):
        raise Violation(
            clause, f"{name} {describe(x) if is_array(x) else shown(x)}", f"Python or NumPy integers of shape {shape}: {meaning}",
            "one number for each, or one int for all",
        )  # fmt: skip
    return np.broadcast_to(found.astype(np.int64), shape).copy()


def checked_capacity(capacity: Any) -> int | None:
    """MHA-CACHE-5: None, or a positive number of tokens."""
    if capacity is None:
        return None
    if not isinstance(capacity, Integral) or isinstance(capacity, bool) or capacity < 1:
        raise Violation(
            "MHA-CACHE-5",
            f"capacity={shown(capacity)}",
            "an int >= 1, or None",
            "leave it out for a cache that grows by doubling",
        )
    return int(capacity)


def checked_left(window: Any) -> int | None:
    """MHA-CACHE-9: how many tokens behind a query its window reaches; None without a window."""
    if window is None:
        return None
    band = checked_band(False, window)
    if band is None or band[0] is None:
        raise Violation(
            "MHA-CACHE-9",
            f"window={shown(window)}",
            "a window that ends on the left",
            "leave it out: a later query sees every token",
        )
    return band[0]


def check_tokens(key: Array, value: Array, held: Array | None, held_value: Array | None) -> None:
    """MHA-CACHE-6: key ``(*batch, h_kv, t, d_k)`` and value ``(*batch, h_kv, t, d_v)`` that fit what is held already."""
    arrays = {"key": key, "value": value}
    known = {} if held is None else {"held": held}
    check_library({**known, **arrays})
    check_float(**known, **arrays)
    k, v = tuple(key.shape), tuple(value.shape)
    fits = len(k) >= 3 and k[:-1] == v[:-1]
    if fits and held is not None and held_value is not None:
        fits = all((*x.shape[:-2], x.shape[-1]) == (*y[:-2], y[-1]) for x, y in ((held, k), (held_value, v)))
    if not fits:
        behind = "" if held is None or held_value is None else f" behind key {_open(held)}, value {_open(held_value)}"
        raise Violation(
            "MHA-CACHE-6", f"key {k}, value {v}{behind}", "(*batch, h_kv, tokens, width), of one batch, h_kv and widths",
            "give each new token one key and one value, with the heads and widths of those before",
        )  # fmt: skip
    for name, x in arrays.items():
        if getattr(x, "requires_grad", False):
            raise Violation(
                "MHA-CACHE-11", f"{name} that records gradients", "tokens outside the recording",
                "a cache overwrites its memory and cannot be differentiated: decode under torch.no_grad(), or detach the tokens",
            )  # fmt: skip


def _open(x: Array) -> str:
    *lead, _, width = x.shape
    return f"({', '.join(map(str, (*lead, '*', width)))})"


def checked_starts(name: str, starts: Any, tokens: int) -> tuple[int, ...]:
    """MHA-VARLEN-3: S + 1 host integers from 0 to the number of tokens, none below the one before."""
    count = len(starts) if isinstance(starts, Sequence) or (is_array(starts) and len(starts.shape) == 1) else 0
    found = host_integers(
        "MHA-VARLEN-3", name, starts, (count,), "where each sequence begins, and where the last one ends"
    ).tolist()
    if not found or found[0] != 0 or found[-1] != tokens or any(a > b for a, b in itertools.pairwise(found)):
        raise Violation(
            "MHA-VARLEN-3", f"{name}={shown(found)} for {tokens} tokens", f"[0, ..., {tokens}], never falling",
            "every token belongs to one sequence: starts are the running sum of the lengths, with a 0 in front",
        )  # fmt: skip
    return tuple(found)


def paired_sizes(query_starts: tuple[int, ...], key_starts: tuple[int, ...]) -> list[tuple[int, int]]:
    """MHA-VARLEN-3: (n, m) of each sequence; there are as many of queries as of keys."""
    if len(query_starts) != len(key_starts):
        raise Violation(
            "MHA-VARLEN-3", f"{len(query_starts)} query_starts and {len(key_starts)} key_starts", "as many of one as of the other",
            "a sequence without keys has its start twice in key_starts",
        )  # fmt: skip
    n, m = ([b - a for a, b in itertools.pairwise(starts)] for starts in (query_starts, key_starts))
    return list(zip(n, m, strict=True))


def checked_offsets(offset: Any, is_causal: bool, window: Any, sizes: Sequence[tuple[int, int]]) -> list[int] | None:
    """MHA-VARLEN-4: the position of query 0 of each sequence, from (n, m) of each; None where no order is asked for."""
    if checked_band(is_causal, window) is None:
        if offset is not None:
            raise Violation(
                "MHA-VARLEN-4", "query_offset without is_causal or a finite window side", "query_offset=None",
                "it would be ignored: leave it out, or ask for is_causal=True or a window",
            )  # fmt: skip
        return None
    if offset is not None:
        meaning = "the position of query 0, of each sequence"
        return list(host_integers("MHA-VARLEN-4", "query_offset", offset, (len(sizes),), meaning).tolist())
    unequal = [at for at, (n, m) in enumerate(sizes) if n != m]
    if unequal:
        n, m = sizes[unequal[0]]
        raise Violation(
            "MHA-VARLEN-4", f"sequence {unequal[0]} with n = {n} queries, m = {m} keys and no query_offset",
            "the position of query 0, of each sequence",
            "write query_offset=0 (top-left: torch, JAX) or query_offset=[m - n, ...] of each (bottom-right: FlashAttention)",
        )  # fmt: skip
    return [0] * len(sizes)


def check_pack(query: Array, key: Array, value: Array) -> None:
    """MHA-VARLEN-1: tokens first, ``(tokens, heads, width)``. What else must hold of the three, chapter 2 says."""
    check_library({"query": query, "key": key, "value": value})
    shapes = {name: tuple(x.shape) for name, x in (("query", query), ("key", key), ("value", value))}
    if any(len(shape) != 3 for shape in shapes.values()) or shapes["key"][:2] != shapes["value"][:2]:
        given = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise Violation(
            "MHA-VARLEN-1", given, "(tokens, heads, width) for each, key and value with the same tokens and heads",
            "lay the sequences one behind the other, without padding, and drop the batch axis",
        )  # fmt: skip


def checked_pack_dropout(dropout: Any, sequences: int) -> Dropout | None:
    """MHA-VARLEN-6: by a seed, with room for an index of every sequence."""
    if isinstance(dropout, Dropout) and dropout.keep is not None:
        raise Violation(
            "MHA-VARLEN-6", "keep for a pack of sequences", "Dropout(rate, seed)",
            "keep has the axes of one batch: call attention for each sequence, or with segments for the pack",
        )  # fmt: skip
    return None if dropout is None else checked_dropout(dropout, (sequences, 0, 0, 0))


def checked_top(top_k: Any) -> int | None:
    """MHA-STAT-8: None, or how many keys of each row."""
    if top_k is not None and (not isinstance(top_k, Integral) or isinstance(top_k, bool) or top_k < 1):
        raise Violation("MHA-STAT-8", f"top_k={shown(top_k)}", "an int >= 1, or None", "leave it out if you want none")
    return None if top_k is None else int(top_k)


def checked_range(head_mean: Any, m: int) -> tuple[int, int] | None:
    """MHA-STAT-8: None, or (start, stop) with 0 <= start <= stop <= m."""
    if head_mean is None:
        return None
    pair = isinstance(head_mean, tuple | list) and len(head_mean) == 2
    if (
        not pair
        or not all(isinstance(x, Integral) and not isinstance(x, bool) for x in head_mean)
        or not (0 <= head_mean[0] <= head_mean[1] <= m)
    ):
        raise Violation(
            "MHA-STAT-8", f"head_mean={shown(head_mean)} for {m} keys", f"(start, stop) with 0 <= start <= stop <= {m}",
            f"write head_mean=(0, {m}) for all keys",
        )  # fmt: skip
    return int(head_mean[0]), int(head_mean[1])


def check_asked(column_mass: Any, row_entropy: Any, top_k: Any, head_mean: Any) -> None:
    """MHA-STAT-8: at least one statistic, and flags that are bools."""
    check_flags(column_mass=column_mass, row_entropy=row_entropy)
    if not (column_mass or row_entropy) and top_k is None and head_mean is None:
        raise Violation(
            "MHA-STAT-8", "no statistic", "one of column_mass, row_entropy, top_k, head_mean", "ask for what you want to know"
        )
