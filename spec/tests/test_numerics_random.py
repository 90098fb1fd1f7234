"""What is probable: legal arithmetic keeps the statistics, what is not legal leaves them, and the filter finds what was planted."""

from dataclasses import replace
from itertools import product

import emulated
import numpy as np
import pytest

from mha_spec.numerics import PROFILES, STATISTICS, Sigma, attention_bound, attention_sigma, filtered, statistics
from mha_spec.numerics_filter import nuisances, scale_budget, weight_budget

RN = (emulated.Machine(), emulated.Machine(order=8, ulps=1.0))
ANY = (*RN, emulated.Machine("truncate"), emulated.Machine("random", ulps=1.0, seed=3))


def inputs(p, seed=0, n=16, m=40, d=32):
    r = np.random.default_rng(seed)
    q, k, v = (emulated.Machine().to(r.standard_normal((2, size, d)), p.io) for size in (n, m, m))
    return emulated.Case(q, k, v, d**-0.5)


def measured(case, p, machine, kernel, grade, run=None):
    truth = attention_bound(case.q, case.k, case.v, p, **case.options).truth.output
    sigma = attention_sigma(case.q, case.k, case.v, p, grade, **case.options)
    return statistics(emulated.attention(case, run or p, machine, kernel)[0] - truth, sigma, truth, grade)


@pytest.mark.parametrize("name", ["P64", "P32", "PTF32", "P16", "PB16", "PB16-eager", "PE4M3"])
def test_legal_arithmetic_keeps_the_statistics_with_room(name):
    p, case = PROFILES[name], inputs(PROFILES[name])
    for grade, machines in (("RN", RN), ("ANY", ANY)):
        for machine, kernel in product(machines, ("normalised", "folded", "online")):
            if name == "P64" and machine.mode != "nearest":
                continue
            s = measured(case, p, machine, kernel, grade)
            assert max(s.farthest, s.variance, s.bias) < 0.75, (grade, machine, kernel, s)


def test_every_option_has_a_sigma_that_legal_arithmetic_keeps():
    p, r = PROFILES["PB16"], np.random.default_rng(1)
    case = inputs(p, 1)
    to = emulated.Machine().to
    options = (
        {"softcap": 3.0},
        {"bias": to(2 * r.standard_normal((2, 16, 40)), p.io)},
        {"sink": np.array([0.5, 2.0])},
        {"visible": r.random((2, 16, 40)) < 0.5},
        {"softcap": 3.0, "bias": to(r.standard_normal((16, 40)), p.io), "sink": np.array([0.5, -np.inf])},
    )
    for given in options:
        for kernel in ("eager", "folded", "online"):
            s = measured(replace(case, **given), p, emulated.Machine(), kernel, "RN")
            assert max(s.farthest, s.variance, s.bias) < 0.75, (given, kernel, s)


def test_scores_stored_in_bfloat16_are_seen_by_the_mean_square_alone():
    case, eager = inputs(PROFILES["PB16"], n=64, m=128, d=32), PROFILES["PB16-eager"]
    case = replace(case, scale=1.25 * case.scale)
    p = PROFILES["PB16"]
    bounds = attention_bound(case.q, case.k, case.v, p, **case.options)
    got = emulated.attention(case, eager)[0]
    assert np.all(np.abs(got - bounds.truth.output) < bounds.output)
    assert measured(case, p, emulated.Machine(), "eager", "RN").variance < 0.6
    assert measured(case, p, emulated.Machine(), "eager", "RN", run=eager).variance > 1
    assert measured(case, eager, emulated.Machine(), "eager", "RN").variance < 0.6


def test_tied_keys_round_alike():
    """All keys equal, values of one sign: the weight 1/n has one rounding, and every output carries it."""
    p = PROFILES["PB16"]
    v = np.abs(inputs(p).v)
    for m in range(33, 41):
        case = emulated.Case(np.zeros((2, 16, 32)), np.zeros((2, m, 32)), v[:, :m], 1.0)
        s = measured(case, p, emulated.Machine(), "normalised", "RN")
        assert s.variance < 1
    independent = np.sqrt(0.4 * 2.0**-16 * np.sum((v / m) ** 2, axis=-2, keepdims=True))
    error = emulated.attention(case, p, emulated.Machine(), "normalised")[0] - v.mean(-2, keepdims=True)
    assert np.mean((error / independent) ** 2) > 1


def test_nothing_is_said_where_first_order_means_nothing():
    p = PROFILES["PB16-eager"]
    case = inputs(p)
    steep = replace(case, q=case.q * 256)
    assert np.isfinite(attention_sigma(case.q, case.k, case.v, p, "RN", **case.options).output).all()
    sigma = attention_sigma(steep.q, steep.k, steep.v, p, "RN", **steep.options)
    assert np.isinf(sigma.output).all()
    assert statistics(np.ones((2, 16, 32)), sigma, np.ones((2, 16, 32)), "RN").elements == 0


def test_operands_read_as_tf32_share_their_roundings():
    """One rounding of a value is in every row: without T' the sum of a legal kernel's errors would pass its limit."""
    p, case = PROFILES["PTF32"], inputs(PROFILES["PTF32"], 4, n=400, m=3, d=8)
    case = replace(case, q=case.q / 64)
    sigma = attention_sigma(case.q, case.k, case.v, p, "RN", **case.options)
    assert sigma.shared > 10 * sigma.output.size
    assert measured(case, p, emulated.Machine(), "eager", "RN").bias < 1
    plain = attention_sigma(case.q, case.k, case.v, PROFILES["PB16"], "RN", **case.options)
    assert plain.shared < 0.01 * plain.output.size


def test_grouped_heads_share_more():
    p, r = PROFILES["PTF32"], np.random.default_rng(6)
    q, k, v = r.standard_normal((4, 16, 8)), r.standard_normal((2, 20, 8)), r.standard_normal((2, 20, 8))
    grouped = attention_sigma(q, k, v, p, "RN", scale=0.3)
    spread = attention_sigma(q, k.repeat(2, 0), v.repeat(2, 0), p, "RN", scale=0.3)
    np.testing.assert_array_equal(grouped.output, spread.output)
    assert grouped.shared > spread.shared > 0


def test_empty_rows_and_axes():
    q, k, v = np.ones((1, 2, 3)), np.ones((1, 4, 3)), np.ones((1, 4, 2))
    see = np.array([[True] * 4, [False] * 4])
    sigma = attention_sigma(q, k, v, PROFILES["P32"], "ANY", scale=1.0, visible=see).output
    assert np.all(sigma[0, 0] > 0) and not sigma[0, 1].any()
    for shape in ((0, 2, 3), (1, 0, 3)):
        assert attention_sigma(np.ones(shape), k[: shape[0]], v[: shape[0]], PROFILES["P32"], "RN", scale=1.0).output.size == 0
    assert attention_sigma(q, k[:, :0], v[:, :0], PROFILES["P32"], "RN", scale=1.0).output.tolist() == [[[0, 0], [0, 0]]]


def test_hidden_poison_moves_no_sigma():
    case = inputs(PROFILES["P32"])
    see = np.arange(40) != 7
    clean = attention_sigma(case.q, case.k, case.v, PROFILES["P32"], "ANY", scale=1.0, visible=see)
    for poison in (np.nan, np.inf, 1e30):
        case.k[:, 7], case.v[:, 7] = poison, poison
        dirty = attention_sigma(case.q, case.k, case.v, PROFILES["P32"], "ANY", scale=1.0, visible=see)
        np.testing.assert_allclose(dirty.output, clean.output, rtol=1e-6)


def test_the_numbers_of_a_statistic():
    sigma = Sigma(np.full(4, 2.0), 0.0)
    s = statistics(np.array([2.0, -2.0, 2.0, 2.0]), sigma, np.array([1.0, 1.0, -1.0, 1.0]), "RN")
    assert (s.farthest, s.variance, s.shrink, s.elements) == (1 / 8, 1, 0, 4)
    assert s.bias == pytest.approx(2 / np.sqrt(10 * 4))
    assert statistics(np.full(4, 2.0), sigma, np.ones(4), "ANY").variance == 1 / STATISTICS["mean_square"]["ANY"]
    assert statistics(np.ones(1), Sigma(np.zeros(1), 0.0), np.ones(1), "RN").farthest == np.inf
    assert statistics(np.zeros(1), Sigma(np.zeros(1), 0.0), np.ones(1), "RN").farthest == 0


def test_the_filter_finds_what_was_planted_beside_what_is_legal():
    r = np.random.default_rng(0)
    a, b, c, truth = r.standard_normal((4, 2000))
    noise = 0.5 * r.standard_normal(2000)
    sigma = np.full(2000, 0.5)
    error = noise + 0.2 * a + 0.3 * truth
    found = filtered(error, sigma, [a, b, a + b, c], nuisances(truth, PROFILES["PB16"]))
    assert found[0].times == pytest.approx(0.2, abs=0.05) and found[0].deviations > 8
    assert max(abs(found[1].deviations), abs(found[3].deviations)) < 5
    assert found[2] == (0, 0)  # spanned by the first two


def test_an_error_that_is_no_known_fault_accuses_none():
    r = np.random.default_rng(0)
    a = r.standard_normal(2000)
    error = 100.0 * r.standard_normal(2000)  # 100 times what sigma says
    assert abs(filtered(error, np.ones(2000), [a], [])[0].deviations) < 5


def test_elements_without_sigma_are_left_out():
    found = filtered(np.array([1.0, 9.0, np.nan]), np.array([1.0, np.inf, 0.0]), [np.ones(3)], [])
    assert found[0].times == 1


def test_budgets_grow_with_what_is_granted():
    budgets = [scale_budget(64, PROFILES[name], "ANY") for name in ("P64", "P32", "PTF32", "PB16-eager")]
    assert budgets == sorted(budgets)
    assert scale_budget(64, PROFILES["P32"], "RN") == 3 * 2.0**-24
    assert weight_budget(8, 64, 1.0, PROFILES["P32"]) < 1e-4 < 2.0**-7 < weight_budget(8, 64, 1.0, PROFILES["PB16"])
