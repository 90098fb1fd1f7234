"""The six steps of multi-head self-attention as named arrays: input, projections, scores, weighted sums, concatenation, output.

They are the steps of section 3.2.2 and figure 2 of the paper, with no options: every key is visible.
"""

from typing import Any, NamedTuple

import array_api_compat
from jaxtyping import Float

from mha_spec import equations
from mha_spec.call import Array


class Step(NamedTuple):
    """One array on the way from the input to the output. ``number`` is its step, 1 to 6; ``axes`` names its axes in order."""

    number: int
    name: str
    equation: str
    clause: str
    axes: tuple[str, ...]
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)


def steps(X: Float[Array, "*b n d_model"], projections: Any, scale: float | None = None) -> tuple[Step, ...]:
    """X (*b n d_model) -> its nine arrays in order, the last of them MultiHead(X, X, X) (*b n d_out) (MHA-PROJ-14).

    ``projections`` holds one matrix per head: ``w_q (h, d_model, d_k)``, ``w_k (h_kv, d_model, d_k)``,
    ``w_v (h_kv, d_model, d_v)``, ``w_o (h, d_v, d_out)``, and ``b_q``, ``b_k``, ``b_v``, ``b_o`` or None. ``scale`` is
    1/sqrt(d_k) by default. float32 or float64. Biases are added where there are any, which the equations leave out.
    Source: section 3.2.2; the paper has no biases and no grouped heads.
    """
    xp = array_api_compat.array_namespace(X, projections.w_q)
    h, _, d_k = projections.w_q.shape
    scaled = "Q_i K_i^T / sqrt(d_k)" if scale is None else f"{scale} Q_i K_i^T"
    if scale is None:
        scale = d_k**-0.5 if d_k else 1.0

    Q = equations.project_heads(X, projections.w_q, projections.b_q)  # (*b h n d_k)
    K = equations.project_heads(X, projections.w_k, projections.b_k)  # (*b h_kv n d_k)
    V = equations.project_heads(X, projections.w_v, projections.b_v)  # (*b h_kv n d_v)
    S = equations.scores(Q, equations.heads(K, h), scale)  # (*b h n n)
    see = xp.ones_like(S, dtype=xp.bool)
    A = equations.softmax(equations.finite(S), see, equations.sink_column(S, None)).weights  # (*b h n n)
    head = equations.weighted_sum(A, equations.heads(V, h), see)  # (*b h n d_v)
    joined = equations.concatenate(head)  # (*b n h*d_v)
    output = equations.output_projection(head, projections.w_o, projections.b_o)  # (*b n d_out)

    b = tuple(f"batch_{axis}" for axis in range(X.ndim - 2))
    return (
        Step(1, "input", "X", "MHA-PROJ-1", (*b, "n", "d_model"), X),
        Step(2, "query", "Q_i = X W_i^Q", "MHA-PROJ-1", (*b, "h", "n", "d_k"), Q),
        Step(2, "key", "K_i = X W_i^K", "MHA-PROJ-1", (*b, "h_kv", "n", "d_k"), K),
        Step(2, "value", "V_i = X W_i^V", "MHA-PROJ-1", (*b, "h_kv", "n", "d_v"), V),
        Step(3, "scores", f"S_i = {scaled}", "MHA-ATTN-1", (*b, "h", "n", "n"), S),
        Step(4, "weights", "A_i = softmax(S_i)", "MHA-ATTN-5", (*b, "h", "n", "n"), A),
        Step(4, "heads", "head_i = A_i V_i", "MHA-ATTN-6", (*b, "h", "n", "d_v"), head),
        Step(5, "concatenation", "Concat(head_1, ..., head_h)", "MHA-PROJ-3", (*b, "n", "h*d_v"), joined),
        Step(6, "output", "Concat(head_1, ..., head_h) W^O", "MHA-PROJ-3", (*b, "n", "d_out"), output),
    )
