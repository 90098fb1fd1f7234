"""The bounds of gradients once more, from the text of MHA-GRAD-19: one head at a time, on the rows of ``twin_bounds``.

What the text leaves to the module, the slope of a softcap, the sums of bias and sink, and what is lost near zero, is derived here again.
"""

from dataclasses import dataclass
from math import exp, expm1, tanh

import numpy as np
import twin_bounds as twin
from twin_bounds import dot, eta, g, one_after_another


@dataclass
class Arrives:
    """What arrives at one row: at its output (and by how much that is off), at its lse, at its weights."""

    dO: list
    e_O: list
    dL: float
    dA: list


@dataclass
class Passed:
    """What one row hands on: the gradient of each scaled product and score, with errors, and what sums over rows need."""

    w: object
    X: list
    o: list
    B_o: list
    D: float
    e_D: float
    dS: list
    e_S: list
    dX: list
    stored: list


def exponents(w, p):
    """X of each key, and of the sink: the worse of a weight from the row sum and one from the lse."""
    t, found = twin.Types(p), []
    e_lse = twin.lse_bound(w, p)
    for log_A, E in zip(w.log_A, w.E, strict=True):
        if E is None:
            found.append(None)
            continue
        T = -log_A + E + e_lse
        by_lse = e_lse + g(3, t.s) * abs(w.lse) + g(1, t.s) * T + twin.of_exponential(T, 0, t)
        found.append(E + max(w.L + g(w.N, t.s) + g(3, t.s), by_lse))
    return found


def weight_errors(w, X, p):
    return [0.0 if x is None else a * expm1(x) + twin.floor(p) for a, x in zip(w.A, X, strict=True)]


def passed(row, arrives, p):
    """One row backwards."""
    t, d_v = twin.Types(p), len(arrives.dO)
    w = twin.weighed(
        twin.finished(row, p), [*row.see, *([True] if row.sink is not None else [])], twin.rescalings(len(row.K)), p
    )
    X = exponents(w, p)
    e_A = weight_errors(w, X, p)
    keys = [j for j, there in enumerate(row.see) if there]
    outputs = twin.output_bounds(w, row.V, row.dV, row.see, p, row.M)
    M, of_M = row.M or [1.0] * len(row.K), g(2, t.s) if row.M else 0.0
    o, B_o = [y for y, _ in outputs], [bound for _, bound in outputs]
    dO, e_O = [abs(x) for x in arrives.dO], arrives.e_O
    wide = [x + e for x, e in zip(dO, e_O, strict=True)]

    product = one_after_another(g(d_v, t.a), g(2, t.m), of_M)
    arrived, e_P = {}, {}
    for j in keys:
        V = [abs(x) for x in row.V[j]]
        through = M[j] * dot(arrives.dO, row.V[j])
        error = product * dot(wide, [x + e for x, e in zip(V, row.dV[j], strict=True)]) + d_v * eta(p.accumulator, p)
        error += dot(wide, row.dV[j]) + dot(e_O, V)
        error = M[j] * error * (1 + g(1, t.S)) + g(1, t.S) * abs(through)
        arrived[j] = through + arrives.dA[j]
        e_P[j] = error + g(1, t.s) * (abs(arrived[j]) + abs(arrives.dA[j]))
    D = sum(w.A[j] * arrived[j] for j in keys)

    def of_sum(x, error):
        """The error of the sum of A x over the row, n + R + 1 roundings."""
        size = sum((w.A[j] + e_A[j]) * (abs(x[j]) + error[j]) for j in keys)
        return sum((w.A[j] + e_A[j]) * error[j] + e_A[j] * abs(x[j]) for j in keys) + g(w.N + 1, t.s) * size

    size_o = [abs(y) + bound for y, bound in zip(o, B_o, strict=True)]
    by_output = dot(dO, B_o) + dot(e_O, size_o) + g(d_v, t.s) * dot(wide, size_o) + of_sum(arrives.dA, dict.fromkeys(keys, 0.0))
    e_D = max(by_output, of_sum(arrived, e_P)) + (d_v + 1) * eta(p.softmax, p)

    delta = finished_before_bias(row, p)
    dS, e_S, dX, stored = ([0.0] * len(row.K) for _ in range(4))
    for j in keys:
        r = arrived[j] - D + arrives.dL
        e_r = e_P[j] + e_D
        e_r += g(3, t.s) * (abs(arrived[j]) + abs(arrives.dA[j]) + abs(D) + abs(arrives.dL) + e_P[j] + e_D)
        dS[j] = w.A[j] * r
        e_S[j] = (e_A[j] * abs(r) + (w.A[j] + e_A[j]) * e_r) * (1 + g(2, t.s)) + g(2, t.s) * abs(dS[j]) + eta(p.softmax, p)
        slope, e_slope = 1.0, 0.0
        if row.softcap is not None:
            tau = tanh(row.scale * dot(row.q, row.K[j]) / row.softcap)
            off = delta[j] / row.softcap + g(1, t.s) * abs(tau)  # (|tau| + off)^2 - tau^2, which no tanh lets exceed 1
            slope, e_slope = 1.0 - tau**2, min(2 * abs(tau) * off + off**2, 1.0) + g(3, t.s)
        dX[j] = dS[j] * slope
        error = e_S[j] * (slope + e_slope) + abs(dS[j]) * e_slope
        lost = eta(p.weights, p) * max(1.0, 1.0 / abs(row.scale))  # the scale may come before or after the storage
        stored[j] = error * (1 + g(1, t.P)) + g(1, t.P) * abs(dX[j]) + lost
    return Passed(w, X, o, B_o, D, e_D, dS, e_S, dX, stored)


def finished_before_bias(row, p):
    """delta of each score after the softcap and before the bias: that of a row without one, with its last step taken back."""
    t = twin.Types(p)
    r = one_after_another(g(3, t.s), g(1, t.S))
    bare = twin.Row(row.q, row.K, row.V, row.scale, row.see, [0.0] * len(row.K), row.softcap, None, row.dq, row.dK, row.dV)
    return [(delta - r * abs(s)) / (1 + r) for s, delta in twin.finished(bare, p)]


def rounded(error, value, p):
    """One rounding to the operand's type."""
    return error * (1 + 2 * twin.u(p.output)) + 2 * twin.u(p.output) * abs(value) + eta(p.output, p)


def scaled(error, value, scale, p):
    """The product with the scale, four roundings, and one to the operand's type."""
    four = g(4, twin.Types(p).s)
    return rounded(abs(scale) * error * (1 + four) + four * abs(value), value, p)


def of_sum(x, errors, Y, dY, terms, p):
    """(sum_i x_i Y_i, its error) for each channel of Y, each x off by its error and each Y by dY."""
    t, Y, dY = twin.Types(p), np.asarray(Y), np.asarray(dY)
    x, errors = np.asarray(x), np.asarray(errors)
    r = one_after_another(g(terms, t.a), g(2, t.m))
    size = np.abs(Y) + dY
    moved = errors @ size + np.abs(x) @ dY
    return x @ Y, moved + r * ((np.abs(x) + errors) @ size) + terms * eta(p.accumulator, p)


def of_head(group, scale, p, most=1.0):
    """Rows of the query heads that share one key head, as [(rows, what arrives)] -> gradients of queries, keys, values with bounds.

    Also what each row passes on. Keys and values are those of the first row. ``most`` is the largest factor of dropout, or 1.
    """
    t = twin.Types(p)
    heads = [[passed(row, arrives, p) for row, arrives in zip(rows, arriving, strict=True)] for rows, arriving in group]
    first = group[0][0][0]
    m, d_v = len(first.K), len(first.V[0])
    queries = []
    for (rows, _), found in zip(group, heads, strict=True):
        each = []
        for row, x in zip(rows, found, strict=True):
            a, error = of_sum(x.dX, x.stored, row.K, row.dK, sum(row.see), p)
            each.append([(scale * y, scaled(e, scale * y, scale, p)) for y, e in zip(a, error, strict=True)])
        queries.append(each)
    keys, values = [], []
    for j in range(m):
        seen = sum(row.see[j] for rows, _ in group for row in rows)
        if not seen:
            keys.append([(0.0, 0.0)] * len(first.q))
            values.append([(0.0, 0.0)] * d_v)
            continue
        c, error = 0.0, 0.0
        v, e_v = np.zeros(d_v), np.zeros(d_v) + seen * eta(p.accumulator, p) * most
        rho = g(1, t.P) + g(2, t.m) + g(seen, t.a) + (g(2, t.s) if first.M else 0.0)
        for (rows, arriving), found in zip(group, heads, strict=True):
            y, e = of_sum(
                [x.dX[j] for x in found], [x.stored[j] for x in found], [r.q for r in rows], [r.dq for r in rows], seen, p
            )
            c, error = c + y, error + e
            for row, arrives, x in zip(rows, arriving, found, strict=True):
                if row.see[j]:
                    A, dO, e_O = x.w.A[j], np.asarray(arrives.dO), np.asarray(arrives.e_O)
                    factor = row.M[j] if row.M else 1.0
                    v += factor * A * dO
                    grown = A * expm1(x.X[j] + rho) + (twin.floor(p) + eta(p.weights, p)) * exp(rho)
                    e_v += factor * (grown * (np.abs(dO) + e_O) + A * e_O)
        keys.append([(scale * y, scaled(e, scale * y, scale, p)) for y, e in zip(c, error, strict=True)])
        values.append([(y, rounded(e, y, p)) for y, e in zip(v, e_v, strict=True)])
    return queries, keys, values, heads


def of_bias(pairs, p):
    """(sum, bound) of one element of a bias from [(dS, its error)] of the pairs that it was added to and that are seen."""
    t, n = twin.Types(p), len(pairs)
    if not n:
        return 0.0, 0.0
    errors = [e * (1 + g(1, t.P)) + g(1, t.P) * abs(x) + eta(p.weights, p) for x, e in pairs]
    value, size = sum(x for x, _ in pairs), sum(abs(x) for x, _ in pairs)
    return value, rounded(sum(errors) + g(n, t.a) * (size + sum(errors)) + n * eta(p.accumulator, p), value, p)


def of_sink(rows, dLs, p):
    """(sum, bound) of one sink from what its rows passed: each adds its weight times dL - D, with one rounding for each of the two."""
    t, terms = twin.Types(p), []
    for x, dL in zip(rows, dLs, strict=True):
        share, e_share = x.w.A[-1], weight_errors(x.w, x.X, p)[-1]
        r, e_r = dL - x.D, x.e_D + g(1, t.s) * (abs(dL) + abs(x.D) + x.e_D)
        error = e_share * abs(r) + (share + e_share) * e_r
        terms.append((share * r, error * (1 + g(1, t.s)) + g(1, t.s) * abs(share * r)))
    value, e = sum(x for x, _ in terms), sum(e for _, e in terms)
    size = sum(abs(x) for x, _ in terms)
    return value, rounded(e + g(len(terms), t.a) * (size + e) + len(terms) * eta(p.accumulator, p), value, p)
