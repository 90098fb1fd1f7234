"""Deterministic inputs: integers made into fractions that fill the significand of a floating type.

With 8-bit significands a kernel that multiplies in TF32 has the error of true float32; with full 24 bits it has a thousand
times more. So the numbers of a case carry every bit that their type has. They come from a counter through splitmix64, which any
language can repeat, and never from a library's random generator.
"""

from typing import Any

import numpy as np

BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


def words(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """``count`` 64-bit words of splitmix64 (Steele, Lea and Flood, 2014) from ``seed``."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def fractions(seed: int, shape: tuple[int, ...], dtype: str, spread: float = 2.0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Odd multiples of 2^-p in (-1, 1), p the bits of ``dtype``'s significand, times ``spread``, a power of two.

    Every batch item and every head has a spread of its own, so that a mix-up of two of them shows.
    """
    count = int(np.prod(shape))
    bits = BITS[dtype]
    numerators = 2 * (words(seed, count) >> np.uint64(64 - bits)).astype(np.int64) + 1 - 2**bits
    values = np.ldexp(numerators.astype(np.float64), -bits).reshape(shape) * spread
    return np.asarray(values * signature(shape) if len(shape) > 2 else values)


def signature(shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(*batch, h, 1, 1): powers of two, another for each neighbour along batch and heads."""
    lead = shape[:-2]
    index = np.indices(lead).reshape(len(lead), *lead) if lead else np.zeros((1,), dtype=int)
    exponent = (index * np.arange(1, len(lead) + 1).reshape(-1, *(1,) * len(lead))).sum(0) % 3 - 1
    return np.asarray(np.ldexp(1.0, exponent)[..., None, None])


def eighths(seed: int, shape: tuple[int, ...], largest: int = 16) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The coarse family, multiples of 1/8 up to ``largest``/8: exact in every type, for cases whose answer is exact."""
    count = int(np.prod(shape))
    return ((words(seed, count) % np.uint64(2 * largest + 1)).astype(np.int64) - largest).reshape(shape) / 8


def choices(seed: int, shape: tuple[int, ...], share: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Booleans, True for about ``share`` of them."""
    return ((words(seed, int(np.prod(shape))) >> np.uint64(40)).astype(np.float64) < share * 2**24).reshape(shape)


def integers(seed: int, shape: tuple[int, ...], low: int, high: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Integers from ``low`` to ``high - 1``."""
    return ((words(seed, int(np.prod(shape))) % np.uint64(high - low)).astype(np.int64) + low).reshape(shape)
