"""Chapter 7, the numbers: what the statistics of given weights are, and how far a computed one may lie from them (MHA-STAT-7).

Arrays are NumPy float64: whatever judges runs on the host.
"""

from typing import Any, NamedTuple

import numpy as np

from mha_spec.numerics_steps import Reals, eta, gamma, u
from mha_spec.profiles import COUNTS, profile_of


class Known(NamedTuple):
    """A value and its bound, of one shape; a bound of infinity asks for any number."""

    value: Reals
    bound: Reals


class Statistics(NamedTuple):
    """Of weights (*b h n m): column mass (*b h m), entropy (*b h n), all weights sorted with their keys (*b h n m), head mean (*b n m)."""

    column_mass: Known
    row_entropy: Known
    top_weights: Known
    top_keys: Known
    head_mean: Known


def statistics_truth(weights: Reals, bound: Reals, profile: str) -> Statistics:
    """True weights (*b h n m) and the bound of each -> every statistic and its bound, in the types of the profile."""
    p = profile_of(profile)
    near_zero = eta(p.lse, p)

    def own(k: int) -> Any:
        """The roundings of the statistic itself, and beside float64 those of the truth too (MHA-NUM-15)."""
        return gamma(k, u(p.lse)) * (COUNTS["float64_factor"] if p.io == "float64" else 1)

    h, n, m = weights.shape[-3:]
    with np.errstate(all="ignore"):
        reach = weights + bound
        mass = np.sum(weights, axis=-2), np.sum(bound, axis=-2) + own(n) * np.sum(reach, axis=-2)
        f, e = _plogp(weights), _plogp_error(weights, bound)
        entropy = np.sum(f, axis=-1), np.sum(e, axis=-1) + own(m + 4) * np.sum(np.abs(f) + e, axis=-1) + m * near_zero
        mean = (
            np.sum(weights, axis=-3) / max(h, 1),
            (np.sum(bound, axis=-3) + own(h + 1) * np.sum(reach, axis=-3)) / max(h, 1) + near_zero,
        )
    top_weights, top_keys = _sorted(weights, bound)
    return Statistics(_settled(*mass), _settled(*entropy), top_weights, top_keys, _settled(*mean))


def _plogp(x: Reals) -> Reals:
    """f(x) = -x ln x, and 0 at 0."""
    return np.where(x == 0, 0.0, -x * np.log(np.where(x == 0, 1.0, x)))


def _plogp_error(A: Reals, w: Reals) -> Reals:
    """The largest |f(x) - f(A)| for x within w of A and not below 0: at an end, or at the top of f."""
    low, high = np.maximum(A - w, 0.0), A + w
    f = _plogp(A)
    ends = np.maximum(np.abs(_plogp(low) - f), np.abs(_plogp(high) - f))
    over_top = (low < np.exp(-1.0)) & (np.exp(-1.0) < high)
    return np.where(over_top, np.maximum(ends, np.exp(-1.0) - f), ends)


def _sorted(weights: Reals, bound: Reals) -> tuple[Known, Known]:
    """Weights from the largest down, equals by their key, and the keys; -1 where the weight is 0."""
    m = weights.shape[-1]
    order = np.argsort(-np.where(np.isnan(weights), np.inf, weights), axis=-1, kind="stable")
    found = np.take_along_axis(weights, order, axis=-1)
    room = np.broadcast_to(np.max(bound, axis=-1, keepdims=True, initial=0.0), found.shape)
    gap = found[..., :-1] - found[..., 1:]
    edge = np.full((*found.shape[:-1], 1), np.inf)
    alone = np.minimum(np.concatenate([edge, gap], axis=-1), np.concatenate([gap, edge], axis=-1)) > 2 * room
    nan = np.isnan(found)
    exact = alone | nan | (found == 0) | (m == 1)
    keys = np.where(found == 0, -1, order).astype(np.float64)
    return _settled(found, room), Known(keys, np.where(exact, 0.0, np.inf))


def _settled(value: Reals, bound: Reals) -> Known:
    """Where the truth is NaN, NaN is asked for."""
    return Known(value, np.where(np.isnan(value), 0.0, np.where(np.isnan(bound), np.inf, bound)))
