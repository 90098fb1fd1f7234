"""Keys and values of sequences that grow: ``KVCache``. Attention over it is an ordinary call (chapter 7)."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from mha_spec.call import Array
from mha_spec.contract_sequences import Integers, check_tokens, checked_capacity, checked_left, host_integers
from mha_spec.violation import Violation, library_of, shown


class Cached(NamedTuple):
    """What a cache holds, as a call of attention takes it (MHA-CACHE-3).

    ``key (*batch, h_kv, m, d_k)`` and ``value (*batch, h_kv, m, d_v)`` are views of the cache, good until it changes.
    ``query_offset`` is the position of the first token of the last append (after ``read``, of the next token);
    ``key_lengths`` is None where every sequence fills all m keys. Both are one int or an integer array of the batch shape.
    """

    key: Array
    value: Array
    query_offset: int | Array
    key_lengths: Array | None


class KVCache:
    """Keys and values in memory that is reserved ahead, with a length for each sequence of the batch.

    The library, dtype, device, batch shape and heads are those of the first tokens that are appended. ``capacity`` is the number
    of tokens that a sequence may hold; None grows by doubling. With ``window``, the (left, right) of the calls to come, tokens that
    no later query sees make room for new ones.

    Lengths are host integers: nothing here reads an array of a device. Writes go into the cache's own memory, so a library whose
    arrays cannot be written, such as JAX, is refused (MHA-CACHE-11).
    """

    def __init__(self, *, capacity: int | None = None, window: tuple[int | None, int | None] | None = None) -> None:
        self._limit = checked_capacity(capacity)
        self._left = checked_left(window)
        self._key: Array = None
        self._value: Array = None
        self._held: Integers = np.zeros((), dtype=np.int64)
        self._dropped: Integers = np.zeros((), dtype=np.int64)

    @property
    def capacity(self) -> int:
        """Tokens that each sequence may hold without new memory."""
        return (self._limit or 0) if self._key is None else int(self._key.shape[-2])

    @property
    def lengths(self) -> Integers:
        """Tokens of each sequence, of the batch shape: the position that its next token has in the whole sequence."""
        return self._held + self._dropped

    @property
    def dropped(self) -> Integers:
        """How many of these no longer lie in the cache, of the batch shape: key j stands at ``dropped + j``."""
        return self._dropped.copy()

    def append(self, key: Array, value: Array, counts: Any = None) -> Cached:
        """Put tokens behind those that are there: key ``(*batch, h_kv, t, d_k)``, value ``(*batch, h_kv, t, d_v)``.

        ``counts``, host integers of the batch shape, says how many of the t belong to each sequence, from the left; the rest is
        padding, is not kept, and its queries are to be ignored. Raises ``Violation`` and changes nothing where the tokens do
        not fit those before (MHA-CACHE-6) or the cache is full (MHA-CACHE-5).
        """
        check_tokens(key, value, self._key, self._value)
        *batch, _, t, _ = key.shape
        new = host_integers(
            "MHA-CACHE-4", "counts", t if counts is None else counts, tuple(batch), f"0 to {t} tokens of each sequence"
        )
        if ((new < 0) | (new > t)).any():
            raise Violation(
                "MHA-CACHE-4", f"counts={shown(new.tolist())}", f"0 to {t} tokens of each sequence", "count the tokens given"
            )
        held = self._held if self._key is not None else np.zeros(tuple(batch), dtype=np.int64)
        self._make_room(key, value, held, new, t)
        before = self._held
        for at, start, count in _spans(before, new):
            for buffer, tokens in ((self._key, key), (self._value, value)):
                buffer[(*at, slice(start, start + count), slice(None))] = tokens[(*at, slice(count), slice(None))]
        self._held = before + new
        return self._cached(before)

    def read(self) -> Cached:
        """What is held, for queries that stand behind it, or that belong to another sequence (cross-attention)."""
        return self._cached(self._held)

    def rollback(self, lengths: Any) -> None:
        """Forget the tokens of each sequence from ``lengths`` on: one int or host integers of the batch shape.

        Raises ``Violation`` (MHA-CACHE-7) for a length beyond the present one, or so far back that the next query would see
        tokens that made room for others.
        """
        wanted = host_integers("MHA-CACHE-7", "lengths", lengths, self._held.shape, "tokens to keep of each sequence")
        reach = self._dropped + (self._left or 0)
        lost = (self._dropped > 0) & (wanted < reach)
        if ((wanted < 0) | (wanted > self.lengths) | lost).any():
            least = np.where(self._dropped > 0, reach, 0)
            raise Violation(
                "MHA-CACHE-7", f"lengths={shown(wanted.tolist())}",
                f"from {shown(least.tolist())} (what the window of the next query needs) to {shown(self.lengths.tolist())}",
                "a larger capacity keeps more tokens behind the window",
            )  # fmt: skip
        kept = wanted - self._dropped
        self._clear(kept, self._held - kept)
        self._held = kept

    def reorder(self, order: Any) -> None:
        """Sequence b becomes a copy of what sequence ``order[b]`` was, for beams; ``order`` may be longer or shorter than the batch.

        Host integers; there must be one batch axis. Raises ``Violation`` (MHA-CACHE-8).
        """
        if self._key is None or self._held.ndim != 1:
            raise Violation("MHA-CACHE-8", f"reorder of a cache with batch shape {self._held.shape}", "tokens with one batch axis",
                            "append first; lay beams and items along one axis")  # fmt: skip
        size = self._held.shape[0]
        count = len(order) if hasattr(order, "__len__") else 0
        chosen = host_integers("MHA-CACHE-8", "order", order, (count,), "sequences of the batch")
        if ((chosen < 0) | (chosen >= size)).any():
            raise Violation(
                "MHA-CACHE-8", f"order={shown(chosen.tolist())}", f"sequences 0 to {size - 1}", "count from 0, within the batch"
            )
        self._key, self._value = (self._moved(x, self.capacity, chosen) for x in (self._key, self._value))
        self._held, self._dropped = self._held[chosen], self._dropped[chosen]

    def evict(self) -> None:
        """Drop the tokens that no later query sees: all but the last ``left`` of the window. ``append`` does so when it is full."""
        if self._left is None or self._key is None:
            return
        kept = np.minimum(self._held, self._left)
        for at, start, count in _spans(self._held - kept, kept):
            for buffer in (self._key, self._value):
                xp = array_api_compat.array_namespace(buffer)
                last = buffer[(*at, slice(start, start + count), slice(None))]
                if start < count:  # it lies over its own new place
                    last = xp.asarray(last, copy=True)
                buffer[(*at, slice(count), slice(None))] = last
        self._clear(kept, self._held - kept)
        self._held, self._dropped = kept, self._dropped + self._held - kept

    def _make_room(self, key: Array, value: Array, held: Integers, new: Integers, t: int) -> None:
        """MHA-CACHE-5, MHA-CACHE-9. Refuses before it changes anything."""
        needed = int((held + new).max(initial=0))
        least = needed if self._left is None else int((np.minimum(held, self._left) + new).max(initial=0))
        if self._limit is not None and least > self._limit:
            raise Violation(
                "MHA-CACHE-5", f"{t} tokens behind {shown(held.tolist())}", f"at most capacity={self._limit} tokens",
                "give the cache a larger capacity or none, roll it back, or give it the window of its calls",
            )  # fmt: skip
        if self._key is None:
            size = needed if self._limit is None else self._limit
            self._key, self._value = _zeros(key, size), _zeros(value, size)
            self._held, self._dropped = held, np.zeros_like(held)
        elif needed > self.capacity:
            # A cache that grows has room for twice what a window needs, so that a token is moved about once.
            if self._left is not None and (self._limit is not None or self.capacity >= 2 * (self._left + t)):
                self.evict()
            else:
                size = max(2 * self.capacity, needed)
                self._key, self._value = (self._moved(x, size) for x in (self._key, self._value))

    def _moved(self, buffer: Array, size: int, order: Integers | None = None) -> Array:
        """A buffer of ``size`` tokens with what is held, or with the sequences of ``order`` along the one batch axis."""
        xp = array_api_compat.array_namespace(buffer)
        held = buffer[..., : int(self._held.max(initial=0)), :]
        if order is not None:
            held = xp.take(held, xp.asarray(order.tolist(), dtype=xp.int64, device=array_api_compat.device(buffer)), axis=0)
        fresh = _zeros(held, size)
        fresh[..., : held.shape[-2], :] = held
        return fresh

    def _clear(self, starts: Integers, counts: Integers) -> None:
        """Zeros in the tokens ``starts .. starts + counts`` of each sequence: what lies beyond a length is 0 (MHA-CACHE-11)."""
        for at, start, count in _spans(starts, counts):
            for buffer in (self._key, self._value):
                if buffer is not None:
                    buffer[(*at, slice(start, start + count), slice(None))] = 0

    def _cached(self, positions: Integers) -> Cached:
        if self._key is None:
            raise Violation(
                "MHA-CACHE-3", "a cache without tokens", "tokens", "append first: they say which library, heads and widths"
            )
        m = int(self._held.max(initial=0))
        full = bool((self._held == m).all())
        return Cached(
            self._key[..., :m, :],
            self._value[..., :m, :],
            self._numbers(positions),
            None if full else self._numbers(self._held),
        )

    def _numbers(self, x: Integers) -> int | Array:
        """One Python int where all are equal, otherwise an integer array beside the keys; it travels to the device, never back."""
        if x.size == 0 or (x == x.flat[0]).all():
            return int(x.max(initial=0))
        xp = array_api_compat.array_namespace(self._key)
        return xp.asarray(x.tolist(), dtype=xp.int64, device=array_api_compat.device(self._key))


def _spans(starts: Integers, counts: Integers) -> Iterator[tuple[tuple[Any, ...], int, int]]:
    """(index of batch and heads, start, count) of each sequence with a count; one for all where they are alike."""
    if counts.size and (starts == starts.flat[0]).all() and (counts == counts.flat[0]).all():
        if counts.flat[0]:
            yield (...,), int(starts.flat[0]), int(counts.flat[0])
        return
    for at in np.ndindex(counts.shape):
        if counts[at]:
            yield (*at, slice(None)), int(starts[at]), int(counts[at])


def _zeros(tokens: Array, size: int) -> Array:
    """Writable zeros for ``size`` tokens, alike in all else. Raises ``Violation`` (MHA-CACHE-11)."""
    xp = array_api_compat.array_namespace(tokens)
    *lead, _, width = tokens.shape
    fresh = xp.zeros((*lead, size, width), dtype=tokens.dtype, device=array_api_compat.device(tokens))
    try:
        fresh[..., :0, :] = tokens[..., :0, :]
    except TypeError as error:
        raise Violation(
            "MHA-CACHE-11", f"{library_of(tokens)} arrays, which cannot be written", "a library with writable arrays",
            "hold keys and values in an array of your own, and call attention with query_offset and key_lengths",
        ) from error  # fmt: skip
    return fresh
