"""The twin of chapter 5: a derivative is a difference quotient, taken with 40 digits, of a row's loss written from the text.

It shares no formula with ``mha_spec.gradients``: there is no Jacobian here. Who sees whom is asked of ``twin``; NaN is decided by the
rule of MHA-GRAD-16.
"""

import math
from itertools import product

import numpy as np
import twin

from mha_core import AttentionGradients, MultiHeadGradients, Projections

MP = twin.Exact.context
STEP = MP.mpf(10) ** -12


def attention_vjp(query, key, value, grad_output, *, grad_lse=None, grad_weights=None, **options):
    """The gradients of every operand as float64 arrays, those of bias and sinks in the shape in which they were given."""
    q, k, v, dO = (np.asarray(x).astype(np.float64) for x in (query, key, value, grad_output))
    *batch, h, n, d_k = q.shape
    h_kv, m, d_v = v.shape[-3:]
    dL = np.zeros(q.shape[:-1]) if grad_lse is None else np.asarray(grad_lse).astype(np.float64)
    dA = np.zeros((*q.shape[:-1], m)) if grad_weights is None else np.asarray(grad_weights).astype(np.float64)
    bias, sinks = options.get("bias"), options.get("sink_logits")
    found = [np.zeros(x.shape) for x in (q, k, v)]
    db = None if bias is None else np.zeros(np.shape(bias))
    ds = None if sinks is None else np.zeros(h)
    rows = twin.Row(twin.Exact, batch, n, m, d_k, d_v, options)
    for at in product(*map(range, (*batch, h, n))):
        b, head, i = at[:-2], at[-2], at[-1]
        kv = (*b, head // (h // h_kv))
        biases = [rows.entry("bias", b, head, i, j, 0.0) for j in range(m)]
        seen = [j for j in range(m) if rows.sees(b, head, i, j, biases[j])]
        sink = -math.inf if sinks is None else float(sinks[head])
        if not seen:
            if ds is not None and sink != -math.inf:
                ds[head] += dL[at]
            continue
        factors = [rows.factor(b, head, i, j) for j in seen]
        row = _Row(rows, q[at], k[kv][seen], v[kv][seen], np.asarray(biases)[seen], sink, factors, dO[at], dL[at], dA[at][seen])
        dq, dk, dv, db_row, ds_row = row.gradients()
        found[0][at] = dq
        for which, part in ((1, dk), (2, dv)):
            for where, j in enumerate(seen):
                found[which][(*kv, j)] += part[where]
        if db is not None:
            for where, j in enumerate(seen):
                place = (i, j) if db.ndim == 2 else (*b, head, i, j)
                db[tuple(0 if size == 1 else p for size, p in zip(db.shape, place, strict=True))] += db_row[where]
        if ds is not None and sink != -math.inf:
            ds[head] += ds_row
    return AttentionGradients(*found, db, ds)


class _Row:
    """One row and what arrives at it; k (s d_k), v (s d_v), bias (s) and factors (s) of dropout, of the s keys that it sees."""

    def __init__(self, rows, q, k, v, bias, sink, factors, dO, dL, dA):
        self.rows, self.operands = rows, [np.array(x, dtype=float) for x in (q, k, v, bias, [sink])]
        self.dO, self.dL, self.dA = np.array(dO), float(dL), np.array(dA)
        self.factors = factors

    def gradients(self):
        q, k, v, bias, sink = self.operands
        weights_nan = any(np.isnan(x).any() for x in (q, k, bias, sink))
        nan = weights_nan or any(np.isnan(x).any() for x in (v, self.dO, self.dL, self.dA))
        if weights_nan:
            return [np.full(x.shape, np.nan) for x in (q, k, v, bias)] + [np.nan]
        channels = np.isnan(self.dO)
        clean = [np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf) for x in self.operands]
        self.dO, self.dA, self.dL = np.nan_to_num(self.dO, nan=0.0), np.nan_to_num(self.dA, nan=0.0), np.nan_to_num(self.dL)
        self.exact = [[MP.mpf(float(x)) if x != -np.inf else -MP.inf for x in array.ravel()] for array in clean]
        self.shapes = [x.shape for x in clean]
        found = [self.quotients(which) for which in range(5)]
        if nan:
            found = [np.full(x.shape, np.nan) if which != 2 else x for which, x in enumerate(found)]
        found[2][:, channels] = np.nan
        return [*found[:4], found[4][0]]

    def quotients(self, which):
        out = np.zeros(len(self.exact[which]))
        for at, x in enumerate(self.exact[which]):
            if not MP.isfinite(x):
                continue
            ends = []
            for step in (STEP, -STEP):
                self.exact[which][at] = x + step
                ends.append(self.loss())
            self.exact[which][at] = x
            out[at] = float((ends[0] - ends[1]) / (2 * STEP))
        return out.reshape(self.shapes[which])

    def loss(self):
        q, k, v, bias, (sink,) = self.exact
        s, d_k, d_v = len(bias), len(q), self.rows.d_v
        cap = self.rows.option("softcap")
        scores = []
        for j in range(s):
            x = self.rows.scale * MP.fsum(q[c] * k[j * d_k + c] for c in range(d_k))
            scores.append((x if cap is None else cap * MP.tanh(x / cap)) + bias[j])
        shares = [MP.exp(x) for x in scores]
        total = MP.fsum(shares) + (MP.exp(sink) if sink != -MP.inf else 0)
        loss = self.dL * MP.log(total)
        for j, share in enumerate(shares):
            through = self.factors[j] * MP.fsum(float(self.dO[c]) * v[j * d_v + c] for c in range(d_v))
            loss += share / total * (float(self.dA[j]) + through)
        return loss


def layer_vjp(query, key, value, projections, grad_output, **options):
    """The layer by its sums over tokens, heads and channels; the heads' own gradients come from ``attention_vjp`` above."""
    p = projections
    x, y, z, dY = (np.asarray(a).astype(np.float64) for a in (query, key, value, grad_output))
    q, k, v = (twin._project(twin.Exact, *a) for a in ((x, p.w_q, p.b_q), (y, p.w_k, p.b_k), (z, p.w_v, p.b_v)))
    forward = {name: o for name, o in options.items() if name not in ("grad_lse", "grad_weights")}
    heads, _, _ = twin.attention(q, k, v, **forward)
    inner = attention_vjp(q, k, v, np.einsum("...no,hco->...hnc", dY, p.w_o), **options)

    def tokens(a):  # batch and tokens as one axis, the last but one
        return np.moveaxis(a, -3, 0).reshape(a.shape[-3], -1, a.shape[-1])

    w_o = np.einsum("htc,to->hco", tokens(heads), tokens(dY[..., None, :, :])[0])
    parts = [(x, p.w_q, p.b_q, inner.query), (y, p.w_k, p.b_k, inner.key), (z, p.w_v, p.b_v, inner.value)]
    inputs = [np.einsum("...hnd,hed->...ne", dy, w) for _, w, _, dy in parts]
    weights = [np.einsum("te,htd->hed", tokens(a[..., None, :, :])[0], tokens(dy)) for a, _, _, dy in parts]
    biases = [None if b is None else tokens(dy).sum(1) for _, _, b, dy in parts]
    b_o = None if p.b_o is None else tokens(dY[..., None, :, :])[0].sum(0)
    return MultiHeadGradients(*inputs, Projections(*weights, w_o, *biases, b_o), inner.bias, inner.sink_logits)
