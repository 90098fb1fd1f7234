"""The bounds of chapter 4 once more, from the text alone: one row at a time, in plain Python numbers, with constants of its own.

It shares no code with ``mha_spec.numerics``. A row is a query that sees some keys; nothing is broadcast, grouped or infinite here.
"""

from dataclasses import dataclass, field
from math import exp, expm1, log, log1p, tanh

BITS = {
    "float64": 53,
    "float32": 24,
    "tf32": 11,
    "float16": 11,
    "bfloat16": 8,
    "float8_e4m3fn": 4,
    "float8_e5m2": 3,
    "acc14": 14,
}
LOWEST = {"float64": -1022, "float32": -126, "tf32": -126, "float16": -14, "bfloat16": -126, "float8_e4m3fn": -6,
          "float8_e5m2": -14, "acc14": -126}  # fmt: skip
"""Significand bits, and the exponent of the smallest normal number: the table of types in the text."""


def u(name):
    return 0.0 if name is None else 2.0 ** -BITS[name]


def eta(name, p):
    """The smallest subnormal number, or the smallest normal one where flushing is declared."""
    return 2.0 ** (LOWEST[name] if p.flush else LOWEST[name] - BITS[name] + 1)


def flushed(x, p, scale=1.0):
    """What an operand may be off by where flushing is declared: all of it where it, or it times the scale, is subnormal (MHA-NUM-23)."""
    if not p.flush:
        return 0.0
    subnormal = abs(x) < 2.0 ** LOWEST[p.io] or abs(x) * min(1.0, abs(scale)) < 2.0 ** LOWEST[p.accumulator]
    return abs(x) if subnormal else 0.0


def g(k, unit):
    """gamma_k(u)"""
    return 2 * k * unit / (1 - 2 * k * unit)


def one_after_another(*errors):
    """(1 + a)(1 + b)... - 1, without cancellation"""
    total = 0.0
    for e in errors:
        total = total * (1 + e) + e
    return total


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def size(a):
    return [abs(x) for x in a]


@dataclass
class Types:
    """The unit roundoffs of a profile by the letters of the text."""

    p: object
    a: float = field(init=False)
    s: float = field(init=False)
    S: float = field(init=False)
    P: float = field(init=False)
    o: float = field(init=False)
    m: float = field(init=False)

    def __post_init__(self):
        p = self.p
        self.a, self.s, self.S, self.P, self.o = (u(x) for x in (p.accumulator, p.softmax, p.scores, p.weights, p.output))
        self.m = u(p.multiplicand) if p.multiplicand != p.io else 0.0


@dataclass
class Row:
    """A query and what it may look at. ``sink`` is a logit or None; dq, dK, dV say by how much operands are off already.

    ``M`` are the factors of dropout (MHA-NUM-24), None without it.
    """

    q: list
    K: list
    V: list
    scale: float
    see: list
    b: list
    softcap: float | None = None
    sink: float | None = None
    dq: list | None = None
    dK: list | None = None
    dV: list | None = None
    M: list | None = None

    def __post_init__(self):
        self.dq = self.dq or [0.0] * len(self.q)
        self.dK = self.dK or [[0.0] * len(self.q) for _ in self.K]
        self.dV = self.dV or [[0.0] * len(v) for v in self.V]


def finished(row, p):
    """(s, delta) of every key, the first two lines of MHA-NUM-6 and those of softcap and bias, with the errors of MHA-NUM-13."""
    t, d, sigma = Types(p), len(row.q), abs(row.scale)
    product = one_after_another(g(d, t.a), g(2, t.m), g(4, t.s))
    r = one_after_another(g(3, t.s), g(1, t.S))
    found = []
    for k, dk, b in zip(row.K, row.dK, row.b, strict=True):
        moved = sigma * (dot(row.dq, size(k)) + dot(size(row.q), dk) + dot(row.dq, dk))
        x = row.scale * dot(row.q, k)
        delta = product * (sigma * dot(size(row.q), size(k)) + moved) + sigma * d * eta(p.accumulator, p) + moved
        delta = delta * (1 + g(1, t.S)) + g(1, t.S) * abs(x)
        s = x
        if row.softcap is not None:
            s, delta = row.softcap * tanh(x / row.softcap), min(delta, 2 * row.softcap) + (12 * t.s + 6 * t.S) * row.softcap
        s += b
        found.append((s, (delta + flushed(b, p) + (g(3, t.s) + g(1, t.S)) * abs(b)) * (1 + r) + r * abs(s)))
    if row.sink is not None:
        s = row.sink
        found.append((s, (flushed(s, p) + (g(3, t.s) + g(1, t.S)) * abs(s)) * (1 + r) + r * abs(s)))
    return found


def of_exponential(T, R, t):
    y = 2 * t.s * (3 + 3 * R + 2 * T)
    return y / (1 - min(y, 0.5))


def floor(p):
    """What a weight may lose near zero, beside its storage."""
    return eta(p.softmax, p) * (6 + 2 * abs(log(eta(p.softmax, p))))


@dataclass
class Weighed:
    """The softmax of a row and its errors: lists over the keys, None where one is not seen; the sink, if any, is the last."""

    A: list
    log_A: list
    E: list
    L: float
    lse: float
    log_ell: float
    N: float


def weighed(scores, see, R, p):
    """A, E, L and what else the lines of the results need."""
    t = Types(p)
    seen = [(s, delta) for (s, delta), there in zip(scores, see, strict=True) if there]
    top = max(s for s, _ in seen)
    ell = sum(exp(s - top) for s, _ in seen)
    drift = max(s - top + delta for s, delta in seen)
    A, log_A, E = [], [], []
    for (s, delta), there in zip(scores, see, strict=True):
        T = abs(s - top) + delta + drift
        A.append(exp(s - top) / ell if there else None)
        log_A.append(s - top - log(ell) if there else None)
        E.append(delta + g(1, t.s) * T + of_exponential(T, R, t) if there else None)
    L = log1p(sum(a * expm1(e) for a, e in zip(A, E, strict=True) if a is not None))
    return Weighed(A, log_A, E, L, top + log(ell), log(ell), len(seen) + R)


def output_bounds(w, V, dV, see, p, M=None):
    """o and B for each channel."""
    t = Types(p)
    rho = g(1, t.P) + g(1, t.m) + g(w.N, t.a) + g(w.N, t.s) + g(3, t.s) + (g(2, t.s) if M else 0.0)
    M = M or [1.0] * len(V)
    lost = eta(p.weights, p) if p.weight_scale is None else eta(p.weights, p) / (p.weight_scale * exp(w.log_ell))
    keys = [j for j, there in enumerate(see) if there]
    found = []
    for c in range(len(V[0])):
        o = sum(M[j] * w.A[j] * V[j][c] for j in keys)
        size = {j: abs(V[j][c]) + dV[j][c] for j in keys}
        F = (lost + floor(p)) * exp(w.L + rho) * sum(M[j] * size[j] for j in keys)
        F += max(1.0, *M) * (w.N * eta(p.accumulator, p) + eta(p.softmax, p))
        inner = sum(M[j] * w.A[j] * (expm1(w.E[j] + w.L + rho) * size[j] + dV[j][c]) for j in keys) + F
        found.append((o, (1 + 2 * t.o) * inner + 2 * t.o * abs(o) + eta(p.output, p)))
    return found


def lse_bound(w, p):
    """MHA-NUM-7"""
    t = Types(p)
    return w.L + g(w.N, t.s) + g(3, t.s) * (1 + abs(w.lse) + w.log_ell)


def weight_bounds(w, keys, p):
    """MHA-NUM-8, for the keys of the row and not for the sink."""
    t = Types(p)
    more = w.L + g(w.N, t.s) + g(3, t.s)
    return [
        0.0
        if w.A[j] is None
        else (1 + 2 * t.o) * (w.A[j] * expm1(w.E[j] + more) + floor(p)) + 2 * t.o * w.A[j] + eta(p.output, p)
        for j in range(keys)
    ]


def rescalings(m):
    """Once for each block of eight keys after the first."""
    return len(range(8, m, 8))


def row_bounds(row, p):
    """(w, [(o, B)], the bound of the lse, [bounds of weights]) of a row that sees something."""
    see = [*row.see, *([True] if row.sink is not None else [])]
    w = weighed(finished(row, p), see, rescalings(len(row.K)), p)
    return w, output_bounds(w, row.V, row.dV, row.see, p, row.M), lse_bound(w, p), weight_bounds(w, len(row.K), p)


def projected(x, dx, W, b, p, name):
    """One token through one matrix (w, o): (y, Delta y) by MHA-NUM-13, rounded once to the type ``name``."""
    t, w = Types(p), len(x)
    r = one_after_another(g(w + 1, t.a), g(2, t.m))
    dx = [e + flushed(a, p) for a, e in zip(x, dx, strict=True)]
    wide = [abs(a) + e for a, e in zip(x, dx, strict=True)]
    found = []
    for o in range(len(W[0])):
        column = [row[o] for row in W]
        y = dot(x, column) + b[o]
        error = dot(dx, size(column)) + dot(wide, [flushed(c, p) for c in column]) + flushed(b[o], p)
        error += r * (dot(wide, size(column)) + abs(b[o])) + w * eta(p.accumulator, p)
        found.append((y, error * (1 + 2 * u(name)) + 2 * u(name) * abs(y) + eta(name, p)))
    return found
