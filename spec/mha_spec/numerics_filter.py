"""Chapter 4, the matched filter: how much of each wrong clause an error holds, and how surely (MHA-NUM-22).

An error e over many elements is written as a sum of directions, one for each way of being wrong, and of what legal arithmetic may
add to any result; the weights are 1 / sigma^2. All directions are fitted together, so that none is blamed for another.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mha_spec.numerics_random import cut_scores
from mha_spec.numerics_steps import Reals, both, growth, rescalings, u
from mha_spec.profiles import COUNTS, TYPES, Grade, Profile

__all__ = ["Found", "filtered", "nuisances", "scale_budget", "weight_budget"]

CONSTANTS = 3
"""How many constants stand before a score, as in sigma: two roots of the scale, and log2(e)."""


class Found(NamedTuple):
    """How many times a direction is in the error, and how many standard deviations that is."""

    times: float
    deviations: float


def filtered(error: Reals, sigma: Reals, directions: Sequence[Reals], beside: Sequence[Reals]) -> list[Found]:
    """All of one shape -> one ``Found`` per direction, from weighted least squares over directions and nuisances together.

    A deviation is that of sigma, or of what the fit leaves over where that is more. A direction that the ones before it and the
    nuisances already span is not told apart: it is found 0 times.
    """
    use = np.isfinite(sigma) & (sigma > 0.0)
    w = 1.0 / sigma[use]
    columns = [np.where(np.isfinite(x[use]), x[use], 0.0) * w for x in (*beside, *directions)]
    basis: list[Reals] = []
    kept: list[int] = []
    for at, column in enumerate(columns):
        size = float(np.linalg.norm(column))
        rest = column
        for _ in range(2):  # twice is enough to be orthogonal (Parlett)
            for b in basis:
                rest = rest - b * float(b @ rest)
        left = float(np.linalg.norm(rest))
        if size > 0.0 and left > 1e-6 * size:
            basis.append(rest / left)
            kept.append(at)
    found = [Found(0.0, 0.0)] * len(columns)
    if kept:
        X = np.stack([columns[at] for at in kept], axis=1)  # (T, k)
        scale = np.linalg.norm(X, axis=0)
        q = np.stack(basis, axis=1)  # (T, k)
        inverse = np.linalg.inv(np.triu(q.T @ (X / scale)))
        y = error[use] * w
        inside = q.T @ y
        left = np.sum((y - q @ inside) ** 2) / max(len(y) - len(kept), 1)
        times = inverse @ inside
        spread = np.linalg.norm(inverse, axis=1) * np.sqrt(max(1.0, float(left)))
        for at, t, s, size in zip(kept, times, spread, scale, strict=True):
            found[at] = Found(float(t / size), float(t / s))
    return found[len(beside) :]


def nuisances(truth: Reals, p: Profile) -> tuple[Reals, Reals]:
    """What a legal result may hold any amount of: the output itself, and one unit in its last place, away from zero."""
    t = TYPES[p.output]
    _, exponent = np.frexp(truth)
    ulp = np.ldexp(1.0, np.maximum(exponent - 1, t.e_min) - (t.bits - 1))
    return truth, ulp * np.sign(truth)


def scale_budget(d_k: int, p: Profile, grade: Grade) -> float:
    """By what part legal arithmetic may change every score alike.

    RN: the scale, in two factors or one, and log2(e), each a constant off by up to u. ANY: all that cutting off may take.
    """
    of_constants = CONSTANTS * u(p.softmax)
    part = of_constants if grade == "RN" else sum(cut_scores(d_k, p))
    return part * (COUNTS["float64_factor"] if p.io == "float64" else 1)


def weight_budget(m: int, d_k: int, largest_score: float, p: Profile) -> float:
    """By what part legal arithmetic of any grade may change one weight of m."""
    exponential = 2.0 * COUNTS["exp_ulps"] * (1 + rescalings(m)) * u(p.softmax)
    after = growth(np.asarray(float(m + rescalings(m))), p)
    return float(both(after, exponential, scale_budget(d_k, p, "ANY") * largest_score))
