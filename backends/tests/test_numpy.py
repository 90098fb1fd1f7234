"""The NumPy backend: its tiles against a plain formula, bitwise non-interference, threads, fork, memory, exact classes."""

import os
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from mha_backends.numpy import attention, calm, forward, keys, short, threads
from mha_backends.numpy import create as create_numpy
from mha_backends.numpy.plan import SHORT, Blocks, plan, usual_blocks
from mha_core import bind
from mha_spec.contract import attention_call

ALL = {"return_weights": True, "return_lse": True}
TILES = [None, Blocks(3, 4, 2), Blocks(2, 5, 80), Blocks(7, 3, 2), Blocks(8, 8, 2**17)]
"""The backend's own blocks, and small ones, so that borders of blocks, tiles and packs fall within small arrays."""


@pytest.fixture(params=[256, 1], ids=["", "calm"])
def many(request, monkeypatch):
    """With 1 the search for calm rows, which is meant for large calls, is made in small ones too."""
    monkeypatch.setattr(keys, "MANY", request.param)


def attend(arrays, options, blocks=None, **more):
    return forward.attend(attention_call(*arrays, **options, **ALL), blocks=blocks, **more)


def visible_pairs(q, k, options):
    """(*batch, h, n, m): the definition, written with whole arrays."""
    *batch, h, n, _ = q.shape
    m = k.shape[-2]
    i, j = np.arange(n)[:, None], np.arange(m)
    see = np.ones((*batch, h, n, m), bool)

    def per_item(x):
        return np.asarray(x, object).reshape(*np.shape(x), 1, 1, 1)

    at = per_item(options.get("query_offset", 0)) + i
    left, right = options.get("window") or (None, None)
    if options.get("is_causal"):
        right = 0
    if left is not None:
        see &= (j - at >= -left).astype(bool)
    if right is not None:
        see &= (j - at <= right).astype(bool)
    if "key_lengths" in options:
        see &= (j < per_item(options["key_lengths"])).astype(bool)
    if "mask" in options:
        see &= options["mask"]
    if "bias" in options:
        see &= options["bias"] != -np.inf
    if "query_segments" in options:
        see &= (options["query_segments"][..., :, None] == options["key_segments"][..., None, :])[..., None, :, :]
    return see


def formula(arrays, options):
    """(output, weights, lse) in float64: the softmax over the visible keys, with whole arrays and no tricks."""
    q, k, v = (x.astype(np.float64) for x in arrays)
    group = q.shape[-3] // max(k.shape[-3], 1)
    k, v = np.repeat(k, group, -3), np.repeat(v, group, -3)
    s = q @ k.mT * options.get("scale", q.shape[-1] ** -0.5 if q.shape[-1] else 1.0)
    if "softcap" in options:
        s = options["softcap"] * np.tanh(s / options["softcap"])
    if "bias" in options:
        s = s + options["bias"].astype(np.float64)
    see = visible_pairs(q, k, options)
    s = np.where(see, s, -np.inf)
    sink = np.full(s.shape[-3], -np.inf) if "sink_logits" not in options else options["sink_logits"].astype(np.float64)
    sink = np.broadcast_to(sink[:, None, None], (*s.shape[:-1], 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        top = np.max(np.concatenate([s, sink], -1), -1, keepdims=True)
        shift = np.where(np.isinf(top), 0, top)
        p = np.where(see, np.exp(s - shift), 0)
        total = p.sum(-1, keepdims=True) + np.exp(sink - shift)
        weights = np.where(see, p / total, 0)
        return weights @ v, weights, (shift + np.log(total))[..., 0]


def request(rng, dtype="float64", most=12):
    """Random arrays and options, each option in about a third of the calls."""
    batch = tuple(rng.integers(1, 4, size=rng.integers(0, 3)).tolist())
    h_kv, group = (int(x) for x in rng.integers(1, 4, size=2))
    n, m, d_k, d_v = (int(x) for x in rng.integers(0, [most, most + 4, 6, 6]))
    h = h_kv * group
    arrays = [
        rng.normal(size=shape).astype(dtype) for shape in ((*batch, h, n, d_k), (*batch, h_kv, m, d_k), (*batch, h_kv, m, d_v))
    ]

    def some(*choices):
        return rng.random() < 0.35 and bool(choices)

    def spread():
        full = (*batch, h, n, m) if rng.random() < 0.6 else (n, m)
        return tuple(1 if rng.random() < 0.25 else size for size in full)

    def integer(low, high):
        return int(rng.integers(low, high)) if rng.random() < 0.5 else rng.integers(low, high, size=batch)

    options = {}
    if some("mask"):
        options["mask"] = rng.random(spread()) < 0.6
    if some("bias"):
        bias = rng.normal(size=spread())
        options["bias"] = np.where(rng.random(bias.shape) < 0.2, -np.inf, bias).astype(rng.choice([dtype, "float64"]))
    if some("causal"):
        options["is_causal"] = True
    if some("window"):
        options["window"] = tuple(None if rng.random() < 0.3 else int(rng.integers(0, most)) for _ in range(2))
    if options.get("is_causal") or any(side is not None for side in options.get("window", ())):
        options["query_offset"] = integer(-most, most)
    if some("lengths"):
        options["key_lengths"] = integer(-1, m + 2)
    if some("segments"):
        options["query_segments"] = rng.integers(0, 3, size=(*batch, n))
        options["key_segments"] = rng.integers(0, 3, size=(*batch, m)).astype("int8")
    if some("scale"):
        options["scale"] = float(rng.choice([0.0, -0.5, 3.0]))
    if some("softcap"):
        options["softcap"] = float(rng.choice([0.5, 2.0, 60.0]))
    if some("sinks"):
        options["sink_logits"] = np.where(rng.random(h) < 0.2, -np.inf, 3 * rng.normal(size=h)).astype(dtype)
    return arrays, options


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("part", range(4))
def test_tiles_give_the_formula(part):
    for seed in range(part, 160, 4):
        arrays, options = request(np.random.default_rng(seed))
        wanted = formula(arrays, options)
        for blocks in TILES:
            got = attend(arrays, options, blocks)
            for name, a, b in zip(got._fields, got, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13, err_msg=f"{name}, seed {seed}, {blocks}, {options}")


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(("dtype", "u"), [("float32", 2.0**-24), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_narrow_types(dtype, u):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    for seed in range(25):
        arrays, options = request(np.random.default_rng(seed), dtype)
        wanted = formula(arrays, options)
        for blocks in TILES[:2]:
            got = attend(arrays, options, blocks)
            assert got.output.dtype == got.weights.dtype == arrays[0].dtype
            assert got.lse.dtype == np.float32
            for name, a, b in zip(got._fields, got, wanted, strict=True):
                width = 64 * (2.0**-24 if name == "lse" else u)
                np.testing.assert_allclose(
                    a.astype(float), b, rtol=width, atol=width, err_msg=f"{name}, seed {seed}, {options}"
                )


def test_default_blocks_on_sizes_that_need_several():
    rng = np.random.default_rng(0)
    for n, m, h, h_kv, d in [
        (700, 1200, 2, 2, 8),
        (130, 1100, 4, 1, 16),
        (1, 70_000, 2, 1, 4),
        (5, 5000, 8, 2, 8),
        (300, 3, 3, 3, 4),
    ]:
        arrays = [rng.normal(size=shape).astype("float32") for shape in ((h, n, d), (h_kv, m, d), (h_kv, m, d))]
        for options in (
            {},
            {"is_causal": True, "query_offset": m - n},
            {"window": (50, 9), "query_offset": 0},
            {"key_lengths": m // 2},
        ):
            for a, b in zip(attend(arrays, options), formula(arrays, options), strict=True):
                np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-6)


# Non-interference, per pair and per bit (MHA-MASK-19), and NaN where it is seen (MHA-MASK-20, MHA-MASK-21).

POISONS = [np.nan, np.inf, -np.inf, 1e18, 1e30, -3e38, 1e-42]


def bits(x):
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


def poisoned(arrays, options, what, j, poison):
    arrays, options = [x.copy() for x in arrays], dict(options)
    if what == "bias":
        see = visible_pairs(arrays[0], arrays[1], options)
        full = np.broadcast_to(options["bias"], see.shape).copy()
        hidden_otherwise = ~visible_pairs(arrays[0], arrays[1], {k: v for k, v in options.items() if k != "bias"})
        full[..., j][hidden_otherwise[..., j]] = poison
        options["bias"] = full
    else:
        arrays[{"key": 1, "value": 2}[what]][..., j, :] = poison
    return arrays, options


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_hidden_moves_no_bit(dtype):
    tried = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        arrays, options = request(rng, dtype)
        q, k, _ = arrays
        if not (q.size and k.shape[-2]):
            continue
        see = visible_pairs(q, k, options)
        for blocks in (TILES[0], TILES[1]):
            clean = attend(arrays, options, blocks)
            for j in rng.choice(k.shape[-2], size=min(2, k.shape[-2]), replace=False):
                what = rng.choice(["key", "value"] + ["bias"] * ("bias" in options))
                with np.errstate(over="ignore"):
                    dirty = attend(*poisoned(arrays, options, what, j, POISONS[rng.integers(len(POISONS))]), blocks)
                away = ~see[..., j]
                tried += away.any()
                for name, a, b in zip(clean._fields, clean, dirty, strict=True):
                    assert (bits(a)[away] == bits(b)[away]).all(), f"{name}, seed {seed}, {what} {j}, {blocks}, {options}"
    assert tried > 30


@pytest.mark.parametrize(("heads", "n"), [(1, 1500), (3, 120)], ids=["blocks", "packed heads"])
def test_a_hidden_giant_does_not_choose_the_path_of_a_row(monkeypatch, heads, n):
    """In the default blocks: a hidden key of 1e18, or one of another head, would end the calm of a tile if it were asked."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(heads, n, 16)).astype("float32") for _ in range(3))
    clean = attention(q, k, v, is_causal=True, **ALL)
    at = 2 * n // 3
    for poison in (1e18, np.nan):
        for which in (1, 2):
            dirty = [q, k.copy(), v.copy()]
            dirty[which][0, at] = poison
            got = attention(*dirty, is_causal=True, **ALL)
            for a, b in zip(clean, got, strict=True):
                assert (bits(a)[0, :at] == bits(b)[0, :at]).all()
                assert (bits(a)[1:] == bits(b)[1:]).all()
    # The test can fail: with a guard over all keys it does.
    monkeypatch.setattr("mha_backends.numpy.calm.Bounds.calm_rows", lambda self, query, *_: np.zeros(query.shape[:-1], bool))
    k[0, at] = 1e18
    got = attention(q, k, v, is_causal=True)
    assert (bits(clean.output)[0, :at] != bits(got)[0, :at]).any()


@pytest.mark.parametrize(
    ("guard", "widened", "score", "value"),
    [("CALM", 1e3, 95.0, 1.0), ("TAME", 2.0**120, -39.0, 2.0**-100)],
    ids=["a score beyond the range of exp2", "a value whose products underflow"],
)
def test_a_row_is_calm_only_where_nothing_leaves_the_range(monkeypatch, guard, widened, score, value):
    q, k, v = np.ones((1, 100, 1), "float32"), np.full((1, 4, 1), score, "float32"), np.full((1, 4, 1), value, "float32")
    assert (attention(q, k, v) == v[0, 0]).all()
    monkeypatch.setattr(calm, guard, widened)  # the test can fail: without the guard it does
    assert not (attention(q, k, v) == v[0, 0]).any()


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (2, 3)}, {"window": (None, 1)}], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_short_call_has_the_bits_that_the_blocks_give(monkeypatch, dtype, options):
    for seed, (batch, h, h_kv, n) in enumerate([((), 1, 1, 1), ((2,), 4, 2, 7), ((2, 3), 3, 3, 20), ((1,), 8, 8, 64)]):
        rng = np.random.default_rng(seed)
        q, k, v = (rng.normal(size=(*batch, heads, n, 8)).astype(dtype) for heads in (h, h_kv, h_kv))
        call = attention_call(q, k, v, **options)
        assert short.is_short(call, SHORT)
        quick = short.attend_short(call)
        v[..., n // 2, :] = np.nan  # then the blocks must answer, and the rows that do not see it must not tell
        see = np.broadcast_to(visible_pairs(q, k, options | {"query_offset": 0})[..., n // 2], quick.shape[:-1])
        assert short.attend_short(call) is None
        assert (bits(attention(q, k, v, **options))[~see] == bits(quick)[~see]).all()
        with monkeypatch.context() as patch:
            patch.setattr(forward, "SHORT", 0)
            v[..., n // 2, :] = 0
            assert (bits(forward.attend(call).output) == bits(short.attend_short(call))).all()


def test_a_hidden_value_does_not_sign_a_zero():
    q, k = np.zeros((1, 1, 1), "float32"), np.zeros((1, 2, 1), "float32")
    tiny = -np.finfo("float32").smallest_subnormal
    k[0, 0] = 1
    for hidden in (1.0, -1.0):
        v = np.asarray([[[tiny], [hidden]]], "float32")
        got = attention(q, k, v, mask=np.asarray([[True, False]]), sink_logits=np.asarray([5.0], "float32"))
        assert got[0, 0, 0] == 0 and not np.signbit(got[0, 0, 0])


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("hiding", [True, False])
def test_nan_reaches_exactly_the_rows_that_see_it(hiding):
    for seed in range(30):
        rng = np.random.default_rng(seed)
        arrays, options = request(rng, "float32")
        if not hiding:
            options = {name: x for name, x in options.items() if name in ("scale", "softcap", "sink_logits")}
        q, k, v = arrays
        if not (q.size and k.size and v.size):
            continue
        see = visible_pairs(q, k, options)
        j, i, c = (int(rng.integers(size)) for size in (k.shape[-2], q.shape[-2], v.shape[-1]))
        for what in ("key", "value", "query"):
            dirty = [x.copy() for x in arrays]
            nan_rows = np.zeros(see.shape[:-1], bool)
            nan = np.zeros((*see.shape[:-1], v.shape[-1]), bool)
            if what == "key":
                dirty[1][..., j, 0] = np.nan
                nan_rows = see[..., j]
            elif what == "query":
                dirty[0][..., i, 0] = np.nan
                nan_rows[..., i] = see.any(-1)[..., i]
            else:
                dirty[2][..., j, c] = np.nan
                nan[..., c] = see[..., j]
            for blocks in TILES[:2]:
                got = attend(dirty, options, blocks)
                np.testing.assert_array_equal(np.isnan(got.output), nan | nan_rows[..., None])
                np.testing.assert_array_equal(np.isnan(got.weights), see & nan_rows[..., None])
                np.testing.assert_array_equal(np.isnan(got.lse), nan_rows)
                assert not got.weights[~see].any()


@pytest.mark.usefixtures("many")
def test_extreme_numbers_stay_exact_in_meaning():
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=shape) for shape in ((2, 6, 4), (2, 9, 4), (2, 9, 4)))
    cases = [
        {"scale": 1e-300}, {"scale": -1e200}, {"scale": 1e60}, {"softcap": 1e-30}, {"softcap": 1e40}, {"softcap": 1e300},
        {"softcap": 1e-300, "scale": 0.0}, {"window": (2**62 - 1, 2**62 - 1), "query_offset": -(2**70)},
        {"is_causal": True, "query_offset": np.asarray(-(2**63))}, {"window": (3, None), "query_offset": np.asarray(2**63 - 1)},
        {"window": (2**62 - 1, 0), "query_offset": np.asarray(2**62)}, {"key_lengths": 2**80}, {"key_lengths": np.asarray(-(2**63))},
        {"sink_logits": np.asarray([1e4, -1e4])}, {"bias": np.full((6, 9), -1e4)}, {"bias": np.full((6, 9), 1e4)},
    ]  # fmt: skip
    for dtype, width in (("float64", 1e-12), ("float32", 2e-3)):
        arrays = [x.astype(dtype) for x in (q, k, v)]
        for options in cases:
            given = {name: x.astype(dtype) if name in ("bias", "sink_logits") else x for name, x in options.items()}
            with np.errstate(over="ignore"):
                wanted = [x.astype(dtype) for x in formula(arrays, given)]
            for blocks in TILES:
                for a, b in zip(attend(arrays, given, blocks), wanted, strict=True):
                    np.testing.assert_allclose(a, b, rtol=width, atol=width, err_msg=f"{dtype} {options} {blocks}")
    small = np.full((1, 2, 1), 1e-30, "float32")
    np.testing.assert_allclose(
        attend((small, small, v[:1, :2, :].astype("float32")), {"scale": 1e60}).lse, 1 + np.log(2), rtol=1e-6
    )


def test_scores_and_products_beyond_the_half_range():
    q = np.full((1, 3, 64), 200, "float16")
    k = np.concatenate([np.full((1, 1, 64), 200), np.full((1, 1, 64), 199.875)], 1).astype("float16")
    v = np.asarray([[[1.0], [3.0]]], "float16")
    got = attention(q, k, v, scale=2.0**-10)
    np.testing.assert_allclose(got, formula((q, k, v), {"scale": 2.0**-10})[0], rtol=1e-3)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("value", [1e-44, 1e-36, 1e36, 3e38])
def test_values_near_the_ends_of_the_range(value):
    rng = np.random.default_rng(0)
    q, k = (3 * rng.normal(size=(1, 20, 8)).astype("float32") for _ in range(2))
    v = (rng.random((1, 20, 3)) * value).astype("float32")
    for options in ({}, {"is_causal": True}):
        wanted = formula((q, k, v), options)[0]
        for blocks in (None, Blocks(4, 5, 2)):
            got = attend((q, k, v), options, blocks).output
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=20 * np.finfo("float32").smallest_subnormal)
        np.testing.assert_allclose(
            attention(q, k, v, **options), wanted, rtol=2e-5, atol=20 * np.finfo("float32").smallest_subnormal
        )


# Shapes and layouts.


def test_empty_axes_and_empty_rows():
    for shape in [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)]:
        x = np.ones(shape, "float32")
        for options in ({}, {"is_causal": True}, {"key_lengths": 1}):
            got = attention(x, x, x, **options, **ALL)
            assert got.output.shape == shape
            assert got.weights.shape == (*shape[:-1], shape[-2])
            assert got.lse.shape == shape[:-1]
    q, none = np.ones((2, 3, 4), "float32"), np.ones((2, 0, 4), "float32")
    sinks = np.asarray([0.1, np.nan], "float32")
    got = attention(q, none, none, sink_logits=sinks, **ALL)
    assert not got.output.any()
    np.testing.assert_array_equal(got.lse, np.repeat(sinks[:, None], 3, 1))
    assert (attention(q, none, none, return_lse=True).lse == -np.inf).all()


@pytest.mark.parametrize("batch", [(2, 3), (1, 2, 2)])
def test_batch_axes_that_are_no_single_axis(batch):
    """A transposed batch, and a mask broadcast along one batch axis only, cannot be joined without a copy."""
    rng = np.random.default_rng(0)
    q, k, v = (np.swapaxes(rng.normal(size=(*batch[::-1], 2, 5, 4)), 0, len(batch) - 1) for _ in range(3))
    mask = rng.random((*batch[:-1], 1, 2, 5, 5)) < 0.6
    lengths = rng.integers(0, 6, size=batch)
    for options in ({}, {"mask": mask}, {"mask": mask, "key_lengths": lengths, "is_causal": True, "query_offset": lengths - 2}):
        for a, b in zip(attend((q, k, v), options), formula((q, k, v), options), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("many")
def test_layouts_and_read_only_operands():
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(2, 2, 9, 4)) for _ in range(3))
    wanted = formula((q, k, v), {})[0]

    def layouts(x):
        yield np.asfortranarray(x)
        yield np.ascontiguousarray(x[..., ::-1])[..., ::-1]
        yield np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, 2)), 1, 2)
        yield np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1]
        raw = np.zeros(x.nbytes + 1, np.uint8)
        unaligned = raw[1:].view(x.dtype).reshape(x.shape)
        unaligned[...] = x
        yield unaligned
        frozen = x.copy()
        frozen.flags.writeable = False
        yield frozen

    for views in zip(layouts(q), layouts(k), layouts(v), strict=True):
        before = [x.copy() for x in views]
        for blocks in TILES:
            np.testing.assert_allclose(attend(views, {}, blocks).output, wanted, rtol=1e-12, atol=1e-13)
        for x, y in zip(views, before, strict=True):
            np.testing.assert_array_equal(x, y)
    one = np.broadcast_to(k[:1, :1, :1], k.shape)
    np.testing.assert_allclose(attend((q, one, v), {}, TILES[1]).output, formula((q, one, v), {})[0], rtol=1e-12)


def test_hidden_tiles_are_not_computed(monkeypatch):
    scores = []
    monkeypatch.setattr(forward, "product", lambda *a, f=forward.product: (scores.append(a[2].size), f(*a))[1])

    def share(**options):
        scores.clear()
        x = np.ones((1, 64, 4), "float32")
        forward.attend(attention_call(x, x, x, **options), blocks=Blocks(8, 8, 2))
        return sum(scores) / 64**2

    ids = np.repeat(np.arange(8), 8)
    assert share() == 1
    assert share(is_causal=True) == pytest.approx(0.5 + 0.5 / 8)
    assert share(window=(8, 0)) < 0.35
    assert share(key_lengths=9) == 9 / 64
    assert share(query_segments=ids, key_segments=ids) == 1 / 8
    assert share(mask=np.tri(64, dtype=bool)) == pytest.approx(0.5 + 0.5 / 8)


# Determinism and threads (MHA-EXEC-7, MHA-EXEC-8).

LARGE = [
    ((3, 4, 16, 8), (3, 2, 16, 8)),  # several items in one task
    ((3, 2, 90, 8), (3, 2, 90, 8)),  # several heads in one task
    ((3, 2, 256, 8), (3, 1, 256, 8)),
    ((2, 2, 600, 16), (2, 2, 700, 16)),  # blocks and tiles
    ((5, 4, 1, 16), (5, 2, 900, 16)),  # decoding
]


@pytest.mark.parametrize(("query", "key"), LARGE)
@pytest.mark.parametrize("option", ["plain", "causal", "lengths", "mask"])
def test_bits_of_an_item_depend_neither_on_the_others_nor_on_threads(query, key, option):
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=shape).astype("float32") for shape in (query, key, key))
    items, n, m = query[0], query[2], key[2]
    options = {
        "plain": {},
        "causal": {"is_causal": True, "query_offset": rng.integers(0, m, size=items)},
        "lengths": {"key_lengths": rng.integers(0, m + 1, size=items)},
        "mask": {"mask": rng.random((items, 1, n, m)) < 0.7},
    }[option]
    whole = attention(q, k, v, **options)
    for b in range(items):
        own = {name: x[b : b + 1] if isinstance(x, np.ndarray) else x for name, x in options.items()}
        alone = attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], **own)
        assert whole[b].tobytes() == alone[0].tobytes()
        single = {name: x[b] if isinstance(x, np.ndarray) else x for name, x in options.items()}
        assert attention(q[b], k[b], v[b], **single).tobytes() == alone[0].tobytes()
    for count in (1, 2, 5):
        assert bind(create_numpy(threads=count)).attention(q, k, v, **options).tobytes() == whole.tobytes()
    with threadpool_limits(1, user_api="blas"):
        assert attention(q, k, v, **options).tobytes() == whole.tobytes()


def blas_threads():
    """Of NumPy's own; another library may bring one more, and at any time."""
    return [x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas" and "numpy" in x["filepath"]]


def test_blas_threads_are_restored():
    before = blas_threads()
    x = np.random.default_rng(0).normal(size=(4, 300, 32)).astype("float32")
    wanted = attention(x, x, x)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: attention(x, x, x), range(12)))
    assert all(y.tobytes() == wanted.tobytes() for y in results)
    assert blas_threads() == before
    with threads.one_blas_thread(), threads.one_blas_thread():
        assert blas_threads() == [1] * len(before)
        assert threads.allowed() == before[0]
    assert blas_threads() == before


def test_no_more_threads_than_the_blas_is_allowed():
    x = np.ones((8, 300, 32), "float32")
    call = attention_call(x, x, x)

    def planned(count):
        sizes = call.sizes._replace(batch=(1,))
        return plan(sizes, usual_blocks(call, 4), count).threads

    with threadpool_limits(1, user_api="blas"):
        assert threads.allowed() == planned(None) == 1
        assert planned(3) == 3  # a setting is what its user wants
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    ask = "from mha_backends.numpy import threads; print(threads.allowed())"
    told = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == "1\n"


def test_an_exception_ends_the_call_and_restores(monkeypatch):
    before = blas_threads()
    x = np.ones((8, 300, 32), "float32")
    monkeypatch.setattr(forward, "_attend_block", lambda *_: 1 / 0)
    for count in (1, 4):
        with pytest.raises(ZeroDivisionError):
            bind(create_numpy(threads=count)).attention(x, x, x)
    assert blas_threads() == before


def test_helpers_share_the_work_and_report_their_errors():
    seen, both = set(), threading.Barrier(2, timeout=10)

    def work(task):
        if task < 2:
            both.wait()
        seen.add(threading.get_ident())
        if task == 5:
            raise KeyError(task)

    with pytest.raises(KeyError):
        threads.each(work, range(6), 2)
    assert len(seen) == 2
    done = []
    threads.each(done.append, range(100), 4)
    assert sorted(done) == list(range(100))


FORK = """
import os, numpy as np
from mha_backends.numpy import threads
from mha_backends.numpy import create
from mha_core import bind
attention = bind(create(threads=4)).attention
x = np.random.default_rng(0).normal(size=(8, 300, 32)).astype("float32")
wanted = attention(x, x, x).tobytes()
before = threads.allowed()
with threads.one_blas_thread():
    child = os.fork()
    if child == 0:
        good = threads.allowed() == before and threads._inside == 0 and attention(x, x, x).tobytes() == wanted
        os._exit(0 if good else 7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert threads._inside == 0 and threads.allowed() == before
assert attention(x, x, x).tobytes() == wanted
print("fine")
"""


@pytest.mark.skipif(not hasattr(sys, "platform") or sys.platform == "win32", reason="there is no fork on Windows")
def test_a_forked_child_can_call():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_extra_memory_is_linear():
    def extra(n, options):
        x = np.ones((2, n, 16), "float32")
        call = attention_call(x, x, x, **options)
        forward.attend(call, threads=2)
        tracemalloc.start()
        forward.attend(call, threads=2)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    for options in ({}, {"is_causal": True}, {"key_lengths": 1000}, {"softcap": 5.0}):
        small, large = extra(2048, options), extra(4096, options)
        assert large < 12 * 2**20  # the scores alone would be 128 MiB
        assert large < 2 * small + 2**20


# The value.


def test_create_knows_one_setting():
    assert create_numpy() is create_numpy(threads=None)
    assert bind(create_numpy()).attention is attention
    with pytest.raises(TypeError, match="threads"):
        create_numpy(device="cpu")
    for wrong in (0, True, 2.0, "2"):
        with pytest.raises(TypeError, match="threads"):
            create_numpy(threads=wrong)


def test_linear_accumulates_half_types_in_float32():
    rng = np.random.default_rng(0)
    linear = create_numpy().linear
    for dtype, width in (("float64", 1e-13), ("float32", 1e-5), ("float16", 1e-3), ("bfloat16", 1e-2)):
        if dtype == "bfloat16":
            pytest.importorskip("ml_dtypes")
        x, w, b = (create_numpy().from_host(rng.normal(size=shape), dtype) for shape in ((2, 5, 300), (300, 7), (7,)))
        wanted = x.astype(float) @ w.astype(float)
        got = linear(x, w, b)
        assert got.dtype == x.dtype
        np.testing.assert_allclose(got.astype(float), wanted + b.astype(float), rtol=width, atol=50 * width)
        np.testing.assert_allclose(linear(x, w, None).astype(float), wanted, rtol=width, atol=50 * width)
        for y in (x, w, b):
            assert not np.shares_memory(got, y)
    big = np.full((1, 4096), 10, "float16")
    assert np.isinf(linear(big, big.T, None)) and linear(big, (big / 100).T, None) == 4096


def test_hosts_values_are_exact():
    backend = create_numpy()
    x = np.asarray([1.5, -0.0, np.inf])
    for dtype in ("float64", "float32", "float16"):
        assert backend.to_host(backend.from_host(x, dtype)).tobytes() == x.astype(dtype).tobytes()
    assert not np.shares_memory(backend.to_host(x), x)
    assert backend.to_host(np.asarray([True])).dtype == bool
    pytest.importorskip("ml_dtypes")
    there = backend.from_host(x, "bfloat16")
    assert str(there.dtype) == "bfloat16" and backend.to_host(there).dtype == np.float32
