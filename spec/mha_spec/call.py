"""What a legal call is: the value that passes from the contract to a backend, and the value that comes back."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

Array: TypeAlias = Any
Band: TypeAlias = tuple[int | None, int | None]

FLOAT_WIDTHS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}
"""The floating types of the specification, by name, with their width in bits (MHA-VAL-2)."""

_names: dict[Any, str] = {}


def dtype_name(array: Array) -> str:
    """The name of an array's element type in any library: ``"float32"``, ``"bfloat16"``, ``"bool"``, ...

    A byte-swapped NumPy type keeps its mark (``">f4"``) and is therefore no name that the contract knows.
    """
    dtype = array.dtype
    known = (type(dtype), dtype)  # dtypes of two libraries may hash alike and must not be compared
    name = _names.get(known)
    if name is None:
        name = _names[known] = str(dtype).rpartition(".")[2]
    return name


class Sizes(NamedTuple):
    """The sizes of a call: query ``(*batch, h, n, d_k)``, key ``(*batch, h_kv, m, d_k)``, value ``(..., m, d_v)``."""

    batch: tuple[int, ...]
    h: int
    h_kv: int
    n: int
    m: int
    d_k: int
    d_v: int


class Dropout(NamedTuple):
    """Which weights a call drops: ``Dropout(rate, seed)`` draws them, ``Dropout(rate, keep=mask)`` names those that stay (MHA-DROP-1).

    ``keep`` is boolean, True = keep, of rank 2 or of that of the scores, each axis full or 1. The starts say where a part of a
    larger call begins: the number of batch items, query heads, queries and keys before its first (MHA-DROP-4). A value checks
    nothing; the call that it is given to does (MHA-VAL-23, MHA-VAL-24).
    """

    rate: float
    seed: int | None = None
    keep: Array | None = None
    batch_start: int = 0
    head_start: int = 0
    query_start: int = 0
    key_start: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A complete and legal request for attention.

    The arrays are the caller's own, with any strides; nothing is expanded or copied. What a kernel
    may still branch on is shape and presence; what it need not ask is whether the call is legal.
    """

    query: Array
    key: Array
    value: Array
    scale: float
    softcap: float | None
    mask: Array | None
    """Boolean, of the scores' rank, each axis full or 1."""
    bias: Array | None
    """Real, of the scores' rank, each axis full or 1, in the query's dtype or a wider one."""
    band: Band | None
    """``(left, right)``: key j is visible to query i only if ``-left <= j - (query_offset + i) <= right``.
    A causal mask is the band ``(None, 0)``; None on a side leaves that side open."""
    query_offset: int | Array
    """The position of query 0. A Python int has been clipped to where it can still matter; an array holds one
    integer per batch item, any integer."""
    key_lengths: int | Array | None
    """A Python int has been clipped to 0 .. m; an array holds one integer per batch item, any integer."""
    query_segments: Array | None
    key_segments: Array | None
    sink_logits: Array | None
    dropout: Dropout | None
    """With a seed or with ``keep`` of the scores' rank; None where nothing is dropped, as by the rate 0 with a seed."""
    weights: bool
    lse: bool

    @property
    def sizes(self) -> Sizes:
        *batch, h, n, d_k = self.query.shape
        h_kv, m, d_v = self.value.shape[-3:]
        return Sizes(tuple(batch), h, h_kv, n, m, d_k, d_v)

    @property
    def hides(self) -> bool:
        """Whether some option of this call can hide a key from a query. It asks which options are there, never what they hold."""
        return not (
            self.mask is None
            and self.bias is None
            and self.band is None
            and self.key_lengths is None
            and self.query_segments is None
        )


class AttentionResult(NamedTuple):
    """output ``(*batch, h, n, d_v)``; weights ``(*batch, h, n, m)`` and lse ``(*batch, h, n)``, None where not asked for."""

    output: Array
    weights: Array | None = None
    lse: Array | None = None


class Cotangents(NamedTuple):
    """What arrives from behind: the gradients of a loss with respect to the results of a call, in their shapes and dtypes.

    ``output`` is always there; ``lse`` and ``weights`` are None where the loss does not depend on them (MHA-GRAD-2).
    """

    output: Array
    lse: Array | None = None
    weights: Array | None = None


class Tangents(NamedTuple):
    """A direction in which the operands of a call move, in their shapes and dtypes; None for what stays as it is (MHA-GRAD-21)."""

    query: Array | None = None
    key: Array | None = None
    value: Array | None = None
    bias: Array | None = None
    sink_logits: Array | None = None


class AttentionGradients(NamedTuple):
    """The gradients of a loss with respect to the operands, in their shapes and dtypes; None for what the call was not given."""

    query: Array
    key: Array
    value: Array
    bias: Array | None = None
    sink_logits: Array | None = None
