"""The six steps of multi-head self-attention as named arrays: input, projections, scores, weighted sums, concatenation, output.

They are the steps of section 3.2.2 and figure 2 of the paper, with no options: every key is visible. In a notebook they
show themselves as a table with pictures (``mha_spec.steps_html``).
"""

from typing import Any, NamedTuple

import array_api_compat
from jaxtyping import Float

from mha_spec import equations
from mha_spec.call import Array
from mha_spec.steps_html import table


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


class Steps(tuple[Step, ...]):
    """The steps in order: a tuple of ``Step``, which a notebook shows as a table."""

    __slots__ = ()

    def array(self, name: str) -> Array:
        """The array of the step of that name. Raises ``KeyError`` with the names that there are."""
        for step in self:
            if step.name == name:
                return step.array
        raise KeyError(f"no step is called {name!r}; there are {', '.join(step.name for step in self)}")

    def _repr_html_(self) -> str:
        return table(self)


def steps(X: Float[Array, "*b n d_model"], projections: Any, scale: float | None = None) -> Steps:
    """X (*b n d_model) -> its nine arrays in order, the last of them MultiHead(X, X, X) (*b n d_out) (MHA-PROJ-14).

    ``projections`` holds one matrix per head: ``w_q (h, d_model, d_k)``, ``w_k (h_kv, d_model, d_k)``,
    ``w_v (h_kv, d_model, d_v)``, ``w_o (h, d_v, d_out)``, and ``b_q``, ``b_k``, ``b_v``, ``b_o`` or None. ``scale`` is
    1/sqrt(d_k) by default. float32 or float64. Biases are added where there are any, which the equations leave out.
    Source: section 3.2.2; the paper has no biases and no grouped heads.
    """
    p = projections
    Q = equations.project_heads(X, p.w_q, p.b_q)  # (*b h n d_k)
    K = equations.project_heads(X, p.w_k, p.b_k)  # (*b h_kv n d_k)
    V = equations.project_heads(X, p.w_v, p.b_v)  # (*b h_kv n d_v)
    on_heads = _on_heads(Q, K, V, scale, "n")
    output = equations.output_projection(on_heads.array("heads"), p.w_o, p.b_o)  # (*b n d_out)

    b = _batch(X.ndim - 2)
    return Steps(
        (
            Step(1, "input", "X", "MHA-PROJ-1", (*b, "n", "d_model"), X),
            Step(2, "query", f"Q_i = X W_i^Q{_plus(p.b_q, 'b_i^Q')}", "MHA-PROJ-1", (*b, "h", "n", "d_k"), Q),
            Step(2, "key", f"K_i = X W_i^K{_plus(p.b_k, 'b_i^K')}", "MHA-PROJ-1", (*b, "h_kv", "n", "d_k"), K),
            Step(2, "value", f"V_i = X W_i^V{_plus(p.b_v, 'b_i^V')}", "MHA-PROJ-1", (*b, "h_kv", "n", "d_v"), V),
            *on_heads,
            Step(
                6, "output", f"Concat(head_1, ..., head_h) W^O{_plus(p.b_o, 'b^O')}", "MHA-PROJ-3", (*b, "n", "d_out"), output
            ),
        )
    )


def attention_steps(
    Q: Float[Array, "*b h n d_k"],
    K: Float[Array, "*b h_kv m d_k"],
    V: Float[Array, "*b h_kv m d_v"],
    scale: float | None = None,
) -> Steps:
    """Q (*b h n d_k), K (*b h_kv m d_k), V (*b h_kv m d_v) -> steps 2 to 5: themselves, scores, weights, heads, concatenation.

    For queries, keys and values that a model has already projected. float32 or float64. Source: section 3.2.1.
    """
    b = _batch(Q.ndim - 3)
    return Steps(
        (
            Step(2, "query", "Q_i", "MHA-ATTN-1", (*b, "h", "n", "d_k"), Q),
            Step(2, "key", "K_i", "MHA-ATTN-1", (*b, "h_kv", "m", "d_k"), K),
            Step(2, "value", "V_i", "MHA-ATTN-6", (*b, "h_kv", "m", "d_v"), V),
            *_on_heads(Q, K, V, scale, "m"),
        )
    )


def _on_heads(
    Q: Float[Array, "*b h n d_k"],
    K: Float[Array, "*b h_kv m d_k"],
    V: Float[Array, "*b h_kv m d_v"],
    scale: float | None,
    keys: str,
) -> Steps:
    """Steps 3 to 5, from the projections to the concatenation; ``keys`` is the name of the key axis."""
    xp = array_api_compat.array_namespace(Q, K)
    *_, h, _, d_k = Q.shape
    scaled = "Q_i K_i^T / sqrt(d_k)" if scale is None else f"{scale} Q_i K_i^T"
    if scale is None:
        scale = d_k**-0.5 if d_k else 1.0

    S = equations.scores(Q, equations.heads(K, h), scale)  # (*b h n m)
    see = xp.ones_like(S, dtype=xp.bool)
    A = equations.softmax(equations.finite(S), see, equations.sink_column(S, None)).weights  # (*b h n m)
    head = equations.weighted_sum(A, equations.heads(V, h), see)  # (*b h n d_v)
    joined = equations.concatenate(head)  # (*b n h*d_v)

    b = _batch(Q.ndim - 3)
    return Steps(
        (
            Step(3, "scores", f"S_i = {scaled}", "MHA-ATTN-1", (*b, "h", "n", keys), S),
            Step(4, "weights", "A_i = softmax(S_i)", "MHA-ATTN-5", (*b, "h", "n", keys), A),
            Step(4, "heads", "head_i = A_i V_i", "MHA-ATTN-6", (*b, "h", "n", "d_v"), head),
            Step(5, "concatenation", "Concat(head_1, ..., head_h)", "MHA-PROJ-3", (*b, "n", "h*d_v"), joined),
        )
    )


def _batch(axes: int) -> tuple[str, ...]:
    return tuple(f"batch_{axis}" for axis in range(axes))


def _plus(bias: Array | None, symbol: str) -> str:
    return "" if bias is None else f" + {symbol}"
