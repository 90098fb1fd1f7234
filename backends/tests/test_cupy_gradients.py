"""The gradients of the CuPy backend on the emulator: every option against the bounds of chapter 5, hidden data bit by bit.

The bound is that of ``mha_spec.numerics_backward``, which shares no code with the backend.
"""

import itertools

import numpy as np
import pytest
from cupy_gradients import bounds_of, forget, launches_of, visible, with_grad, within_bounds, worst
from cupy_machine import TYPES, draw, fake, relaid, wide
from emulator.launches import SCHEDULES
from test_cupy_fused import HIDERS, OPTIONS, Fixed
from test_gradients_of_backends import drawn

from mha_backends import reference
from mha_core import Projections

FUSED = {"backward_rows", "backward_queries", "backward_keys", "backward_bias", "fused_forward"}
SUMS = {"sum_sink_terms_float", "finish_gradient_float"}


@pytest.fixture(params=["float16", "bfloat16"])
def kind(request):
    return request.param


def bits(found):
    return [x.tobytes() for x in found if x is not None]


def fused_within_bounds(machine, kind, *arrays, **options):
    machine.launches.clear()
    found = within_bounds(machine, kind, *arrays, **options)
    assert {name for name, *_ in machine.launches} <= FUSED | SUMS
    return found


# ---- sizes and options ----

ONE = {"batch": (), "h": 1, "h_kv": 1, "n": 70, "m": 40}


@pytest.mark.parametrize("sizes", [
    {"n": 0}, {"m": 0}, {"d_k": 0}, {"d_v": 0}, {"batch": (0,)}, {"batch": (2, 0)}, {"h": 0, "h_kv": 0}, {"n": 1, "m": 1},
    {"m": 0, "d_v": 0}, {"batch": ()}, {"batch": (2, 1, 3), "n": 2}, {"h_kv": 1}, {"h_kv": 4}, {"h": 6, "h_kv": 2},
    {"n": 64, "m": 64, "d_k": 16, "d_v": 16}, {"n": 65, "m": 129, "d_k": 15, "d_v": 9}, {"n": 1, "m": 200}, {"n": 130, "m": 1},
], ids=str)  # fmt: skip
def test_sizes(machine, rng, sizes, kind):
    arrays = with_grad(rng, **sizes)
    fused_within_bounds(machine, kind, *arrays)
    sinks, lse = np.ones(arrays[0].shape[-3], "float32"), rng.standard_normal(arrays[0].shape[:-1]).astype("float32")
    fused_within_bounds(machine, kind, *arrays, is_causal=True, query_offset=1, sink_logits=sinks, grad_lse=lse)


@pytest.mark.parametrize(("kind", "widths"), [
    ("float16", (64, 40)), ("bfloat16", (128, 128)), ("float16", (192, 128)), ("bfloat16", (250, 16)), ("float16", (256, 251)),
], ids=str)  # fmt: skip
def test_widths(machine, rng, kind, widths):
    """Tiles, and slices of channels, as they are chosen for the width."""
    fused_within_bounds(machine, kind, *with_grad(rng, **ONE, d_k=widths[0], d_v=widths[1]), is_causal=True, query_offset=-20)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_option(machine, rng, options, kind):
    fused_within_bounds(machine, kind, *with_grad(rng, n=70, m=75), **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_option_in_single_precision(machine, rng, monkeypatch, options):
    """Chunks of a few queries, so that sums go on from one to the next."""
    monkeypatch.setattr("mha_backends.cupy.unfused.CHUNK", 2**12)
    lse, weights = (rng.standard_normal(shape).astype("float32") for shape in ((2, 4, 70), (2, 4, 70, 75)))
    within_bounds(machine, "float32", *with_grad(rng, n=70, m=75), **options, grad_lse=lse, grad_weights=weights)


@pytest.mark.parametrize("seed", range(30))
def test_random_call(machine, seed, kind):
    rng = np.random.default_rng(seed)
    (q, k, v), options = draw(rng)
    if seed % 3:
        options["grad_lse"] = rng.standard_normal(q.shape[:-1]).astype("float32")
    fused_within_bounds(machine, kind, q, k, v, relaid(rng, rng.standard_normal((*q.shape[:-1], v.shape[-1]))), **options)


@pytest.mark.parametrize("nan", [0.0, 0.08])
def test_unfused_is_the_reference(machine, monkeypatch, nan):
    monkeypatch.setattr("mha_backends.cupy.unfused.CHUNK", 40)
    for seed in range(60):
        arrays, options = drawn(seed, nan=nan)
        wanted = reference.attention_vjp(*arrays, **options)
        given = {name: fake(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        for got, want in zip(machine.api().attention_vjp(*map(fake, arrays), **given), wanted, strict=True):
            assert (got is None) == (want is None)
            if got is not None:
                np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10, err_msg=f"seed {seed}")


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 75), (70, 1), (1, 4, 70, 1), (2, 1, 1, 75), (1, 4, 1, 1), (2, 4, 70, 75)], ids=str
)
@pytest.mark.parametrize("dtype", ["float64", "own"])
def test_the_gradient_of_a_bias_is_summed_over_all_its_uses(machine, rng, kind, shape, dtype):
    bias = rng.standard_normal(shape).astype(TYPES[kind] if dtype == "own" else dtype)
    fused_within_bounds(machine, kind, *with_grad(rng, n=70, m=75), bias=bias, is_causal=True, query_offset=3)


@pytest.mark.parametrize("shape", [(2, 1, 1, 5, 7), (1, 3, 4, 1, 7), (2, 3, 1, 1, 1), (1, 1, 1, 5, 7)])
@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_mask_and_bias_broadcast_over_some_batch_axes(machine, rng, shape, kind):
    bias = rng.standard_normal(shape).astype("float32")
    within_bounds(machine, kind, *with_grad(rng, batch=(2, 3)), mask=rng.random(shape) < 0.6, bias=bias)


def test_what_the_forward_kept_changes_no_bit(machine, rng, kind):
    """MHA-GRAD-3, in any strides; and the forward is not run again."""
    q, k, v, g = (fake(x, TYPES[kind]) for x in with_grad(rng, n=20, m=30, d_k=8, d_v=8))
    options = {"is_causal": True, "query_offset": 3, "sink_logits": fake(np.ones(4, "float32"))}
    kept = machine.api().attention(q, k, v, return_lse=True, **options)
    again = machine.api().attention_vjp(q, k, v, g, **options)
    machine.launches.clear()
    output, lse = (fake(np.asfortranarray(x)) for x in (kept.output, kept.lse))
    assert bits(machine.api().attention_vjp(q, k, v, g, output=output, lse=lse, **options)) == bits(again)
    assert "fused_forward" not in {name for name, *_ in machine.launches}


def test_layouts_change_no_bit(machine, rng, kind):
    """Rows that can be copied 16 bytes at a time, and rows that cannot (MHA-EXEC-4)."""
    arrays = [x.astype(TYPES[kind]) for x in with_grad(rng, n=70, m=75, d_k=16, d_v=16)]
    want = bits(machine.api().attention_vjp(*map(fake, arrays), is_causal=True, query_offset=3))
    for how in (1, 2, 3, 4, 6):
        given = [fake(relaid(Fixed(how), x)) for x in arrays]
        assert bits(machine.api().attention_vjp(*given, is_causal=True, query_offset=3)) == want


def test_the_layer(machine, rng):
    """MHA-GRAD-17, through ``linear`` and the heads' gradients."""
    x, g = rng.standard_normal((2, 5, 6)), rng.standard_normal((2, 5, 7))
    w = [rng.standard_normal(shape) for shape in ((4, 6, 3), (2, 6, 3), (2, 6, 2), (4, 2, 7))]
    got = machine.api().multi_head_attention_vjp(*[fake(x)] * 3, Projections(*map(fake, w)), fake(g), is_causal=True)
    wanted = reference.multi_head_attention_vjp(x, x, x, Projections(*w), g, is_causal=True)
    for a, b in zip((*got[:3], *got.projections[:4]), (*wanted[:3], *wanted.projections[:4]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


# ---- the ends of the number range ----


def test_gradients_of_scores_beyond_float16(machine, rng):
    """dS beyond 65504 is held in a larger unit, row by row: nothing overflows on the way to a gradient that is small again."""
    q, k, v, g = with_grad(rng, batch=(), n=70, m=75, d_k=4, d_v=3)
    q, k, v, g = q / 4096, k / 4096, v * 3000, g * 300
    g[:, ::3] /= 1e4
    found = fused_within_bounds(machine, "float16", q, k, v, g)
    assert all(np.isfinite(wide(x)).all() for x in found[:2])


def test_large_numbers(machine, rng, kind):
    arrays = with_grad(rng, batch=(), h=2, n=5, m=70)
    fused_within_bounds(machine, kind, *arrays, bias=np.arange(70, dtype="float32")[None] - 100000)
    fused_within_bounds(machine, kind, *arrays, sink_logits=np.array([500.0, -500.0], "float32"))


# ---- hidden data, NaN ----


@pytest.mark.parametrize("options", HIDERS.values(), ids=HIDERS.keys())
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_hidden_data_moves_no_bit(machine, rng, options, kind):
    """MHA-GRAD-14, MHA-GRAD-15: poison a key, or a row and what arrives at it; who does not see it keeps every bit."""
    arrays = [x.astype(TYPES[kind]) for x in with_grad(rng, batch=(1,), n=3, m=70)]
    ask = {name: fake(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    vjp = machine.api().attention_vjp
    clean = vjp(*map(fake, arrays), **ask)
    seen = visible(*arrays[:3], options)
    for at, poison in itertools.product((0, 2, 66), (np.nan, np.inf, 6e4)):
        q, k, v, g = (x.copy() for x in arrays)
        k[..., at, :] = v[..., at, :] = poison
        got = vjp(*map(fake, (arrays[0], k, v, arrays[3])), **ask)
        blind = ~seen[..., at]
        assert got.query[blind].tobytes() == clean.query[blind].tobytes()
        if at < 3:
            q[..., at, :] = g[..., at, :] = poison
            got = vjp(*map(fake, (q, arrays[1], arrays[2], g)), **ask)
            unseen = ~seen[..., at, :].reshape(1, 2, 2, 70).any(2)  # by no query head of the group
            for name in ("key", "value"):
                assert getattr(got, name)[unseen].tobytes() == getattr(clean, name)[unseen].tobytes()


@pytest.mark.parametrize("where", ["query", "key", "value", "grad_output", "grad_lse", "bias", "sink"])
@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_nan_reaches_what_took_part(machine, rng, kind, where, hides):
    """MHA-GRAD-16, exactly: the bound says where the truth is NaN. One weight underflows."""
    q, k, v, g = (x.astype(TYPES[kind]) for x in with_grad(rng, batch=(2,), n=5, m=70, d_v=20))
    options = {"sink_logits": np.zeros(4, "float32"), "grad_lse": rng.standard_normal((2, 4, 5)).astype("float32")}
    if hides:
        options |= {"mask": rng.random((5, 70)) < 0.5, "bias": np.zeros((4, 1, 70), "float32").reshape(1, 4, 1, 70)}
        options["bias"][..., 7] = -1e30
    if where == "bias" and not hides:
        options["bias"] = np.zeros((1, 70), "float32")
    broken = {"query": q, "key": k, "value": v, "grad_output": g, **options}
    broken["sink_logits" if where == "sink" else where].reshape(-1)[7 if where != "sink" else 1] = np.nan
    within_bounds(machine, kind, q, k, v, g, **options)


# ---- schedules, sanitizers, banks ----


HARD = {
    "full": ({}, {"batch": (), "h": 2, "h_kv": 1, "n": 70, "m": 100, "d_k": 12, "d_v": 16}),
    "by position": ({"is_causal": True, "query_offset": 50}, {"batch": (), "h": 1, "h_kv": 1, "n": 100, "m": 130, "d_k": 16, "d_v": 16}),
    "by pair": (
        OPTIONS["mask and bias"] | {"bias": np.arange(75, dtype="float32")[None] / 8}, {"n": 70, "m": 75, "d_k": 5, "d_v": 7},
    ),
}  # fmt: skip


def posed(machine, options, sizes):
    rng = np.random.default_rng(1)
    arrays = with_grad(rng, **sizes)
    return launches_of(
        machine, "float16", *arrays, **options, grad_lse=rng.standard_normal(arrays[0].shape[:-1]).astype("float32")
    )


@pytest.mark.parametrize(("options", "sizes"), HARD.values(), ids=HARD.keys())
def test_every_schedule_gives_the_same_bits(machine, options, sizes):
    launches, _, found = posed(machine, options, sizes)
    seen = set()
    for schedule in SCHEDULES:
        forget(found)
        for launch in launches:
            launch.run(schedule)
        seen.add(tuple(bits(found)))
    assert len(seen) == 1


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
@pytest.mark.parametrize(("options", "sizes"), HARD.values(), ids=HARD.keys())
def test_sanitizers_find_nothing(machine, tmp_path, sanitizer, options, sizes):
    launches, memory, _ = posed(machine, options, sizes)
    for launch in launches:
        if launch.kernel in FUSED:
            assert launch.sanitized(sanitizer, memory, tmp_path, SCHEDULES[1]) == ""
        launch.run()  # the next one reads what it has written


def test_matrix_loads_have_no_bank_conflicts(machine):
    launches, _, _ = posed(machine, {}, {"batch": (), "h": 1, "h_kv": 1, "n": 64, "m": 64, "d_k": 64, "d_v": 64})
    for launch in launches:
        launch.bank_conflicts()
        launch.run()
        assert launch.bank_conflicts() == (0 if launch.kernel == "backward_rows" else 1)


# ---- what the host does ----


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_choice_of_kernels_sees_no_values(machine, rng, dtype):
    machine.cupy.asnumpy = None
    q, k, v, g = (fake(x, dtype) for x in with_grad(rng))
    seen = []
    for value in (0.0, np.nan, 6e4):
        k[..., 3, :] = v[..., 3, :] = g[..., 1, :] = value
        machine.launches.clear()
        machine.cublas.calls.clear()
        machine.api().attention_vjp(q, k, v, g, key_lengths=fake(np.array([3, 7])))
        seen.append((list(machine.launches), list(machine.cublas.calls)))
    assert seen[0] == seen[1] == seen[2]


def test_memory_is_linear_in_n_and_m(machine, rng, monkeypatch):
    monkeypatch.setattr("mha_backends.cupy.unfused.CHUNK", 64)
    for kind in ("float16", "float32"):
        used = []
        for n in (40, 80):
            machine.cupy.allocated.clear()
            arrays = (fake(x, kind) for x in with_grad(rng, batch=(), h=2, h_kv=2, n=n, m=n))
            machine.api().attention_vjp(*arrays, is_causal=True)
            used.append(sum(machine.cupy.allocated))
        assert used[1] <= 2 * used[0]


def test_a_lost_group_would_be_seen(rng):
    """The bound is no formality: the gradient of one head of two is far outside."""
    q, k, v, g = with_grad(rng, batch=(), h=2, h_kv=1)
    bounds = bounds_of("float16", q, k, v, g, {})
    half = bounds_of("float16", q[:1], k, v, g[:1], {}).truth
    assert worst(bounds.truth._replace(key=half.key), bounds) > 10
