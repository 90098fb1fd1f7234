"""The bounds of chapter 4: legal arithmetic stays inside them, wrong results do not, and they agree with the text."""

import hashlib
from dataclasses import replace
from itertools import product

import emulated
import numpy as np
import pytest
import twin
from random_calls import request

from mha_core import Projections
from mha_spec import equations
from mha_spec.contract import Violation, attention_call
from mha_spec.numerics import (
    CONSTANTS_VERSION,
    COUNTS,
    PROFILES,
    TYPES,
    attention_bound,
    constants,
    constants_hash,
    error_ratio,
    gamma,
    layer_bound,
    merge_bound,
    profile_of,
    usable,
)  # fmt: skip
from mha_spec.profiles import FILE

ALL = list(PROFILES.values())
SINGLE = [PROFILES[name] for name in ("P64", "P32", "PTF32", "P16", "PB16")]


def names(p):
    return getattr(p, "name", str(p))


def worst(got, truth, bound, largest=np.inf):
    return np.max(error_ratio(got, truth, bound, largest), initial=0.0)


# Soundness


@pytest.mark.parametrize("p", ALL, ids=names)
def test_legal_arithmetic_stays_inside(p):
    machines = emulated.MACHINES[5:8:2] if p.name != "P64" else emulated.MACHINES[:3]  # the campaign runs all
    for name, case in emulated.cases(p, seed=102 if p.name == "P32" else 100):
        bounds = attention_bound(case.q, case.k, case.v, p, **case.options)
        for machine, kernel in product(machines, emulated.KERNELS):
            output, lse, weights = emulated.attention(case, p, machine, kernel)
            where = f"{name}, {kernel}, {machine}"
            assert worst(output, bounds.truth.output, bounds.output, TYPES[p.output].largest) < 1, where
            assert worst(lse, bounds.truth.lse, bounds.lse) < 1, where
            assert weights is None or worst(weights, bounds.truth.weights, bounds.weights) < 1, where


def test_a_bias_that_cancels_the_score_needs_roundings_relative_to_the_product():
    """d_k = 1 and |s| far below |q||k|: a bound with roundings relative to s alone was exceeded here."""
    p, m, r = PROFILES["P32"], emulated.Machine(), np.random.default_rng(5)
    q, k, v = (m.to(x, "float32") for x in (100 * r.random((1, 40, 1)) + 50, r.random((1, 9, 1)) + 1, r.random((1, 9, 3))))
    bias = m.to(-(q @ k.mT) + r.random((1, 40, 9)), "float32")
    bounds = attention_bound(q, k, v, p, scale=1.0, bias=bias)
    error = 0.0
    for machine, kernel in product(emulated.MACHINES, ("eager", "folded", "split scale")):
        output, lse, _ = emulated.attention(emulated.Case(q, k, v, 1.0, bias=bias), p, machine, kernel)
        assert worst(output, bounds.truth.output, bounds.output) < 1
        assert worst(lse, bounds.truth.lse, bounds.lse) < 1
        error = np.maximum(error, np.abs(lse - bounds.truth.lse))
    same_scores = attention_bound(0 * q, k, v, p, scale=1.0, bias=q @ k.mT + bias)
    np.testing.assert_allclose(same_scores.truth.lse, bounds.truth.lse, rtol=1e-12)
    assert np.max(error / same_scores.lse) > 1


def test_weights_may_be_normalised_before_they_are_stored():
    """Truncated float16 weights below 2^-24: the loss is one subnormal each, whatever the row sum is."""
    p, m = PROFILES["P16"], emulated.Machine("truncate")
    few, many = 64, 1000
    s = np.log(np.where(np.arange(few + many) < few, 1.0, few * 0.99 * 2.0**-24))[None, None]
    v = (np.arange(few + many) >= few)[None, :, None] * np.ones((1, 1, 1))
    case = emulated.Case(np.zeros((1, 1, 1)), np.zeros((1, few + many, 1)), v, 1.0, bias=s)
    bounds = attention_bound(case.q, case.k, case.v, p, **case.options)
    output, _, _ = emulated.attention(case, p, m, "normalised")
    assert output == 0
    assert 0.9 < worst(output, bounds.truth.output, bounds.output) < 1
    assert np.abs(output - bounds.truth.output) > 30 * many * TYPES["float16"].eta() / few  # what eta / row sum would grant


def _merged(parts, p, m):
    """merge_partials in the arithmetic of a machine."""
    t, lses = p.lse, np.stack([lse for _, lse in parts])
    top = np.where(np.isfinite(lses.max(0)), lses.max(0), 0.0)
    total, out = 0.0, 0.0
    for output, lse in parts:
        share = m.exp(m.to(lse - top, t), t)
        total, out = m.to(total + share, t), m.to(out + m.to(share[..., None] * output, t), t)
    some = np.where(total > 0, total, 1.0)
    lse = m.to(top + m.to(np.log(some), t), t)
    return m.to(m.to(out / some[..., None], t), p.output), np.where(total > 0, lse, -np.inf)


@pytest.mark.parametrize("p", ALL, ids=names)
def test_merging_computed_parts_stays_inside(p):
    for name, case in emulated.cases(p, seed=9):
        case = replace(case, sink=None)
        whole = attention_bound(case.q, case.k, case.v, p, **case.options)
        half = case.k.shape[-2] // 3
        for machine in emulated.MACHINES[5:8] if p.name != "P64" else emulated.MACHINES[:2]:
            computed, true, errors = [], [], []
            for keys in (slice(0, half), slice(half, None)):
                pairs = {
                    x: None if (y := getattr(case, x)) is None else y[..., keys] if y.shape[-1] > 1 else y
                    for x in ("bias", "visible", "keep")
                }
                part = replace(case, k=case.k[:, keys], v=case.v[:, keys], **pairs)
                b = attention_bound(part.q, part.k, part.v, p, **part.options)
                computed.append(emulated.attention(part, p, machine)[:2])
                true.append((b.truth.output, b.truth.lse))
                errors.append((b.output, b.lse))
            merged = merge_bound(true, errors, p)
            np.testing.assert_allclose(merged.truth.output, whole.truth.output, rtol=1e-12, atol=1e-13 * np.max(np.abs(case.v)))
            output, lse = _merged(computed, p, machine)
            assert worst(output, merged.truth.output, merged.output, TYPES[p.output].largest) < 1, name
            assert worst(lse, merged.truth.lse, merged.lse) < 1, name


def _layer_inputs(p, seed=0):
    to, r = emulated.Machine().to, np.random.default_rng(seed)
    h, h_kv, d_model, d, n, m = 2, 1, 6, 4, 3, 5
    shapes = [(n, d_model), (m, d_model), (h, d_model, d), (h_kv, d_model, d), (h_kv, d_model, d), (h, d, d_model),
              (h, d), (h_kv, d), (h_kv, d), (d_model,)]  # fmt: skip
    x, y, *rest = (to(r.standard_normal(s), p.io) for s in shapes)
    return x, y, Projections(*rest)


@pytest.mark.parametrize("p", ALL, ids=names)
def test_the_layer_stays_inside(p):
    x, y, w = _layer_inputs(p)
    bounds = layer_bound(x, y, y, w, p, scale=0.5)
    truth = equations.output_projection(twin_free_attention(x, y, w), w.w_o, w.b_o)
    np.testing.assert_allclose(bounds.truth.output, truth, rtol=1e-12, atol=1e-13)
    for machine in emulated.MACHINES:
        if p.name == "P64" and machine.mode != "nearest":
            continue

        def linear(x, w, b, name, machine=machine):
            a, c = (machine.to(z, p.multiplicand) if name == p.io else z for z in (x, w))
            return machine.to(machine.to(machine.matmul(a, c, p.accumulator) + b, p.accumulator), name)

        q, k, v = (
            linear(z[None], a, b[:, None], p.io) for z, a, b in ((x, w.w_q, w.b_q), (y, w.w_k, w.b_k), (y, w.w_v, w.b_v))
        )
        heads = emulated.attention(emulated.Case(q, np.repeat(k, 2, 0), np.repeat(v, 2, 0), 0.5), p, machine)[0]
        flat = np.moveaxis(heads, 0, 1).reshape(heads.shape[1], -1)
        got = linear(flat, w.w_o.reshape(-1, w.w_o.shape[-1]), w.b_o, p.output)
        assert worst(got, bounds.truth.output, bounds.output) < 1


def twin_free_attention(x, y, w):
    q, k, v = (equations.project_heads(z, a, b) for z, a, b in ((x, w.w_q, w.b_q), (y, w.w_k, w.b_k), (y, w.w_v, w.b_v)))
    return equations.attention(attention_call(q, k, v, scale=0.5)).output


# Power


@pytest.mark.parametrize("p", ALL, ids=names)
def test_zeros_and_a_wrong_scale_do_not_pass(p):
    q, k, v = (emulated.Machine().to(x, p.io) for x in np.random.default_rng(0).standard_normal((3, 2, 32, 16)))
    right = attention_bound(q, k, v, p, scale=0.25)
    assert worst(0 * v, right.truth.output, right.output) > 1
    coarse = {"PB16-eager": 1.1, "P16-acc16": 1.5, "PE4M3": 1.5, "PE4M3-acc14": 1.5, "PE5M2": 3.0}
    wrong = attention_bound(q, k, v, p, scale=0.25 * coarse.get(p.name, 1.05))  # what the coarse profiles grant is coarse
    assert worst(wrong.truth.output, right.truth.output, right.output) > 1


@pytest.mark.parametrize(("declared", "done"), [("P32", "PTF32"), ("P64", "P32"), ("P16", "P16-acc16"), ("PB16", "PE4M3")])
def test_coarser_arithmetic_than_declared_does_not_pass(declared, done):
    p, coarse = PROFILES[declared], replace(PROFILES[done], output=PROFILES[declared].output)
    q, k, v = (emulated.Machine().to(x, p.io) for x in np.random.default_rng(1).standard_normal((3, 1, 48, 48)))
    v = np.abs(v)
    bounds = attention_bound(q, k, v, p, scale=0.25)
    output, _, _ = emulated.attention(emulated.Case(q, k, v, 0.25), coarse)
    assert worst(output, bounds.truth.output, bounds.output) > 1


def test_values_scaled_down_do_not_make_the_bound_blind():
    p = PROFILES["PB16"]
    q, k, v = (emulated.Machine().to(x, p.io) for x in np.random.default_rng(2).standard_normal((3, 1, 32, 16)))
    large, small = (attention_bound(q, k, f * v, p, scale=0.25) for f in (1.0, 2.0**-14))
    np.testing.assert_allclose(small.output, large.output * 2.0**-14, rtol=1e-6)


# Truth


def test_the_truth_is_that_of_the_equations_and_within_its_own_bound():
    """Random option sets; the twin's 40 digits are the judge, and B without the factor 2 is kept."""
    r = np.random.default_rng(7)
    p = PROFILES["P64"]
    for _ in range(120):
        query, key, value, options = request(r)
        if query.dtype != np.float64:
            query, key, value = (np.asarray(x).astype(np.float64) for x in (query, key, value))
        for name in ("bias", "sink_logits"):
            if options.get(name) is not None:
                options[name] = np.asarray(options[name]).astype(np.float64)
        call = attention_call(query, key, value, **options)
        bounds = attention_bound(
            query, key, value, p, scale=call.scale, softcap=call.softcap, bias=call.bias, sink=call.sink_logits,
            visible=equations.visible(call),
        )  # fmt: skip
        with np.errstate(all="ignore"):
            by_equations = equations.attention(call)
        exact = twin.attention(query, key, value, **options)
        for i, bound in ((0, bounds.output), (1, bounds.weights), (2, bounds.lse)):
            assert worst(bounds.truth[i], exact[i], bound / 2) <= 1
            assert worst(by_equations[i], bounds.truth[i], bound) <= 1
            assert not np.any(np.isnan(bound))


def test_hidden_nan_and_infinity_move_nothing():
    r = np.random.default_rng(3)
    q, k, v = r.standard_normal((3, 2, 4, 3))
    see = np.array([True, True, False, True])
    clean = attention_bound(q, k, v, PROFILES["P32"], scale=1.0, visible=see)
    for poison in (np.nan, np.inf, 1e300):
        k[:, 2], v[:, 2] = poison, poison
        dirty = attention_bound(q, k, v, PROFILES["P32"], scale=1.0, visible=see)
        for a, b in zip((*clean[:3], *clean.truth), (*dirty[:3], *dirty.truth), strict=True):
            np.testing.assert_array_equal(a, b)


def test_empty_rows_and_nan_are_judged_exactly_and_infinities_not_at_all():
    q, k, v = (np.ones((1, n, 1)) for n in (4, 2, 2))
    v = np.concatenate([v, v], axis=-1)
    q[0, 1], k[0, 1], v[0, 0, 1] = np.nan, np.inf, np.nan
    see = np.array([[False, False], [True, False], [True, False], [True, True]])
    b = attention_bound(q, k, v, PROFILES["P32"], scale=1.0, visible=see)
    np.testing.assert_array_equal(b.truth.output[0, :3], [[0, 0], [np.nan, np.nan], [1, np.nan]])
    np.testing.assert_array_equal(b.output[0, :3] == 0, [[True, True], [True, True], [False, True]])
    np.testing.assert_array_equal(b.truth.lse[0, :3], [-np.inf, np.nan, 1])
    np.testing.assert_array_equal(b.truth.weights[0, 1], [np.nan, 0])
    assert error_ratio(np.full((1, 4, 2), np.nan), b.truth.output, b.output)[0, 3].tolist() == [0, 0]
    assert worst(np.zeros(2), b.truth.output[0, 1], b.output[0, 1]) == np.inf


def test_an_empty_row_with_a_sink():
    ones, sink = np.ones((2, 1, 1)), np.array([0.1, -3.0])
    b = attention_bound(ones, ones, ones, PROFILES["P32"], scale=1.0, visible=np.array(False), sink=sink)
    assert b.output.tolist() == [[[0]], [[0]]]
    assert b.truth.lse[:, 0].tolist() == [0.1, -3]
    assert worst(np.float32([[0.1], [-3]]), b.truth.lse, b.lse) < 1


def test_a_finite_bias_far_below_does_not_blind_the_row():
    """finfo.min on one key, or a bias that float32 cannot hold: its weight is 0 in any arithmetic."""
    q, k, v = (np.ones((1, n, 1)) for n in (1, 2, 2))
    for far in (float(np.finfo(np.float32).min), -1e300):
        b = attention_bound(q, k, v, PROFILES["P32"], scale=1.0, bias=np.array([[0.0, far]]))
        assert b.output.max() < 1e-5
        assert b.truth.weights.tolist() == [[[1, 0]]]
        assert b.weights[0, 0, 1] < 1e-40


def test_a_score_beyond_the_range_promises_no_number():
    q, k, v = np.array([[[1e30]]]), np.array([[[1e30], [2e30]]]), np.ones((1, 2, 1))
    assert np.all(np.isinf(attention_bound(q, k, v, PROFILES["P32"], scale=1.0).output))
    assert np.all(attention_bound(q, -k * [[[0], [1]]], v, PROFILES["P32"], scale=1.0).output < 1e-4)
    assert np.all(np.isfinite(attention_bound(300 * v[:, :1], 300 * v, v, PROFILES["P16"], scale=1e-4).output))
    assert np.all(np.isinf(attention_bound(300 * v[:, :1], 300 * v, v, PROFILES["P16-acc16"], scale=1e-4).output))


def test_grouped_heads_batch_axes_and_empty_axes():
    r = np.random.default_rng(4)
    q, k, v = r.standard_normal((2, 4, 3, 5)), r.standard_normal((2, 2, 6, 5)), r.standard_normal((2, 2, 6, 7))
    grouped = attention_bound(q, k, v, PROFILES["P32"], scale=1.0)
    spread = attention_bound(q, k.repeat(2, 1), v.repeat(2, 1), PROFILES["P32"], scale=1.0)
    np.testing.assert_array_equal(grouped.output, spread.output)
    for at in np.ndindex(6):
        sizes = [2, 3, 4, 5, 6]
        if at[0] < 5:
            sizes[at[0]] = 0
        h, n, m, d_k, d_v = sizes
        b = attention_bound(np.ones((h, n, d_k)), np.ones((h, m, d_k)), np.ones((h, m, d_v)), PROFILES["P32"], scale=1.0)
        assert (b.output.shape, b.lse.shape, b.weights.shape) == ((h, n, d_v), (h, n), (h, n, m))


def test_the_smallest_operands_have_a_bound_without_warnings():
    for p, x in product(ALL, (0.0, 5e-324, 1e-160, 1e300)):
        b = attention_bound(*(np.full((1, 2, 2), x),) * 3, p, scale=1.0, softcap=2.0, sink=np.array([x]))
        assert not any(np.any(np.isnan(y)) for y in b[:3])


# The layer and the merge, their corners


def test_a_merge_with_nothing_is_exact():
    o, lse = np.ones((1, 2, 3)), np.array([[0.5, -np.inf]])
    empty = np.zeros((1, 2, 3)), np.full((1, 2), -np.inf)
    b = merge_bound([(o, lse), empty], None, PROFILES["P32"])
    assert not b.output.any()
    assert not b.lse.any()
    np.testing.assert_array_equal(b.truth.lse, lse)
    two = merge_bound([(o, lse), (o, lse)], None, PROFILES["P32"])
    assert np.all(two.output[0, 0] > 0)


def test_nan_in_a_part_and_in_a_layer_is_required():
    o, lse = np.array([[[1.0, np.nan], [1, 1]]]), np.array([[0.0, np.nan]])
    b = merge_bound([(o, lse), (np.ones((1, 2, 2)), np.zeros((1, 2)))], None, PROFILES["P32"])
    np.testing.assert_array_equal(np.isnan(b.truth.output), [[[False, True], [True, True]]])
    np.testing.assert_array_equal(b.output == 0, [[[False, True], [True, True]]])
    x, y, w = _layer_inputs(PROFILES["P32"])
    x[1, 0] = np.nan
    b = layer_bound(x, y, y, w, PROFILES["P32"], scale=0.5)
    assert np.all(np.isnan(b.truth.output[1]) & (b.output[1] == 0))
    assert np.all(np.isfinite(b.truth.output[[0, 2]]) & (b.output[[0, 2]] < 1e-2))


# Small things


def test_gamma():
    assert gamma(4, 2**-10) == 1 / 127
    assert gamma(0, 0.25) == 0
    with pytest.raises(Violation, match="MHA-NUM-4"):
        gamma(2, 0.25)
    with pytest.raises(ValueError, match="wider accumulator"):
        attention_bound(*(np.ones((1, 1024, 1)),) * 3, PROFILES["P16-acc16"], scale=1.0)


def test_the_types_are_those_of_numpy():
    for name in ("float16", "float32", "float64"):
        info, t = np.finfo(name), TYPES[name]
        assert (t.largest, t.smallest_normal, t.smallest_subnormal) == (info.max, info.smallest_normal, info.smallest_subnormal)
        assert t.u == info.eps / 2


def test_the_types_are_those_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        info, t = ml_dtypes.finfo(name), TYPES[name]
        assert (t.largest, t.smallest_normal, t.smallest_subnormal) == tuple(
            float(x) for x in (info.max, info.smallest_normal, info.smallest_subnormal)
        )


def test_flush_to_zero_is_declared_and_widens_what_is_lost_near_zero():
    q = np.zeros((1, 1, 1))
    plain, flushed = (attention_bound(q, q, q, replace(PROFILES["P32"], flush=f), scale=1.0).output for f in (False, True))
    assert TYPES["float32"].smallest_normal < flushed.max() < 1e-34
    assert plain.max() < 1e-42


def test_a_flushed_operand_may_be_off_by_all_of_itself():
    """A subnormal query times a huge key is an ordinary score; taken for 0, it is none (MHA-NUM-23)."""
    one, two, v = np.ones((1, 1, 1)), np.array([[[1.0], [-1.0]]]), np.array([[[1.0], [0.0]]])
    tiny, huge = 2.0**-127, 2.0**127
    q, k = tiny * one, huge * two
    for profile, legal in ((profile_of("P32"), False), (profile_of("P32 flushing"), True)):
        for query, key in ((q, k), (huge * one, tiny * two)):
            bounds = attention_bound(query, key, v, profile, scale=1.0)
            assert bounds.truth.output > 0.7
            assert (error_ratio(0.5, bounds.truth.output, bounds.output).max() <= 1) == legal  # scores of 0
    half = np.full((1, 1, 1), 2.0**-126)  # normal, and half of it is not
    assert attention_bound(half, k, v, profile_of("P32 flushing"), scale=1.0).output < 1e-3
    assert attention_bound(half, k, v, profile_of("P32 flushing"), scale=0.5).output > 0.01


def test_flushing_is_a_word_behind_a_profile():
    assert profile_of("P16") is PROFILES["P16"]
    assert profile_of("P16 flushing") == replace(PROFILES["P16"], flush=True)
    with pytest.raises(KeyError):
        profile_of("P16 slowly")


def test_the_ratio_of_what_has_no_number():
    assert error_ratio(np.nan, 1.0, np.inf) == np.inf
    assert error_ratio(5.0, 1.0, np.inf) == 0
    assert error_ratio(np.inf, 1.0, np.inf, 65504.0) == 0
    assert error_ratio(np.inf, 65500.0, 10.0, 65504.0) == 0
    assert error_ratio(-np.inf, 65500.0, 10.0, 65504.0) == np.inf
    assert error_ratio(0.0, -np.inf, 0.0) == np.inf
    assert error_ratio(-np.inf, -np.inf, 0.0) == 0
    assert error_ratio(1.0, np.nan, 0.0) == np.inf
    assert error_ratio(1.5, 1.0, 0.25) == 2


def test_a_case_is_usable_where_float64_is_64_times_better():
    assert usable(np.array([64.0, 0.0]), np.array([1.0, 7.0]))
    assert not usable(np.array([63.0]), np.array([1.0]))
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 8, 4))
    b, b_64 = (attention_bound(q, k, v, PROFILES[name], scale=0.5) for name in ("P32", "P64"))
    assert usable(b.output, b_64.output / 2)


def test_the_hash_covers_every_constant():
    assert constants_hash() == hashlib.sha256(FILE.read_bytes()).hexdigest()
    assert set(constants()) == {"version", "types", "profiles", "counts", "statistics"}
    assert {name: number for name, (number, _) in constants()["counts"].items()} == dict(COUNTS)
    assert all(reason for group in ("counts", "statistics") for _, reason in constants()[group].values())
    assert FILE.name == f"tolerance-{CONSTANTS_VERSION}.json"
    with pytest.raises(TypeError):
        COUNTS["scale"] = 5


def test_the_tolerance_of_examples_covers_the_bound_of_what_examples_may_be():
    """MHA-CONF-2: 8 keys, d_k = 4, products and bias up to 8 together, values up to 1: B is below 1024 u."""
    r = np.random.default_rng(0)
    for _ in range(200):
        m, b = int(r.integers(1, 9)), 8 * r.random()
        sign = np.where(r.random((2, 1, m)) < 0.5, -1.0, 1.0)
        k = np.repeat(sign[0][..., None] * (8 - b) / 4, 4, axis=-1)
        bounds = attention_bound(np.ones((1, 1, 4)), k, np.ones((1, m, 1)), PROFILES["P32"], scale=1.0, bias=sign[1] * b)
        for bound, truth in ((bounds.output, 1.0), (bounds.lse, bounds.truth.lse)):
            assert np.all(bound < 1024 * 2.0**-24 * np.maximum(1.0, np.abs(truth)))
