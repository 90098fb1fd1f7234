"""The independent twin: attention by loops over numbers, written from the text and sharing no code with the equations.

It takes the raw options of the public function, asks of every pair (i, j) whether each constraint shows it, and then
computes the row in mpmath with ``DIGITS`` digits, or in Python floats with exactly rounded sums. NaN is decided by
the rule of MHA-MASK-20 to MHA-MASK-22, not by arithmetic.
"""

import math
from itertools import product

import mpmath
import numpy as np

DIGITS = 40


class Floats:
    """Python floats; sums are exactly rounded."""

    number, exp, log, tanh, sum = float, math.exp, math.log, math.tanh, math.fsum


class Exact:
    """mpmath numbers of ``DIGITS`` digits."""

    context = mpmath.mp.clone()
    context.dps = DIGITS
    number, exp, log, tanh, sum = context.mpf, context.exp, context.log, context.tanh, context.fsum


def attention(query, key, value, *, numbers=Exact, return_weights=False, return_lse=False, **options):
    """query (*b h n d_k), key (*b h_kv m d_k), value (*b h_kv m d_v) -> (output, weights, lse) as float64 arrays."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (query, key, value))
    *batch, h, n, d_k = q.shape
    h_kv, m, d_v = v.shape[-3:]
    output, weights, lse = np.zeros((*batch, h, n, d_v)), np.zeros((*batch, h, n, m)), np.zeros((*batch, h, n))
    rows = Row(numbers, batch, n, m, d_k, d_v, options)
    for at in product(*map(range, (*batch, h, n))):
        b, head, i = at[:-2], at[-2], at[-1]
        kv = (*b, head // (h // h_kv))
        output[at], weights[at], lse[at] = rows.compute(b, head, i, q[at].tolist(), k[kv].tolist(), v[kv].tolist())
    return output, weights, lse


class Row:
    """One query row at a time."""

    def __init__(self, numbers, batch, n, m, d_k, d_v, options):
        self.x, self.batch, self.n, self.m, self.d_v = numbers, tuple(batch), n, m, d_v
        self.option = options.get
        scale = options.get("scale")
        self.scale = numbers.number(scale) if scale is not None else numbers.number(d_k or 1) ** numbers.number(-0.5)

    def compute(self, b, head, i, q, k, v):
        number = self.x.number
        bias = [self.entry("bias", b, head, i, j, 0.0) for j in range(self.m)]
        seen = [j for j in range(self.m) if self.sees(b, head, i, j, bias[j])]
        sink = self.option("sink_logits")
        sink = -math.inf if sink is None else float(sink[head])
        if not seen:
            return [0.0] * self.d_v, [0.0] * self.m, sink
        weights = [0.0] * self.m
        if any(map(math.isnan, q)) or math.isnan(sink) or any(math.isnan(x) for j in seen for x in (*k[j], bias[j])):
            for j in seen:
                weights[j] = math.nan
            return [math.nan] * self.d_v, weights, math.nan
        score = {j: self.score(q, k[j], bias[j]) for j in seen}
        top = max([*score.values()] + ([number(sink)] if sink != -math.inf else []))
        share = {j: self.x.exp(s - top) for j, s in score.items()}
        total = self.x.sum([*share.values()] + ([self.x.exp(number(sink) - top)] if sink != -math.inf else []))
        for j in seen:
            weights[j] = float(share[j] / total)
        factor = {j: self.factor(b, head, i, j) for j in seen}
        output = [
            math.nan
            if any(math.isnan(v[j][c]) for j in seen)
            else float(self.x.sum([factor[j] * share[j] / total * number(v[j][c]) for j in seen]))
            for c in range(self.d_v)
        ]
        return output, weights, float(top + self.x.log(total))

    def score(self, q, k, bias):
        number = self.x.number
        s = self.scale * self.x.sum([number(a) * number(c) for a, c in zip(q, k, strict=True)])
        cap = self.option("softcap")
        if cap is not None:
            s = number(cap) * self.x.tanh(s / number(cap))
        return s + number(bias)

    def factor(self, b, head, i, j):
        """What dropout multiplies the weight of a pair with."""
        drop, number = self.option("dropout"), self.x.number
        if drop is None:
            return number(1)
        if drop.rate == 1:
            return number(0)
        if drop.keep is None:
            item = int(np.ravel_multi_index(b, self.batch)) if b else 0
            kept = word(drop.seed, drop.key_start + j, drop.query_start + i, drop.head_start + head, drop.batch_start + item)
            kept = kept >= math.floor(drop.rate * 2**32)
        else:
            kept = self.at(drop.keep, b, head, i, j)
        return 1 / (1 - number(drop.rate)) if kept else number(0)

    def sees(self, b, head, i, j, bias):
        """The visible set, one question per constraint."""
        if not self.entry("mask", b, head, i, j, True) or bias == -math.inf:
            return False
        offset = self.option("query_offset")
        position = i + (0 if offset is None else int(np.asarray(offset)[b]) if np.ndim(offset) else int(offset))
        if self.option("is_causal") and j > position:
            return False
        left, right = self.option("window") or (None, None)
        if (left is not None and position - j > left) or (right is not None and j - position > right):
            return False
        lengths = self.option("key_lengths")
        if lengths is not None and j >= (int(np.asarray(lengths)[b]) if np.ndim(lengths) else int(lengths)):
            return False
        if self.option("query_segments") is not None:
            return int(self.option("query_segments")[(*b, i)]) == int(self.option("key_segments")[(*b, j)])
        return True

    def entry(self, name, b, head, i, j, default):
        """What a broadcast option holds for this pair."""
        x = self.option(name)
        return default if x is None else type(default)(self.at(x, b, head, i, j))

    def at(self, x, b, head, i, j):
        x = np.asarray(x)
        at = (i, j) if x.ndim == 2 else (*b, head, i, j)
        return x[tuple(0 if size == 1 else where for size, where in zip(x.shape, at, strict=True))]


def word(seed, j, i, h, b):
    """The word of a pair by Philox4x32-10 (MHA-DROP-3), on Python's integers."""
    c, k = [j // 4, i, h, b], [seed % 2**32, seed // 2**32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q % 2**32, (p >> 32) ^ c[3] ^ k[1], p % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c[j % 4]


def layer(query, key, value, projections, *, numbers=Exact, **options):
    """MultiHead by the paper: each head projects the full input, attends, and adds its own head_i W_i^O."""
    p = projections
    q = _project(numbers, query, p.w_q, p.b_q)
    k = _project(numbers, key, p.w_k, p.b_k)
    v = _project(numbers, value, p.w_v, p.b_v)
    heads, weights, lse = attention(q, k, v, numbers=numbers, **options)
    *batch, h, n, d_v = heads.shape
    d_out = np.asarray(p.w_o).shape[-1]
    output = np.zeros((*batch, n, d_out))
    for at in product(*map(range, (*batch, n))):
        *b, i = at
        for o in range(d_out):
            terms = [
                numbers.number(heads[(*b, head, i, c)]) * numbers.number(float(p.w_o[head, c, o]))
                for head in range(h)
                for c in range(d_v)
            ]
            if p.b_o is not None:
                terms.append(numbers.number(float(p.b_o[o])))
            output[(*at, o)] = float(numbers.sum(terms)) if terms else 0.0
    return output, weights, lse


def _project(numbers, x, w, b):
    """(*b n d_in), (h d_in d) -> (*b h n d)"""
    x, w = np.asarray(x).astype(np.float64), np.asarray(w).astype(np.float64)
    *batch, n, d_in = x.shape
    h, _, d = w.shape
    y = np.zeros((*batch, h, n, d))
    for at in product(*map(range, y.shape)):
        *where, head, i, c = at
        terms = [numbers.number(x[(*where, i, e)]) * numbers.number(w[head, e, c]) for e in range(d_in)]
        if b is not None:
            terms.append(numbers.number(float(b[head, c])))
        y[at] = float(numbers.sum(terms)) if terms else 0.0
    return y


def merge(parts, numbers=Exact):
    """[(output, lse)] -> (output, lse): each row weighted by e^lse over the sum of them all."""
    outputs = [np.asarray(o).astype(np.float64) for o, _ in parts]
    lses = [np.asarray(lse).astype(np.float64) for _, lse in parts]
    output, lse = np.zeros_like(outputs[0]), np.full_like(lses[0], -math.inf)
    for at in product(*map(range, lse.shape)):
        there = [p for p in range(len(parts)) if lses[p][at] != -math.inf]
        if not there:
            continue
        top = max(lses[p][at] for p in there)
        share = {p: numbers.exp(numbers.number(lses[p][at]) - numbers.number(top)) for p in there}
        total = numbers.sum(list(share.values()))
        lse[at] = float(numbers.number(top) + numbers.log(total))
        for c in range(output.shape[-1]):
            output[(*at, c)] = float(numbers.sum([share[p] / total * numbers.number(outputs[p][(*at, c)]) for p in there]))
    return output, lse
