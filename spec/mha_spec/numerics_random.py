"""Chapter 4, what is probable: sigma, the standard deviation of an output's error, and three statistics over many outputs.

A bound grants every rounding its worst. Here a rounding to nearest is a random number of mean 0 and variance 0.4 u^2, as in
Higham and Mary (2019); where legal arithmetic errs the same way again and again, the error counts in full. Arrays are NumPy
float64, (*b h n d_v) unless a line says otherwise; names are those of ``numerics_steps``.
"""

from typing import NamedTuple

import numpy as np

from mha_spec.numerics_steps import Reals, Truths, eta, flushed, gamma, rescalings, u, u_m, weight_floor
from mha_spec.profiles import COUNTS, STATISTICS, Grade, Profile

__all__ = ["Sigma", "Statistics", "attention_sigma", "cut_scores", "statistics"]


class Sigma(NamedTuple):
    """sigma (*b h n d_v), infinite where nothing can be said, and ``shared``: what operands that are rounded for all rows at once
    add to the variance of the sum of e / sigma."""

    output: Reals
    shared: float


class Statistics(NamedTuple):
    """Three numbers, each right up to 1: the largest |e| / (8 sigma), mean (e / sigma)^2 / C, |sum e / sigma| / sqrt(10 C (T + T')).

    ``shrink`` is reported and not judged: the mean of sign(o) e / sigma, below 0 where results are too small.
    """

    farthest: float
    variance: float
    bias: float
    shrink: float
    elements: int


def statistics(error: Reals, sigma: Sigma, truth: Reals, grade: Grade) -> Statistics:
    """The statistics of errors e over T elements together (MHA-NUM-19, MHA-NUM-20); sigma 0 admits no error.

    T' is ``sigma.shared``. ``elements`` counts those whose sigma is finite.
    """
    with np.errstate(all="ignore"):
        z = np.where(error == 0.0, 0.0, error / sigma.output).ravel()
    some, C = max(z.size, 1), STATISTICS["mean_square"][grade]
    return Statistics(
        float(np.max(np.abs(z), initial=0.0)) / STATISTICS["deviations"],
        float(np.sum(z * z)) / some / C,
        abs(float(np.sum(z))) / float(np.sqrt(STATISTICS["bias"] * C * (some + sigma.shared))),
        float(np.sum(np.sign(truth).ravel() * z)) / some,
        int(np.sum(np.isfinite(sigma.output))),
    )


class _Row(NamedTuple):
    """Scores x before and s after softcap and bias, the slope of the softcap, and the softmax A of s, all (*b h n m).

    V is (*b h m d_v), o (*b h n d_v); ``tied`` are the keys that share the maximum; n and ell are (*b h n 1).
    """

    x: Reals
    capped: Reals
    slope: Reals
    b: Reals
    s: Reals
    t: Reals
    A: Reals
    V: Reals
    o: Reals
    see: Truths
    tied: Truths
    n: Reals
    ell: Reals

    def along(self, y: Reals) -> Reals:
        """How o moves when every score s_j becomes s_j + e y_j, per e: sum_j A_j y_j (v_j - o)."""
        w = self.A * y
        return np.asarray(w @ self.V - self.o * np.sum(w, axis=-1, keepdims=True))

    def apart(self, w: Reals, centre: Reals | float) -> Reals:
        """sum_j w_j (A_j (v_j - centre))^2, where the tied keys are one key: what rounds alike adds before it is squared."""
        W = np.where(self.tied, 0.0, self.A * self.A * w)
        loose = W @ (self.V * self.V) - 2.0 * centre * (W @ self.V) + centre * centre * np.sum(W, axis=-1, keepdims=True)
        A = np.where(self.tied, self.A, 0.0)
        together = A @ self.V - centre * np.sum(A, axis=-1, keepdims=True)
        largest = np.max(np.where(self.tied, w, 0.0), axis=-1, keepdims=True, initial=0.0)
        return np.asarray(np.maximum(loose, 0.0) + largest * together * together)


def attention_sigma(
    query: Reals,
    key: Reals,
    value: Reals,
    profile: Profile,
    grade: Grade,
    *,
    scale: float,
    softcap: float | None = None,
    bias: Reals | None = None,
    visible: Truths | None = None,
    sink: Reals | None = None,
) -> Sigma:
    """query (*b h n d_k), key (*b h_kv m d_k), value (*b h_kv m d_v) -> sigma (*b h n d_v) of the output (MHA-NUM-19).

    The arguments are those of ``attention_bound``. For P64 sigma is doubled, as the bound is.
    """
    group = query.shape[-3] // max(key.shape[-3], 1)
    Q, K, V = (np.where(np.isfinite(x), x, 0.0) for x in (query, *(np.repeat(x, group, axis=-3) for x in (key, value))))
    with np.errstate(all="ignore"):
        row = _row(Q, K, V, scale, softcap, bias, visible, sink)
        R = rescalings(K.shape[-2])
        K, V = (np.concatenate([x, np.zeros_like(x[..., :1, :])], axis=-2) for x in (K, V)) if sink is not None else (K, V)
        variance = _before(Q, K, row, profile, scale, softcap) + _after(row, R, profile)
        if grade == "ANY":
            variance = variance + _shifted(Q, K, row, R, profile, scale, softcap)
        if profile.flush:
            variance = np.where(_loses(query, key, value, group, row, profile, scale), np.inf, variance)
        sigma = np.where(row.n > 0.0, np.sqrt(variance), 0.0) * (COUNTS["float64_factor"] if profile.io == "float64" else 1)
        return Sigma(np.asarray(sigma), _shared(Q, K, row, profile, scale, sigma, group))


def _loses(query: Reals, key: Reals, value: Reals, group: int, row: _Row, p: Profile, scale: float) -> Truths:
    """(*b h n 1): whether a row sees an operand that may be flushed. What that does is no chance (MHA-NUM-23)."""
    of_key = np.any(flushed(key, p, scale) > 0.0, axis=-1) | np.any(flushed(value, p) > 0.0, axis=-1)
    of_pair = np.repeat(of_key, group, axis=-2)[..., None, :]  # (*b h 1 m)
    m = key.shape[-2]
    seen = row.see[..., :m] & (of_pair | (flushed(row.b[..., :m], p) > 0.0))
    loses: Truths = np.any(seen, axis=-1, keepdims=True) | np.any(flushed(query, p, scale) > 0.0, axis=-1, keepdims=True)
    return loses


def _row(
    Q: Reals,
    K: Reals,
    V: Reals,
    scale: float,
    softcap: float | None,
    bias: Reals | None,
    visible: Truths | None,
    sink: Reals | None,
) -> _Row:
    """Everything of a row that is true, in float64; a sink is one more key of value 0, and its logit a bias."""
    shape = (*Q.shape[:-1], K.shape[-2])
    given = np.broadcast_to(np.zeros(()) if bias is None else bias, shape)
    see = np.broadcast_to(np.ones((), dtype=np.bool_) if visible is None else visible, shape) & (given != -np.inf)
    b = np.where(np.isfinite(given), given, 0.0)
    x = scale * (Q @ K.mT)
    if sink is not None:
        logit = np.broadcast_to(sink[:, None, None], (*shape[:-1], 1))
        see = np.concatenate([see, logit != -np.inf], axis=-1)
        b, x = np.concatenate([b, np.where(np.isfinite(logit), logit, 0.0)], axis=-1), np.concatenate([x, 0.0 * logit], axis=-1)
        V = np.concatenate([V, np.zeros_like(V[..., :1, :])], axis=-2)
    x = np.where(np.isfinite(x), x, 0.0)
    capped = x if softcap is None else softcap * np.tanh(x / softcap)
    slope = np.ones_like(x) if softcap is None else 1.0 - (capped / softcap) ** 2
    s = capped + b
    top = np.max(np.where(see, s, -np.inf), axis=-1, keepdims=True, initial=-np.inf)
    t = np.where(see, s - np.where(np.isfinite(top), top, 0.0), 0.0)
    e = np.where(see, np.exp(t), 0.0)
    ell = np.sum(e, axis=-1, keepdims=True)
    A = e / np.where(ell > 0.0, ell, 1.0)
    tied = see & (t >= -(2.0**-40) * np.maximum(1.0, np.abs(top)))
    return _Row(x, capped, slope, b, s, t, A, V, A @ V, see, tied, np.sum(see, axis=-1, keepdims=True, dtype=np.float64), ell)


def _before(Q: Reals, K: Reals, row: _Row, p: Profile, scale: float, softcap: float | None) -> Reals:
    r"""The variance that errors of scores and exponentials leave in o.

    Infinite in a row where eight deviations of a score exceed 1/4: there e^x is no longer 1 + x. A rounding that belongs to one
    pair counts :math:`A_j^2 (v_j - o)^2`. One of q_ic belongs to all keys of the row, and counts
    the square of :math:`\sum_j A_j k_{jc} (v_j - o)`. One of a constant belongs to all pairs, is no chance, and counts in full.
    """
    a, s, S, m = (u(p.accumulator) ** 2, u(p.softmax) ** 2, u(p.scores) ** 2, u_m(p) ** 2)
    G = abs(scale) * (np.abs(Q) @ np.abs(K).mT)
    of_key = scale * scale * ((Q * Q) @ (K * K).mT)
    products = Q.shape[-1] * a * G * G + (m + s) * of_key + (s + S) * row.x**2
    pairs = row.slope**2 * products + (2.0 * s + S) * row.s**2 + (2.0 * s + S) * row.b**2 + s * row.t**2
    if softcap is not None:
        pairs = pairs + ((2.0 * COUNTS["softcap"]) ** 2 * s + COUNTS["stored_softcap"] * S) * row.capped**2
    pairs = pairs + 4.0 * s * (COUNTS["exp_ulps"] + COUNTS["exp_ulps_per_unit"] * np.abs(row.t)) ** 2
    pairs = pairs + (abs(scale) * Q.shape[-1] * eta(p.accumulator, p)) ** 2
    chance = row.apart(pairs, row.o) + (m + s) * _of_query(Q, K, row, scale)
    off = np.sqrt(STATISTICS["variance"] * np.max(pairs + (m + s) * of_key, axis=-1, keepdims=True, initial=0.0, where=row.see))
    chance = np.where(STATISTICS["deviations"] * off <= 0.25, chance, np.inf)
    fixed = 4.0 * s * row.along(row.slope * row.x) ** 2 + s * (row.along(row.s) ** 2 + row.along(row.b) ** 2)
    if softcap is not None:
        fixed = fixed + s * row.along(row.capped) ** 2
    return np.asarray(STATISTICS["variance"] * chance + fixed)


def _of_query(Q: Reals, K: Reals, row: _Row, scale: float) -> Reals:
    r""":math:`\sigma^2 \sum_c q_c^2 (\sum_j A_j k_{jc} (v_j - o))^2`: what one relative error for each channel of a query does."""
    w = row.A * row.slope  # (*b h n m)
    mixed = (w[..., None, :] * K.mT[..., None, :, :]) @ row.V[..., None, :, :]  # (*b h n d_k d_v)
    moved = mixed - (w @ K)[..., :, None] * row.o[..., None, :]
    return np.asarray(scale * scale * np.sum((Q[..., :, None] * moved) ** 2, axis=-2))


def _after(row: _Row, R: int, p: Profile) -> Reals:
    r"""The variance that rescaling, storing, summing, dividing and the output add; and, in full, what is lost near zero."""
    ones, o2 = np.ones_like(row.A), row.o**2
    a, s, m = (u(p.accumulator) ** 2, u(p.softmax) ** 2, u_m(p) ** 2)
    stored = np.maximum(row.apart(ones, 0.0), row.apart(ones, row.o))
    read = (row.A * row.A) @ row.V**2
    terms = row.n + R
    spread = _spread(row)
    rescaled = (0.5 * COUNTS["exp_ulps"] * np.sqrt(R)) * spread + (COUNTS["exp_ulps_per_unit"] * (R > 0)) * _steep(row) * spread
    chance = (
        u(p.weights) ** 2 * stored + m * read + 4.0 * s * rescaled**2
        + terms * a * (row.A @ np.abs(row.V)) ** 2 + (terms + COUNTS["normalise"]) * s * o2 + u(p.output) ** 2 * o2
    )  # fmt: skip
    floor = eta(p.weights, p) if p.weight_scale is None else eta(p.weights, p) / (p.weight_scale * row.ell)
    lost = np.minimum(row.A, floor + weight_floor(p)) @ np.abs(row.V)
    fixed = lost + terms * eta(p.accumulator, p) + eta(p.softmax, p) + eta(p.output, p)
    alike = np.where(_narrow(row, p), (u(p.weights) * row.o) ** 2, 0.0)
    return np.asarray(STATISTICS["variance"] * chance + alike + fixed**2)


def _narrow(row: _Row, p: Profile) -> Truths:
    """(*b h n 1): whether the weights below the maximum, if any, spread over less than two steps of the type that stores them.

    Then they round alike, and row after row. A step is 2 u_P of a weight; the spread is the standard deviation of t.
    """
    w = np.where(row.tied, 0.0, row.A)
    share = np.sum(w, axis=-1, keepdims=True)
    w = w / np.where(share > 0.0, share, 1.0)
    spread = np.sum(w * row.t**2, axis=-1, keepdims=True) - np.sum(w * row.t, axis=-1, keepdims=True) ** 2
    return np.asarray((spread < (4.0 * u(p.weights)) ** 2) & (row.n > 1.0))


def _spread(row: _Row) -> Reals:
    r""":math:`\sqrt{\sum_j A_j (v_j - o)^2}`, at least :math:`\sum_j A_j |v_j - o|`; half of that bounds every part of the sum."""
    return np.sqrt(np.maximum(row.A @ row.V**2 - row.o**2, 0.0))


def _steep(row: _Row) -> Reals:
    """The root of the mean of t^2, (*b h n 1)."""
    return np.asarray(np.sqrt(np.sum(row.A * row.t**2, axis=-1, keepdims=True)))


def cut_scores(d_k: int, p: Profile) -> tuple[float, float]:
    """By what part roundings toward zero may shrink every scaled product alike, and then every score: d_k channels, no bias."""
    s, S = u(p.softmax), u(p.scores)
    products = float(gamma(d_k, u(p.accumulator))) + 2.0 * (
        COUNTS["operands"] * u_m(p) + COUNTS["scale"] * s + COUNTS["stored"] * S
    )
    return products, 2.0 * ((COUNTS["score"] + COUNTS["shift"] + COUNTS["exp_ulps_per_unit"]) * s + COUNTS["stored"] * S)


def _shifted(Q: Reals, K: Reals, row: _Row, R: int, p: Profile, scale: float, softcap: float | None) -> Reals:
    r"""What grade ANY adds: roundings toward zero all err one way, so they make scores and outputs smaller.

    Scores that shrink move o along :math:`\sum_j A_j s_j (v_j - o)`. A partial sum is cut as often as terms follow it: on average
    half of them, which shrinks the sum; the rest is a weight for each term, of variance :math:`\gamma^2 / 12`, in no order that
    knows the terms.
    """
    a, s, S, d = u(p.accumulator), u(p.softmax), u(p.scores), Q.shape[-1]
    of_products, of_scores = cut_scores(d, p)
    scores = of_products * np.abs(row.along(row.slope * row.x)) + of_scores * np.abs(row.along(row.s))
    scores = scores + (2.0 * COUNTS["bias"] * s + 2.0 * S) * np.abs(row.along(row.b))
    if softcap is not None:
        scores = scores + (2.0 * COUNTS["softcap"] * s + 2.0 * COUNTS["stored_softcap"] * S) * np.abs(row.along(row.capped))
    by_keys = gamma(row.n + R, a)
    cut = 2.0 * (u(p.weights) + u_m(p) + COUNTS["normalise"] * s) + (by_keys + gamma(row.n + R, s)) / np.sqrt(3.0)
    spread = _spread(row)
    rescaled = 2.0 * s * (0.5 * COUNTS["exp_ulps"] * R + COUNTS["exp_ulps_per_unit"] * (R > 0) * _steep(row)) * spread
    along_sums = (gamma(d, a) ** 2 * _of_query(Q, K, row, scale) + by_keys**2 * row.apart(np.ones_like(row.A), 0.0)) / 12.0
    return np.asarray(scores**2 + (cut * row.o) ** 2 + rescaled**2 + along_sums + (u(p.output) * row.o) ** 2)


def _shared(Q: Reals, K: Reals, row: _Row, p: Profile, scale: float, sigma: Reals, group: int) -> float:
    """The variance of the sum of e / sigma that roundings of keys and values leave: each is one number for all rows and its heads."""
    weight = np.where((sigma > 0.0) & np.isfinite(sigma), 1.0 / sigma, 0.0)  # (*b h n d_v)
    read = row.V * (row.A.mT @ weight)  # (*b h m d_v)
    moved = row.A * row.slope * (weight @ row.V.mT - np.sum(weight * row.o, axis=-1, keepdims=True))  # (*b h n m)
    scored = scale * K * (moved.mT @ Q)  # (*b h m d_k)

    def squared(x: Reals) -> float:
        *b, h, m, d = x.shape
        return float(np.sum(np.sum(x.reshape(*b, h // group, group, m, d), axis=-3) ** 2)) if group else 0.0

    m, s = u_m(p) ** 2, u(p.softmax) ** 2
    return float(STATISTICS["variance"]) * (m * squared(read) + (m + s) * squared(scored))
