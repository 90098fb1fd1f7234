"""The fused kernel of the CuPy backend on the emulator: every option against the bounds of chapter 4, hidden data bit by bit.

The bound is that of ``mha_spec.numerics``, which shares no code with the backend; which pairs are visible is the loop of
``cupy_machine.formula``.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest
from cupy_machine import TYPES, draw, fake, formula, operands, relaid, wide
from emulator.arrays import fake_cupy
from emulator.launches import SCHEDULES

from mha_spec.numerics import PROFILES, attention_bound, error_ratio

HALVES = {"float16": "P16", "bfloat16": "PB16"}


@pytest.fixture(params=HALVES)
def kind(request):
    return request.param


def within_bounds(machine, kind, q, k, v, **options):
    """Output and lse of one call to the fused kernel, within the bounds of the profile; the result."""
    q, k, v = (fake(x, TYPES[kind]) if x.dtype != TYPES[kind] else fake(x) for x in (q, k, v))
    options = {name: fake(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    before = [x.tobytes() for x in (q, k, v)]
    machine.launches.clear()
    got = machine.api().attention(q, k, v, **options, return_lse=True)
    assert {name for name, *_ in machine.launches} <= {"fused_forward"}
    assert before == [x.tobytes() for x in (q, k, v)]
    seen = visible(q, k, v, options)
    bias, sink = (None if options.get(name) is None else wide(options[name]) for name in ("bias", "sink_logits"))
    d_k = q.shape[-1]
    bounds = attention_bound(
        wide(q), wide(k), wide(v), PROFILES[HALVES[kind]], scale=options.get("scale", d_k**-0.5 if d_k else 1.0),
        softcap=options.get("softcap"), bias=bias, visible=seen, sink=sink,
    )  # fmt: skip
    largest = float(ml_dtypes.finfo(TYPES[kind]).max)
    assert error_ratio(wide(got.output), bounds.truth.output, bounds.output, largest).max(initial=0) <= 1
    assert error_ratio(wide(got.lse), bounds.truth.lse, bounds.lse).max(initial=0) <= 1
    assert got.output.dtype == TYPES[kind] and got.lse.dtype == "float32"
    return got


def visible(q, k, v, options):
    """(*b, h, n, m): the pairs to which the formula gives weight when every score is the same."""
    equal = {name: x for name, x in options.items() if name not in ("scale", "softcap", "sink_logits", "bias")}
    if options.get("bias") is not None:
        bias = wide(options["bias"])
        equal["bias"] = np.where(bias == -np.inf, bias, 0.0)
    zeros = [np.zeros(x.shape) for x in (q, k, v)]
    return formula(*zeros, **equal)[1] > 0


def bits(result):
    return [x.tobytes() for x in result if x is not None]


# ---- sizes ----


@pytest.mark.parametrize("sizes", [
    {"n": 0}, {"m": 0}, {"d_k": 0}, {"d_v": 0}, {"batch": (0,)}, {"batch": (2, 0)}, {"h": 0, "h_kv": 0}, {"n": 1, "m": 1},
    {"m": 0, "d_v": 0}, {"batch": ()}, {"batch": (2, 1, 3), "n": 2}, {"h_kv": 1}, {"h_kv": 4},
    {"n": 64, "m": 64, "d_k": 16, "d_v": 16}, {"n": 65, "m": 129, "d_k": 17, "d_v": 9}, {"n": 63, "m": 63}, {"n": 1, "m": 200},
    {"n": 130, "m": 1}, {"batch": (), "h": 1, "h_kv": 1, "n": 20, "m": 70, "d_k": 64, "d_v": 40},
    {"batch": (), "h": 1, "h_kv": 1, "n": 20, "m": 70, "d_k": 96, "d_v": 80},
    {"batch": (), "h": 1, "h_kv": 1, "n": 20, "m": 70, "d_k": 128, "d_v": 128},
    {"batch": (), "h": 1, "h_kv": 1, "n": 20, "m": 70, "d_k": 192, "d_v": 128},
    {"batch": (), "h": 1, "h_kv": 1, "n": 20, "m": 70, "d_k": 256, "d_v": 256},
], ids=str)  # fmt: skip
def test_sizes(machine, rng, sizes, kind):
    q, k, v = operands(rng, **sizes)
    within_bounds(machine, kind, q, k, v)
    within_bounds(machine, kind, q, k, v, is_causal=True, query_offset=1, sink_logits=np.ones(q.shape[-3], "float32"))


# ---- options ----

OPTIONS = {
    "scale": {"scale": -0.75},
    "scale 0": {"scale": 0.0},
    "softcap": {"softcap": 0.5},
    "mask per key": {"mask": (np.arange(75) % 3 != 0)[None]},
    "mask of every axis": {"mask": np.arange(2 * 4 * 70 * 75).reshape(2, 4, 70, 75) % 5 != 0},
    "mask in columns": {"mask": np.asfortranarray(np.arange(70 * 75).reshape(70, 75) % 4 != 1)},
    "mask that shows nothing": {"mask": np.zeros((70, 75), bool)},
    "bias of heads": {"bias": ((np.arange(4 * 70 * 75).reshape(1, 4, 70, 75) % 5 - 2) * 0.5).astype("float32")},
    "bias -inf and beyond float32": {"bias": np.resize([0.5, -np.inf, np.finfo("float64").min, 1.0, -2.0, 0.0], 75)[None]},
    "mask and bias": {"mask": np.arange(70 * 75).reshape(70, 75) % 3 != 0, "bias": np.arange(75.0)[None] / 8},
    "causal": {"is_causal": True, "query_offset": 0},
    "causal bottom-right": {"is_causal": True, "query_offset": 5},
    "causal before position 0": {"is_causal": True, "query_offset": -66},
    "offset per item": {"is_causal": True, "query_offset": np.array([-2, 4], "int16")},
    "offsets at the ends of int64": {"is_causal": True, "query_offset": np.array([-(2**63), 2**63 - 1])},
    "window": {"window": (3, 2), "query_offset": 1},
    "window beyond the keys": {"window": (0, 1), "query_offset": 60},
    "window open on the left": {"window": (None, 1), "query_offset": np.array([0, 250], "uint8")},
    "window open on the right": {"window": (0, None), "query_offset": np.array([0, -(2**63)])},
    "window as large as may be": {"window": (2**62 - 1, 2**62 - 1), "query_offset": np.array([2**63 - 1, 3])},
    "causal window": {"window": (20, 4), "is_causal": True, "query_offset": 2},
    "length": {"key_lengths": 66},
    "lengths": {"key_lengths": np.array([64, 0], "uint8")},
    "lengths at the ends of int64": {"key_lengths": np.array([-(2**63), 2**63 - 1])},
    "segments": {
        "query_segments": np.stack([np.arange(70) // 20, np.arange(70) // 33]).astype("int8"),
        "key_segments": np.stack([np.arange(75) // 21, 1 - np.arange(75) // 40]).astype("int64"),
    },
    "sink": {"sink_logits": np.array([0.0, 2.0, -np.inf, 40.0])},
    "sink and empty rows": {"sink_logits": np.array([0.0, 2.0, -np.inf, 1.0]), "is_causal": True, "query_offset": -30},
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_option(machine, rng, options, kind):
    within_bounds(machine, kind, *operands(rng, n=70, m=75), **options)


@pytest.mark.parametrize("seed", range(30))
def test_random_call(machine, seed, kind):
    (q, k, v), options = draw(np.random.default_rng(seed))
    within_bounds(machine, kind, q, k, v, **options)


@pytest.mark.parametrize("shape", [(2, 1, 1, 5, 7), (1, 3, 4, 1, 7), (2, 3, 1, 1, 1), (1, 1, 1, 5, 7)])
def test_mask_and_bias_broadcast_over_some_batch_axes(machine, rng, shape):
    q, k, v = operands(rng, batch=(2, 3))
    within_bounds(machine, "float16", q, k, v, mask=rng.random(shape) < 0.6, bias=rng.standard_normal(shape).astype("float32"))


def test_layouts_change_no_bit(machine, rng, kind):
    """Strides of any kind, rows that can be copied 16 bytes at a time and rows that cannot: the same bits (MHA-EXEC-4)."""
    q, k, v = (x.astype(TYPES[kind]) for x in operands(rng, n=70, m=75, d_k=16, d_v=16))
    want = bits(machine.api().attention(*map(fake, (q, k, v)), is_causal=True, query_offset=3, return_lse=True))
    for how in range(1, 7):
        if how == 5:
            continue  # it changes values: one token for all
        got = machine.api().attention(
            *(fake(relaid(Fixed(how), x)) for x in (q, k, v)), is_causal=True, query_offset=3, return_lse=True
        )
        assert bits(got) == want


class Fixed:
    """In the place of a random generator: ``relaid`` is told which layout."""

    def __init__(self, number):
        self.number = number

    def integers(self, _):
        return self.number


# ---- the ends of the number range ----


def test_large_numbers(machine, rng, kind):
    """MHA-ATTN-13, MHA-MASK-6, MHA-NUM-10: no overflow on the way, and nothing hidden by its size."""
    q, k, v = operands(rng, batch=(), h=2, n=5, m=70)
    within_bounds(machine, kind, q, k, v, bias=np.arange(70, dtype="float32")[None] - 100000)
    within_bounds(machine, kind, q, k, v, bias=np.full((5, 70), np.finfo("float64").min))
    within_bounds(machine, kind, np.full((1, 1, 4), 256.0), np.full((1, 2, 4), 256.0), np.ones((1, 2, 3)), scale=2.0**-18)
    largest = 2.0**127 if kind == "bfloat16" else 65504.0
    within_bounds(machine, kind, np.zeros((1, 1, 1)), np.zeros((1, 70, 1)), np.full((1, 70, 2), largest))
    m = 2**10
    bias = np.where(np.arange(m) == 0, 0.0, -12.0)[None].astype("float32")
    within_bounds(
        machine, kind, np.zeros((1, 1, 1)), np.zeros((1, m, 1)), np.where(np.arange(m) == 0, 0.0, 1.0)[None, :, None], bias=bias
    )


@pytest.mark.parametrize(("number", "scale"), [(1e20, 1.0), (1e20, 0.0), (2.0, 1e300), (2.0, -1e300)])
def test_a_score_that_overflows_hides_nothing(machine, number, scale):
    q, k = np.full((1, 1, 1), number), np.full((1, 2, 1), -number)
    v = np.array([[[1.0], [3.0]]])
    assert machine.api().attention(*(fake(x, TYPES["bfloat16"]) for x in (q, k, v)), scale=scale) == 2


# ---- hidden data, NaN ----

HIDERS = {
    "mask": {"mask": np.array([[True, True, False, True, False] * 14] * 3)},
    "bias": {"bias": np.array([[0.0, 1.0, -np.inf, 0.0, -np.inf] * 14], "float32")},
    "causal": {"is_causal": True, "query_offset": 0},
    "window": {"window": (1, 0), "query_offset": 62},
    "lengths": {"key_lengths": np.array([66])},
    "segments": {"query_segments": np.array([[0, 1, 0]]), "key_segments": np.array([[0, 1, 2, 1, 2] * 14])},
}


@pytest.mark.parametrize("options", HIDERS.values(), ids=HIDERS.keys())
def test_hidden_data_moves_no_bit(machine, rng, options, kind):
    """MHA-MASK-18, MHA-MASK-19: poison some keys; the rows that do not see one keep every bit, and the others are NaN or right."""
    q, k, v = (x.astype(TYPES[kind]) for x in operands(rng, batch=(1,), n=3, m=70))
    ask = {"return_lse": True} | {name: fake(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    clean = machine.api().attention(*map(fake, (q, k, v)), **ask)
    seen = visible(q, k, v, options)
    for j, poison in itertools.product((0, 2, 63, 69), (np.nan, np.inf, 6e4)):
        k_j, v_j = k.copy(), v.copy()
        k_j[..., j, :] = v_j[..., j, :] = poison
        got = machine.api().attention(*map(fake, (q, k_j, v_j)), **ask)
        blind = ~seen[..., j]
        for before, after in zip((clean.output, clean.lse), (got.output, got.lse), strict=True):
            assert before[blind].tobytes() == after[blind].tobytes()
        if np.isnan(poison):
            assert np.isnan(wide(got.output)[seen[..., j]]).all()


def test_nan_of_a_value_reaches_its_channel(machine, rng, kind):
    """MHA-MASK-21: rows that see it, one channel, however small the weight; grouped heads read their own values."""
    q, k, v = (x.astype(TYPES[kind]) for x in operands(rng, batch=(), n=4, m=70, d_v=20))
    for value in (np.nan, np.inf, -np.inf):
        broken = v.copy()
        broken[1, 65, 17] = value
        bias = np.where(np.arange(70) == 65, -1e30, 0.0)[None].astype("float32")
        got = machine.api().attention(*map(fake, (q, k, broken)), bias=fake(bias), is_causal=True, query_offset=63)
        want = np.zeros((4, 4, 20), bool)
        want[2:, 2:, 17] = True
        np.testing.assert_array_equal(np.isnan(wide(got)), want)


def test_nan_reaches_the_rows_that_see_it(machine, rng, kind):
    """MHA-MASK-20, MHA-MASK-22, MHA-MASK-15: of query, key, bias and sink; never into an empty row."""
    q, k, v = (x.astype(TYPES[kind]) for x in operands(rng, batch=(), h=2, n=4, m=4))
    attention = machine.api().attention
    bias = np.zeros((4, 4), "float32")
    bias[2, 1] = bias[0, 3] = np.nan  # the second is causally hidden
    nan = np.isnan(wide(attention(*map(fake, (q, k, v)), bias=fake(bias), is_causal=True)))
    assert nan[:, 2].all() and nan.sum() == 2 * 3

    broken = q.copy()
    broken[1, 2] = np.nan
    nan = np.isnan(wide(attention(*map(fake, (broken, k, v)), is_causal=True, scale=0.0)))
    assert nan[1, 2].all() and nan.sum() == 3

    broken[:] = np.nan
    got = attention(*map(fake, (broken, k, v)), is_causal=True, query_offset=-1, return_lse=True)
    assert not wide(got.output)[:, 0].any() and np.isnan(wide(got.output)[:, 1:]).all()
    assert (got.lse[:, 0] == -np.inf).all() and np.isnan(got.lse[:, 1:]).all()

    sinks = fake(np.array([np.nan, 1.0], "float32"))
    got = attention(*map(fake, (q, k, v)), sink_logits=sinks, is_causal=True, query_offset=-1, return_lse=True)
    assert not wide(got.output)[:, 0].any()  # empty: output 0, and lse is the sink's logit
    assert np.isnan(got.lse[0]).all() and got.lse[1, 0] == 1
    assert np.isnan(wide(got.output)[0, 1:]).all() and np.isfinite(wide(got.output)[1]).all()


# ---- schedules, sanitizers, banks ----


def launches_of(machine, kind, options, **sizes):
    """The launches of one call, with the memory that they point into, not yet run."""
    kept = []
    machine.cuda = type(machine.cuda)(fake_cupy(kept.append), machine.cuda.cublas)
    q, k, v = (fake(x, TYPES[kind]) for x in operands(np.random.default_rng(1), **sizes))
    given = {name: fake(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    got = machine.api().attention(q, k, v, **given, return_lse=True)
    return kept, [q, k, v, got.output, got.lse, *(x for x in given.values() if isinstance(x, np.ndarray))]


HARD = {
    "full": ({}, {"batch": (), "h": 2, "h_kv": 1, "n": 70, "m": 200, "d_k": 24, "d_v": 40}),
    "by position": ({"is_causal": True, "query_offset": 90}, {"batch": (), "h": 1, "h_kv": 1, "n": 100, "m": 190, "d_k": 16, "d_v": 16}),
    "by pair": (OPTIONS["mask and bias"], {"n": 70, "m": 75, "d_k": 5, "d_v": 7}),
}  # fmt: skip


@pytest.mark.parametrize(("options", "sizes"), HARD.values(), ids=HARD.keys())
def test_every_schedule_gives_the_same_bits(machine, options, sizes):
    launches, memory = launches_of(machine, "float16", options, **sizes)
    found = set()
    for schedule in SCHEDULES:
        for x in memory[3:5]:
            x.view("uint8")[...] = 255
        for launch in launches:
            launch.run(schedule)
        found.add((memory[3].tobytes(), memory[4].tobytes()))
    assert len(found) == 1


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
@pytest.mark.parametrize(("options", "sizes"), HARD.values(), ids=HARD.keys())
def test_sanitizers_find_nothing(machine, tmp_path, sanitizer, options, sizes):
    launches, memory = launches_of(machine, "float16", options, **sizes)
    for launch in launches:
        for schedule in SCHEDULES[:2]:  # copies late, and early
            assert launch.sanitized(sanitizer, memory, tmp_path, schedule) == ""


def test_matrix_loads_have_no_bank_conflicts(machine):
    launches, _ = launches_of(machine, "float16", {}, batch=(), h=1, h_kv=1, n=64, m=64, d_k=64, d_v=64)
    for launch in launches:
        launch.bank_conflicts()
        launch.run()
        assert launch.bank_conflicts() == 1


def test_the_choice_of_kernels_sees_no_values(machine, rng):
    """The same launches whatever the arrays hold, and nothing is read back."""
    machine.cupy.asnumpy = None
    q, k, v = (fake(x, "float16") for x in operands(rng))
    seen = []
    for value in (0.0, np.nan, 6e4):
        k[..., 3, :] = v[..., 3, :] = value
        machine.launches.clear()
        machine.api().attention(q, k, v, key_lengths=fake(np.array([3, 7])))
        seen.append(list(machine.launches))
    assert seen[0] == seen[1] == seen[2]


def test_memory_is_only_the_result(machine, rng):
    """No score matrix: fresh memory is the output and the lse."""
    q, k, v = (fake(x, "float16") for x in operands(rng, batch=(), h=2, h_kv=2, n=40, m=60))
    machine.cupy.allocated.clear()
    machine.api().attention(q, k, v, is_causal=True, query_offset=20, return_lse=True)
    assert machine.cupy.allocated == [2 * 40 * 3 * 2, 2 * 40 * 4]
