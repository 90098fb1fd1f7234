"""The CuPy backend on an emulated CuPy, and what its tests compute beside it."""

import importlib
import itertools
import math

import ml_dtypes
import numpy as np
from emulator.arrays import Array, fake_cupy
from fakes_cupy import FakeCublas

from mha_core import bind

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TYPES = {"float64": np.dtype("float64"), "float32": np.dtype("float32"), "float16": np.dtype("float16"), "bfloat16": BFLOAT16}


class Machine:
    """The backend on an emulated CuPy; ``edit`` changes the source of its kernels."""

    def __init__(self, has_device=True, edit=lambda source: source):
        self.cublas, self.launches = FakeCublas(), []

        def run(launch):
            self.launches.append((launch.kernel, launch.blocks, launch.threads))
            launch._replace(source=edit(launch.source)).run()

        self.cupy = fake_cupy(run, has_device)
        devices = importlib.import_module("mha_backends.cupy.devices")
        self.cuda = devices.Cuda(self.cupy, lambda: (self.cublas, 7))

    def api(self, tf32=False):
        return bind(importlib.import_module("mha_backends.cupy.backend").build(self.cuda, tf32))


def wide(x):
    return None if x is None else np.array(x).astype("float64")


def formula(q, k, v, *, mask=None, bias=None, is_causal=False, query_offset=0, window=None, key_lengths=None,
            query_segments=None, key_segments=None, scale=None, softcap=None, sink_logits=None):  # fmt: skip
    """output, weights, lse by loops; ``np.broadcast_to`` is all it shares with the backend."""
    *batch, h, n, d_k = q.shape
    h_kv, m, d_v = v.shape[-3:]
    scores_shape = (*batch, h, n, m)
    q, k, v, bias, sink_logits = (wide(x) for x in (q, k, v, bias, sink_logits))
    mask = None if mask is None else np.broadcast_to(mask, scores_shape)
    bias = None if bias is None else np.broadcast_to(bias, scores_shape)
    scale = scale if scale is not None else 1 / math.sqrt(d_k) if d_k else 1.0
    left, right = window or (None, None)
    output, weights, lse = np.zeros((*batch, h, n, d_v)), np.zeros(scores_shape), np.full((*batch, h, n), -np.inf)

    def of(option, b):
        return option if option is None or isinstance(option, int) else int(np.array(option)[b])

    for *b, head, i in itertools.product(*map(range, (*batch, h, n))):
        b = tuple(b)
        kv = head // (h // h_kv)
        position = (of(query_offset, b) or 0) + i
        seen, scores = [], []
        for j in range(m):
            hidden = (
                (mask is not None and not mask[(*b, head, i, j)])
                or (bias is not None and bias[(*b, head, i, j)] == -np.inf)
                or (is_causal and j > position)
                or (left is not None and j - position < -left)
                or (right is not None and j - position > right)
                or (key_lengths is not None and j >= of(key_lengths, b))
                or (query_segments is not None and int(query_segments[(*b, i)]) != int(key_segments[(*b, j)]))
            )
            if not hidden:
                s = scale * float(np.sum(q[(*b, head, i)] * k[(*b, kv, j)]))
                s = softcap * math.tanh(s / softcap) if softcap else s
                seen.append(j)
                scores.append(s + (bias[(*b, head, i, j)] if bias is not None else 0.0))
        sink = -np.inf if sink_logits is None else sink_logits[head]
        if not seen:
            lse[(*b, head, i)] = sink
            continue
        top = max(*scores, sink) if not np.isnan([*scores, sink]).any() else np.nan
        e = np.exp(np.array(scores) - top)
        total = e.sum() + np.exp(sink - top)
        lse[(*b, head, i)] = top + math.log(total)
        weights[(*b, head, i, seen)] = e / total
        output[(*b, head, i)] = (e / total) @ v[(*b, kv, seen)]
    return output, weights, lse


def fake(x, dtype=None):
    """As an array of the fake CuPy: a view, so that strides stay as the test made them."""
    return (x if dtype is None else x.astype(dtype)).view(Array)


def operands(rng, batch=(2,), h=4, h_kv=2, n=5, m=7, d_k=4, d_v=3):
    return tuple(rng.standard_normal((*batch, *s)) for s in ((h, n, d_k), (h_kv, m, d_k), (h_kv, m, d_v)))


def draw(rng):
    """A random call of the specification: sizes, layouts, options."""
    batch = tuple(rng.integers(1, 3, rng.integers(0, 3)))
    h_kv, group, n, m = rng.integers(1, 3), rng.integers(1, 3), rng.integers(1, 6), rng.integers(1, 40)
    h, scores = h_kv * group, (*batch, h_kv * group, n, m)

    def maybe(make, p=0.3):
        return make() if rng.random() < p else None

    def some_axes(make):
        shape = [size if rng.random() < 0.6 else 1 for size in scores]
        return make(tuple(shape) if rng.random() < 0.7 else (n, m))

    options = {
        "mask": maybe(lambda: some_axes(lambda shape: rng.random(shape) < 0.7)),
        "bias": maybe(lambda: some_axes(lambda shape: np.where(rng.random(shape) < 0.1, -np.inf, rng.standard_normal(shape)))),
        "key_lengths": maybe(lambda: rng.integers(-1, m + 2, batch)),
        "softcap": maybe(lambda: float(rng.uniform(0.5, 3))),
        "scale": maybe(lambda: float(rng.normal())),
        "sink_logits": maybe(lambda: rng.standard_normal(h)),
        "window": maybe(lambda: (int(rng.integers(0, 4)), maybe(lambda: int(rng.integers(0, 4)), 0.7))),
        "is_causal": maybe(lambda: True),
    }
    if rng.random() < 0.3:
        options["query_segments"], options["key_segments"] = (rng.integers(0, 2, (*batch, size)) for size in (n, m))
    options = {name: x for name, x in options.items() if x is not None}
    if "is_causal" in options or "window" in options:
        options["query_offset"] = rng.integers(-2, m, batch) if rng.random() < 0.5 else int(rng.integers(-2, m))
    shapes = (h, n), (h_kv, m), (h_kv, m)
    widths = rng.integers(1, 9), rng.integers(1, 9)
    made = [rng.standard_normal((*batch, *shape, widths[i > 1])) for i, shape in enumerate(shapes)]
    return [relaid(rng, x) for x in made], options


def relaid(rng, x):
    """The same values with other strides."""
    how = rng.integers(7)
    if how == 1:  # heads inside the tokens: (*batch, n, h, d)
        return np.ascontiguousarray(x.swapaxes(-2, -3)).swapaxes(-2, -3)
    if how == 2:  # columns contiguous
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == 3:  # a slice of something wider
        return np.concatenate([x, x], -1)[..., : x.shape[-1]]
    if how == 4:  # backwards
        return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    if how == 6:  # heads backwards
        return np.ascontiguousarray(x[..., ::-1, :, :])[..., ::-1, :, :]
    if how == 5:  # one token for all
        return np.broadcast_to(x[..., :1, :], x.shape)
    return x
