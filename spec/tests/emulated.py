"""Legal attention in emulated arithmetic: what the bounds of chapter 4 have to survive. It shares no code with them.

Every operation of a kernel is computed in float64 and rounded to the type that the profile says, to nearest, by truncation,
or at random; sums run in the order that the kernel says. Nothing here is fast, and nothing is large.
"""

from dataclasses import dataclass

import numpy as np

RANGE = {  # significand bits, smallest normal exponent, largest number
    "float32": (24, -126, 3.4028234663852886e38),
    "tf32": (11, -126, 3.4e38),
    "float16": (11, -14, 65504.0),
    "bfloat16": (8, -126, 3.3895313892515355e38),
    "float8_e4m3fn": (4, -6, 448.0),
    "float8_e5m2": (3, -14, 57344.0),
    "acc14": (14, -126, 3.4e38),
}
LN2 = np.log(2.0)


@dataclass(frozen=True)
class Machine:
    """``mode``: nearest, truncate, random. ``order``: forward, reversed, pairwise, or blocks of a number of terms."""

    mode: str = "nearest"
    order: str | int = "forward"
    ulps: float = 0.0  # which part of the ulps granted to exp and tanh they are off,
    one_way: bool = False  # always upwards, or each time in a random direction
    seed: int = 0

    def to(self, x, name, random=None):
        """x rounded to the type ``name``."""
        if name == "float64" or name is None:
            return np.asarray(x, dtype=np.float64)
        bits, e_min, largest = RANGE[name]
        x = np.asarray(x, dtype=np.float64)
        step = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, e_min) - (bits - 1))
        if self.mode == "random":
            units = np.floor(x / step + (random or self.random).random(x.shape))
        else:
            units = np.rint(x / step) if self.mode == "nearest" else np.trunc(x / step)
        y = units * step
        return np.where(np.isfinite(x), np.clip(y, -largest, largest), x)

    @property
    def random(self):
        return np.random.default_rng(self.seed)

    def total(self, terms, name):
        """Sum over the last axis in the machine's order, each partial sum rounded to the type ``name``."""
        n = terms.shape[-1]
        if name == "float64":
            if self.order == "forward":
                return np.cumsum(terms, axis=-1)[..., -1] if n else terms.sum(-1)
            return terms[..., ::-1].sum(-1) if self.order == "reversed" else terms.sum(-1)
        if self.order == "pairwise":
            while n > 1:
                odd = terms[..., n - 1 :] if n % 2 else terms[..., :0]
                terms = np.concatenate([self.to(terms[..., 0 : n - 1 : 2] + terms[..., 1:n:2], name), odd], axis=-1)
                n = terms.shape[-1]
            return terms[..., 0] if n else terms.sum(-1)
        if self.order == "reversed":
            terms = terms[..., ::-1]
        if isinstance(self.order, int):  # a matrix unit: a block is summed exactly and rounded once
            edges = range(0, n, self.order)
            terms = np.stack([terms[..., i : i + self.order].sum(-1) for i in edges], axis=-1) if n else terms
        y = np.zeros(terms.shape[:-1])
        random = self.random
        for i in range(terms.shape[-1]):
            y = self.to(y + terms[..., i], name, random)
        return y

    def matmul(self, a, b, name):
        """(..., n, k) @ (..., k, d); products are rounded too, unless a matrix unit sums them."""
        terms = a[..., :, None, :] * np.swapaxes(b, -1, -2)[..., None, :, :]
        return self.total(terms if isinstance(self.order, int) else self.to(terms, name), name)

    def wrong(self, x, name, ulps):
        """x with an error of up to ``ulps`` ulp, rounded."""
        y = self.to(x, name)
        if not self.ulps or name == "float64":
            return y
        sign = np.where(self.random.random(y.shape) < (0.0 if self.one_way else 0.5), -1.0, 1.0)
        return self.to(y * (1.0 + sign * self.ulps * ulps * 2.0 * 2.0 ** -RANGE[name][0]), name)

    def exp(self, x, name, base2=False):
        y = np.exp2(x) if base2 else np.exp(x)
        # the ulps include the rounding of the result: leave one for it
        return self.wrong(y, name, np.maximum(2.0 + 2.0 * np.abs(np.where(np.isfinite(x), x, 0.0)), 0.0))


@dataclass(frozen=True)
class Case:
    """One call over heads: q (h n d), k, v (h m d), and what changes the scores."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    softcap: float | None = None
    bias: np.ndarray | None = None
    visible: np.ndarray | None = None
    sink: np.ndarray | None = None
    rate: float | None = None
    keep: np.ndarray | None = None

    @property
    def options(self):
        options = {"scale": self.scale, "softcap": self.softcap, "bias": self.bias, "visible": self.visible, "sink": self.sink}
        if self.rate is not None:
            options["factors"] = np.where(self.keep, 1.0 / (1.0 - self.rate), 0.0)
        return options

    def dropped(self, P, m, name, keys=slice(None), factor=True):
        """Weights after dropout, in the type ``name``; without ``factor`` the sum is to be ``scaled`` when it is whole."""
        if self.rate is None:
            return P
        kept = np.where(self.keep[..., keys], P, 0.0)
        return m.to(kept * m.to(1.0 / (1.0 - self.rate), name), name) if factor else kept

    def scaled(self, out, m, name):
        return out if self.rate is None else m.to(out * m.to(1.0 / (1.0 - self.rate), name), name)


def scores(c, p, m, kernel):
    """(h n m) scores, in base 2 where the kernel folds log2(e), with -inf where hidden."""
    s_type, a_type = p.softmax, p.accumulator
    q, k = m.to(c.q, p.multiplicand), m.to(c.k, p.multiplicand)
    log2e = m.to(1.0 / LN2, s_type)
    folded = kernel == "folded"
    early = folded and c.softcap is None
    factor = m.to(c.scale / LN2 if early else c.scale, s_type)
    if kernel == "split scale":
        root = m.to(np.sqrt(abs(c.scale)), s_type)
        x = m.matmul(m.to(q * root * np.sign(c.scale), s_type), m.to(k * root, s_type).swapaxes(-1, -2), a_type)
    else:
        x = m.to(m.matmul(q, k.swapaxes(-1, -2), a_type) * factor, s_type)
    x = m.to(x, p.scores)
    if c.softcap is not None:
        cap = m.to(c.softcap, s_type)
        y = m.to(m.to(x / cap, s_type), p.scores)
        y = m.to(m.wrong(np.tanh(y), s_type, 3.0), p.scores)
        x = m.to(m.to(cap * y, s_type), p.scores)
        if folded:
            x = m.to(x * log2e, s_type)
    if c.bias is not None:
        b = m.to(m.to(np.maximum(c.bias, -RANGE["float32"][2]) if s_type != "float64" else c.bias, s_type), p.scores)
        b = np.maximum(m.to(b * log2e, s_type), -RANGE["float32"][2]) if folded else b
        x = m.to(m.to(x + b, s_type), p.scores)
    see = np.ones(x.shape, bool) if c.visible is None else np.broadcast_to(c.visible, x.shape)
    return np.where(see, x, -np.inf)


def attention(c, p, m=None, kernel="eager"):
    """(output, lse, weights or None): eager, normalised (weights divided before PV), folded (base 2), split scale,
    online (blocks of keys with a running maximum), or split (key parts that are merged)."""
    m = m or Machine()
    with np.errstate(all="ignore"):
        S = scores(c, p, m, kernel)
        sink = -np.inf if c.sink is None else m.to(c.sink, p.softmax)[:, None, None]
        if kernel in ("online", "split"):
            return (online if kernel == "online" else split)(c, p, m, S, sink)
        return whole(c, p, m, S, sink, kernel)


def whole(c, p, m, S, sink, kernel):
    t_type = p.softmax
    base2 = kernel == "folded"
    if base2 and c.sink is not None:
        sink = m.to(sink * m.to(1.0 / LN2, t_type), t_type)
    top = np.maximum(S.max(-1, keepdims=True, initial=-np.inf), sink)
    top = np.where(np.isfinite(top), top, 0.0)
    P = m.exp(m.to(S - top, t_type), t_type, base2)
    row = np.concatenate([P, np.broadcast_to(m.exp(m.to(sink - top, t_type), t_type, base2), top.shape)], axis=-1)
    ell = m.total(row if c.sink is not None else P, t_type)[..., None]
    some = np.where(ell > 0, ell, 1.0)
    weights = m.to(P / some, t_type)
    v = m.to(c.v, p.multiplicand)
    if kernel == "normalised" and p.weight_scale is None:
        out = m.matmul(m.to(c.dropped(weights, m, t_type), p.weights), v, p.accumulator)
    else:
        f, late = p.weight_scale or 1.0, base2 or p.weight_scale is not None  # the scale fills the range: no room for a factor
        kept = c.dropped(P, m, t_type, factor=not late)
        out = m.to(m.matmul(m.to(kept * f, p.weights) / f, v, p.accumulator) / some, t_type)
        out = c.scaled(out, m, t_type) if late else out
    log = m.to(np.log2(some) if base2 else np.log(some), t_type)
    lse = m.to(top + log, t_type)
    if base2:
        lse = m.to(lse * m.to(LN2, t_type), t_type)
    return m.to(out, p.output), np.where(ell > 0, lse, -np.inf)[..., 0], m.to(weights, p.output)


def online(c, p, m, S, sink, block=8):
    """A running maximum; numerator and row sum are rescaled by the same factor."""
    t_type, a_type, f = p.softmax, p.accumulator, p.weight_scale or 1.0
    v = m.to(c.v, p.multiplicand)
    top = np.broadcast_to(np.asarray(sink, dtype=float), (*S.shape[:-1], 1))
    ell = np.where(np.isfinite(top), 1.0, 0.0)
    out = np.zeros((*S.shape[:-1], v.shape[-1]))
    for j in range(0, S.shape[-1], block):
        tile = S[..., j : j + block]
        new = np.maximum(top, tile.max(-1, keepdims=True))
        shift = np.where(np.isfinite(new), new, 0.0)
        alpha = m.exp(m.to(np.where(np.isfinite(top), top - shift, -np.inf), t_type), t_type)
        P = m.exp(m.to(tile - shift, t_type), t_type)
        ell = m.to(m.to(ell * alpha, t_type) + m.total(P, t_type)[..., None], t_type)
        kept = c.dropped(P, m, t_type, slice(j, j + block), factor=p.weight_scale is None)
        part = m.matmul(m.to(kept * f, p.weights) / f, v[..., j : j + block, :], a_type)
        out = m.to(m.to(out * alpha, a_type) + part, a_type)
        top = new
    some = np.where(ell > 0, ell, 1.0)
    lse = m.to(np.where(np.isfinite(top), top, 0.0) + m.to(np.log(some), t_type), t_type)
    out = m.to(out / some, t_type)
    out = out if p.weight_scale is None else c.scaled(out, m, t_type)
    return m.to(out, p.output), np.where(ell > 0, lse, -np.inf)[..., 0], None


def split(c, p, m, S, sink, parts=2):
    """Parts of the key axis with a local maximum each, kept unnormalised and joined by the global maximum."""
    t_type, a_type, f = p.softmax, p.accumulator, p.weight_scale or 1.0
    v = m.to(c.v, p.multiplicand)
    size = -(-S.shape[-1] // parts)
    local = [S[..., i * size : (i + 1) * size] for i in range(parts)]
    tops = [x.max(-1, keepdims=True, initial=-np.inf) for x in local]
    top = np.maximum(np.maximum.reduce(tops), sink)
    shift = np.where(np.isfinite(top), top, 0.0)
    out, ell = 0.0, 0.0 if c.sink is None else m.exp(m.to(sink - shift, t_type), t_type)
    for i, x in enumerate(local):
        P = m.exp(m.to(x - np.where(np.isfinite(tops[i]), tops[i], 0.0), t_type), t_type)
        alpha = m.exp(m.to(tops[i] - shift, t_type), t_type)
        keys = slice(i * size, (i + 1) * size)
        values = m.matmul(m.to(c.dropped(P, m, t_type, keys, factor=False) * f, p.weights) / f, v[..., keys, :], a_type)
        out = m.to(out + m.to(values * alpha, a_type), a_type)
        ell = m.to(ell + m.to(m.total(P, t_type)[..., None] * alpha, t_type), t_type)
    some = np.where(ell > 0, ell, 1.0)
    lse = m.to(shift + m.to(np.log(some), t_type), t_type)
    out = c.scaled(m.to(out / some, t_type), m, t_type)
    return m.to(out, p.output), np.where(ell > 0, lse, -np.inf)[..., 0], None


KERNELS = ("eager", "normalised", "folded", "split scale", "online", "split")
MACHINES = (
    Machine(),
    Machine(order="pairwise"),
    Machine(order="reversed"),
    Machine(order=8, ulps=1.0),
    Machine("truncate"),
    Machine("truncate", "reversed", ulps=1.0),
    Machine("truncate", 16),
    Machine("random", ulps=1.0, seed=1),
    Machine(ulps=1.0, one_way=True),
)


def cases(p, seed):
    """Inputs by name, each rounded to the profile's type: ordinary, and those that defeated an earlier bound."""
    r = np.random.default_rng(seed)
    to = Machine().to
    h, n = 2, 4
    m, d = ((24, 8), (3, 1), (70, 4), (9, 32))[seed % 4]

    def case(q, k, v, scale=None, **options):
        options = {name: to(x, p.io) if name == "bias" else x for name, x in options.items()}
        return Case(to(q, p.io), to(k, p.io), to(v, p.io), q.shape[-1] ** -0.5 if scale is None else scale, **options)

    normal = r.standard_normal
    q, k, v = normal((h, n, d)), normal((h, m, d)), normal((h, m, d))
    causal = np.arange(m) <= np.arange(n)[:, None] + (m - n)  # empty rows where m < n
    yield "ordinary", case(q, k, v)
    yield "causal, steep", case(4 * q, k, v, visible=causal)
    yield "small values", case(q, k, 1e-4 * v)
    yield "saturated", case(60 * q, 60 * k, v)
    yield "tied maxima, values of one sign", case(np.ones((h, n, d)), np.ones((h, m, d)), np.abs(v))
    rising = np.linspace(-4.0, 4.0, m)[None, :, None]
    yield "rising scores", case(np.ones((h, n, 1)), np.broadcast_to(rising, (h, m, 1)), v)
    yield "one key, one channel", case(q[..., :1], k[:, :1, :1], v[:, :1, :1])
    yield "ragged", case(q[:, :1], k[:, 1:], v[:, 1:], visible=r.random((1, m - 1)) < 0.7)
    yield "negative scale", case(q, k, v, scale=-1.3)
    yield "softcap", case(5 * q, 5 * k, v, softcap=7.0)
    some = (r.random((h, n, m)) < 0.3) & (np.arange(n)[:, None] > 0)  # row 0 is empty
    yield "sink and hidden", case(q, k, v, sink=normal(h) * 3, visible=some)
    yield "far bias", case(q, k, v, bias=np.where(r.random((n, m)) < 0.5, -1e4, 0.0), sink=normal(h))
    x = to(100 * normal((1, n, 1)), p.io)
    y = to(np.exp(0.3 * normal((1, m, 1))), p.io)
    against = normal((1, n, m)) - x * np.swapaxes(y, -1, -2)
    yield "bias cancels the score", case(x, y, normal((1, m, 4)), scale=1.0, bias=against)
    top = m // 3
    cliff = np.where(np.arange(m) < top, 0.0, np.log(0.99 * top) - np.log(2.0) * 24)[None, None]
    cliff = np.broadcast_to(cliff, (1, n, m))
    yield "weights near zero", case(0 * q, k, (np.arange(m) >= top)[None, :, None] * np.abs(v), bias=cliff)
    yield "dropout", case(q, k, v, rate=0.3, keep=r.random((h, n, m)) >= 0.3)
    half = r.random((h, n, m)) >= 0.5
    yield "dropout, causal, steep", case(4 * q, k, v, visible=causal, rate=0.5, keep=half)
    yield "dropout of weights near zero", case(60 * q, 60 * k, v, sink=normal(h), rate=0.97, keep=half)
    yield "values near zero", case(q, k, v * (1e-7 if p.io == "float16" else 1e-3 if "float8" in p.io else 3e-45))
