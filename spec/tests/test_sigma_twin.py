"""Sigma is that of the text of MHA-NUM-19: a twin computes it one row at a time, and T' from its rows."""

import numpy as np
import pytest
import twin_bounds
import twin_sigma as twin
from test_numerics_twin import FLUSHING, B, H, M, N, inputs, rows

from mha_spec.numerics import PROFILES, attention_sigma, filtered
from mha_spec.numerics_filter import nuisances, scale_budget, weight_budget

ALL = [*PROFILES.values(), *FLUSHING]
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
    for which, (size, of_scores) in enumerate(((1.0, 0.05), (1e-4, 1.0), (1.0, 1.0), (1e-37, 0.05))):
        q, k, v, options = inputs(which, size)
        options.pop("factors", None)
        found = attention_sigma(of_scores * q, k, v, p, grade, **options)
        sigma, shared = by_twin(of_scores * q, k, v, p, grade, **options)
        np.testing.assert_allclose(found.output, sigma, rtol=1e-6)
        np.testing.assert_allclose(found.shared, shared, rtol=1e-6)
        infinite += np.isinf(sigma).mean() / 4
    assert infinite < 1


@pytest.mark.parametrize("p", ALL, ids=lambda p: p.name)
def test_budgets_of_the_filter(p):
    """MHA-NUM-22: the scale's constants or all that truncation may take of it; and that, the exponential and what follows, of a weight."""
    t, factor = twin_bounds.Types(p), 2 if p.io == "float64" else 1
    m, d, largest = 17, 64, 3.0
    cut = twin_bounds.g(d, t.a) + 4 * t.m + 8 * t.s + 2 * t.S + 12 * t.s + 2 * t.S
    assert scale_budget(d, p, "RN") == pytest.approx(factor * 3 * t.s, rel=1e-12)
    assert scale_budget(d, p, "ANY") == pytest.approx(factor * cut, rel=1e-12)
    N = m + 2
    after = (
        twin_bounds.g(1, t.P) + twin_bounds.g(1, t.m) + twin_bounds.g(N, t.a) + twin_bounds.g(N, t.s) + twin_bounds.g(3, t.s)
    )
    by_weight = twin_bounds.one_after_another(after, 2 * 3 * 3 * t.s, factor * cut * largest)
    assert weight_budget(m, d, largest, p) == pytest.approx(by_weight, rel=1e-12)


def test_a_unit_in_the_last_place():
    """bfloat16 has 8 bits: 2^-7 from 1 to 2, twice that from 2 on, and 2^-133 below the normal numbers."""
    truth = np.array([1.0, 1.5, 1.999, 2.0, -1.0, 0.75, 0.0, 2.0**-126, 2.0**-127, -(2.0**-130)])
    same, ulp = nuisances(truth, PROFILES["PB16"])
    np.testing.assert_array_equal(same, truth)
    tiny = 2.0**-133
    np.testing.assert_array_equal(ulp, [2**-7, 2**-7, 2**-7, 2**-6, -(2**-7), 2**-8, 0, tiny, tiny, -tiny])
    assert nuisances(np.array([1.0]), PROFILES["P32"])[1] == 2.0**-23


def test_a_direction_by_pencil():
    """e = 2 a + 1 b + what is left: a and b are orthogonal, sigma is 1/2 and 1, and what is left is more than sigma says."""
    a, b = np.array([2.0, 0, 0, 0]), np.array([0, 3.0, 0, 0])
    sigma = np.array([0.5, 1, 1, 1])
    error = np.array([4.0, 3, 6, 8])
    (first, second) = filtered(error, sigma, [a, b], [])
    spread = np.sqrt((36 + 64) / 2)  # 4 elements, 2 directions
    assert first == pytest.approx((2, 2 * 4 / spread)) and second == pytest.approx(
        (1, 1 * 3 / spread)
    )  # |a / sigma| = 4, |b| = 3
    calm = filtered(np.array([4.0, 3, 0.5, 0.5]), sigma, [a, b], [])
    assert calm[0] == pytest.approx((2, 8)) and calm[1] == pytest.approx((1, 3))  # no less than sigma says
    exact = filtered(error[:2], sigma[:2], [a[:2], b[:2]], [])
    assert exact[0] == pytest.approx((2, 8))
    beside = filtered(error, sigma, [b], [a])
    assert len(beside) == 1 and beside[0] == second


def test_directions_that_are_hardly_apart():
    """A part in a million of itself is what a direction must have beside the others."""
    a = np.array([1.0, 0, 0])
    for apart, told in ((1e-5, True), (1e-7, False), (0.0, False)):
        found = filtered(np.array([1.0, apart, 0]), np.ones(3), [a, a + np.array([0, apart, 0])], [])
        assert (found[1].times != 0) == told
        assert found[1].times == pytest.approx(1.0 if told else 0.0)
    assert filtered(a, np.ones(3), [0 * a, a], [])[0] == (0, 0)
    assert filtered(a, np.zeros(3), [a], [])[0] == (0, 0)
    wild = filtered(np.array([2.0, 5, 7]), np.ones(3), [np.array([1.0, np.nan, np.inf])], [])
    assert wild[0].times == pytest.approx(2)


@pytest.mark.parametrize("grade", GRADES)
def test_a_row_that_sees_nothing_adds_nothing_to_what_rows_share(grade):
    q, k, v, _ = inputs(0)
    see = np.ones((B, H, N, M), dtype=bool)
    see[:, :, 1] = False
    p = PROFILES["PTF32"]
    found = attention_sigma(q, k, v, p, grade, scale=0.1, visible=see)
    others = attention_sigma(q[:, :, ::2], k, v, p, grade, scale=0.1)
    assert not found.output[:, :, 1].any()
    np.testing.assert_array_equal(found.output[:, :, ::2], others.output)
    assert found.shared == pytest.approx(others.shared, rel=1e-12)
