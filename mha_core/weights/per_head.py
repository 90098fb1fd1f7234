"""Kernels with a head axis: ``keras.layers.MultiHeadAttention``, ``GroupQueryAttention``, ``flax.nnx.MultiHeadAttention``.

A kernel is ``(in, heads, d)`` and the output's is ``(h, d_v, d_out)``, so that the shapes say all the sizes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import array_api_compat

from mha_core.projections import Projections
from mha_core.weights.reading import Reader, all_or_none, holds
from mha_spec.call import Array


class PerHead(NamedTuple):
    """How such a layer is called, how its parts are, and what it cannot hold."""

    form: str
    parts: tuple[str, str, str, str]
    joint: str
    grouped: bool = False
    one_width: bool = False
    one_memory: bool = False


KERAS_MHA = PerHead("keras.layers.MultiHeadAttention", ("query", "key", "value", "attention_output"), "/")
KERAS_GQA = KERAS_MHA._replace(form="keras.layers.GroupQueryAttention", grouped=True, one_width=True)
FLAX_NNX = PerHead(
    "flax.nnx.MultiHeadAttention", ("query", "key", "value", "out"), ".", grouped=True, one_width=True, one_memory=True
)

_BIASES = ("b_q", "b_k", "b_v", "b_o")


def from_per_head(arrays: Mapping[str, Array], *, layout: PerHead) -> Projections:
    """``query/kernel (d_model, h, d_k)``, ``key/kernel (d_in_k, h_kv, d_k)``, ``value/kernel (d_in_v, h_kv, d_v)``, the output's
    ``kernel (h, d_v, d_out)``; with biases ``query/bias (h, d_k)``, ..., and the output's ``(d_out,)``: all four or none.

    Names are the layer's own paths, joined as it joins them ("/" in Keras, "." for nnx). The matrices are views.
    """
    read = Reader(layout.form, arrays)
    q, k, v, o = (f"{part}{layout.joint}kernel" for part in layout.parts)
    w_q, w_o = read.array(q, None, None, None), read.array(o, None, None, None)
    (_, h, d_k), d_v = w_q.shape, w_o.shape[1]
    read.array(o, h, d_v, None)
    w_k = read.array(k, None, None, d_k)
    h_kv = w_k.shape[1]
    w_v = read.array(v, None, h_kv, d_v)
    biases = [f"{part}{layout.joint}bias" for part in layout.parts]
    b: tuple[Array | None, ...] = (None,) * 4
    if any(read.has(name) for name in biases):
        shapes = ((h, d_k), (h_kv, d_k), (h_kv, d_v), (w_o.shape[-1],))
        b = tuple(read.array(name, *shape) for name, shape in zip(biases, shapes, strict=True))
    read.done()
    xp = array_api_compat.array_namespace(w_q)
    w_q, w_k, w_v = (xp.moveaxis(w, 1, 0) for w in (w_q, w_k, w_v))  # (h, in, d)
    projections = Projections(w_q, w_k, w_v, w_o, *b)
    _holds(layout, projections)
    return projections


def to_per_head(projections: Projections, *, layout: PerHead) -> dict[str, Array]:
    """The kernels, views of the matrices, and the biases. Refused is what such a layer cannot be built with (MHA-PROJ-19)."""
    _holds(layout, projections)
    xp = array_api_compat.array_namespace(projections.w_q)
    kernels = [xp.moveaxis(w, 0, 1) for w in projections[:3]] + [projections.w_o]  # (in, h, d), (h, d_v, d_out)
    arrays = {f"{part}{layout.joint}kernel": w for part, w in zip(layout.parts, kernels, strict=True)}
    if all_or_none(layout.form, projections, _BIASES):
        arrays |= {f"{part}{layout.joint}bias": b for part, b in zip(layout.parts, projections[4:], strict=True)}
    return arrays


def _holds(layout: PerHead, p: Projections) -> None:
    holds(layout.form, p, grouped=layout.grouped, one_width=layout.one_width, one_memory=layout.one_memory)
