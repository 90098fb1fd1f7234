"""What is computed while the clock runs: inputs from a seed, their exact count of operations, and the truth of some rows.

A workload travels to the process of each competitor, which makes the inputs anew. Its truth is that of chapter 4, with the bound of
the competitor's profile. All rows of a long sequence would take longer to judge than to time, so ``ROWS`` queries of
each head are judged, the first and the last among them; the rest has to be finite.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mha_core import Projections
from mha_spec import cost
from mha_spec.numerics import PROFILES, attention_bound, layer_bound

ROWS = 16
DTYPES = ("float32", "float64")
"""The types that have a GEMM on every CPU to compare with."""

Numbers = NDArray[Any]


class Truth(NamedTuple):
    """The judged rows as they should be, and how far off they may be."""

    output: Numbers
    bound: Numbers


class Workload(Protocol):
    """What the attention of heads and a whole layer have in common."""

    @property
    def label(self) -> str: ...
    @property
    def n(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def flops(self) -> int: ...
    @property
    def rows(self) -> Numbers: ...
    def operands(self) -> Any: ...
    def truth(self, profile: str) -> Truth: ...
    def small(self) -> "Workload": ...


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention on heads: query, key and value (batch, heads, n, d) of normal numbers."""

    batch: int
    heads: int
    n: int
    d: int
    causal: bool = False
    dtype: str = "float32"

    @property
    def label(self) -> str:
        return f"attention ({self.batch}, {self.heads}, {self.n}, {self.d}) {self.dtype}{', causal' if self.causal else ''}"

    @property
    def flops(self) -> int:
        """By the convention *visible* (MHA-COST-1)."""
        band = (None, 0) if self.causal else None
        return cost.attention_flops(self.n, self.n, self.d, self.d, heads=self.heads, batch=self.batch, band=band)

    @property
    def rows(self) -> Numbers:
        return _spread(self.n)

    def operands(self) -> tuple[Numbers, Numbers, Numbers]:
        query, key, value = _normal(self.dtype, *[(self.batch, self.heads, self.n, self.d)] * 3)
        return query, key, value

    def options(self) -> dict[str, Any]:
        """The keywords of ``attention``, arrays as NumPy arrays."""
        return {"is_causal": True} if self.causal else {}

    def truth(self, profile: str) -> Truth:
        query, key, value = (x.astype(np.float64) for x in self.operands())
        visible = np.arange(self.n) <= self.rows[:, None] if self.causal else None
        found = attention_bound(
            query[..., self.rows, :], key, value, PROFILES[profile], scale=self.d**-0.5, visible=visible
        )  # fmt: skip
        return Truth(found.truth.output, found.output)

    def small(self) -> "Heads":
        return replace(self, batch=1, heads=1, n=8)


@dataclass(frozen=True, slots=True)
class Layer:
    """Self-attention with its projections: x (batch, n, heads*d), d_k = d_v = d, no biases."""

    batch: int
    heads: int
    n: int
    d: int
    dtype: str = "float32"

    @property
    def width(self) -> int:
        return self.heads * self.d

    @property
    def label(self) -> str:
        return f"layer of {self.heads} heads on ({self.batch}, {self.n}, {self.width}) {self.dtype}"

    @property
    def flops(self) -> int:
        return cost.layer_flops(self.n, self.width, self.d, self.d, heads=self.heads, batch=self.batch).total

    @property
    def rows(self) -> Numbers:
        return _spread(self.n)

    def operands(self) -> tuple[Numbers, Projections]:
        """Matrices of variance 1/d_model, so that queries and keys keep the size of the input."""
        one = (self.heads, self.width, self.d)
        x, *w = _normal(self.dtype, (self.batch, self.n, self.width), one, one, one, (self.heads, self.d, self.width))
        return x, Projections(*(matrix / np.asarray(self.width, x.dtype) ** 0.5 for matrix in w))

    def truth(self, profile: str) -> Truth:
        x, projections = self.operands()
        x = x.astype(np.float64)
        matrices = Projections(*(w if w is None else w.astype(np.float64) for w in projections))
        found = layer_bound(x[..., self.rows, :], x, x, matrices, PROFILES[profile], scale=self.d**-0.5)
        return Truth(found.truth.output, found.output)

    def small(self) -> "Layer":
        return replace(self, batch=1, n=8)


def _spread(n: int) -> Numbers:
    return np.unique(np.linspace(0, n - 1, ROWS).astype(np.int64))


def _normal(dtype: str, *shapes: tuple[int, ...]) -> list[Numbers]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]
