"""Sigma of chapter 4 once more, from the text of MHA-NUM-19 alone: one row at a time, in plain Python numbers."""

from math import exp, inf, sqrt

import twin_bounds as twin
from twin_bounds import dot, eta, g


def row_sigmas(row, p, grade):
    """(sigma of each channel, A, o, the slope of each key) of a row that sees something; a sink is a key of value 0."""
    t, d = twin.Types(p), len(row.q)
    K, V, see, b = list(row.K), list(row.V), list(row.see), list(row.b)
    x = [row.scale * dot(row.q, k) for k in K]
    R = twin.rescalings(len(K))
    if row.sink is not None:
        K, V, see, b, x = [*K, [0.0] * d], [*V, [0.0] * len(V[0])], [*see, True], [*b, row.sink], [*x, 0.0]
    z = x if row.softcap is None else [row.softcap * _tanh(a / row.softcap) for a in x]
    slope = [1.0 if row.softcap is None else 1.0 - _tanh(a / row.softcap) ** 2 for a in x]
    s = [a + c for a, c in zip(z, b, strict=True)]
    keys = [j for j, there in enumerate(see) if there]
    top = max(s[j] for j in keys)
    t_ = [a - top for a in s]
    ell = sum(exp(t_[j]) for j in keys)
    A = [exp(t_[j]) / ell if see[j] else 0.0 for j in range(len(s))]
    channels = range(len(V[0]))
    o = [sum(A[j] * V[j][c] for j in keys) for c in channels]
    shared = [j for j in keys if t_[j] >= -(2.0**-40) * max(1.0, abs(top))]
    alone = [j for j in keys if j not in shared]
    N = len(keys) + R

    def D(y, c):
        return sum(A[j] * y[j] * (V[j][c] - o[c]) for j in keys)

    def S(w, c, centre):
        together = sum(A[j] * (V[j][c] - centre) for j in shared)
        return sum(w[j] * (A[j] * (V[j][c] - centre)) ** 2 for j in alone) + max(w[j] for j in shared) * together**2

    w, of_key = [], []
    for j in range(len(s)):
        size = abs(row.scale) * dot([abs(a) for a in row.q], [abs(a) for a in K[j]])
        of_key.append((t.m**2 + t.s**2) * row.scale**2 * sum((a * c) ** 2 for a, c in zip(row.q, K[j], strict=True)))
        pair = (d * t.a**2 * size**2 + of_key[j] + (t.s**2 + t.S**2) * x[j] ** 2) * slope[j] ** 2
        pair += (2 * t.s**2 + t.S**2) * (s[j] ** 2 + b[j] ** 2) + t.s**2 * t_[j] ** 2 + 4 * t.s**2 * (3 + 2 * abs(t_[j])) ** 2
        pair += (row.scale * d * eta(p.accumulator, p)) ** 2
        w.append(pair if row.softcap is None else pair + (144 * t.s**2 + 3 * t.S**2) * z[j] ** 2)
    if 8 * sqrt(0.4 * max(w[j] + of_key[j] for j in keys)) > 1 / 4:
        return [inf] * len(o), A, o, slope
    of_key = [
        max(twin.flushed(c, p, row.scale) for c in k) + max(twin.flushed(c, p) for c in v) for k, v in zip(K, V, strict=True)
    ]
    lost = any(twin.flushed(c, p, row.scale) for c in row.q)
    if lost or any(of_key[j] or twin.flushed(row.b[j], p) for j in range(len(row.K)) if row.see[j]):
        return [inf] * len(o), A, o, slope  # what is flushed is no chance (MHA-NUM-23)

    ones = [1.0] * len(s)
    lost = eta(p.weights, p) if p.weight_scale is None else eta(p.weights, p) / (p.weight_scale * ell)
    below = sum(A[j] for j in alone)
    mean = sum(A[j] * t_[j] for j in alone) / below if below else 0.0
    spread = sum(A[j] * (t_[j] - mean) ** 2 for j in alone) / below if below else 0.0
    alike = len(keys) > 1 and sqrt(spread) < 4 * t.P
    steep = sqrt(sum(A[j] * t_[j] ** 2 for j in keys))
    moved = [a * c for a, c in zip(slope, x, strict=True)]
    found = []
    for c in channels:
        Z = sqrt(sum(A[j] * (V[j][c] - o[c]) ** 2 for j in keys))
        of_query = row.scale**2 * sum(
            row.q[i] ** 2 * sum(A[j] * slope[j] * K[j][i] * (V[j][c] - o[c]) for j in keys) ** 2 for i in range(d)
        )
        after = t.P**2 * max(S(ones, c, 0.0), S(ones, c, o[c])) + t.m**2 * sum((A[j] * V[j][c]) ** 2 for j in keys)
        after += N * t.a**2 * sum(A[j] * abs(V[j][c]) for j in keys) ** 2 + ((N + 3) * t.s**2 + t.o**2) * o[c] ** 2
        after += 4 * t.s**2 * Z**2 * (1.5 * sqrt(R) + (2 * steep if R else 0.0)) ** 2
        constant = 4 * t.s**2 * D(moved, c) ** 2 + t.s**2 * (D(s, c) ** 2 + D(b, c) ** 2)
        constant += t.s**2 * D(z, c) ** 2 if row.softcap is not None else 0.0
        constant += t.P**2 * o[c] ** 2 if alike else 0.0
        small = sum(min(A[j], lost + twin.floor(p)) * abs(V[j][c]) for j in keys)
        constant += (small + N * eta(p.accumulator, p) + eta(p.softmax, p) + eta(p.output, p)) ** 2
        variance = 0.4 * (S(w, c, o[c]) + (t.m**2 + t.s**2) * of_query + after) + constant
        if grade == "ANY":
            by_scores = (g(d, t.a) + 4 * t.m + 8 * t.s + 2 * t.S) * abs(D(moved, c)) + (12 * t.s + 2 * t.S) * abs(D(s, c))
            by_scores += (6 * t.s + 2 * t.S) * abs(D(b, c))
            by_scores += (12 * t.s + 6 * t.S) * abs(D(z, c)) if row.softcap is not None else 0.0
            by_sums = (2 * t.P + 2 * t.m + 6 * t.s + (g(N, t.a) + g(N, t.s)) / sqrt(3)) * abs(o[c])
            by_rescaling = 2 * t.s * Z * (1.5 * R + (2 * steep if R else 0.0))
            along = (g(d, t.a) ** 2 * of_query + g(N, t.a) ** 2 * S(ones, c, 0.0)) / 12
            variance += by_scores**2 + by_sums**2 + by_rescaling**2 + along + t.o**2 * o[c] ** 2
        found.append((2 if p.io == "float64" else 1) * sqrt(variance))
    return found, A, o, slope


def _tanh(x):
    return 1.0 - 2.0 / (exp(2.0 * x) + 1.0)
