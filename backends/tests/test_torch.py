"""The torch backend against the formula written naively in float64, and against what only torch can do to it."""

import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mha_backends.torch import attention, create, multi_head_attention, precision_report  # noqa: E402
from mha_backends.torch import backend as torch_backend  # noqa: E402
from mha_core import Call, Projections, Violation, bind  # noqa: E402

pytestmark = [  # torch's own, in forward mode and in Dynamo
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
UNIT = {F64: 2.0**-53, F32: 2.0**-24, F16: 2.0**-11, BF16: 2.0**-8}
NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors: two threads would only wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---------------------------------------------------------------- the formula, naively


def sees(n, m, batch, *, mask=None, bias=None, is_causal=False, window=None, query_offset=0, key_lengths=None,
         query_segments=None, key_segments=None, **_):  # fmt: skip
    """The visible set, one pair at a time in Python numbers: (*batch, 1 or h, n, m)."""
    full = torch.ones(*batch, 1, n, m, dtype=torch.bool)
    left, right = window or (None, None)
    right = 0 if is_causal else right
    offsets, lengths = (
        x.reshape(-1).tolist() if isinstance(x, torch.Tensor) else [x] * math.prod(batch)
        for x in (query_offset, m if key_lengths is None else key_lengths)
    )
    for b, item in enumerate(full.reshape(-1, n, m)):
        for i in range(n):
            for j in range(m):
                ahead = j - (offsets[b] + i)
                item[i, j] = (left is None or ahead >= -left) and (right is None or ahead <= right) and j < lengths[b]
    if query_segments is not None:
        full = full & (query_segments[..., None, :, None] == key_segments[..., None, None, :])
    if mask is not None:
        full = full & mask
    if bias is not None:
        full = full & (bias != -INF)
    return full


def naive(q, k, v, *, scale=None, softcap=None, bias=None, sink_logits=None, **options):
    """(output, weights, lse) in float64, differentiable; for finite inputs."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    visible = sees(q.shape[-2], k.shape[-2], q.shape[:-3], bias=bias, **options)
    s = (q @ k.mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + torch.where(bias == -INF, 0.0, bias.double())
    e = torch.where(visible, s, 0.0).exp() * visible
    total = e.sum(-1)
    if sink_logits is not None:
        total = total + sink_logits.double().exp()[:, None]
    weights = e / torch.where(total == 0, 1.0, total)[..., None]
    return weights @ v, weights, total.log()


def tensors(seed, dtype=F64, batch=(2,), h=4, h_kv=2, n=5, m=6, d_k=8, d_v=3):
    g = torch.Generator().manual_seed(seed)
    shapes = ((*batch, h, n, d_k), (*batch, h_kv, m, d_k), (*batch, h_kv, m, d_v))
    return [torch.randn(s, generator=g, dtype=F64).to(dtype) for s in shapes]


def option_sets(batch=(2,), h=4, n=5, m=6):
    """Each option alone, some together, everything at once. Of float64 where the query may be narrower: wider is legal."""
    g = torch.Generator().manual_seed(7)
    mask = torch.rand(*batch, h, n, m, generator=g) > 0.4
    mask[..., 1, :] = False  # a query that sees nothing
    bias = torch.randn(1, h, 1, m, generator=g, dtype=F64)
    hiding = torch.where(torch.rand(n, m, generator=g) > 0.6, -INF, torch.randn(n, m, generator=g, dtype=F64))
    sink = torch.randn(h, generator=g, dtype=F64)
    offset = torch.tensor([-2, 3], dtype=torch.int16)
    segments = {
        "query_segments": torch.randint(0, 2, (*batch, n), generator=g, dtype=torch.uint8),
        "key_segments": torch.randint(0, 2, (*batch, m), generator=g, dtype=torch.int64),
    }
    sets = {
        "nothing": {},
        "mask": {"mask": mask},
        "mask shared": {"mask": mask[0, 0]},
        "mask of rows": {"mask": mask[..., :1]},
        "mask of keys": {"mask": mask[:1, :, :1]},
        "bias": {"bias": bias},
        "bias hides": {"bias": hiding},
        "causal top-left": {"is_causal": True, "query_offset": 0},
        "causal bottom-right": {"is_causal": True, "query_offset": m - n},
        "causal before zero": {"is_causal": True, "query_offset": -2},
        "decoding": {"is_causal": True, "query_offset": m - 1},
        "offsets": {"is_causal": True, "query_offset": offset},
        "offset extremes": {"window": (2**62 - 1, 2**62 - 1), "query_offset": torch.tensor([-(2**63), 2**63 - 1])},
        "offset extremes, causal": {"is_causal": True, "query_offset": torch.tensor([-(2**63), 2**63 - 1])},
        "offset extremes, left": {"window": (3, None), "query_offset": torch.tensor([-(2**63), 2**63 - 1])},
        "window": {"window": (1, 2), "query_offset": 1},
        "window left": {"window": (2, None), "query_offset": offset},
        "length": {"key_lengths": 4},
        "length none": {"key_lengths": -(10**30)},
        "length all": {"key_lengths": 10**30},
        "lengths": {"key_lengths": torch.tensor([3, 200], dtype=torch.uint8)},
        "segments": segments,
        "scale": {"scale": -0.3},
        "scale 0": {"scale": 0},
        "softcap": {"softcap": 0.7, "mask": mask},
        "sink": {"sink_logits": sink},
        "sink and empty": {"sink_logits": sink, "mask": mask},
        "all": {
            "mask": mask, "bias": hiding, "is_causal": True, "window": (4, 3), "query_offset": offset, "softcap": 2.0,
            "scale": 0.4, "sink_logits": sink, "key_lengths": torch.tensor([5, 6]), **segments,
        },
    }  # fmt: skip
    return sets


SETS = option_sets()
each_set = pytest.mark.parametrize("options", list(SETS.values()), ids=list(SETS))


def tolerance(dtype, q, k, v):
    """Of an output: weights and output are each rounded once in the io dtype (2u each), and a score of at most s is known
    in the compute type to 2(d_k + 8) u |s|, which moves a weight by that fraction twice (numerator and normaliser)."""
    u, u_c = UNIT[dtype], UNIT[F64 if dtype == F64 else F32]
    s = (q.double().norm(dim=-1).max() * k.double().norm(dim=-1).max()).item() + 10
    return (4 * u + 4 * (q.shape[-1] + 8) * u_c * s + 2 * k.shape[-2] * u_c) * max(1.0, v.double().abs().max().item())


def near(got, want, tol):
    got, want = got.detach().double(), want.detach().double()
    assert got.shape == want.shape
    same = (got == want) | (got.isnan() & want.isnan())
    assert bool((same | ((got - want).abs() <= tol)).all()), (got - want).abs().max().item()


def same_bits(a, b):
    return a.shape == b.shape and a.contiguous().view(torch.uint8).equal(b.contiguous().view(torch.uint8))


# ---------------------------------------------------------------- numbers


@each_set
@pytest.mark.parametrize("dtype", [F64, F32, F16, BF16], ids=str)
def test_forward_equals_the_formula(options, dtype):
    q, k, v = tensors(1, dtype)
    tol = tolerance(dtype, q, k, v)
    output, weights, lse = naive(q, k, v, **options)
    got = attention(q, k, v, return_weights=True, return_lse=True, **options)
    assert got.output.dtype == got.weights.dtype == dtype
    assert got.lse.dtype == (F64 if dtype == F64 else F32)
    near(got.output, output, tol)
    near(got.weights, weights, tol)
    near(got.lse, lse, tol)
    alone = attention(q, k, v, **options)  # another path, where nothing is hidden or no weights are wanted
    assert alone.dtype == dtype
    near(alone, output, tol)
    empty = (sees(5, 6, (2,), **options).sum(-1) == 0).expand(2, 4, 5)
    assert not got.weights[empty].any() and not got.output[empty].any() and not alone[empty].any()


@each_set
@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=str)
@pytest.mark.parametrize("d_v", [3, 8])
def test_gradients_equal_those_of_the_formula(options, dtype, d_v):
    q, k, v = tensors(2, dtype, d_v=d_v)
    options = {name: x.clone().requires_grad_() if name in ("bias", "sink_logits") else x for name, x in options.items()}
    leaves = [x.requires_grad_() for x in (q, k, v)] + [options[name] for name in ("bias", "sink_logits") if name in options]
    wanted = naive(q, k, v, **options)
    seeds = [torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=F64).to(dtype).double() for x in wanted]
    finite = wanted[2].isfinite()
    loss = (wanted[0] * seeds[0]).sum() + (wanted[1] * seeds[1]).sum() + (torch.where(finite, wanted[2], 0.0) * seeds[2]).sum()
    want = torch.autograd.grad(loss, leaves, allow_unused=True)
    out = attention(q, k, v, return_weights=True, return_lse=True, **options)
    got = torch.autograd.grad(out, leaves, [s.to(x.dtype) for s, x in zip(seeds, out, strict=True)], allow_unused=True)
    tol = 40 * tolerance(dtype, q, k, v) * max(s.abs().max().item() for s in seeds)
    for g, w, leaf in zip(got, want, leaves, strict=True):
        assert g.dtype == leaf.dtype
        near(g, w, tol)

    def loss_of(output):
        return (output.double() * seeds[0]).sum()

    want = torch.autograd.grad(loss_of(naive(q, k, v, **options)[0]), leaves, allow_unused=True)
    got = torch.autograd.grad(loss_of(attention(q, k, v, **options)), leaves, allow_unused=True)
    for g, w in zip(got, want, strict=True):
        near(g, w, tol)


@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck], ids=["first", "second"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"softcap": 1.5, "window": (1, 1)},
        {"mask": torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]).bool()},
    ],
    ids=["fused", "causal", "softcap", "empty row"],
)
def test_gradcheck(options, check):
    shapes = ((1, 2, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2))
    g = torch.Generator().manual_seed(4)
    leaves = [torch.randn(s, generator=g, dtype=F64).requires_grad_() for s in shapes]
    extra = {"check_forward_ad": True, "check_batched_grad": True} if check is torch.autograd.gradcheck else {}
    assert check(lambda q, k, v: attention(q, k, v, **options), leaves, **extra)


def test_gradcheck_of_bias_sink_weights_and_lse():
    g = torch.Generator().manual_seed(5)
    leaves = [
        torch.randn(s, generator=g, dtype=F64).requires_grad_() for s in ((2, 3, 2), (2, 3, 2), (2, 3, 1), (2, 1, 3), (2,))
    ]

    def everything(q, k, v, bias, sink):
        return tuple(attention(q, k, v, bias=bias, sink_logits=sink, is_causal=True, return_weights=True, return_lse=True))

    assert torch.autograd.gradcheck(everything, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(everything, leaves)


@pytest.mark.parametrize("options", [{}, {"return_lse": True}, {"is_causal": True}], ids=["fused", "formula", "causal"])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_half_scores_beyond_the_half_range(options, dtype):
    """q.k = 256 * 256 * 4 > 65504 scales back to 4; 256 and 258 are exact in both types."""
    q = torch.full((1, 2, 4), 256.0, dtype=dtype)
    k = torch.full((1, 2, 4), 256.0, dtype=dtype)
    k[:, 1] = 258.0
    v = torch.tensor([[[1.0, 0, 0, 0], [0, 1.0, 0, 0]]], dtype=dtype)
    options = {"scale": 2.0**-16, **options}
    want = naive(q, k, v, **{k_: x for k_, x in options.items() if k_ != "return_lse"})[0]
    got = attention(q, k, v, **options)
    near(got.output if isinstance(got, tuple) else got, want, 4 * UNIT[dtype])


def test_many_halves_are_summed_in_float32():
    """4096 equal weights: a half accumulator would stop at 2048 (float16) or 256 (bfloat16) of them."""
    for dtype in (F16, BF16):
        q, k, v = torch.zeros(1, 1, 4), torch.zeros(1, 4096, 4), torch.ones(1, 4096, 4)
        for options in ({}, {"is_causal": True, "query_offset": 4095}, {"key_lengths": torch.tensor(4000)}):
            assert bool((attention(q.to(dtype), k.to(dtype), v.to(dtype), **options) == 1).all())


@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=str)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_score_that_overflows_hides_nothing(dtype, sign):
    big = 1e200 if dtype == F64 else 1e30
    q, k, v = tensors(6, dtype, batch=(), h=1, h_kv=1, n=3, m=4, d_k=2, d_v=2)
    usual = attention(q, k, v)
    q[0, 1] = big
    k[:] = k.abs() * 0 + sign * big
    q[0, 0] = q[0, 2] = 0
    for options in (
        {},
        {"return_lse": True},
        {"mask": torch.ones(3, 4, dtype=torch.bool)},
        {"bias": torch.zeros(3, 4, dtype=dtype)},
    ):
        got = attention(q, k, v, **options)
        got = got.output if isinstance(got, tuple) else got
        near(got, v.double().mean(-2, keepdim=True).expand(1, 3, 2), 16 * UNIT[dtype] * v.abs().max().item())
    assert usual.isfinite().all()


def test_an_overflowing_row_moves_no_bit_of_another():
    q, k, v = tensors(8, F32, n=6, m=6, d_v=8)
    before = attention(q, k, v)
    q[0, 1, 2] = 1e38
    after = attention(q, k, v)
    other = torch.ones(2, 4, 6, dtype=torch.bool)
    other[0, 1, 2] = False
    assert same_bits(before[other], after[other]) and after.isfinite().all()


def test_finite_bias_hides_nothing():
    q, k, v = tensors(9, F32, batch=(), n=2, m=3, d_v=2)
    lowest = torch.full((2, 3), torch.finfo(F32).min)
    near(attention(q, k, v, bias=lowest), v.double().mean(-2, keepdim=True).repeat_interleave(2, 0).expand(4, 2, 2), 1e-6)
    wider = torch.full((2, 3), -1e300, dtype=F64)
    near(attention(q, k, v, bias=wider), v.double().mean(-2, keepdim=True).repeat_interleave(2, 0).expand(4, 2, 2), 1e-6)
    wider[:, 1:] = -INF
    near(attention(q, k, v, bias=wider), v[:, :1].double().repeat_interleave(2, 0).expand(4, 2, 2), 0)


@pytest.mark.parametrize("cap", [5e-324, 1e-50, 1e300])
def test_softcap_at_its_ends(cap):
    for dtype in (F64, F32):
        q, k, v = tensors(10, dtype)
        want = naive(q, k, v, softcap=cap if cap > 1 else None, scale=None if cap > 1 else 0.0)[0]
        near(attention(q, k, v, softcap=cap), want, tolerance(dtype, q, k, v))


# ---------------------------------------------------------------- non-interference


HIDING = {
    "mask": {"mask": torch.rand(6, 6, generator=torch.Generator().manual_seed(11)) > 0.5},
    "mask per head": {"mask": torch.rand(1, 4, 6, 6, generator=torch.Generator().manual_seed(12)) > 0.5},
    "bias": {
        "bias": torch.where(torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(13)) > 0.5, -INF, 0.5).double()
    },
    "causal": {"is_causal": True},
    "window": {"window": (1, 0), "softcap": 3.0},
    "lengths": {"key_lengths": torch.tensor([2, 4])},
    "length": {"key_lengths": 4},
    "segments": {
        "query_segments": torch.tensor([[0, 0, 1, 1, 2, 2]] * 2),
        "key_segments": torch.tensor([[0, 1, 1, 2, 2, 0]] * 2),
    },
    "sink": {"is_causal": True, "sink_logits": torch.tensor([0.0, 1.0, 2.0, -1.0], dtype=F64)},
}
each_way = pytest.mark.parametrize("options", list(HIDING.values()), ids=list(HIDING))
POISON = [(F32, x) for x in (NAN, INF, -INF, 1e18, 1e30, 3e38)] + [(t, x) for t in (F64, F16, BF16) for x in (NAN, 3e4)]
each_poison = pytest.mark.parametrize(("dtype", "value"), [*POISON, (F64, 1e300)], ids=str)


def run(q, k, v, grads, options):
    """Everything a call gives: output, weights, lse, and the three gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = attention(*leaves, return_weights=True, return_lse=True, **options)
    dq, dk, dv = torch.autograd.grad(out, leaves, grads)
    alone = attention(*leaves, **options)
    dq1, dk1, dv1 = torch.autograd.grad(alone, leaves, grads[0])
    return SimpleNamespace(rows=[*out, alone, dq, dq1], keys=[dk, dv, dk1, dv1])


def poison_case(dtype, options):
    q, k, v = tensors(14, dtype, n=6, m=6, d_v=8)
    g = torch.Generator().manual_seed(15)
    grads = [
        torch.randn(s, generator=g).to(t)
        for s, t in (((2, 4, 6, 8), dtype), ((2, 4, 6, 6), dtype), ((2, 4, 6), F64 if dtype == F64 else F32))
    ]
    options = {name: x.to(dtype) if name == "bias" and dtype in (F32, F16) else x for name, x in options.items()}
    return q, k, v, grads, options, sees(6, 6, (2,), **options).expand(2, 4, 6, 6)


@each_way
@each_poison
def test_a_hidden_key_moves_no_bit_of_the_row(options, dtype, value):
    q, k, v, grads, options, visible = poison_case(dtype, options)
    clean = run(q, k, v, grads, options)
    for j in (1, 4):
        k2, v2, o2 = k.clone(), v.clone(), dict(options)
        k2[..., j, :], v2[..., j, :] = value, value
        if "bias" in o2 and value != -INF:
            o2["mask"], o2["bias"] = (options["bias"] != -INF), options["bias"].clone()
            o2["bias"][..., j] = value  # hidden by the mask now, whatever the bias holds
        dirty = run(q, k2, v2, grads, o2)
        hidden = ~visible[..., j]
        for a, b in zip(clean.rows, dirty.rows, strict=True):
            assert same_bits(a[hidden], b[hidden])


@each_way
@each_poison
def test_a_row_moves_no_bit_of_the_gradients_of_a_key_hidden_from_it(options, dtype, value):
    q, k, v, grads, options, visible = poison_case(dtype, options)
    clean = run(q, k, v, grads, options)
    for i in (1, 4):
        q2, grads2 = q.clone(), [x.clone() for x in grads]
        q2[..., i, :] = value
        for x in grads2:
            x[:, :, i] = value
        dirty = run(q2, k, v, grads2, options)
        hidden = ~visible[..., i, :].reshape(2, 2, 2, 6).any(2)  # from row i of both heads of the group
        for a, b in zip(clean.keys, dirty.keys, strict=True):
            assert same_bits(a[hidden], b[hidden])


@pytest.mark.parametrize("value", [NAN, 1e30])
def test_long_sequences_and_two_threads_are_strict(value):
    """Where products are tiled and shared out among threads."""
    torch.set_num_threads(2)
    g = torch.Generator().manual_seed(31)
    q, k, v, grad = (torch.randn(1, 4, 600, 48, generator=g) for _ in range(4))

    def gradients(q, k, v, grad):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attention(*leaves, is_causal=True)
        return [out, *torch.autograd.grad(out, leaves, grad)]

    clean = gradients(q, k, v, grad)
    k2, v2, q2, grad2 = (x.clone() for x in (k, v, q, grad))
    k2[:, :, 300], v2[:, :, 300], q2[:, :, 300], grad2[:, :, 300] = value, value, value, value
    for a, b in zip(clean[:2], gradients(q, k2, v2, grad)[:2], strict=True):
        assert same_bits(a[:, :, :300], b[:, :, :300])
    for a, b in zip(clean[2:], gradients(q2, k, v, grad2)[2:], strict=True):
        assert same_bits(a[:, :, 301:], b[:, :, 301:])


@each_way
def test_nan_reaches_the_rows_that_see_it(options):
    q, k, v, _, options, visible = poison_case(F32, options)
    shown = visible.any(-1)
    for j in range(6):
        k2, v2 = k.clone(), v.clone()
        k2[..., j, 3] = NAN
        got = attention(q, k2, v, return_weights=True, **options)
        assert got.output.isnan().equal(visible[..., j, None].expand(2, 4, 6, 8))
        assert not got.weights[~visible].any()  # hidden weights are 0 in a NaN row, too
        v2[..., j, 5] = NAN
        nan = attention(q, k, v2, **options).isnan()
        assert nan[..., 5].equal(visible[..., j]) and not nan[..., :5].any() and not nan[..., 6:].any()
    q2 = q.clone()
    q2[..., 2, 0] = NAN
    want = torch.zeros_like(shown)
    want[..., 2] = shown[..., 2]
    assert attention(q2, k, v, **options).isnan().equal(want[..., None].expand(2, 4, 6, 8))


def test_nan_value_reaches_through_a_weight_that_underflows():
    q, k = torch.tensor([[[1.0]]]), torch.tensor([[[0.0], [-500.0]]])
    v = torch.tensor([[[1.0, 2.0], [NAN, 3.0]]])
    for options in (
        {},
        {"return_lse": True},
        {"mask": torch.ones(1, 2, dtype=torch.bool)},
        {"is_causal": True, "query_offset": 1},
    ):
        got = attention(q, k, v, **options)
        got = got.output if isinstance(got, tuple) else got
        assert got[0, 0].isnan().tolist() == [True, False] and got[0, 0, 1] == 2


def test_nan_bias_and_nan_sink():
    q, k, v, _, _, _ = poison_case(F32, {})
    bias = torch.zeros(6, 6)
    bias[2, 3] = NAN
    nan = attention(q, k, v, bias=bias).isnan().all(-1)
    assert nan[:, :, 2].all() and nan.sum() == 8
    assert not attention(q, k, v, bias=bias, mask=~bias.isnan()).isnan().any()
    sink = torch.tensor([NAN, 0.0, 0.0, 0.0])
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[1] = False
    got = attention(q, k, v, sink_logits=sink, mask=mask, return_lse=True, return_weights=True)
    nan = got.output.isnan().all(-1)
    assert nan[:, 0, [0, 2, 3, 4, 5]].all() and nan.sum() == 10
    assert not got.output[:, :, 1].any() and not got.weights[:, :, 1].any()
    assert got.lse[:, 0, 1].isnan().all() and (got.lse[:, 1:, 1] == 0).all()


def test_sinks_at_infinity():
    q, k, v, _, _, _ = poison_case(F32, {})
    assert not attention(q, k, v, sink_logits=torch.full((4,), 1e300, dtype=F64)).any()  # finite, and takes all the weight
    q, k, v, _, _, _ = poison_case(F64, {})
    none = torch.full((4,), -INF, dtype=F64)
    near(attention(q, k, v, sink_logits=none), naive(q, k, v)[0], 1e-12)
    sink = none.clone().requires_grad_()
    out = attention(q, k, v, sink_logits=sink, mask=torch.zeros(6, 6, dtype=torch.bool), return_lse=True)
    assert not out.output.any() and (out.lse == -INF).all()
    assert not torch.autograd.grad(out.output.sum(), sink)[0].any()


def test_an_empty_row_has_gradient_zero_and_a_sink_gradient_one():
    q, k, v, _, _, _ = poison_case(F64, {})
    q[0, 0, 0, 0] = NAN
    leaves = [x.requires_grad_() for x in (q, k, v, torch.zeros(4, dtype=F64))]
    nothing = {"mask": torch.zeros(6, 6, dtype=torch.bool)}
    out = attention(q, k, v, sink_logits=leaves[3], return_weights=True, return_lse=True, **nothing)
    incoming = [torch.full_like(out.output, NAN), torch.full_like(out.weights, NAN), torch.ones_like(out.lse)]
    grads = torch.autograd.grad(out, leaves, incoming)
    assert not any(g.any() for g in grads[:3])
    assert bool((grads[3] == 2 * 6).all())  # one for each batch item and query
    out = attention(q, k, v, return_lse=True, **nothing)
    assert not any(g.any() for g in torch.autograd.grad(out.lse.sum(), leaves[:3], allow_unused=True) if g is not None)


def test_gradients_of_visible_nan_are_nan():
    """What a training loop's overflow check relies on: non-finite incoming gradients are not swallowed."""
    q, k, v, grads, options, _ = poison_case(F32, HIDING["causal"])
    grads[0][..., 2, 1] = INF
    result = run(q, k, v, grads, options)
    for dk in result.keys[2:]:
        assert not dk[..., :3, :].isfinite().all() and dk[..., 3:, :].isfinite().all()
    dv = result.keys[3]
    assert dv[..., :3, 1].isnan().all() and dv[..., 0].isfinite().all()


# ---------------------------------------------------------------- shapes, layouts, state


@pytest.mark.parametrize("axis", ["n", "m", "batch", "d_k", "d_v", "heads"])
@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True, "query_offset": 1}, {"sink_logits": torch.zeros(4)}], ids=["plain", "causal", "sink"]
)
def test_empty_axes(axis, options):
    sizes = {"n": 3, "m": 4, "batch": (2,), "d_k": 4, "d_v": 2, "h": 4, "h_kv": 2}
    sizes |= {"batch": {"batch": (0,)}, "heads": {"h": 0, "h_kv": 0}}.get(axis, {axis: 0})
    if axis == "heads" and "sink_logits" in options:
        options = {"sink_logits": torch.zeros(0)}
    leaves = [x.requires_grad_() for x in tensors(16, F32, **sizes)]
    batch = sizes["batch"]
    for flags in ({}, {"return_weights": True, "return_lse": True}):
        got = attention(*leaves, **options, **flags)
        output = got.output if flags else got
        assert output.shape == (*batch, sizes["h"], sizes["n"], sizes["d_v"])
        if flags:
            assert got.weights.shape == (*batch, sizes["h"], sizes["n"], sizes["m"])
            assert got.lse.shape == (*batch, sizes["h"], sizes["n"])
        grads = torch.autograd.grad(output.sum(), leaves)
        assert all(g.isfinite().all() for g in grads)
        if axis == "m":
            assert not output.any()
    if axis == "d_k" and not options:
        near(got.output, naive(leaves[0], leaves[1], leaves[2], scale=1.0)[0], 1e-6)


def test_batch_axes_any_number():
    for batch in ((), (2,), (2, 1, 3)):
        q, k, v = tensors(17, batch=batch)
        offset = torch.arange(math.prod(batch)).reshape(batch)
        near(attention(q, k, v), naive(q, k, v)[0], 1e-12)
        options = {"is_causal": True, "query_offset": offset, "key_lengths": offset + 2}
        near(attention(q, k, v, **options), naive(q, k, v, **options)[0], 1e-12)


@pytest.mark.parametrize("options", [{}, {"is_causal": True, "query_offset": 1}], ids=["fused", "formula"])
def test_layouts_are_values(options):
    q, k, v = tensors(18, d_v=8)
    want = attention(q, k, v, **options)
    permuted = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    columns = [x.mT.contiguous().mT for x in (q, k, v)]
    strided = [torch.stack([x, x], -1).flatten(-2)[..., ::2] for x in (q, k, v)]
    offset = [torch.cat([torch.full((3,), NAN, dtype=F64), x.flatten()])[3:].reshape(x.shape) for x in (q, k, v)]
    negated = [torch._neg_view(-x) for x in (q, k, v)]
    for layout in (permuted, columns, strided, offset, negated):
        before = [x.clone() for x in layout]
        near(attention(*layout, **options), want, 1e-12)
        assert all(same_bits(a, b) for a, b in zip(before, map(torch.clone, layout), strict=True))
    near(
        attention(q, k[:, :1].expand(2, 2, 6, 8), v[:, :1].expand(2, 2, 6, 8), **options),
        attention(q, k[:, :1], v[:, :1], **options),
        1e-12,
    )


def test_blocks_of_queries_change_nothing(monkeypatch):
    monkeypatch.setattr(torch_backend, "_LEAST_ROWS", 2)
    monkeypatch.setattr(torch_backend, "_BLOCK_SCORES", 1)
    for options in SETS.values():
        q, k, v = (x.requires_grad_() for x in tensors(19))
        want = naive(q, k, v, **options)
        near(attention(q, k, v, **options), want[0], 1e-12)
        got = attention(q, k, v, return_weights=True, return_lse=True, **options)
        for a, b in zip(got, want, strict=True):
            near(a, b, 1e-12)
        near(
            torch.autograd.grad(got.output.sum(), k, retain_graph=True)[0],
            torch.autograd.grad(want[0].sum(), k, retain_graph=True)[0],
            1e-11,
        )


def test_blocks_of_queries_are_strict_too(monkeypatch):
    monkeypatch.setattr(torch_backend, "_LEAST_ROWS", 2)
    monkeypatch.setattr(torch_backend, "_BLOCK_SCORES", 1)
    for options in HIDING.values():
        for value in (NAN, 1e30):
            test_a_hidden_key_moves_no_bit_of_the_row(options, F32, value)
            test_a_row_moves_no_bit_of_the_gradients_of_a_key_hidden_from_it(options, F32, value)


def test_two_threads_repeat_bit_for_bit():
    torch.set_num_threads(2)
    q, k, v = tensors(30, F32, h=8, h_kv=4, n=300, m=300, d_k=16, d_v=16)
    for options in ({}, {"is_causal": True}):
        first = attention(q, k, v, **options)
        assert all(same_bits(first, attention(q, k, v, **options)) for _ in range(3))


@each_set
def test_results_repeat_and_share_no_memory(options):
    q, k, v = tensors(20, F32, d_v=8)
    first = attention(q, k, v, return_lse=True, **options)
    attention(*tensors(21, F32, d_v=8), **options)
    again = attention(q, k, v, return_lse=True, **options)
    assert same_bits(first.output, again.output) and same_bits(first.lse, again.lse)
    mine = {x.untyped_storage().data_ptr() for x in (q, k, v, *(x for x in options.values() if isinstance(x, torch.Tensor)))}
    assert first.output.untyped_storage().data_ptr() not in mine


def test_autocast_changes_nothing():
    q, k, v = (x.requires_grad_() for x in tensors(22, F32, d_v=8))
    for options in ({}, {"is_causal": True, "query_offset": 0}):
        want = attention(q, k, v, **options)
        grads = torch.autograd.grad(want.sum(), (q, k, v))
        with torch.autocast("cpu", dtype=BF16):
            got = attention(q, k, v, **options)
            inside = torch.autograd.grad(got.sum(), (q, k, v))
        assert got.dtype == F32 and same_bits(got, want)
        assert all(same_bits(a, b) for a, b in zip(grads, inside, strict=True))


def test_global_switches_are_read_and_never_set():
    before = precision_report()
    assert before["float32_matmul_precision"] == torch.get_float32_matmul_precision()
    state = torch.random.get_rng_state()
    q, k, v = tensors(23, F32)
    attention(q, k, v, key_lengths=3)
    assert precision_report() == before and torch.random.get_rng_state().equal(state)


def test_refuses_tensors_without_strides():
    q, k, v = tensors(24, F32, batch=(), h=1, h_kv=1)
    for refused in (lambda: attention(q.to_sparse(), k, v), lambda: attention(q, k, v, bias=torch.zeros(5, 6).to_sparse())):
        with pytest.raises(Violation, match="MHA-VAL-1"):
            refused()


def test_refuses_nested_tensors():
    q, k, v = tensors(24, F32, batch=(), h=1, h_kv=1, d_v=8)
    nested = torch.nested.nested_tensor([q, q], layout=torch.jagged)
    blank = dict.fromkeys(Call.__slots__) | {"scale": 1.0, "query_offset": 0, "weights": False, "lse": False}
    with pytest.raises(Violation, match=r"MHA-VAL-1.*nested.*key_lengths"):
        create().attend(Call(**blank | {"query": nested, "key": k, "value": v}))


# ---------------------------------------------------------------- compilers and transforms


COMPILED = {name: SETS[name] for name in ("nothing", "mask", "offsets", "all")}


@pytest.mark.parametrize("options", list(COMPILED.values()), ids=list(COMPILED))
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_compile_with_gradients(options, dtype):
    torch._dynamo.reset()
    leaves = [x.requires_grad_() for x in tensors(25, dtype, d_v=8)]

    def square(q, k, v):
        return attention(q, k, v, **options).float().pow(2)

    compiled = torch.compile(square, fullgraph=True, backend="aot_eager")
    want, got = square(*leaves), compiled(*leaves)
    tol = 4 * tolerance(dtype, *leaves)
    near(got, want, tol)
    for a, b in zip(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), leaves), strict=True):
        near(a, b, 40 * tol)


def test_compiled_code_is_strict():
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    q, k, v, grads, options, _ = poison_case(F32, HIDING["causal"])
    k2, v2, grads2 = k.clone(), v.clone(), grads[0].clone()
    k2[..., 4, :], v2[..., 4, :], grads2[..., 1, :] = NAN, INF, NAN
    results = []
    for key, value, grad in ((k, v, grads[0]), (k2, v2, grads2)):
        leaves = [x.clone().requires_grad_() for x in (q, key, value)]
        out = compiled(*leaves, **options)
        results.append((out, *torch.autograd.grad(out, leaves, grad)))
    for a, b in zip(results[0][:2], results[1][:2], strict=True):
        assert same_bits(a[:, :, [0, 2, 3]], b[:, :, [0, 2, 3]])


def test_export():
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v, is_causal=True, query_offset=1)

    q, k, v = tensors(26, F32)
    program = torch.export.export(Module(), (q, k, v))
    near(program.module()(q, k, v), attention(q, k, v, is_causal=True, query_offset=1), 1e-6)


@pytest.mark.parametrize("options", [{}, {"is_causal": True, "query_offset": 1}], ids=["fused", "formula"])
def test_function_transforms(options):
    q, k, v = tensors(27, batch=(3,), h=2, h_kv=1, n=3, m=4, d_k=2, d_v=2)

    def one(q, k, v):
        return attention(q, k, v, **options)

    def loss(q, k, v):
        return one(q, k, v).pow(2).sum()

    near(torch.vmap(one)(q, k, v), attention(q, k, v, **options), 1e-14)
    near(torch.vmap(one, (0, None, None))(q, k[0], v[0]), torch.stack([one(x, k[0], v[0]) for x in q]), 1e-14)
    near(
        torch.vmap(one, (1, 1, 1))(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)),
        attention(q, k, v, **options),
        1e-14,
    )
    each = torch.vmap(torch.func.grad(loss, (0, 1, 2)))(q, k, v)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    for a, b in zip(each, torch.autograd.grad(attention(*leaves, **options).pow(2).sum(), leaves), strict=True):
        near(a, b, 1e-12)
    near(torch.func.jacfwd(one)(q[0], k[0], v[0]), torch.func.jacrev(one)(q[0], k[0], v[0]), 1e-12)
    hessian = torch.func.hessian(loss)(q[0], k[0], v[0]).reshape(12, 12)
    assert hessian.any()
    near(hessian, hessian.mT, 1e-12)


# ---------------------------------------------------------------- the backend as a value


@pytest.mark.parametrize("dtype", [F64, F32, F16, BF16], ids=str)
def test_linear_accumulates_in_float32(dtype):
    linear = create().linear
    g = torch.Generator().manual_seed(28)
    x, w, b = (torch.randn(s, generator=g, dtype=F64).to(dtype) for s in ((2, 3, 500), (500, 7), (7,)))
    got = linear(x, w, b)
    assert got.dtype == dtype
    want = x.double() @ w.double() + b.double()
    scale = (x.double().abs() @ w.double().abs()).max().item()
    tol = 4 * UNIT[dtype] * want.abs().max().item() + 2 * 500 * UNIT[F64 if dtype == F64 else F32] * scale
    near(got, want, tol)
    near(linear(x, w, None), x.double() @ w.double(), tol)
    ones = torch.ones(1, 4096, dtype=dtype)
    assert linear(ones, ones.mT, None).item() == 4096


def test_host_and_back():
    backend = create()
    for dtype in ("float64", "float32", "float16", "bfloat16", "bool", "int64", "uint8", "int16"):
        values = np.array([[1, 0, 3], [4, 5, 6]])[:, ::-1]
        x = backend.from_host(values, dtype)
        assert str(x.dtype) == f"torch.{dtype}" and x.shape == (2, 3)
        host = backend.to_host(x.requires_grad_() if x.is_floating_point() else x)
        assert host.dtype.name == {"bfloat16": "float32"}.get(dtype, dtype)
        assert (host == values.astype(host.dtype)).all()
    x = backend.from_host(np.zeros(3), "float64")
    host = backend.to_host(x)
    host[:] = 1
    assert not x.any() and "cpu" in backend.devices()


def test_layer_runs_and_is_differentiable():
    g = torch.Generator().manual_seed(29)
    x = torch.randn(2, 5, 6, generator=g, dtype=F64)
    w_q, w_k, w_v, w_o = (torch.randn(s, generator=g, dtype=F64) for s in ((4, 6, 3), (2, 6, 3), (2, 6, 2), (4, 2, 6)))
    leaves = [t.requires_grad_() for t in (x, w_q, w_k, w_v, w_o)]
    got = multi_head_attention(x, x, x, Projections(w_q, w_k, w_v, w_o), is_causal=True)
    heads = naive(torch.einsum("bnd,hdk->bhnk", x, w_q), torch.einsum("bnd,hdk->bhnk", x, w_k),
                  torch.einsum("bnd,hdk->bhnk", x, w_v), is_causal=True)[0]  # fmt: skip
    want = torch.einsum("bhnv,hvd->bnd", heads, w_o)
    near(got, want, 1e-12)
    for a, b in zip(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), leaves), strict=True):
        near(a, b, 1e-11)


def test_one_backend():
    assert create() is create() and bind(create()).attention is attention
    with pytest.raises(TypeError):
        create(tf32=True)


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_core_loads_no_torch():
    assert python("import sys, mha_core, mha_backends; print('torch' in sys.modules)") == "False"


def test_without_torch_the_backend_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import mha_core\n"
        "try: import mha_backends.torch\n"
        "except mha_core.BackendUnavailable as error: print(error)"
    )
    assert "pip install 'mha-core[torch]'" in python(code)
