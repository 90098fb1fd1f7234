"""The steps of the bounds at their ends, where ordinary inputs never come: expected numbers are derived by pencil."""

from dataclasses import replace
from math import e, exp, expm1, inf, log

import numpy as np
import pytest

from mha_spec.call import Cotangents
from mha_spec.numerics import PROFILES, attention_bound, error_ratio, merge_bound, profile_of
from mha_spec.numerics_backward import gradient_bound
from mha_spec.numerics_steps import (
    LARGEST,
    Scores,
    both,
    carried,
    eta,
    excess,
    exp_error,
    flushed,
    gamma,
    overflows,
    projection_error,
    rescalings,
    rounded,
    softcap_error,
    softmax_error,
    u,
    u_m,
    weight_floor,
)  # fmt: skip
from mha_spec.profiles import PROFILES as ALL
from mha_spec.profiles import TYPES

P32, P16, PB16, EAGER, TF32 = (PROFILES[name] for name in ("P32", "P16", "PB16", "PB16-eager", "PTF32"))
U = 2.0**-24


def test_units():
    assert (u("float16"), u("bfloat16"), u(None)) == (2**-11, 2**-8, 0)
    assert (u_m(TF32), u_m(P32)) == (2**-11, 0)
    assert eta("float16", P16) == 2**-24 and eta("float16", replace(P16, flush=True)) == 2**-14
    assert eta("float32", P16) == 2**-149 and eta("float32", replace(P16, flush=True)) == 2**-126


def test_gamma_ends_where_twice_the_roundings_reach_one():
    assert gamma(1, 2.0**-3) == pytest.approx(1 / 3)  # (1/4) / (3/4)
    np.testing.assert_allclose(gamma(np.array([0, 1, 2]), 2.0**-4), [0, 1 / 7, 1 / 3])
    for k in (4, np.array([1, 4])):  # 2 k u = 1
        with pytest.raises(ValueError, match="MHA-NUM-4"):
            gamma(k, 2.0**-3)
    assert gamma(3, 2.0**-3) == 3


def test_errors_one_after_another_and_carried_on():
    assert both(0.5, 1.0) == 2  # 3/2 * 2 - 1
    assert both(1.0, 1.0, 1.0) == 7
    assert both() == 0
    assert carried(-8.0, 2.0, 0.5) == 7  # 2 * 3/2 + 1/2 * 8
    assert rounded(3.0, np.float64(-8.0), "bfloat16", PB16) == 3 + (3 + 8) * 2**-7 + 2**-133


def test_what_an_exponential_grows_by():
    """A (e^X - 1): without cancellation for small X, and for an A that has underflowed."""
    near = np.array([0.5])
    assert excess(near, np.log(near), 1e-20) == pytest.approx(0.5e-20, rel=1e-12, abs=0.0)
    assert excess(near, np.log(near), 0.999) == pytest.approx(0.5 * expm1(0.999))
    assert excess(near, np.log(near), 1.0) == pytest.approx(0.5 * (e - 1))
    assert excess(near, np.log(near), 3.0) == pytest.approx(0.5 * expm1(3))
    gone = excess(np.array([0.0]), np.array([-800.0]), 801.5)
    assert gone == pytest.approx(exp(1.5))
    assert excess(np.array([0.0]), np.array([-800.0]), 0.5) == 0
    with np.errstate(over="ignore"):
        assert excess(near, np.log(near), inf) == LARGEST
    assert excess(np.array([0.0]), np.array([-inf]), 1.0) == 0


def test_the_error_of_exponentials():
    """y = 2u (3 + 3R + 2T); y / (1 - y) up to 1/2, and 2y beyond."""
    assert exp_error(np.array(0.0), 0, P32) == pytest.approx(6 * U / (1 - 6 * U), rel=1e-12, abs=0.0)
    assert exp_error(np.array(5.0), 2, P32) == pytest.approx(38 * U / (1 - 38 * U), rel=1e-12, abs=0.0)  # 3 + 6 + 10 = 19
    half = 2.0**21 - 1.5  # 3 + 2T = 2^22
    assert exp_error(np.array(half), 0, P32) == 1
    assert exp_error(np.array(half / 2 - 0.75), 0, P32) == pytest.approx(1 / 3)  # y = 1/4
    assert exp_error(np.array(2.0**22 - 1.5), 0, P32) == 2  # y = 1
    assert exp_error(np.array(2.0**23 - 1.5), 0, P32) == 4


def test_what_a_weight_may_lose():
    assert weight_floor(P32) == pytest.approx((6 + 2 * 149 * log(2)) * 2.0**-149, rel=1e-12, abs=0.0)
    assert weight_floor(replace(P32, flush=True)) == pytest.approx((6 + 2 * 126 * log(2)) * 2.0**-126, rel=1e-12, abs=0.0)


def test_rescalings_begin_with_the_ninth_key():
    assert [rescalings(m) for m in (0, 1, 8, 9, 16, 17, 24, 25)] == [0, 0, 0, 1, 1, 2, 2, 3]


def test_a_softcap_lets_no_error_beyond_its_two_ends():
    """min(delta, 2c) + 12 u_s c + 6 u_S c"""
    assert softcap_error(np.array(1e9), 4.0, P32) == 8 + 48 * U
    assert softcap_error(np.array(7.0), 4.0, P32) == 7 + 48 * U
    assert softcap_error(np.array(7.0), 4.0, EAGER) == 7 + 48 * U + 24 * 2**-8


TOP = TYPES["float32"].largest


def over(G=0.0, x=0.0, bias=0.0, s=0.0, scale=1.0, p=P32):
    return bool(overflows(*(np.array(float(y)) for y in (G, x, bias, s)), scale, p))


def test_where_a_score_may_leave_the_range():
    """A partial sum reaches from (x - G) / 2 to (x + G) / 2, and the accumulator holds the product before it is scaled."""
    assert not over(G=TOP, x=TOP) and over(G=1.1 * TOP, x=TOP)
    assert over(G=1.1 * TOP, x=-TOP) and not over(G=TOP, x=-TOP)
    assert over(G=2.2 * TOP) and not over(G=2 * TOP)
    assert not over(G=60000.0, x=60000.0, p=P16)
    half = PROFILES["P16-acc16"]
    assert over(G=66000.0, x=66000.0, p=half) and not over(G=65000.0, x=65000.0, p=half)
    assert over(G=660.0, x=660.0, scale=0.01, p=half) and not over(G=650.0, x=650.0, scale=-0.01, p=half)
    assert over(G=2 * TOP, x=2 * TOP, scale=100.0)  # what comes after the scale has the range of the softmax


def test_a_score_far_below_the_range_has_weight_0_either_way():
    """s at most -3/4 of the largest number, by a product that rises nowhere and a bias that is small."""
    deep = {"G": 3 * TOP, "x": -3 * TOP}
    assert not over(**deep, s=-0.76 * TOP)
    assert over(**deep, s=-0.74 * TOP)
    assert not over(**deep, s=-0.76 * TOP, bias=0.25 * TOP) and over(**deep, s=-0.76 * TOP, bias=0.26 * TOP)
    assert over(G=3 * TOP, x=3 * TOP, s=-0.76 * TOP)


def test_a_maximum_at_half_the_range_promises_nothing():
    """Beyond it s - max s may overflow, whichever score the maximum is."""
    for score, lost in ((0.49, False), (0.5, True), (-0.49, False), (-0.5, True)):
        scores, see = Scores(np.array([[score * TOP, -TOP]]), np.zeros((1, 2))), np.array([[True, False]])
        with np.errstate(over="ignore"):
            E = softmax_error(scores, see, 0, P32).E
        assert E.tolist() == [[LARGEST if lost else 6 * U / (1 - 6 * U), 0]]


def test_a_projection():
    """x = (2, 3) off by (1, 0), W = (-1, 2), b = -1: dx |W| = 1, and r of (3 * 1 + 3 * 2 + 1)."""
    x, dx, w, b = (
        np.array(y, dtype=float).reshape(s) for y, s in (([2, 3], (1, 2)), ([1, 0], (1, 2)), ([-1, 2], (2, 1)), ([-1], (1, 1)))
    )
    r = 6 * U / (1 - 6 * U)  # gamma_3
    assert projection_error(x, dx, w, b, P32) == pytest.approx(1 + 10 * r + 2 * 2.0**-149, rel=1e-12, abs=0.0)
    tf = 2 * 2 * 2.0**-10 / 2 / (1 - 2 * 2.0**-10)  # gamma_2(2^-11)
    assert projection_error(x, dx, w, b, TF32) == pytest.approx(1 + 10 * (r + tf + r * tf), rel=1e-12, abs=0.0)


# Special numbers


def special(place=None, bad=0.0):
    """Two heads, one key head, two keys, a sink; one number of one array is bad."""
    given = {"query": np.ones((2, 3, 2)), "key": np.ones((1, 2, 2)), "value": np.ones((1, 2, 2)), "bias": np.zeros((2, 3, 2)),
             "sink": np.zeros(2), "see": np.array([[True, True], [True, False], [False, False]])}  # fmt: skip
    if place:
        given[place[0]][place[1]] = bad
    return attention_bound(
        given["query"],
        given["key"],
        given["value"],
        P32,
        scale=1.0,
        bias=given["bias"],
        visible=given["see"],
        sink=given["sink"],
    )


@pytest.mark.parametrize(
    ("place", "rows", "channels"),
    [
        (("query", (0, 0, 1)), {(0, 0)}, {0, 1}),
        (("query", (1, 2, 0)), set(), {0, 1}),  # a row that sees nothing
        (("key", (0, 0, 1)), {(0, 0), (0, 1), (1, 0), (1, 1)}, {0, 1}),
        (("key", (0, 1, 0)), {(0, 0), (1, 0)}, {0, 1}),
        (("value", (0, 1, 1)), {(0, 0), (1, 0)}, {1}),
        (("bias", (1, 0, 1)), {(1, 0)}, {0, 1}),
        (("bias", (1, 1, 1)), set(), {0, 1}),  # hidden
        (("sink", 1), {(1, 0), (1, 1)}, {0, 1}),
    ],
)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_reach_what_sees_them_and_no_more(place, rows, channels, bad):
    """NaN is required and has no room; of infinity nothing is required. The lse of an empty row is its sink's logit."""
    b, clean = special(place, bad), special()
    for h, i in np.ndindex(2, 3):
        for c in range(2):
            hit = (h, i) in rows and c in channels
            assert np.isnan(b.truth.output[h, i, c]) == hit
            expected = clean.output[h, i, c] if not hit else 0.0 if np.isnan(bad) else np.inf
            assert b.output[h, i, c] == expected
        lse = (h, i) in rows and place[0] != "value"
        if place[0] != "sink" or i != 2:
            assert np.isnan(b.truth.lse[h, i]) == lse
            assert b.lse[h, i] == (clean.lse[h, i] if not lse else 0.0 if np.isnan(bad) else np.inf)
        for j in range(2):
            seen = lse and (i == 0 or (i == 1 and j == 0))
            assert np.isnan(b.truth.weights[h, i, j]) == seen
            assert b.weights[h, i, j] == (clean.weights[h, i, j] if not seen else 0.0 if np.isnan(bad) else np.inf)


def test_a_sink_of_minus_infinity_is_none():
    q, k, v = np.ones((1, 1, 1)), np.zeros((1, 2, 1)), np.ones((1, 2, 1))
    none, gone = (attention_bound(q, k, v, P32, scale=1.0, sink=sink) for sink in (None, np.array([-inf])))
    for a, b in zip((*none[:3], *none.truth), (*gone[:3], *gone.truth), strict=True):
        np.testing.assert_array_equal(a, b)
    empty = attention_bound(q, k, v, P32, scale=1.0, sink=np.array([-inf]), visible=np.array(False))
    assert (empty.truth.lse, empty.lse, empty.output) == (-inf, 0, 0)


def test_where_an_infinity_is_seen_a_nan_is_not_required():
    query = np.array([[[np.nan, np.inf]]])
    bounds = attention_bound(query, np.ones((1, 1, 2)), np.ones((1, 1, 2)), P32, scale=1.0)
    assert np.isinf(bounds.output).all() and np.isnan(bounds.truth.output).all()


def test_parts_of_a_merge_that_hold_nan():
    ones, zeros = np.ones((1, 1, 2)), np.zeros((1, 1))
    nan_o, nan_lse = ones.copy(), zeros.copy()
    nan_o[0, 0, 1], nan_lse[0, 0] = np.nan, np.nan
    b = merge_bound([(nan_o, zeros), (ones, zeros)], None, P32)
    np.testing.assert_array_equal(np.isnan(b.truth.output), [[[False, True]]])
    np.testing.assert_array_equal(b.output == 0, [[[False, True]]])
    assert np.isfinite(b.truth.lse).all() and (b.lse > 0).all()
    for parts in ([(ones, nan_lse), (ones, zeros)], [(ones, zeros), (ones, nan_lse)]):
        b = merge_bound(parts, None, P32)
        assert np.isnan(b.truth.output).all() and np.isnan(b.truth.lse).all() and not b.output.any() and not b.lse.any()


def test_one_part_beside_empty_ones_keeps_its_own_bounds():
    o, lse = np.full((1, 1, 2), 3.0), np.array([[0.5]])
    nothing, none = np.zeros((1, 1, 2)), np.array([[-inf]])
    errors = [(np.full((1, 1, 2), 0.25), np.array([[0.125]])), (nothing, 0 * lse)]
    b = merge_bound([(o, lse), (nothing, none)], errors, P32)
    assert (b.output == 0.25).all() and (b.lse == 0.125).all()
    assert (merge_bound([(o, lse), (nothing, none)], errors, PROFILES["P64"]).output == 0.5).all()


def test_the_ratio_beyond_the_largest_number():
    """The infinity of the side on which truth and bound pass it, in either direction."""
    for sign in (1.0, -1.0):
        assert error_ratio(sign * inf, sign * 65500.0, 4.5, 65504.0) == 0
        assert error_ratio(sign * inf, sign * 65500.0, 4.0, 65504.0) == inf  # they reach it and do not pass it
        assert error_ratio(-sign * inf, sign * 65500.0, 4.5, 65504.0) == inf
        assert error_ratio(sign * 65504.0, sign * 65500.0, 4.0, 65504.0) == 1
    assert error_ratio(inf, 1.0, 1.0) == inf
    assert error_ratio(inf, inf, 0.0) == 0 and error_ratio(0.0, 0.0, 0.0) == 0
    assert error_ratio(1e-300, 0.0, 0.0) == inf
    assert error_ratio(2.0, 4.0, 8.0) == 0.25


def test_the_profiles_are_those_of_the_text():
    """The table of chapter 4, by the letters of its columns."""
    short = {"float64": "64", "float32": "32", "tf32": "T", "float16": "16", "bfloat16": "B", "float8_e4m3fn": "4", "float8_e5m2": "5",
             "acc14": "14", None: "-"}  # fmt: skip
    table = {
        "P64": "64 64 64 64 - 64 64", "P32": "32 32 32 32 - 32 32", "PTF32": "32 T 32 32 - T 32", "P16": "16 16 32 32 - 16 16",
        "PB16": "B B 32 32 - B B", "P16-eager": "16 16 32 32 16 16 16", "PB16-eager": "B B 32 32 B B B", "P16-acc16": "16 16 16 32 - 16 16",
        "PE4M3": "4 4 32 32 - 4 B", "PE5M2": "5 5 32 32 - 5 B", "PE4M3-acc14": "4 4 14 32 - 4 B",
    }  # fmt: skip
    found = {
        name: " ".join(short[x] for x in (p.io, p.multiplicand, p.accumulator, p.softmax, p.scores, p.weights, p.output))
        for name, p in ALL.items()
    }
    assert found == table
    assert {name: p.weight_scale for name, p in ALL.items() if p.weight_scale} == dict.fromkeys(
        ("PE4M3", "PE5M2", "PE4M3-acc14"), 256
    )
    assert (
        {p.lse for p in ALL.values()} == {"float32", "float64"}
        and ALL["P64"].lse == "float64"
        and not any(p.flush for p in ALL.values())
    )


def test_what_flushing_may_take():
    """Below the smallest normal float16, 2^-14, and below the accumulator's 2^-126 once the scale has made it smaller."""
    flushing = replace(P16, flush=True)
    x = np.array([2.0**-14, -(2.0**-15), 0.0, np.inf, np.nan, 3.0])
    assert flushed(x, P16).tolist() == [0] * 6
    assert flushed(x, flushing).tolist() == [0, 2.0**-15, 0, 0, 0, 0]
    assert flushed(x, flushing, scale=2.0**-112).tolist() == flushed(x, flushing).tolist()
    assert flushed(x, flushing, scale=-(2.0**-113)).tolist() == [2.0**-14, 2.0**-15, 0, 0, 0, 0]
    assert flushed(x, flushing, scale=2.0**-128).tolist() == [2.0**-14, 2.0**-15, 0, 0, 0, 3]
    assert flushed(x, flushing, scale=4.0).tolist() == flushed(x, flushing).tolist()
    assert flushed(x, flushing, scale=0.0).tolist() == [2.0**-14, 2.0**-15, 0, 0, 0, 3]


def test_a_profile_that_flushes_has_its_own_name():
    assert profile_of("P32") == P32 and not profile_of("P32").flush
    assert profile_of("P32 flushing") == replace(P32, flush=True)
    with pytest.raises(KeyError):
        profile_of("P33")


def test_each_row_of_a_merge_has_its_own_parts():
    """Two items of three heads and four rows; in some rows one part alone sees something, and keeps its own bounds."""
    r = np.random.default_rng(0)
    outputs, errors = (r.random((3, 2, 3, 4, 5)) for _ in range(2))
    lses, of_lses = r.standard_normal((3, 2, 3, 4)), r.random((3, 2, 3, 4))
    lses[1:, 0, 1, 2] = lses[:2, 1, 2, 3] = lses[:, 1, 0, 0] = -inf
    parts, off = list(zip(outputs, lses, strict=True)), list(zip(errors, of_lses, strict=True))
    b = merge_bound(parts, off, P32)
    assert b.output.shape == (2, 3, 4, 5) and b.lse.shape == (2, 3, 4)
    for at, part in (((0, 1, 2), 0), ((1, 2, 3), 2)):
        np.testing.assert_array_equal(b.output[at], errors[(part, *at)])
        assert b.lse[at] == of_lses[(part, *at)]
        np.testing.assert_allclose(b.truth.output[at], outputs[(part, *at)], rtol=1e-15)
    assert not b.output[1, 0, 0].any() and b.lse[1, 0, 0] == 0 and b.truth.lse[1, 0, 0] == -inf
    alone = merge_bound([(o[1], lse[1]) for o, lse in parts], [(o[1], lse[1]) for o, lse in off], P32)
    np.testing.assert_array_equal(alone.output, b.output[1])


def test_gradients_over_empty_axes():
    """Any of heads, queries, keys and channels may be none; a bias and sinks as well."""
    for empty in range(5):
        h, n, m, d_k, d_v = (0 if at == empty else size for at, size in enumerate((2, 3, 4, 5, 6)))
        q, k, v, dO = np.ones((h, n, d_k)), np.ones((h, m, d_k)), np.ones((h, m, d_v)), np.ones((h, n, d_v))
        bias, sink = np.zeros((h, n, m)), np.zeros(h)
        found = gradient_bound(
            q, k, v, Cotangents(dO, np.ones((h, n)), np.ones((h, n, m))), P32, scale=1.0, bias=bias, sink=sink
        )
        for name, x in (("query", q), ("key", k), ("value", v), ("bias", bias), ("sink_logits", sink)):
            bound = getattr(found, name)
            assert bound.shape == getattr(found.truth, name).shape == x.shape
            assert np.isfinite(bound).all()
