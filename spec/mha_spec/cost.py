"""Section 3.6: what attention costs, in exact integers: operations of the matrix products, and bytes of memory.

One FLOP is one multiplication or one addition; the product of ``(a, b)`` and ``(b, c)`` takes ``2 a b c`` of them. Scale,
bias, mask, softmax and the addition of projection biases are not counted: they are no matrix products.
"""

from typing import Literal, NamedTuple, TypeAlias, get_args

from mha_spec.call import FLOAT_WIDTHS, Band

Convention: TypeAlias = Literal["visible", "dense", "half"]
CONVENTIONS: tuple[str, ...] = get_args(Convention)
"""Which pairs are counted (MHA-COST-2): the visible ones; all n m; all, halved where the call is causal."""


class LayerFlops(NamedTuple):
    """FLOPs of a layer, by matrix product in the order of the six steps (MHA-COST-3)."""

    query: int
    key: int
    value: int
    scores: int
    weighted_sums: int
    output: int

    @property
    def projections(self) -> int:
        return self.query + self.key + self.value + self.output

    @property
    def attention(self) -> int:
        return self.scores + self.weighted_sums

    @property
    def total(self) -> int:
        return self.projections + self.attention


def visible_pairs(n: int, m: int, band: Band | None = None, query_offset: int = 0, key_lengths: int | None = None) -> int:
    """Pairs (i, j) with -left <= j - (query_offset + i) <= right and j < key_lengths, of one head and one batch item.

    ``band`` is ``(left, right)``, None for an open side; a causal mask is ``(None, 0)``. Unit: pairs.
    Source: MHA-MASK-7, MHA-MASK-10, MHA-MASK-12. The paper counts all n m.
    """
    left, right = band or (None, None)
    end = m if key_lengths is None else min(key_lengths, m)
    pairs = 0
    for position in range(query_offset, query_offset + n):
        first = 0 if left is None else max(0, position - left)
        stop = end if right is None else min(end, position + right + 1)
        pairs += max(0, stop - first)
    return pairs


def attention_flops(
    n: int,
    m: int,
    d_k: int,
    d_v: int,
    *,
    heads: int = 1,
    batch: int = 1,
    convention: Convention = "visible",
    band: Band | None = None,
    query_offset: int = 0,
    key_lengths: int | None = None,
) -> int:
    """FLOPs of attention on heads: 2 (d_k + d_v) * pairs * heads * batch (MHA-COST-1).

    A pair costs a dot product of d_k and one term of a sum of d_v vectors. ``convention`` says which pairs (MHA-COST-2).
    Unit: FLOPs. Raises ``ValueError`` for another convention. Source: section 3.2.1; the paper says O(n^2 d).
    """
    pairs, halves = _pairs(n, m, convention, band, query_offset, key_lengths)
    return 2 * (d_k + d_v) * pairs * heads * batch // halves


def projection_flops(n: int, d_in: int, d: int, *, heads: int = 1, batch: int = 1) -> int:
    """FLOPs of X (n, d_in) times one matrix (d_in, d) per head: 2 n d_in d * heads * batch (MHA-COST-3).

    The loop over heads and the merged product ``(n, d_in) x (d_in, heads * d)`` cost the same (MHA-COST-5). Unit: FLOPs.
    """
    return 2 * n * d_in * d * heads * batch


def layer_flops(
    n: int,
    d_model: int,
    d_k: int,
    d_v: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    d_out: int | None = None,
    m: int | None = None,
    batch: int = 1,
    convention: Convention = "visible",
    band: Band | None = None,
    query_offset: int = 0,
    key_lengths: int | None = None,
) -> LayerFlops:
    """FLOPs of multi-head attention: three projections, attention on heads, one output projection (MHA-COST-3).

    By default self-attention (m = n), one key head per query head, and d_out = d_model; the key and value inputs have the
    width d_model. Unit: FLOPs. Raises ``ValueError`` for another convention. Source: section 3.2.2.
    """
    m = n if m is None else m
    h_kv = heads if kv_heads is None else kv_heads
    pairs, halves = _pairs(n, m, convention, band, query_offset, key_lengths)
    return LayerFlops(
        query=projection_flops(n, d_model, d_k, heads=heads, batch=batch),
        key=projection_flops(m, d_model, d_k, heads=h_kv, batch=batch),
        value=projection_flops(m, d_model, d_v, heads=h_kv, batch=batch),
        scores=2 * d_k * pairs * heads * batch // halves,
        weighted_sums=2 * d_v * pairs * heads * batch // halves,
        output=projection_flops(n, d_v, d_model if d_out is None else d_out, heads=heads, batch=batch),
    )


def bytes_moved(
    n: int,
    m: int,
    d_k: int,
    d_v: int,
    *,
    dtype: str,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    weights: bool = False,
    lse: bool = False,
) -> int:
    """The least memory traffic of attention on heads: every operand read once, every result written once.

    query (h, n, d_k), key (h_kv, m, d_k), value (h_kv, m, d_v), output (h, n, d_v), and where asked for weights (h, n, m)
    in ``dtype`` and lse (h, n) in float32 (float64 for float64). Unit: bytes. An implementation that stores its scores moves
    more. Raises ``KeyError`` for a dtype that the specification does not have. Source: MHA-AUX-1, MHA-AUX-5, MHA-EXEC-1.
    """
    h_kv = heads if kv_heads is None else kv_heads
    item = FLOAT_WIDTHS[dtype] // 8
    elements = heads * n * (d_k + d_v) + h_kv * m * (d_k + d_v) + (heads * n * m if weights else 0)
    return batch * (item * elements + (max(item, 4) * heads * n if lse else 0))


def _pairs(n: int, m: int, convention: str, band: Band | None, query_offset: int, key_lengths: int | None) -> tuple[int, int]:
    """Pairs as the convention counts them, and what to divide by: half of an odd number would be no integer."""
    if convention not in CONVENTIONS:
        raise ValueError(
            f"MHA-COST-2: given convention {convention!r}; expected one of {', '.join(CONVENTIONS)}; "
            "a figure without its convention cannot be compared"
        )
    if convention == "visible":
        return visible_pairs(n, m, band, query_offset, key_lengths), 1
    causal = band is not None and band[1] == 0
    return n * m, 2 if convention == "half" and causal else 1
