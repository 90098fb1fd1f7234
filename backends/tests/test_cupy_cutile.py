"""The cuTile kernels where there is no GPU: their Python bodies on NumPy, launched by the host code, within the bounds of chapter 4.

What cuda-tile makes of them is in the dated result of ``backends/campaigns/cutile_kernels.py``. Nothing here shows that they run on a GPU.
"""

import importlib
from dataclasses import replace

import cutile_numpy
import numpy as np
import pytest
from cupy_machine import TYPES, Machine, fake, formula, operands, relaid, wide
from emulator import arrays
from test_emulated_conformance import in_half

from mha_conformance.cases import catalogue
from mha_conformance.judge.judge import judge
from mha_conformance.run.implementation import Implementation
from mha_conformance.run.perform import Asked, perform
from mha_core import BackendUnavailable, bind
from mha_spec.call import Cotangents, Sizes
from mha_spec.numerics import PROFILES, attention_bound, error_ratio
from mha_spec.numerics_backward import gradient_bound

KINDS = {"float16": "P16", "bfloat16": "PB16", "float32": "P32"}
PLAIN = Sizes((2,), 8, 8, 1024, 1024, 64, 64)


@pytest.fixture
def ct(backend_package):
    with cutile_numpy.installed() as played:
        yield played


@pytest.fixture
def api(ct, monkeypatch):
    """The backend with ``kernel="cutile"`` on a device of capability 9.0; what is not for cuTile fails.

    The kernels take float32 here, for which no choice is made on a device: fewer roundings show more faults.
    """
    monkeypatch.setattr(arrays.DEVICE, "compute_capability", "90")
    machine = Machine()
    machine.cupy.cuda.get_current_stream = lambda: arrays.SimpleNamespace(ptr=7)
    backend, choice = (importlib.import_module(f"mha_backends.cupy.{name}") for name in ("backend", "cutile_choice"))

    def chosen(capability, dtype, sizes, options, scale, choose=choice.choose_tiled):
        tiled = choose(capability, "bfloat16" if dtype == "float32" else dtype, sizes, options, scale)
        return tiled if isinstance(tiled, str) else tiled._replace(element=dtype)

    def not_ours(*arguments):
        raise RuntimeError("this call went to another layer")

    monkeypatch.setattr(choice, "choose_tiled", chosen)
    base = backend.build(machine.cuda, False)
    claims = replace(base.claims, features=base.claims.features | {"vjp"})
    return bind(backend.with_cutile(machine.cuda, replace(base, attend=not_ours, attend_vjp=not_ours, claims=claims)))


def worst(api, kind, q, k, v, **options):
    """The largest error / bound of output, lse and the three gradients."""
    q, k, v = (fake(x, TYPES[kind]) if x.dtype != TYPES[kind] else fake(x) for x in (q, k, v))
    rng = np.random.default_rng(1)
    shape = (*q.shape[:-1], v.shape[-1])
    g, g_lse = fake(rng.standard_normal(shape), TYPES[kind]), fake(rng.standard_normal(shape[:-1]), "float32")
    before = [x.tobytes() for x in (q, k, v, g, g_lse)]
    got = api.attention(q, k, v, **options, return_lse=True)
    grads = api.attention_vjp(q, k, v, g, grad_lse=g_lse, **options)
    assert before == [x.tobytes() for x in (q, k, v, g, g_lse)]
    assert got.output.dtype == TYPES[kind] and got.lse.dtype == "float32"
    assert [(x.shape, x.dtype) for x in grads[:3]] == [(x.shape, x.dtype) for x in (q, k, v)]

    ask = {
        "scale": options.get("scale", q.shape[-1] ** -0.5),
        "visible": formula(*(np.zeros(x.shape) for x in (q, k, v)), **{**options, "scale": None})[1] > 0,
    }
    bounds = attention_bound(wide(q), wide(k), wide(v), PROFILES[KINDS[kind]], **ask)
    ratios = [
        error_ratio(wide(got.output), bounds.truth.output, bounds.output),
        error_ratio(wide(got.lse), bounds.truth.lse, bounds.lse),
    ]
    found = gradient_bound(wide(q), wide(k), wide(v), Cotangents(wide(g), wide(g_lse)), PROFILES[KINDS[kind]], **ask)
    for name in ("query", "key", "value"):
        ratios.append(error_ratio(wide(getattr(grads, name)), getattr(found.truth, name), getattr(found, name)))
    return max(float(ratio.max(initial=0)) for ratio in ratios)


CALLS = {
    "one tile": ({"n": 5, "m": 7}, {}),
    "whole tiles": ({"n": 128, "m": 64, "d_k": 64, "d_v": 64}, {}),
    "tails, grouped heads": ({"batch": (), "n": 130, "m": 200, "d_k": 40, "d_v": 24}, {}),
    "the widest": ({"batch": (), "h": 1, "h_kv": 1, "n": 70, "m": 150, "d_k": 128, "d_v": 128}, {}),
    "two batch axes": ({"batch": (2, 3), "h": 2, "n": 3, "m": 4}, {}),
    "causal": ({"batch": (), "n": 200, "m": 200}, {"is_causal": True}),
    "causal, wide": ({"batch": (), "h": 2, "h_kv": 1, "n": 150, "m": 150, "d_k": 96, "d_v": 128}, {"is_causal": True}),
    "causal bottom-right": ({"n": 70, "m": 200}, {"is_causal": True, "query_offset": 130}),
    "causal top-left": ({"n": 200, "m": 70}, {"is_causal": True, "query_offset": 0}),
    "decoding": ({"n": 1, "m": 200}, {"is_causal": True, "query_offset": 199}),
    "rows that see nothing": ({"n": 200, "m": 100}, {"is_causal": True, "query_offset": -140}),
    "nobody sees anything": ({"n": 9, "m": 9}, {"is_causal": True, "query_offset": -(10**30)}),
    "everybody sees everything": ({"n": 9, "m": 9}, {"is_causal": True, "query_offset": 10**30}),
    "scale": ({"n": 9, "m": 70}, {"scale": -0.75}),
    "scale 0": ({"n": 9, "m": 70}, {"scale": 0.0}),
    "a large scale": ({"n": 9, "m": 70}, {"scale": 2.0**39}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sizes", "options"), CALLS.values(), ids=CALLS.keys())
def test_within_the_bounds(api, rng, sizes, options, kind):
    assert worst(api, kind, *operands(rng, **sizes), **options) <= 1


@pytest.mark.parametrize("how", range(1, 7))
def test_layouts_change_no_bit(api, rng, how):
    class Fixed:
        integers = staticmethod(lambda _: how)

    arrays_ = [x.astype("float16") for x in operands(rng, n=70, m=75, d_k=16, d_v=16)]
    given = [relaid(Fixed, x) for x in arrays_]
    want = api.attention(*(fake(np.array(x)) for x in given), return_lse=True)
    got = api.attention(*map(fake, given), return_lse=True)
    assert [x.tobytes() for x in got if x is not None] == [x.tobytes() for x in want if x is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_data_moves_no_bit_and_nan_reaches_who_sees_it(api, rng, kind):
    """MHA-MASK-18 to MHA-MASK-21, MHA-GRAD-14 to MHA-GRAD-16, across tiles of the causal band."""
    n = 150
    clean = [x.astype(TYPES[kind]) for x in operands(rng, batch=(), h=1, h_kv=1, n=n, m=n)]
    g = rng.standard_normal((1, n, 3)).astype(TYPES[kind])

    def run(q, k, v, g):
        given = [fake(x) for x in (q, k, v)]
        out = api.attention(*given, is_causal=True, return_lse=True)
        grads = api.attention_vjp(*given, fake(g), is_causal=True)
        return [np.array(x) for x in (out.output, out.lse, *grads[:3])]

    def same(x, y):
        assert x.tobytes() == y.tobytes()

    want = run(*clean, g)
    at = 100
    for wild in (np.nan, np.inf, -np.inf, 30000.0):
        q, k, v = (x.copy() for x in clean)
        k[0, at], v[0, at, 1] = wild, wild
        output, lse, dq, *_ = run(q, k, v, g)
        for x, y in ((output, want[0]), (lse, want[1]), (dq, want[2])):
            same(x[:, :at], y[:, :at])
        if np.isnan(wild):
            assert np.isnan(wide(output[:, at:])).all() and np.isnan(lse[:, at:]).all() and np.isnan(wide(dq[:, at:])).all()
        q, dirty = clean[0].copy(), g.copy()
        q[0, at], dirty[0, at] = wild, wild
        _, _, _, dk, dv = run(q, *clean[1:], dirty)
        same(dk[:, at + 1 :], want[3][:, at + 1 :])
        same(dv[:, at + 1 :], want[4][:, at + 1 :])
        if np.isnan(wild):
            assert np.isnan(wide(dk[:, : at + 1])).all() and np.isnan(wide(dv[:, : at + 1])).all()
    v = clean[2].copy()
    v[0, at, 1] = np.nan
    output = wide(run(*clean[:2], v, g)[0])
    assert (
        np.isnan(output[:, at:, 1]).all() and not np.isnan(output[:, at:, [0, 2]]).any() and not np.isnan(output[:, :at]).any()
    )
    dirty = g.copy()
    dirty[0, at, 1] = np.nan
    dv = wide(run(*clean, dirty)[4])
    assert np.isnan(dv[:, : at + 1, 1]).all() and not np.isnan(dv[:, :, [0, 2]]).any() and not np.isnan(dv[:, at + 1 :]).any()


def test_large_numbers(api):
    """MHA-MASK-6, MHA-NUM-10: no score that overflows hides a key, and no sum of bfloat16 values leaves float32."""
    q, k = np.full((1, 1, 1), 1e20), np.full((1, 2, 1), -1e20)
    assert api.attention(*(fake(x, TYPES["bfloat16"]) for x in (q, k, np.array([[[1.0], [3.0]]])))) == 2
    v = fake(np.full((1, 300, 2), 2.0**127), TYPES["bfloat16"])
    zeros = [fake(np.zeros((1, size, 1)), TYPES["bfloat16"]) for size in (1, 300)]
    assert (api.attention(*zeros, v) == v[:, :1]).all()


def test_what_the_forward_kept_gives_the_same_gradients(api, rng):
    q, k, v = (fake(x, "float16") for x in operands(rng, n=70, m=70))
    g = fake(rng.standard_normal((2, 4, 70, 3)), "float16")
    kept = api.attention(q, k, v, is_causal=True, return_lse=True)
    again = api.attention_vjp(q, k, v, g, is_causal=True, output=kept.output, lse=kept.lse)
    want = api.attention_vjp(q, k, v, g, is_causal=True)
    assert [x.tobytes() for x in again[:3]] == [x.tobytes() for x in want[:3]]


# ---- the suite ----


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_every_case_that_reaches_the_kernels_passes(api, kind):
    """Those of the type itself, and those of float32 with every number rounded to it, hidden bits among them."""
    claims = api.backend.claims
    implementation = Implementation(
        name="cupy", attention=api.attention, claims=claims, convert=lambda x, name: fake(x), explain=api.explain, doors=True
    )
    found = []
    for case in (*(case for case in catalogue() if case.dtype == kind), *in_half(kind)):
        if not case.wanted_at("core") or case.rule == "refused" or {asked.target for asked in case.make()} != {"attention"}:
            continue
        replies = perform(implementation, Asked.by(case))
        if all(reply.kernel.startswith("cutile") for reply in replies):
            found.append(judge(case, replies, claims))
    assert {v.case: v.reason for v in found if v.status != "PASS"} == {}
    assert len(found) >= 60


# ---- the choice ----


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({}, "cutile: float16, d 64, full, tiles of 128 queries and 64 keys"),
        ({"options": ["causal", "lse"], "dtype": "bfloat16", "d_k": 65}, "cutile: bfloat16, d 128, causal"),
        ({"capability": 100}, "cutile"),
        ({"capability": 80}, "compute capability 8.0 is none of 9.0, 10.0, 10.3"),
        ({"capability": 120}, "compute capability 12.0"),
        ({"dtype": "float32"}, "float32 is no half type"),
        ({"options": ["mask", "sink"]}, "it does not take mask, sink"),
        ({"d_v": 129}, "d_v = 129 is above 128"),
        ({"m": 0}, "an axis is empty"),
        ({"m": 2**24}, "an array has 2^31 elements or more"),
    ],
    ids=str,
)
def test_table(backend_package, given, want):
    choice = importlib.import_module("mha_backends.cupy.cutile_choice")
    given = dict(given)
    capability, dtype, options = given.pop("capability", 90), given.pop("dtype", "float16"), given.pop("options", ())
    assert want in str(choice.choose_tiled(capability, dtype, PLAIN._replace(**given), frozenset(options), 0.125))


def test_a_scale_with_which_scores_could_leave_float32(backend_package):
    choice = importlib.import_module("mha_backends.cupy.cutile_choice")
    assert choice.choose_tiled(90, "float16", PLAIN, frozenset(), -(2.0**41)) == "the scale -2199023255552.0 is above 2^40"
    assert [choice.choose_tiled(90, kind, PLAIN, frozenset(), 1.0).bounded for kind in ("float16", "bfloat16")] == [False, True]


def test_other_calls_go_elsewhere_and_explain_says_why(ct, monkeypatch):
    monkeypatch.setattr(arrays.DEVICE, "compute_capability", "90")
    machine = Machine()
    q = fake(np.zeros((1, 2, 16)), "float16")
    explain = bind(importlib.import_module("mha_backends.cupy.backend").build(machine.cuda, False, cutile=True)).explain
    assert explain(q, q, q, is_causal=True) == "cutile: float16, d 64, causal, tiles of 128 queries and 64 keys"
    told = explain(q, q, q, window=(1, 1))
    assert told.startswith("fused: float16, d_k 16") and told.endswith("; not cutile, because it does not take window")
    offsets = {"query_offset": fake(np.zeros((1,)), "int64")}
    one = fake(np.zeros((1, 1, 2, 16)), "float16")
    assert explain(one, one, one, is_causal=True, **offsets).endswith("it does not take an offset per batch item")


def test_asked_for_and_not_installed(backend_package, monkeypatch):
    create = backend_package.create
    monkeypatch.setitem(importlib.sys.modules, "cuda", None)
    with pytest.raises(BackendUnavailable, match=r"cuda-tile cannot be imported.*mha-core\[cutile\]"):
        create(kernel="cutile")
    with pytest.raises(TypeError, match="knows tf32=True or False and kernel='cutile'"):
        create(kernel="triton")
