"""Single operations that no NumPy function offers: rounded toward zero, or fused. All stay in the type of their arguments.

The rounding error of a sum or product of two floating numbers is itself a floating number (Knuth, Dekker); its sign says on
which side of the exact result the rounded one lies.
"""

from typing import Any

import numpy as np

from mha_spec.profiles import TYPES


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """(s, e) with s the rounded and s + e the exact sum."""
    s = a + b
    z = s - a
    return s, (a - (s - z)) + (b - z)


def two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """(p, e) with p the rounded and p + e the exact product, by Dekker's splitting; no overflow, no underflow."""
    p = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def _halves(x: Any) -> tuple[Any, Any]:
    c = x * x.dtype.type(2 ** (27 if x.dtype == np.float64 else 12) + 1)
    high = c - (c - x)
    return high, x - high


def _inward(x: Any, error: Any) -> Any:
    """x, or its neighbour toward zero where the exact x + error is smaller in size."""
    return np.where(error * np.sign(x) < 0, np.nextafter(x, np.zeros_like(x)), x)


def sum_toward_zero(a: Any, b: Any) -> Any:
    s, error = two_sum(a, b)
    return _inward(s, np.where(np.isfinite(error), error, 0))


def product_toward_zero(a: Any, b: Any) -> Any:
    p, error = two_product(a, b)
    return _inward(p, np.where(np.isfinite(error), error, 0))


def quotient_toward_zero(a: Any, b: Any) -> Any:
    """a / b for b > 0."""
    q = a / b
    p, error = two_product(q, np.broadcast_to(b, q.shape))
    over = ((p - a) + error) * np.sign(q)
    return np.where(over > 0, np.nextafter(q, np.zeros_like(q)), q)


def fused(a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once.

    float32: the product is exact in float64, the sum is rounded to odd there, and so the second rounding is the only one that
    counts (Boldo and Melquiond, 2008). float64: the errors of product and sum are added back, all but one rounding in effect.
    """
    if np.result_type(a, b) == np.float64:
        p, e = two_product(*np.broadcast_arrays(a, b))
        s, t = two_sum(p, c)
        return s + np.where(np.isfinite(t + e), t + e, 0)
    s, e = two_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))
    even = (s.view(np.int64) & 1) == 0
    odd = np.where(even & (e != 0) & np.isfinite(e), np.nextafter(s, np.where(e > 0, np.inf, -np.inf)), s)
    return odd.astype(np.float32)


def cast_toward_zero(x: Any, dtype: Any) -> Any:
    """x in a narrower type of two bytes, never larger in size than it was; x itself where the type is the same."""
    if x.dtype == dtype:
        return x
    y = x.astype(dtype)
    over = np.abs(y.astype(x.dtype)) > np.abs(x)
    return np.where(over, y.view(np.uint16) - 1, y.view(np.uint16)).astype(np.uint16).view(dtype)


def flushed(x: Any) -> Any:
    """x with 0 in the place of every subnormal number of its type."""
    tiny = TYPES[x.dtype.name].smallest_normal
    return np.where(np.abs(x) < x.dtype.type(tiny), x.dtype.type(0), x)


def to_tensor_float(x: Any) -> Any:
    """float32 rounded to the 11 significand bits of TF32, ties to even; what is not finite, or would not be, stays as it is."""
    bits = x.view(np.uint32)
    y = ((bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x) & np.isfinite(y), y, x)
