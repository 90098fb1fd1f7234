"""Legal gradients in emulated arithmetic, step by step in the types of a profile: what the bounds of chapter 5 have to survive.

Three kernels: *eager* keeps the weights and sums A dP; *recomputed* takes the weights from the rounded lse and D from the rounded output;
*folded* does so in base 2. It shares no code with the bounds.
"""

import emulated
import numpy as np

KERNELS = ("eager", "recomputed", "folded")
LOG2E = 1.0 / np.log(2.0)


def arriving(c, p, seed):
    """dO (h n d_v), dL (h n), dA (h n m) in the types of the profile, with a size per head."""
    r, to = np.random.default_rng(1000 + seed), emulated.Machine().to
    rows, m = c.q.shape[:-1], c.k.shape[-2]
    size = np.ldexp(1.0, np.arange(rows[0]) - 1)[:, None, None]
    wide = "float64" if p.io == "float64" else "float32"
    dO = to(size * r.standard_normal((*rows, c.v.shape[-1])), p.output)
    return dO, to(r.standard_normal(rows), wide), to(r.standard_normal((*rows, m)), p.output)


def gradients(c, arrives, p, m=None, kernel="eager"):
    """dQ, dK, dV, db (h n m), ds (h) or None."""
    m = m or emulated.Machine()
    with np.errstate(all="ignore"):
        return _gradients(c, arrives, p, m, kernel)


def _gradients(c, arrives, p, m, kernel):
    dO, dL, dA = arrives
    s_type, a_type = p.softmax, p.accumulator
    wide = "float64" if p.io == "float64" else "float32"
    o, lse, _ = emulated.attention(c, p, m, "folded" if kernel == "folded" else "eager")
    lse = m.to(lse, wide)[..., None]
    S = emulated.scores(c, p, m, "folded" if kernel == "folded" else "eager")
    see = np.isfinite(S)
    some = see.any(-1, keepdims=True)
    sink = None if c.sink is None else np.broadcast_to(m.to(c.sink, s_type)[:, None, None], lse.shape)
    P, p_sink = _weights(S, see, some, sink, lse, m, s_type, kernel)

    stored = m.to(c.dropped(P, m, s_type), p.weights)
    q, k, v, g = (m.to(x, p.multiplicand) for x in (c.q, c.k, c.v, dO))
    dV = m.to(m.matmul(_t(stored), g, a_type), p.output)
    dP = m.to(m.to(c.dropped(m.matmul(g, _t(v), a_type), m, s_type), s_type), p.scores)
    if kernel == "eager":
        dP = m.to(dP + dA, s_type)
        D = m.total(np.where(see, m.to(P * dP, s_type), 0.0), s_type)[..., None]
        r = m.to(m.to(dP - D, s_type) + dL[..., None], s_type)
    else:
        D = m.total(m.to(dO * o, s_type), s_type) + m.total(np.where(see, m.to(P * dA, s_type), 0.0), s_type)
        D = m.to(D, s_type)[..., None]
        r = m.to(m.to(dP + dA, s_type) - m.to(D - dL[..., None], s_type), s_type)
    dS = np.where(see, m.to(P * r, s_type), 0.0)
    dX = dS
    if c.softcap is not None:
        x = m.to(m.matmul(q, _t(k), a_type) * c.scale, s_type)
        t = m.wrong(np.tanh(m.to(m.to(x, p.scores) / m.to(c.softcap, s_type), s_type)), s_type, 3.0)
        dX = m.to(dS * m.to(1.0 - m.to(t * t, s_type), s_type), s_type)
    dX = m.to(dX, p.weights)
    scale = m.to(c.scale, s_type)
    dQ = m.to(m.to(m.matmul(dX, k, a_type) * scale, s_type), p.output)
    dK = m.to(m.to(m.matmul(_t(dX), q, a_type) * scale, s_type), p.output)
    ds = None
    if sink is not None:
        rest = np.where(some, m.to(dL[..., None] - D, s_type), dL[..., None])
        ds = m.to(m.total(m.to(p_sink * rest, s_type)[..., 0], s_type), p.output)
    return dQ, dK, dV, m.to(m.to(dS, p.weights), p.output), ds


def _weights(S, see, some, sink, lse, m, s_type, kernel):
    """Of the keys, and of the sink (h n 1), which has all of the weight where nothing is seen."""
    if kernel == "eager":
        wide = S if sink is None else np.concatenate([S, sink], axis=-1)
        top = np.where(np.isfinite(wide.max(-1, keepdims=True)), wide.max(-1, keepdims=True), 0.0)
        e = m.exp(m.to(wide - top, s_type), s_type)
        ell = m.total(e, s_type)[..., None]
        P = m.to(e / np.where(ell > 0, ell, 1.0), s_type)
        return np.where(see, P[..., : S.shape[-1]], 0.0), None if sink is None else np.where(some, P[..., -1:], 1.0)
    base2 = kernel == "folded"
    log2e = m.to(LOG2E, s_type)
    shift = m.to(lse * log2e, s_type) if base2 else lse
    P = np.where(see, m.exp(m.to(S - shift, s_type), s_type, base2), 0.0)
    if sink is None:
        return P, None
    last = m.to(sink * log2e, s_type) if base2 else sink
    return P, np.where(some, m.exp(m.to(last - shift, s_type), s_type, base2), 1.0)


def _t(x):
    return np.swapaxes(x, -1, -2)
