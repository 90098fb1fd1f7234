"""``torch.nn.MultiheadAttention``: one square matrix for query, key and value, or three where kdim or vdim differ."""

from collections.abc import Mapping

import array_api_compat

from mha_core.projections import Projections
from mha_core.weights.reading import Reader, all_or_none, cannot, head_counts, holds, share, transposed
from mha_spec.call import Array

FORM = "torch.nn.MultiheadAttention"
SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


def from_torch_mha(arrays: Mapping[str, Array], *, heads: int) -> Projections:
    """Its state dict: ``in_proj_weight (3 E, E)`` as q, k, v from the top, or ``q_proj_weight (E, E)``, ``k_proj_weight
    (E, kdim)``, ``v_proj_weight (E, vdim)``; ``out_proj.weight (E, E)``; with biases ``in_proj_bias (3 E,)`` and
    ``out_proj.bias (E,)``. A linear layer holds (out, in), so the matrices here are views of the transposes.

    Refused: ``bias_k`` and ``bias_v`` of ``add_bias_kv``, which add a key and are no part of a projection (MHA-PROJ-19).
    """
    h, _ = head_counts(FORM, heads, heads)
    read = Reader(FORM, arrays)
    w_o = read.array("out_proj.weight", None, None)
    E = w_o.shape[0]
    read.array("out_proj.weight", E, E)
    share(FORM, "out_proj.weight", E, h)
    if any(read.has(name) for name in SEPARATE):
        w_q, w_k, w_v = (read.array(name, E, E if name == "q_proj_weight" else None) for name in SEPARATE)
    else:
        w = read.array("in_proj_weight", 3 * E, E)
        w_q, w_k, w_v = (w[i * E : (i + 1) * E, :] for i in range(3))
    b = b_o = None
    if read.has("in_proj_bias") or read.has("out_proj.bias"):
        b, b_o = read.array("in_proj_bias", 3 * E), read.array("out_proj.bias", E)
    read.done()
    b_q, b_k, b_v = (None, None, None) if b is None else (b[i * E : (i + 1) * E] for i in range(3))
    return Projections.from_merged(
        *(transposed(w) for w in (w_q, w_k, w_v, w_o)), heads=h, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o
    )  # fmt: skip


def to_torch_mha(projections: Projections) -> dict[str, Array]:
    """The state dict of ``MultiheadAttention(E, h, bias=..., kdim=..., vdim=...)`` with E = h d_k = h d_v = d_model = d_out."""
    holds(FORM, projections, grouped=False, one_width=True)
    h, E, d = projections.w_q.shape
    if not E == h * d == projections.w_o.shape[-1]:
        cannot(FORM, f"d_model = {E}, h d_k = {h * d} and d_out = {projections.w_o.shape[-1]}", "one width for all three",
               "choose a format that can hold it, such as 'projections'")  # fmt: skip
    p = projections.merged()
    xp = array_api_compat.array_namespace(p.w_q)
    weights = [transposed(w) for w in (p.w_q, p.w_k, p.w_v)]
    together = all(w.shape == (E, E) for w in weights)
    arrays = {"in_proj_weight": xp.concat(weights, axis=0)} if together else dict(zip(SEPARATE, weights, strict=True))
    if all_or_none(FORM, projections, ("b_q", "b_k", "b_v", "b_o")):
        arrays["in_proj_bias"] = xp.concat([p.b_q, p.b_k, p.b_v], axis=0)
        arrays["out_proj.bias"] = p.b_o
    return arrays | {"out_proj.weight": transposed(p.w_o)}
