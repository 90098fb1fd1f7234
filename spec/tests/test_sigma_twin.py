"""Sigma is that of the text of MHA-NUM-19: a twin computes it one row at a time, and T' from its rows."""

import numpy as np
import pytest
import twin_bounds
import twin_sigma as twin
from test_numerics_twin import inputs, rows

from mha_spec.numerics import PROFILES, attention_sigma

ALL = list(PROFILES.values())
GRADES = ("RN", "ANY")


def by_twin(q, k, v, p, grade, **options):
    """(sigma, T')."""
    t, scale = twin_bounds.Types(p), options["scale"]
    sigma = np.zeros((*q.shape[:3], v.shape[-1]))
    read, scored = np.zeros(v.shape), np.zeros(k.shape)
    for at, row in rows(q, k, v, **options):
        found, A, o, slope = twin.row_sigmas(row, p, grade)
        sigma[at] = found
        b, kv = at[0], at[1] // (q.shape[1] // k.shape[1])
        for j in range(k.shape[2]):
            read[b, kv, j] += v[b, kv, j] * A[j] / found
            moved = sum(A[j] * slope[j] * (v[b, kv, j, c] - o[c]) / found[c] for c in range(v.shape[-1]))
            scored[b, kv, j] += scale * moved * k[b, kv, j] * row.q
    return sigma, 0.4 * (t.m**2 * (read**2).sum() + (t.m**2 + t.s**2) * (scored**2).sum())


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("p", ALL, ids=lambda p: p.name)
def test_of_attention(p, grade):
    infinite = 0
    for which, (size, of_scores) in enumerate(((1.0, 0.05), (1e-4, 1.0), (1.0, 1.0), (1e-4, 0.05))):
        q, k, v, options = inputs(which, size)
        found = attention_sigma(of_scores * q, k, v, p, grade, **options)
        sigma, shared = by_twin(of_scores * q, k, v, p, grade, **options)
        np.testing.assert_allclose(found.output, sigma, rtol=1e-6)
        np.testing.assert_allclose(found.shared, shared, rtol=1e-6)
        infinite += np.isinf(sigma).mean() / 4
    assert infinite < 1
