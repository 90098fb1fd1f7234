"""``Projections`` by the names of their fields, as ``mha trace --projections`` reads them: the form that holds every layer."""

from collections.abc import Mapping

from mha_core.projections import Projections
from mha_core.weights.reading import Reader
from mha_spec.call import Array
from mha_spec.contract_layer import check_projections

FORM = "Projections"


def from_own(arrays: Mapping[str, Array]) -> Projections:
    """``w_q (h, d_model, d_k)`` ... ``b_o (d_out,)``; each bias is there or not."""
    read = Reader(FORM, arrays)
    w_q = read.array("w_q", None, None, None)
    w_o = read.array("w_o", w_q.shape[0], None, None)
    w_k = read.array("w_k", None, None, w_q.shape[2])
    w_v = read.array("w_v", w_k.shape[0], None, w_o.shape[1])
    b_q, b_o = read.bias("b_q", w_q.shape[0], w_q.shape[2]), read.bias("b_o", w_o.shape[2])
    b_k, b_v = (read.bias(f"b_{x}", w.shape[0], w.shape[2]) for x, w in (("k", w_k), ("v", w_v)))
    read.done()
    return Projections(w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o)


def to_own(projections: Projections) -> dict[str, Array]:
    check_projections(projections)
    return {name: x for name, x in projections._asdict().items() if x is not None}
