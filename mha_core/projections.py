"""The learned matrices of a layer, one per head as in the paper, and their merged form."""

from numbers import Integral
from typing import NamedTuple

import array_api_compat

from mha_spec.call import Array
from mha_spec.violation import Violation, describe, is_array, shown


class Merged(NamedTuple):
    """The projections as large matrices: head i owns columns ``i*d_k .. (i+1)*d_k`` (rows of ``w_o``) (MHA-PROJ-6)."""

    w_q: Array
    w_k: Array
    w_v: Array
    w_o: Array
    b_q: Array | None
    b_k: Array | None
    b_v: Array | None
    b_o: Array | None


class Projections(NamedTuple):
    """W_i^Q, W_i^K, W_i^V and W_i^O of every head, and their biases (MHA-PROJ-1, MHA-PROJ-2).

    ``w_q (h, d_model, d_k)``, ``w_k (h_kv, d_in_k, d_k)``, ``w_v (h_kv, d_in_v, d_v)``, ``w_o (h, d_v, d_out)``;
    ``b_q (h, d_k)``, ``b_k (h_kv, d_k)``, ``b_v (h_kv, d_v)``, ``b_o (d_out,)``, None where there is no bias.
    W^O of the paper is the heads' ``w_o`` stacked: MultiHead = sum over i of head_i w_o[i].
    """

    w_q: Array
    w_k: Array
    w_v: Array
    w_o: Array
    b_q: Array | None = None
    b_k: Array | None = None
    b_v: Array | None = None
    b_o: Array | None = None

    @classmethod
    def from_merged(
        cls,
        w_q: Array,
        w_k: Array,
        w_v: Array,
        w_o: Array,
        *,
        heads: int,
        kv_heads: int | None = None,
        b_q: Array | None = None,
        b_k: Array | None = None,
        b_v: Array | None = None,
        b_o: Array | None = None,
    ) -> "Projections":
        """Views of merged matrices ``w_q (d_model, h*d_k)``, ..., ``w_o (h*d_v, d_out)``. Raises ``Violation`` (MHA-PROJ-6)."""
        h_kv = heads if kv_heads is None else kv_heads
        columns = {"w_q": (w_q, heads), "w_k": (w_k, h_kv), "w_v": (w_v, h_kv)}
        split = {name: _split_columns(name, w, count) for name, (w, count) in columns.items()}
        split["w_o"] = _split_rows("w_o", w_o, heads)
        biases = {"b_q": (b_q, heads), "b_k": (b_k, h_kv), "b_v": (b_v, h_kv)}
        split |= {name: _split_rows(name, b, count) for name, (b, count) in biases.items() if b is not None}
        return cls(**split, b_o=b_o)

    def merged(self) -> Merged:
        """The merged matrices; views of the same memory where the strides allow it, as after ``from_merged``."""
        return Merged(
            w_q=_join_columns(self.w_q),
            w_k=_join_columns(self.w_k),
            w_v=_join_columns(self.w_v),
            w_o=_join_rows(self.w_o),
            b_q=None if self.b_q is None else _join_rows(self.b_q),
            b_k=None if self.b_k is None else _join_rows(self.b_k),
            b_v=None if self.b_v is None else _join_rows(self.b_v),
            b_o=self.b_o,
        )


def _split_columns(name: str, w: Array, count: int) -> Array:
    """(d_in, count*d) -> (count, d_in, d)"""
    _check_divides(name, w, rank=2, axis=-1, count=count)
    xp = array_api_compat.array_namespace(w)
    return xp.moveaxis(xp.reshape(w, (w.shape[0], count, w.shape[1] // max(count, 1))), 1, 0)


def _join_columns(w: Array) -> Array:
    """(count, d_in, d) -> (d_in, count*d)"""
    xp = array_api_compat.array_namespace(w)
    count, d_in, d = w.shape
    return xp.reshape(xp.moveaxis(w, 0, 1), (d_in, count * d))


def _split_rows(name: str, x: Array, count: int) -> Array:
    """(count*d, ...) -> (count, d, ...)"""
    _check_divides(name, x, rank=2 if name.startswith("w") else 1, axis=0, count=count)
    xp = array_api_compat.array_namespace(x)
    return xp.reshape(x, (count, x.shape[0] // max(count, 1), *x.shape[1:]))


def _join_rows(x: Array) -> Array:
    """(count, d, ...) -> (count*d, ...)"""
    xp = array_api_compat.array_namespace(x)
    return xp.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _check_divides(name: str, x: Array, *, rank: int, axis: int, count: int) -> None:
    fits = isinstance(count, Integral) and count >= 0 and is_array(x) and len(x.shape) == rank
    if not fits or (x.shape[axis] % count if count else x.shape[axis]):
        raise Violation(
            "MHA-PROJ-6", f"{name} {describe(x)} for {shown(count)} heads", f"rank {rank} and a merged width that the heads divide",
            "give heads= and kv_heads= as the matrices were built; w is (d_in, heads*d), the transpose of torch's Linear.weight",
        )  # fmt: skip
