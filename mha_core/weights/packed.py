"""One matrix for query, key and value, in three blocks one after the other: ``Wqkv``, ``qkv_proj``, ``c_attn``, onnxruntime."""

from collections.abc import Mapping
from typing import NamedTuple

import array_api_compat

from mha_core.projections import Projections
from mha_core.weights.reading import Reader, all_or_none, cannot, head_counts, holds, share, transposed
from mha_spec.call import Array


class Packed(NamedTuple):
    """How a packed layer is called and how its arrays are.

    ``transposed``: a linear layer's (out, in), else (in, out). ``one_width``: the layer knows one d for all heads, d_k = d_v,
    so that a wrong number of key heads shows.
    """

    form: str
    weight: str
    bias: str
    out_weight: str
    out_bias: str
    transposed: bool = True
    one_width: bool = True


def linear_pair(form: str, qkv: str, out: str, transposed: bool = True) -> Packed:
    return Packed(form, f"{qkv}.weight", f"{qkv}.bias", f"{out}.weight", f"{out}.bias", transposed)


WQKV = linear_pair("packed Wqkv", "Wqkv", "out_proj")
PHI3 = linear_pair("packed qkv_proj", "qkv_proj", "o_proj")
TIMM = linear_pair("packed qkv", "qkv", "proj")
GPT2 = linear_pair("packed c_attn", "c_attn", "c_proj", transposed=False)
ONNXRUNTIME = Packed(
    "com.microsoft.Attention of onnxruntime", "weights", "bias", "output.weights", "output.bias", False, one_width=False
)


def from_packed(arrays: Mapping[str, Array], *, heads: int, kv_heads: int, layout: Packed = WQKV) -> Projections:
    """``weight (h d_k + h_kv d_k + h_kv d_v, d_model)``, query first, then key, then value; ``out_weight (d_out, h d_v)``;
    the transposes of both where the layout says so; ``bias`` along the packed axis and ``out_bias (d_out,)``, each there or not.

    The output's matrix says d_v, and what is left of the packed width says d_k. GPT-NeoX and Megatron pack per head
    (``from_interleaved``), in the same shape (MHA-PROJ-20).
    """
    h, h_kv = head_counts(layout.form, heads, kv_heads)
    read = Reader(layout.form, arrays)
    w, b, w_o, b_o = read_packed(read, layout)
    d_k, d_v = packed_widths(layout, w, w_o, h, h_kv)
    read.done()
    ends = (h * d_k, (h + h_kv) * d_k, (h + h_kv) * d_k + h_kv * d_v)
    blocks = [slice(start, end) for start, end in zip((0, *ends), ends, strict=False)]
    b_q, b_k, b_v = (None, None, None) if b is None else (b[block] for block in blocks)
    w_q, w_k, w_v = (w[:, block] for block in blocks)
    return Projections.from_merged(w_q, w_k, w_v, w_o, heads=h, kv_heads=h_kv, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o)


def to_packed(projections: Projections, *, layout: Packed = WQKV, grouped: bool = True) -> dict[str, Array]:
    """The packed matrix and the output's, with their biases; ``grouped=False`` refuses grouped heads."""
    holds(layout.form, projections, grouped=grouped, one_input=True, one_width=layout.one_width)
    p = projections.merged()
    xp = array_api_compat.array_namespace(p.w_q)
    packed = xp.concat([p.w_q, p.w_k, p.w_v], axis=1)
    biased = all_or_none(layout.form, projections, ("b_q", "b_k", "b_v"))
    return write_packed(layout, packed, xp.concat([p.b_q, p.b_k, p.b_v], axis=0) if biased else None, p.w_o, p.b_o)


def read_packed(read: Reader, layout: Packed) -> tuple[Array, Array | None, Array, Array | None]:
    """w (d_model, packed), b (packed,), w_o (h d_v, d_out), b_o (d_out,)"""
    w, w_o = read.array(layout.weight, None, None), read.array(layout.out_weight, None, None)
    if layout.transposed:
        w, w_o = transposed(w), transposed(w_o)
    return w, read.bias(layout.bias, w.shape[1]), w_o, read.bias(layout.out_bias, w_o.shape[1])


def write_packed(layout: Packed, w: Array, b: Array | None, w_o: Array, b_o: Array | None) -> dict[str, Array]:
    """The inverse of ``read_packed``."""
    if layout.transposed:
        w, w_o = transposed(w), transposed(w_o)
    found = {layout.weight: w, layout.bias: b, layout.out_weight: w_o, layout.out_bias: b_o}
    return {name: x for name, x in found.items() if x is not None}


def packed_widths(layout: Packed, w: Array, w_o: Array, h: int, h_kv: int) -> tuple[int, int]:
    """d_k and d_v of w (d_model, (h + h_kv) d_k + h_kv d_v) and w_o (h d_v, d_out)."""
    d_v = share(layout.form, layout.out_weight, w_o.shape[0], h)
    d_k, left = divmod(w.shape[1] - h_kv * d_v, h + h_kv)
    if left or d_k < 0 or (layout.one_width and d_k != d_v):
        wanted = f"({h} + {h_kv} + {h_kv}) {d_v} of them" if layout.one_width else f"({h} + {h_kv}) d_k + {h_kv} {d_v} of them"
        cannot(layout.form, f"{layout.weight!r} with {w.shape[1]} packed channels for {h} and {h_kv} heads and d_v = {d_v}",
               wanted, "say how many heads the layer was built with")  # fmt: skip
    return d_k, d_v
