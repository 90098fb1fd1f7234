"""The bounds of chapter 4 are those of its text: a twin computes them one row at a time, and they agree to twelve digits."""

from dataclasses import replace

import numpy as np
import pytest
import twin_bounds as twin

from mha_spec.numerics import PROFILES, attention_bound, layer_bound, merge_bound

FLUSHING = [
    replace(PROFILES[name], name=f"{name} flushing", flush=True) for name in ("P64", "P32", "P16", "P16-acc16", "PE4M3")
]
ALL = [*PROFILES.values(), *FLUSHING]
NEAR = {"rtol": 1e-9, "atol": 0.0}
B, H, H_KV, N, M, D_K, D_V = 2, 4, 2, 3, 17, 5, 6
"""Three blocks of keys, grouped heads, and no two neighbouring sizes that are equal."""


def inputs(which, size=1.0):
    """One of four sets of options, with values of this size: shared maxima, hidden keys, a far bias, everything at once."""
    r = np.random.default_rng(which)
    q, k, v = r.standard_normal((B, H, N, D_K)), r.standard_normal((B, H_KV, M, D_K)), r.standard_normal((B, H_KV, M, D_V))
    q[:, 1, 0] = 0.0  # every key shares the maximum
    k[..., 9, :] = k[..., 8, :] = 2.0 * k[..., 7, :]  # and here two of them, where it is theirs
    see = r.random((B, H, N, M)) < 0.7
    see[..., 3] = True
    bias = r.standard_normal((B, H, N, M))
    bias[..., 5] = -40.0
    if which == 2:  # numbers that float16 holds as subnormal ones
        for x in (q, k, v, bias):
            x.flat[::7] *= 1e-5
    factors = np.where(r.random((B, H, N, M)) < 0.6, 2.5, 0.0)
    options = (
        {"scale": 0.4},
        {"scale": -1.7, "visible": see, "factors": factors},
        {"scale": 0.4, "bias": bias, "softcap": 2.5, "sink": np.array([0.5, -3.0, 4.0, 1e-5]), "visible": see},
        {"scale": 2.0, "softcap": 0.03, "sink": np.array([0.5, 2.0, -4.0, 1.0]), "factors": factors},
    )
    return q, k, size * v, options[which]


def flushed(x, p, scale=1.0):
    """Element by element."""
    return np.vectorize(lambda a: twin.flushed(a, p, scale), otypes=[float])(x)


def operand_errors(q, k, v, p, scale):
    """What the operands of a call may be off by."""
    return flushed(q, p, scale), flushed(k, p, scale), flushed(v, p)


def rows(q, k, v, scale, softcap=None, bias=None, visible=None, sink=None, factors=None, errors=None):
    """((batch, head, query), Row) of each."""
    dq, dk, dv = errors or (np.zeros_like(q), np.zeros_like(k), np.zeros_like(v))
    for b, h, i in np.ndindex(*q.shape[:3]):
        kv = h // (q.shape[1] // k.shape[1])
        yield (b, h, i), twin.Row(
            q[b, h, i].tolist(), k[b, kv].tolist(), v[b, kv].tolist(), scale,
            [True] * k.shape[2] if visible is None else visible[b, h, i].tolist(),
            [0.0] * k.shape[2] if bias is None else bias[b, h, i].tolist(),
            softcap, None if sink is None else float(sink[h]), dq[b, h, i].tolist(), dk[b, kv].tolist(), dv[b, kv].tolist(),
            None if factors is None else factors[b, h, i].tolist(),
        )  # fmt: skip


def times(p):
    """P64 is judged with twice the bound (MHA-NUM-15)."""
    return 2 if p.io == "float64" else 1


def projected(tokens, matrices, biases, p):
    """(b t w), (h w d), (h d) -> the heads (b h t d), rounded to the type of the inputs, and their errors."""
    each = [
        [
            [twin.projected(t.tolist(), [0.0] * len(t), w.tolist(), b.tolist(), p, p.io) for t in item]
            for w, b in zip(matrices, biases, strict=True)
        ]
        for item in tokens
    ]
    return np.array(each)[..., 0], np.array(each)[..., 1]


@pytest.mark.parametrize("p", ALL, ids=lambda p: p.name)
def test_of_attention(p):
    for which, size in enumerate((1.0, 1e-4, 1.0, 1e-37)):  # so small that what is lost near zero counts
        q, k, v, options = inputs(which, size)
        found = attention_bound(q, k, v, p, **options)
        for at, row in rows(q, k, v, **options, errors=operand_errors(q, k, v, p, options["scale"])):
            w, outputs, of_lse, of_weights = twin.row_bounds(row, p)
            np.testing.assert_allclose(found.output[at], [times(p) * bound for _, bound in outputs], **NEAR)
            np.testing.assert_allclose(found.truth.output[at], [o for o, _ in outputs], rtol=1e-11, atol=1e-14 * size)
            np.testing.assert_allclose(found.lse[at], times(p) * of_lse, **NEAR)
            np.testing.assert_allclose(found.truth.lse[at], w.lse, rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(found.weights[at], times(p) * np.array(of_weights), **NEAR)


@pytest.mark.parametrize("p", ALL, ids=lambda p: p.name)
def test_of_a_merge(p):
    """One key for each part, in the type of the lse; a part's lse is converted once more before it is a score."""
    r = np.random.default_rng(2)
    parts = [(r.standard_normal((1, H, N, D_V)), 3 * r.standard_normal((1, H, N))) for _ in range(3)]
    errors = [(1e-3 * r.random((1, H, N, D_V)), 1e-2 * r.random((1, H, N))) for _ in range(3)]
    wide = replace(p, multiplicand=p.io, accumulator=p.lse, softmax=p.lse, scores=None, weights=p.lse, weight_scale=None)
    for off in (errors, None):
        found = merge_bound(parts, off, p)
        for at in np.ndindex(1, H, N):
            s = [float(lse[at]) for _, lse in parts]
            delta = [0.0] * 3 if off is None else [float(lse[at]) for _, lse in off]
            V = [output[at].tolist() for output, _ in parts]
            dV = (
                [flushed(output[at], p).tolist() for output, _ in parts]
                if off is None
                else [output[at].tolist() for output, _ in off]
            )
            g = twin.g(1, twin.u(p.lse))
            w = twin.weighed([(x, d * (1 + g) + g * abs(x)) for x, d in zip(s, delta, strict=True)], [True] * 3, 0, wide)
            np.testing.assert_allclose(
                found.output[at], [times(p) * bound for _, bound in twin.output_bounds(w, V, dV, [True] * 3, wide)], **NEAR
            )
            np.testing.assert_allclose(found.lse[at], times(p) * twin.lse_bound(w, wide), **NEAR)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("p", ALL, ids=lambda p: p.name)
def test_of_a_layer(p, biased):
    r = np.random.default_rng(3)
    d_q, d_in, d_out = 7, 8, 9
    x, y = 0.5 * r.standard_normal((B, N, d_q)), 0.5 * r.standard_normal((B, M, d_in))
    w = [0.5 * r.standard_normal(s) for s in ((H, d_q, D_K), (H_KV, d_in, D_K), (H_KV, d_in, D_V), (H, D_V, d_out))]
    b = [r.standard_normal(s) for s in ((H, D_K), (H_KV, D_K), (H_KV, D_V), (d_out,))]
    b = b if biased else [0 * a for a in b]
    for a in (x, y, *w, *b):
        a.flat[::5] *= 1e-5  # subnormal numbers in float16
    found = layer_bound(x, y, y, (*w, *(b if biased else [None] * 4)), p, scale=0.3, sink=np.array([0.1, 0.2, 0.3, 0.4]))

    steps = ((x, w[0], b[0]), (y, w[1], b[1]), (y, w[2], b[2]))
    (q, dq), (k, dk), (v, dv) = (projected(*step, p) for step in steps)
    inside = np.zeros((B, H, N, D_V, 2))
    for at, row in rows(q, k, v, 0.3, sink=np.array([0.1, 0.2, 0.3, 0.4]), errors=(dq, dk, dv)):
        inside[at] = twin.row_bounds(row, p)[1]
    merged = np.concatenate([w[3][h] for h in range(H)]).tolist()
    for at in np.ndindex(B, N):
        o, e = (np.concatenate([inside[at[0], h, at[1], :, part] for h in range(H)]).tolist() for part in (0, 1))
        expected = twin.projected(o, e, merged, b[3].tolist(), p, p.output)
        np.testing.assert_allclose(found.truth.output[at], [y for y, _ in expected], rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(found.output[at], [times(p) * bound for _, bound in expected], **NEAR)
