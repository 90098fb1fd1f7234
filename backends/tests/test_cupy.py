"""The CuPy backend where there is no GPU: host code and kernels on an emulated CuPy.

The kernels are the CUDA source itself, compiled for this CPU and launched with what a GPU would be given (conformance/emulator).
cuBLAS is a model of its documented argument list. Nothing here shows that the backend runs on a GPU.
"""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cupy_machine import BFLOAT16, TYPES, Machine, draw, fake, formula, operands, wide
from emulator.arrays import DEVICE
from emulator.arrays import Array as FakeArray
from fakes_cupy import DATA_TYPES

from mha_core import BackendUnavailable, Projections, bind

HERE = Path(__file__).parent
KERNELS = HERE.parent / "mha_backends" / "cupy" / "kernels"
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def close(got, want, kind, size=1.0):
    """Within 64 roundings of the type's sums for float64 and float32, and 4 of the type for halves, whose sums are float32."""
    got = np.array(got).astype("float64")
    assert got.shape == want.shape
    roundings = 64 if kind in ("float64", "float32") else 4
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    off = np.abs(got[finite] - want[finite]).max(initial=0.0)
    assert off <= roundings * UNIT[kind] * max(size, 1.0)


def check(machine, kind, q, k, v, largest_score=1.0, **options):
    """All three results against the formula; the inputs stay as they were and share no memory with the results."""
    q, k, v = (fake(x, None if x.dtype == TYPES[kind] else TYPES[kind]) for x in (q, k, v))
    options = {name: fake(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    given = [q, k, v, *(x for x in options.values() if isinstance(x, np.ndarray))]
    before = [np.array(x).tobytes() for x in given]
    got = machine.api().attention(q, k, v, **options, return_weights=True, return_lse=True)
    assert before == [np.array(x).tobytes() for x in given]
    assert not any(np.shares_memory(x, y) for x in got for y in given)
    assert got.output.dtype == got.weights.dtype == TYPES[kind]
    assert got.lse.dtype == ("float64" if kind == "float64" else "float32")
    with np.errstate(all="ignore"):
        output, weights, lse = formula(q, k, v, **options)
    size = float(np.nan_to_num(np.abs(wide(v)), posinf=0).max(initial=0.0))
    close(got.output, output, kind, size * largest_score)
    close(got.weights, weights, kind, largest_score)
    close(got.lse, lse, "float64" if kind == "float64" else "float32", float(np.abs(lse[np.isfinite(lse)]).max(initial=0.0)))
    return got


# ---- numbers ----

NARROW_BIAS = np.array([0.5, -np.inf, np.finfo("float64").min, 1.0, -2.0, 0.0, 3.0])

OPTIONS = {
    "plain": {},
    "scale": {"scale": -0.75},
    "scale 0": {"scale": 0.0},
    "softcap": {"softcap": 0.5},
    "softcap beyond float32": {"softcap": 1e-300},
    "mask per key": {"mask": np.array([[True, False, True, True, False, True, True]])},
    "mask of every axis": {"mask": np.arange(2 * 4 * 5 * 7).reshape(2, 4, 5, 7) % 3 != 0},
    "mask of batch and query": {"mask": np.array([1, 0, 1, 1, 0] * 2, bool).reshape(2, 1, 5, 1)},
    "mask in columns": {"mask": np.asfortranarray(np.arange(35).reshape(5, 7) % 4 != 1)},
    "bias of heads": {"bias": (np.arange(4 * 5 * 7).reshape(1, 4, 5, 7) % 5 - 2) * 0.5},
    "bias -inf and beyond float32": {"bias": NARROW_BIAS[None]},
    "mask and bias": {"mask": np.arange(35).reshape(5, 7) % 3 != 0, "bias": np.arange(7.0)[None]},
    "causal": {"is_causal": True, "query_offset": 0},
    "causal bottom-right": {"is_causal": True, "query_offset": 2},
    "causal before position 0": {"is_causal": True, "query_offset": -3},
    "offset per item": {"is_causal": True, "query_offset": np.array([-2, 4], "int16")},
    "offsets at the ends of int64": {"is_causal": True, "query_offset": np.array([-(2**63), 2**63 - 1])},
    "window": {"window": (1, 2), "query_offset": 1},
    "window open on the left": {"window": (None, 1), "query_offset": np.array([0, 250], "uint8")},
    "window open on the right": {"window": (0, None), "query_offset": np.array([0, -(2**63)])},
    "window as large as may be": {"window": (2**62 - 1, 2**62 - 1), "query_offset": np.array([2**63 - 1, 3])},
    "causal window": {"window": (2, 4), "is_causal": True, "query_offset": 2},
    "length": {"key_lengths": 3},
    "length beyond": {"key_lengths": 10**30},
    "length negative": {"key_lengths": -1},
    "lengths": {"key_lengths": np.array([5, 0], "uint8")},
    "lengths at the ends of int64": {"key_lengths": np.array([-(2**63), 2**63 - 1])},
    "segments": {
        "query_segments": np.array([[0, 0, 1, 2, 9], [3, 3, 3, 4, 4]], "int8"),
        "key_segments": np.array([[0, 0, 1, 1, 2, 2, 2], [4, 4, 3, 3, 3, 7, 7]], "uint32"),
    },
    "sink": {"sink_logits": np.array([0.0, 2.0, -np.inf, 40.0])},
    "sink and empty rows": {"sink_logits": np.array([0.0, 2.0, -np.inf, 1.0]), "is_causal": True, "query_offset": -3},
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_option(machine, rng, options, kind):
    if "bias" in options and np.nanmax(np.abs(options["bias"])) < 10:  # else it stays float64: wider, and beyond the type
        options = options | {"bias": options["bias"].astype(TYPES[kind])}
    check(machine, kind, *operands(rng), **options)


@pytest.mark.parametrize("seed", range(40))
def test_random_call(machine, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    if seed % 2:  # chunks of a query or two
        monkeypatch.setattr(sys.modules["mha_backends.cupy.unfused"], "CHUNK", 100)
    (q, k, v), options = draw(rng)
    check(machine, "float64", q, k, v, **options)


@pytest.mark.parametrize("sizes", [
    {"n": 0}, {"m": 0}, {"d_k": 0}, {"d_v": 0}, {"batch": (0,)}, {"batch": (2, 0)}, {"h": 0, "h_kv": 0}, {"n": 1, "m": 1},
    {"n": 0, "m": 0}, {"m": 0, "d_v": 0}, {"h_kv": 1}, {"h_kv": 4}, {"batch": ()}, {"batch": (2, 1, 3), "n": 2},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", ["float64", "float16"])
def test_sizes(machine, rng, sizes, kind):
    q, k, v = operands(rng, **sizes)
    check(machine, kind, q, k, v)
    check(machine, kind, q, k, v, is_causal=True, query_offset=1, sink_logits=np.ones(q.shape[-3]))


@pytest.mark.parametrize("shape", [(2, 1, 1, 5, 7), (1, 3, 4, 1, 7), (2, 3, 1, 1, 1), (1, 1, 1, 5, 7)])
def test_mask_and_bias_broadcast_over_some_batch_axes(machine, rng, shape):
    """They are walked in place: what is broadcast is not copied out."""
    q, k, v = operands(rng, batch=(2, 3))
    check(machine, "float32", q, k, v, mask=rng.random(shape) < 0.6, bias=rng.standard_normal(shape).astype("float32"))


def test_large_scores(machine, rng):
    """MHA-ATTN-13, MHA-MASK-3, MHA-MASK-6, MHA-NUM-10: no overflow, no sentinel, nothing hidden by its size."""
    q, k, v = operands(rng, batch=(), h=2)
    check(machine, "float64", q * 100, k * 100, v)
    check(machine, "float32", q, k, v, bias=np.arange(7, dtype="float32")[None] - 100000, largest_score=1e5)
    check(machine, "float16", np.full((1, 1, 4), 256.0), np.full((1, 2, 4), 256.0), np.ones((1, 2, 3)), scale=2.0**-18)
    lowest = np.full((5, 7), np.finfo("float64").min)
    output = machine.api().attention(*(fake(x, "float32") for x in (q, k, v)), bias=fake(lowest))
    close(output, np.broadcast_to(np.repeat(v.mean(-2, keepdims=True), 1, 0), output.shape), "float32", 4)


@pytest.mark.parametrize(("number", "scale"), [(1e20, 1.0), (1e20, 0.0), (2.0, 1e300), (2.0, -1e300)])
def test_a_score_that_overflows_hides_nothing(machine, number, scale):
    """MHA-MASK-6: two keys whose scores are beyond float32 share the weight; an overflow times a scale of 0 is 0."""
    q, k = np.full((1, 1, 1), number), np.full((1, 2, 1), -number)
    got = machine.api().attention(
        fake(q, "float32"), fake(k, "float32"), fake(np.array([[[1.0], [3.0]]], "float32")), scale=scale
    )
    assert got == 2


def test_many_float16_keys(machine):
    """A weight of 2^-13 among many is not lost in float16's few exponents: shares are divided after the product."""
    m = 2**13
    v = np.ones((1, m, 1))
    check(machine, "float16", np.zeros((1, 1, 1)), np.zeros((1, m, 1)), v)
    bias = np.full((1, m), -12.0, "float32")  # e^-12 is a subnormal of float16: so are the weights to be summed
    bias[0, 0] = 0
    v[0, 0] = 0
    check(machine, "float16", np.zeros((1, 1, 1)), np.zeros((1, m, 1)), v, bias=bias)


def test_large_values(machine):
    """A sum of weights times values is no larger than the largest value, also on the way."""
    for kind in ("float32", "bfloat16"):
        largest = 2.0**127
        check(machine, kind, np.zeros((1, 1, 1)), np.zeros((1, 4, 1)), np.full((1, 4, 2), largest))


# ---- hidden data, NaN ----

HIDERS = {
    "mask": {"mask": np.array([[True, True, False, True, False]] * 3)},
    "bias": {"bias": np.array([[0.0, 1.0, -np.inf, 0.0, -np.inf]], "float32")},
    "causal": {"is_causal": True, "query_offset": 0},
    "window": {"window": (1, 0), "query_offset": 2},
    "lengths": {"key_lengths": np.array([2])},
    "segments": {"query_segments": np.array([[0, 1, 0]]), "key_segments": np.array([[0, 1, 2, 1, 2]])},
}


@pytest.mark.parametrize(
    ("kind", "poison"),
    [(kind, x) for kind, large in (("float32", 1e18), ("float16", 6e4)) for x in (np.nan, np.inf, -np.inf, large)],
)
@pytest.mark.parametrize("options", HIDERS.values(), ids=HIDERS.keys())
def test_hidden_data_moves_no_bit(machine, rng, options, kind, poison):
    """MHA-MASK-18, MHA-MASK-19: poison key by key; the rows that do not see it keep every bit, of -0 too."""
    q, k, v = (x.astype(TYPES[kind]) for x in operands(rng, batch=(1,), n=3, m=5))
    ask = {"return_weights": True, "return_lse": True} | {
        n: fake(x) if isinstance(x, np.ndarray) else x for n, x in options.items()
    }
    clean = machine.api().attention(fake(q), fake(k), fake(v), **ask)
    seen = formula(q, k, v, **options)[1] > 0  # every visible pair has a weight here
    for j in range(5):
        k_j, v_j = k.copy(), v.copy()
        k_j[..., j, :] = poison
        v_j[..., j, :] = poison
        got = machine.api().attention(fake(q), fake(k_j), fake(v_j), **ask)
        unseeing = ~seen[..., j]
        for before, after in zip(clean, got, strict=True):
            assert before[unseeing].tobytes() == after[unseeing].tobytes()
        assert not got.weights[~seen].any(), "hidden keys have weight 0, in NaN rows too (MHA-AUX-2)"


def test_nan_reaches_the_rows_that_see_it(machine, rng):
    """MHA-MASK-20 to 22."""
    q, k, v = (x.astype("float32") for x in operands(rng, batch=(), h=2, n=4, m=4))
    bias = np.zeros((4, 4), "float32")
    bias[2, 1] = np.nan
    bias[0, 3] = np.nan  # causally hidden
    attention = machine.api().attention
    nan = np.isnan(attention(fake(q), fake(k), fake(v), bias=fake(bias), is_causal=True))
    assert nan[:, 2].all()
    assert not nan[:, [0, 1, 3]].any()

    broken = q.copy()
    broken[1, 2] = np.nan
    nan = np.isnan(attention(fake(broken), fake(k), fake(v), is_causal=True, scale=0.0))
    assert nan[1, 2].all()
    assert nan.sum() == 3

    for value in (np.nan, np.inf):  # one channel of one value; its weight underflows
        broken = v.copy()
        broken[0, 1, 2] = value
        far = fake(np.where(np.arange(4) == 1, -1e30, 0.0)[None].astype("float32"))
        nan = np.isnan(attention(fake(q), fake(k), fake(broken), bias=far, is_causal=True))
        assert nan[0, 1:, 2].all()
        assert nan.sum() == 3

    broken = v.copy()
    broken[0, 1, 2] = np.nan
    nan = np.isnan(attention(fake(q), fake(k), fake(broken)))  # nothing can hide: every row, that channel
    assert nan[0, :, 2].all()
    assert nan.sum() == 4

    sinks = fake(np.array([np.nan, 1.0], "float32"))
    got = attention(fake(q), fake(k), fake(v), sink_logits=sinks, is_causal=True, query_offset=-1, return_lse=True)
    assert not got.output[:, 0].any()  # empty: output 0, and lse is the sink's logit
    assert np.isnan(got.lse[0]).all()
    assert got.lse[1, 0] == 1
    assert np.isnan(got.output[0, 1:]).all()
    assert np.isfinite(got.output[1]).all()


def test_nan_keeps_to_its_kv_head_and_channel(machine, rng):
    """MHA-MASK-21 with grouped heads: query heads 2 and 3 read kv head 1; row 0 sees key 0 alone, the others keys 0 and 1."""
    q, k, v = (x.astype("float32") for x in operands(rng, batch=(), n=3, m=3))
    v[1, 0, 2] = v[1, 1, 1] = v[1, 2, 0] = np.nan
    mask = np.array([[True, False, False], [True, True, False], [True, True, False]])
    nan = np.isnan(machine.api().attention(fake(q), fake(k), fake(v), mask=fake(mask)))
    want = np.zeros((4, 3, 3), bool)
    want[2:, :, 2] = True
    want[2:, 1:, 1] = True
    np.testing.assert_array_equal(nan, want)


@pytest.mark.parametrize("by", ["bias", "sink"])
def test_weights_of_a_nan_row(machine, rng, by):
    """NaN for what is visible, also where the weight underflows; 0 for what is hidden (MHA-AUX-2)."""
    q, k, v = (fake(x, "float32") for x in operands(rng, batch=(), n=1, m=4))
    bias = fake(np.array([[np.nan if by == "bias" else 0, -1e30, -np.inf, 0]], "float32"))
    sinks = fake(np.full(4, np.nan, "float32")) if by == "sink" else None
    got = machine.api().attention(q, k, v, bias=bias, sink_logits=sinks, return_weights=True, return_lse=True)
    np.testing.assert_array_equal(np.isnan(got.weights), np.broadcast_to([[True, True, False, True]], (4, 1, 4)))
    assert not got.weights[..., 2].any()
    assert np.isnan(got.output).all()
    assert np.isnan(got.lse).all()


def test_hidden_values_give_no_sign_to_zero(machine):
    """0 * v of a hidden key is +0 or -0, and so would be the sum with a visible -0."""
    q, k = fake(np.zeros((1, 1, 1))), fake(np.zeros((1, 2, 1)))
    outputs = [
        machine.api().attention(q, k, fake(np.array([[[-0.0], [hidden]]])), key_lengths=1).tobytes() for hidden in (5.0, -5.0)
    ]
    assert outputs[0] == outputs[1]


# ---- the arithmetic of the half types ----


def test_half_types_are_converted_exactly(machine):
    """Every bit pattern in, and rounding to nearest even out, against NumPy and ml_dtypes."""
    params_of = importlib.import_module("mha_backends.cupy.params")
    programs = importlib.import_module("mha_backends.cupy.programs")
    patterns = np.arange(2**16, dtype="uint16")
    rng = np.random.default_rng(1)
    some = rng.integers(0, 2**32, 2**16, dtype="uint32").view("float32")
    with np.errstate(all="ignore"):
        halves = patterns.view("float16")
        halfway = (halves.astype("float32") + np.nextafter(halves, np.float16(np.inf)).astype("float32")) / 2
        small = rng.uniform(-1, 1, 2**16).astype("float32") * 2.0**-14
    for code, kind in ((1, np.dtype("float16")), (2, BFLOAT16)):
        nothing = np.zeros(2**16)
        for acc, bias in ((nothing, patterns.view(kind)), (some, nothing), (small, nothing), (halfway, nothing)):
            acc, bias = acc.astype("float32"), bias.astype(kind)
            out = np.empty(2**16, kind)
            fields = {"acc": acc, "bias": bias, "output": out}
            params = params_of.pack(
                params_of.LINEAR, **{name: x.ctypes.data for name, x in fields.items()},
                bias_j=2, element=code, size=2**16, columns=2**16,
            )  # fmt: skip
            programs.launch(machine.cuda, programs.UNFUSED, "finish_linear_float", 2**16 // 256, 256, params)
            with np.errstate(all="ignore"):
                want = (acc + bias.astype("float32")).astype(kind)
            numbers_only = ~np.isnan(want.astype("float32"))
            np.testing.assert_array_equal(numbers_only, ~np.isnan(out.astype("float32")))
            assert out[numbers_only].tobytes() == want[numbers_only].tobytes()


# ---- products and layers ----


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear(machine, rng, kind, with_bias):
    x, w, b = rng.standard_normal((2, 3, 5)), rng.standard_normal((4, 5)).T, rng.standard_normal(8)[::2] if with_bias else None
    x, w, b = (None if a is None else fake(a, TYPES[kind]) for a in (x, w, b))
    got = machine.api().backend.linear(x, w, b)
    assert got.dtype == TYPES[kind]
    close(got, wide(x) @ wide(w) + (0 if b is None else wide(b)), kind, 8)
    assert machine.api().backend.linear(x[:0], w, b).shape == (0, 3, 4)
    empty = machine.api().backend.linear(x[..., :0], w[:0], b)
    close(empty, np.broadcast_to(0 if b is None else wide(b), (2, 3, 4)), kind)


def test_multi_head_attention(machine, rng):
    """MHA-PROJ-3: the layer through ``linear`` and ``attend`` is the sum over heads of the paper."""
    x = rng.standard_normal((2, 5, 6))
    w_q, w_k, w_v = (rng.standard_normal((s, 6, d)) for s, d in ((4, 3), (2, 3), (2, 2)))
    w_o = rng.standard_normal((4, 2, 7))
    got = machine.api().multi_head_attention(*[fake(x)] * 3, Projections(*map(fake, (w_q, w_k, w_v, w_o))), is_causal=True)
    q, k, v = (np.einsum("bni,hid->bhnd", x, w) for w in (w_q, w_k, w_v))
    close(got, np.einsum("bhnd,hdo->bno", formula(q, k, v, is_causal=True)[0], w_o), "float64", 64)


@pytest.fixture
def no_tensor_cores(monkeypatch):
    """A device for which ``choose`` takes the unfused layer, whatever the dtype."""
    monkeypatch.setattr(DEVICE, "compute_capability", "75")


def test_products_use_the_arrays_in_place(machine, rng, no_tensor_cores):
    """No copy of query, key or value: heads and batch items are one call where strides allow, grouped heads stride 0."""
    b, h, h_kv, n, m, d = 3, 4, 2, 5, 7, 4
    plain = [fake(x, "float16") for x in (rng.random((b, h, n, d)), rng.random((b, h_kv, m, d)), rng.random((b, h_kv, m, d)))]
    tokens = [fake(np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)) for x in plain]
    machine.cupy.ascontiguousarray = None
    for arrays, calls in ((plain, 2), (tokens, 4)):
        machine.cublas.calls.clear()
        machine.cupy.allocated.clear()
        machine.api().attention(*arrays)
        assert len(machine.cublas.calls) == 2 * calls
        assert {call["type"] for call in machine.cublas.calls} == {2}
        scores = b * h * n * m
        assert sum(machine.cupy.allocated) == 2 * b * h * n * d + scores * (4 + 2) + b * h * n * (4 * d + 4 + 4)


def test_memory_is_linear_in_n_and_m(machine, rng, monkeypatch):
    monkeypatch.setattr(sys.modules["mha_backends.cupy.unfused"], "CHUNK", 64)
    for n, m in ((20, 30), (40, 30), (20, 60)):
        machine.cupy.allocated.clear()
        q, k, v = (fake(x, "float32") for x in operands(rng, batch=(), h=2, h_kv=2, n=n, m=m))
        machine.api().attention(q, k, v, is_causal=True, query_offset=3)
        per_row, rows = 2 * (m + 3 + 1 + 1) * 4, max(1, 64 // (2 * m))
        assert sum(machine.cupy.allocated) <= 2 * n * 3 * 4 + 2 * m * 3 * 4 + rows * per_row


def test_tf32_is_asked_for_and_declared(machine, rng, no_tensor_cores):
    """MHA-NUM-11. 68 is float32 with float32 factors, 77 the same with TF32 factors, 70 float64."""
    arrays = operands(rng)
    for tf32, kind, compute in ((False, "float32", 68), (True, "float32", 77), (True, "float16", 68), (True, "float64", 70)):
        machine.cublas.calls.clear()
        machine.api(tf32).attention(*(fake(x, TYPES[kind]) for x in arrays))
        assert {call["compute"] for call in machine.cublas.calls} == {compute}
    assert machine.api(True).backend.claims.profiles["float32"] == "PTF32"
    assert machine.api(False).backend.claims.profiles["float32"] == "P32"


def test_the_choice_of_kernels_sees_no_values(machine, rng):
    """The same launches and products whatever the arrays hold, and nothing is read back."""
    machine.cupy.asnumpy = None
    q, k, v = (fake(x, "float32") for x in operands(rng))
    seen = []
    for value in (0.0, np.nan, 1e30):
        k[..., 3, :] = v[..., 3, :] = value
        machine.cublas.calls.clear()
        machine.launches.clear()
        machine.api().attention(q, k, v, key_lengths=fake(np.array([3, 7])))
        seen.append((list(machine.cublas.calls), list(machine.launches)))
    assert seen[0] == seen[1] == seen[2]


# ---- what both sides must agree on ----


def test_structures_have_the_fields_that_the_host_packs(backend_package):
    params = importlib.import_module("mha_backends.cupy.params")
    text = re.sub(r"//.*", "", importlib.import_module("mha_backends.cupy.programs").UNFUSED.source)
    for name, layout in (("Params", params.PARAMS), ("Linear", params.LINEAR)):
        body = re.search(rf"struct {name} \{{(.*?)\}};", text, re.S).group(1)
        kinds = {"char*": "u8", "long long": "i8", "double": "f8"}
        declared = []
        for kind, names in re.findall(r"(char\*|long long|double)\s+([\w,\s]+);", body):
            declared += [(field.strip(), kinds[kind]) for field in names.split(",")]
        assert declared == [(field, layout[field].str[1:]) for field in layout.names]
        assert layout.itemsize == 8 * len(declared)


def test_source_stands_alone_and_cites_clauses_that_exist(backend_package):
    text = "".join(file.read_text(encoding="utf-8") for file in KERNELS.glob("*.cu"))
    assert "#include" not in text
    chapters = HERE.parents[1] / "spec" / "mha_spec" / "text"
    defined = set(
        re.findall(r"\*\*(MHA-[A-Z]+-\d+)\*\*", "".join(x.read_text(encoding="utf-8") for x in chapters.glob("*.md")))
    )
    cited = set(re.findall(r"MHA-[A-Z]+-\d+", text))
    assert len(cited) > 20
    assert cited <= defined


# ---- the backend as a value ----


def test_claims(machine):
    backend = machine.api().backend
    assert backend.claims.arrays == "cupy"
    assert backend.claims.strict is False
    assert backend.claims.determinism == "run-to-run"
    assert backend.devices() == ("cuda:0",)
    for kind in backend.claims.dtypes:
        array = backend.from_host(np.array([1.5, -np.inf]), kind)
        assert type(array) is FakeArray
        assert array.dtype == TYPES[kind]
        back = backend.to_host(array)
        assert back.dtype == ("float32" if kind == "bfloat16" else kind)
        np.testing.assert_array_equal(back, [1.5, -np.inf])


def test_settings(backend_package):
    assert backend_package.create() is backend_package.create(tf32=False)
    assert backend_package.attention is bind(backend_package.create()).attention
    with pytest.raises(TypeError, match="tf32"):
        backend_package.create(threads=4)
    with pytest.raises(TypeError, match="True or False"):
        backend_package.create(tf32=1)


def test_without_a_device_nothing_runs(backend_package, rng):
    """NOT_RUN is said, and no other device is taken."""
    machine = Machine(has_device=False)
    api = machine.api()
    assert api.backend.devices() == ()
    arrays = [fake(x) for x in operands(rng)]
    refusals = (
        lambda: api.attention(*arrays),
        lambda: api.backend.linear(arrays[0], arrays[0][0, 0].T, None),
        lambda: api.backend.from_host(np.ones(2), "float32"),
    )
    for refused in refusals:
        with pytest.raises(BackendUnavailable, match="NOT_RUN: no CUDA device"):
            refused()


def test_without_cupy_the_import_says_what_to_install():
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        "import mha_core\n"
        "try: import mha_backends.cupy\n"
        "except mha_core.BackendUnavailable as error: print(error)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment).stdout
    assert "pip install 'mha-core[cuda12]' or 'mha-core[cuda13]'" in said


def test_fake_cublas_knows_the_same_types(backend_package):
    cublas = importlib.import_module("mha_backends.cupy.cublas")
    assert {kind: DATA_TYPES[code] for kind, code in cublas.DATA_TYPE.items()} == TYPES
