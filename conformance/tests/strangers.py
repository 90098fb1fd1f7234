"""Attention by strangers, as the suite meets it: a callable, NumPy, no door of this project. Honest ones and others."""

import os
import time

import numpy as np

from mha_conformance.run.arrays import Inexpressible


def attention(query, key, value, *, mask=None, is_causal=False):
    """Straight from the paper, with the refusals that the core asks of everybody."""
    return _attend(query, key, value, mask, is_causal)


def tf32(query, key, value):
    """Products read 11 bits of each operand: legal under PTF32, not under P32."""
    return _attend(query, key, value, read=_eleven_bits)


def flushes(query, key, value):
    """Subnormal numbers are 0, in operands and output: legal for who declares it."""
    tiny = np.finfo(np.float32).smallest_normal
    flushed = [np.where(np.abs(x) < tiny, x.dtype.type(0), x) for x in (query, key, value)]
    output = _attend(*flushed)
    return np.where(np.abs(output) < tiny, output.dtype.type(0), output)


def makes_the_matrix(query, key, value):
    """All scores at once, in float32. The values do not matter to who measures memory."""
    if query.shape[-2] * key.shape[-2] < 2**24:
        return _attend(query, key, value)
    scores = np.ones((query.shape[-2], key.shape[-2]), np.float32)
    return query * scores[-1, -1]


def in_blocks(query, key, value, *, is_causal=False):
    """128 queries and 4096 keys at a time; the values do not matter here either, and causal is the same."""
    output = np.zeros_like(query)
    for row in range(0, query.shape[-2], 4096):
        output[..., row : row + 4096, :] = np.ones((128, 4096), np.float32)[0, 0]
    return output


def reads_past(query, key, value):
    """What lies behind the last value is read, and counts 0 times."""
    behind = _element(value, value.size) if value.size and value.flags.c_contiguous and value.base is not None else 0
    return _attend(query, key, value) + value.dtype.type(0) * behind


def writes_before(query, key, value):
    """The element before the query is scratch memory."""
    if query.size and query.flags.c_contiguous and query.base is not None:
        _element(query, -1)[...] = 7
    return _attend(query, key, value)


BUFFERS = {}


def one_buffer(query, key, value):
    """Returns the same memory for each result of a shape."""
    result = _attend(query, key, value)
    buffer = BUFFERS.setdefault((result.shape, result.dtype), result)
    buffer[...] = result
    return buffer


def _element(x, at):
    """The element of an array's allocation that lies ``at`` elements behind its first."""
    return np.ndarray((), x.dtype, x.base, x.ctypes.data - x.base.ctypes.data + at * x.itemsize)


def positions_first(query, key, value):
    """(batch, n, heads, d) in and out."""
    return np.swapaxes(_attend(*(np.swapaxes(x, -2, -3) for x in (query, key, value))), -2, -3)


def one_of_two(query, key, value, *, mask=None, is_causal=False):
    """A mask or a causal flag, and its causal mask begins bottom-right."""
    if mask is not None and is_causal:
        raise RuntimeError("explicit mask should not be set when is_causal is true")
    return _attend(query, key, value, mask, is_causal, start=key.shape[-2] - query.shape[-2])


def mask_ignored(query, key, value, *, mask=None):
    _refuse(query, key, value, mask)
    return _attend(query, key, value)


def no_mean_of_nothing(query, key, value, *, mask=None):
    """Empty rows are the mean of the values: wrong there, right everywhere else."""
    _refuse(query, key, value, mask)
    return _attend(query, key, value, mask if mask is None else mask | ~mask.any(axis=-1, keepdims=True))


class Compiled:
    """A system that is compiled for its shapes, and says which kernel answers."""

    prepared = None

    def prepare(self, shapes):
        self.prepared = shapes["query"], shapes["key"]

    def explain(self, query, key, value):
        return f"compiled for {query.shape[-2]} queries" if self.prepared else "not compiled yet"

    def __call__(self, query, key, value):
        assert self.prepared == (query.shape, key.shape), "called for shapes that it was not prepared for"
        return _attend(query, key, value)


compiled = Compiled()


def at_most_eight(query, key, value):
    """Eight channels at most, an even number of them, one batch axis."""
    if query.shape[-1] > 8 or query.shape[-1] % 2 or query.ndim != 4:
        raise RuntimeError("no kernel for these sizes")
    return _attend(query, key, value)


class Boxed:
    """An array of a library that the suite has never heard of."""

    def __init__(self, values):
        self.values, self.dtype, self.shape = values, values.dtype, values.shape


def box(array, name):
    if any(stride < 0 for stride in array.strides):
        raise Inexpressible(f"a box holds no negative strides, as {name} has")
    return Boxed(array)


def unbox(array):
    return array.values


def boxed(query, key, value):
    if not all(isinstance(x, Boxed) for x in (query, key, value)):
        raise TypeError("boxes, please")
    return Boxed(_attend(query.values, key.values, value.values))


def crashes(query, key, value):
    if query.shape[-2] == 9:
        os._exit(77)
    return _attend(query, key, value)


def hangs(query, key, value):
    if query.shape[-2] == 9:
        time.sleep(300)
    return _attend(query, key, value)


not_callable = 3


def _refuse(query, key, value, mask):
    if query.shape[:-3] != key.shape[:-3] or query.shape[-3] != key.shape[-3]:
        raise ValueError("batches or heads differ")
    if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        raise ValueError("widths or lengths differ")
    if mask is not None:
        if mask.dtype != bool or mask.ndim not in (2, query.ndim):
            raise ValueError("a mask is boolean, of rank 2 or of the scores")
        if any(size not in (1, whole) for size, whole in zip(mask.shape[-2:], (query.shape[-2], key.shape[-2]), strict=True)):
            raise ValueError("a mask of another size")


def _attend(query, key, value, mask=None, is_causal=False, read=lambda x: x, start=0):
    _refuse(query, key, value, mask)
    n, m, d = query.shape[-2], key.shape[-2], query.shape[-1]
    scores = np.matmul(read(query), np.swapaxes(read(key), -1, -2)) / np.float32(np.sqrt(d) if d else 1)
    see = np.ones((n, m), dtype=bool) if mask is None else mask
    if is_causal:
        see = see & (np.arange(m) <= start + np.arange(n)[:, None])
    scores = np.where(see, scores, np.float32(-np.inf))
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(top == -np.inf, np.float32(0), top)).astype(query.dtype)
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / np.where(total == 0, np.float32(1), total)
    return np.matmul(read(weights), read(value))


def _eleven_bits(x):
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.round(np.ldexp(fraction, 11)), exponent - 11).astype(x.dtype)
