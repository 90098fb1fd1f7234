"""The bounds of gradients are those of the text of MHA-GRAD-19: a twin computes them one row at a time, and they agree."""

import numpy as np
import pytest
import twin_bounds_backward as twin
from test_numerics_twin import (
    D_K,
    D_V,
    FLUSHING,
    H_KV,
    NEAR,
    B,
    H,
    M,
    N,
    flushed,
    inputs,
    operand_errors,
    projected,
    rows,
    times,
)

from mha_spec.call import Cotangents
from mha_spec.numerics import PROFILES
from mha_spec.numerics_backward import gradient_bound
from mha_spec.numerics_backward_layer import layer_gradient_bound

SOUND = [p for p in (*PROFILES.values(), *FLUSHING) if "float8" not in p.io]
GROUP = 2


def arriving(seed, size=1.0):
    r = np.random.default_rng(seed)
    dO = size * r.standard_normal((B, H, N, D_V))
    dO.flat[::5] *= 1e-5
    return dO, r.standard_normal((B, H, N)), r.standard_normal((B, H, N, M))


def by_twin(q, k, v, dO, dL, dA, p, options, errors=None, e_O=None):
    """Every gradient as an array of (value, bound), computed head by head, and what each row passed on."""
    e_O = np.zeros_like(dO) if e_O is None else e_O
    found = {"query": np.zeros((*q.shape, 2)), "key": np.zeros((*k.shape, 2)), "value": np.zeros((*v.shape, 2))}
    all_rows, passed = dict(rows(q, k, v, **options, errors=errors)), {}
    for b, kv in np.ndindex(B, H // GROUP):
        group = []
        for h in range(kv * GROUP, (kv + 1) * GROUP):
            at = [(b, h, i) for i in range(N)]
            each = [twin.Arrives(dO[x].tolist(), e_O[x].tolist(), float(dL[x]), dA[x].tolist()) for x in at]
            group.append(([all_rows[x] for x in at], each))
        queries, keys, values, heads = twin.of_head(group, options["scale"], p, np.max(options.get("factors", 1.0)))
        found["query"][b, kv * GROUP : (kv + 1) * GROUP] = queries
        found["key"][b, kv], found["value"][b, kv] = keys, values
        passed |= {(b, kv * GROUP + h, i): x for h, head in enumerate(heads) for i, x in enumerate(head)}
    return found, passed


@pytest.mark.parametrize("p", SOUND, ids=lambda p: p.name)
def test_of_attention(p):
    for which, size in enumerate((1.0, 1e-4, 1.0, 1e-37)):
        q, k, v, options = inputs(which, size)
        if "bias" in options:
            options["bias"] = np.broadcast_to(options["bias"][:1, :, :1], (B, H, N, M))
        dO, dL, dA = arriving(which)
        dO, dL, dA = (dO, dL, dA) if which % 2 else (1e-36 * dO, 0.0 * dL, 0.0 * dA)
        bias = options.get("bias")
        given = {**options, **({} if bias is None else {"bias": bias[:1, :, :1]})}
        bounds = gradient_bound(q, k, v, Cotangents(dO, dL, dA), p, **given)
        errors = operand_errors(q, k, v, p, options["scale"])
        found, passed = by_twin(q, k, v, dO, dL, dA, p, options, errors, flushed(dO, p))
        if bias is not None:
            found["bias"] = np.zeros((1, H, 1, M, 2))
            see = options["visible"]
            for h, j in np.ndindex(H, M):
                at = [(b, h, i) for b in range(B) for i in range(N) if see[b, h, i, j]]
                found["bias"][0, h, 0, j] = twin.of_bias([(passed[x].dS[j], passed[x].e_S[j]) for x in at], p)
        if options.get("sink") is not None:
            at = [[(b, h, i) for b in range(B) for i in range(N)] for h in range(H)]
            found["sink_logits"] = np.array([twin.of_sink([passed[x] for x in y], [dL[x] for x in y], p) for y in at])
        for name, expected in found.items():
            truth, bound = getattr(bounds.truth, name), getattr(bounds, name)
            assert np.isfinite(bound).all()
            np.testing.assert_allclose(bound, times(p) * expected[..., 1], **NEAR, err_msg=name)
            np.testing.assert_allclose(truth, expected[..., 0], rtol=1e-9, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("p", SOUND, ids=lambda p: p.name)
def test_of_a_layer(p, biased):
    """Projections forwards as in MHA-NUM-13, the heads, then sums over heads and channels, and over tokens."""
    r = np.random.default_rng(3)
    d_q, d_in, d_out = 7, 8, 9
    x, y, dY = r.standard_normal((B, N, d_q)), r.standard_normal((B, M, d_in)), r.standard_normal((B, N, d_out))
    w = [0.5 * r.standard_normal(s) for s in ((H, d_q, D_K), (H_KV, d_in, D_K), (H_KV, d_in, D_V), (H, D_V, d_out))]
    c = [r.standard_normal(s) for s in ((H, D_K), (H_KV, D_K), (H_KV, D_V), (d_out,))]
    c = c if biased else [0.0 * a for a in c]
    for a in (x, y, dY, *w, *c):
        a.flat[::5] *= 1e-5  # subnormal numbers in float16
    _, dL, dA = arriving(4)
    sink = r.standard_normal(H)
    bounds = layer_gradient_bound(
        x, y, y, (*w, *(c if biased else [None] * 4)), Cotangents(dY, dL, dA), p, scale=0.3, softcap=2.0, sink=sink
    )

    steps = ((x, w[0], c[0]), (y, w[1], c[1]), (y, w[2], c[2]))
    (q, dq), (k, dk), (v, dv) = (projected(*step, p) for step in steps)
    dO, e_O = projected(dY, [m.T for m in w[3]], np.zeros((H, D_V)), p)
    options = {"scale": 0.3, "softcap": 2.0, "sink": sink}
    found, passed = by_twin(q, k, v, dO, dL, dA, p, options, (dq, dk, dv), e_O)

    expected = {}
    for name, tokens, matrices in (("query", x, w[0]), ("key", y, w[1]), ("value", y, w[2])):
        value, error = found[name][..., 0], found[name][..., 1]
        merged = np.concatenate([m.T for m in matrices])  # (h*d, e)
        joined, off = (np.concatenate([a[:, h] for h in range(a.shape[1])], axis=-1) for a in (value, error))
        expected[name] = of_sums(joined, off, merged, len(merged), p)
        flat = tokens.reshape(-1, tokens.shape[-1])
        left, e = (
            np.stack([a[:, h].reshape(len(flat), -1).T for h in range(a.shape[1])]) for a in (value, error)
        )  # (h d tokens)
        expected[f"w_{name[0]}"] = np.swapaxes(of_sums(left, e, flat, len(flat), p), 1, 2)
        expected[f"b_{name[0]}"] = of_sums(left, e, np.ones((len(flat), 1)), len(flat), p)[:, :, 0] if biased else None
    o, B_o = np.zeros((H, D_V, B * N)), np.zeros((H, D_V, B * N))
    for (b, h, i), row in passed.items():
        o[h, :, b * N + i], B_o[h, :, b * N + i] = row.o, row.B_o
    expected["w_o"] = of_sums(o, B_o, dY.reshape(-1, d_out), B * N, p)
    expected["b_o"] = of_sums(np.ones((1, B * N)), np.zeros((1, B * N)), dY.reshape(-1, d_out), B * N, p)[0] if biased else None
    at = [[(b, h, i) for b in range(B) for i in range(N)] for h in range(H)]
    expected["sink_logits"] = np.array([twin.of_sink([passed[z] for z in each], [dL[z] for z in each], p) for each in at])
    for name, known in expected.items():
        bound, truth = getattr(bounds, name), getattr(bounds.truth, name)
        if known is None:
            assert bound is None and truth is None
            continue
        np.testing.assert_allclose(bound, times(p) * known[..., 1], **NEAR, err_msg=name)
        np.testing.assert_allclose(truth, known[..., 0], rtol=1e-8, atol=1e-12, err_msg=name)


def of_sums(x, errors, Y, terms, p):
    """(..., i), (i, d) -> (..., d, 2): each row's sum and its error, rounded to the operands' type."""
    found, off = np.zeros((*x.shape[:-1], Y.shape[-1], 2)), flushed(Y, p)
    for at in np.ndindex(*x.shape[:-1]):
        values, bounds = twin.of_sum(x[at], errors[at], Y, off, terms, p)
        found[at] = [(a, twin.rounded(e, a, p)) for a, e in zip(values, bounds, strict=True)]
    return found
