"""Four linear layers, ``(out, in)`` each: Hugging Face, Equinox, and ``mha_backends.torch.MultiHeadAttention``."""

from collections.abc import Mapping

from mha_core.projections import Projections
from mha_core.weights.reading import Reader, head_counts, holds, share, transposed
from mha_spec.call import Array

FORM = "four linear layers"

Names = tuple[str, str, str, str]
"""The layers of query, key, value and output; each has a ``.weight`` and may have a ``.bias``."""

LLAMA: Names = ("q_proj", "k_proj", "v_proj", "o_proj")
BART: Names = ("q_proj", "k_proj", "v_proj", "out_proj")
BERT: Names = ("self.query", "self.key", "self.value", "output.dense")
DISTILBERT: Names = ("q_lin", "k_lin", "v_lin", "out_lin")
EQUINOX: Names = ("query_proj", "key_proj", "value_proj", "output_proj")
MHA_CORE: Names = ("W_Q", "W_K", "W_V", "W_O")


def from_linears(arrays: Mapping[str, Array], *, heads: int, kv_heads: int, names: Names = LLAMA) -> Projections:
    """``q.weight (h d_k, d_model)``, ``k.weight (h_kv d_k, d_in_k)``, ``v.weight (h_kv d_v, d_in_v)``, ``o.weight (d_out, h d_v)``.

    Each bias is there or not on its own. Head i owns rows i d .. (i+1) d, columns of the output layer (MHA-PROJ-6). What lies between
    the projections and the attention, such as rotary positions or a norm of the queries, is no part of a layer's matrices.
    """
    h, h_kv = head_counts(FORM, heads, kv_heads)
    q, k, v, o = names
    read = Reader(FORM, arrays)
    w_q = read.array(f"{q}.weight", None, None)
    w_o = read.array(f"{o}.weight", None, None)
    d_k = share(FORM, f"{q}.weight", w_q.shape[0], h)
    d_v = share(FORM, f"{o}.weight", w_o.shape[1], h)
    w_k = read.array(f"{k}.weight", h_kv * d_k, None)
    w_v = read.array(f"{v}.weight", h_kv * d_v, None)
    b_q, b_o = read.bias(f"{q}.bias", h * d_k), read.bias(f"{o}.bias", w_o.shape[0])
    b_k, b_v = read.bias(f"{k}.bias", h_kv * d_k), read.bias(f"{v}.bias", h_kv * d_v)
    read.done()
    return Projections.from_merged(
        *(transposed(w) for w in (w_q, w_k, w_v, w_o)), heads=h, kv_heads=h_kv, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o
    )  # fmt: skip


def to_linears(projections: Projections, *, names: Names = LLAMA, grouped: bool = True) -> dict[str, Array]:
    """The weights of the four layers, and the biases that there are; ``grouped=False`` refuses grouped heads."""
    holds(FORM, projections, grouped=grouped)
    p = projections.merged()
    arrays = {f"{name}.weight": transposed(w) for name, w in zip(names, p[:4], strict=True)}
    return arrays | {f"{name}.bias": b for name, b in zip(names, p[4:], strict=True) if b is not None}
