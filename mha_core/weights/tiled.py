"""Grouped heads whose query head i reads key head i mod h_kv: the same layer with its query heads in another order (MHA-HEAD-10)."""

from collections.abc import Callable

import array_api_compat

from mha_core.projections import Projections
from mha_core.weights.reading import head_counts
from mha_spec.call import Array
from mha_spec.contract_layer import check_projections

FORM = "tile-mapped grouped heads"


def from_tiled(projections: Projections) -> Projections:
    """Head t h_kv + j of the tiled order, the t-th that reads key head j, becomes head j g + t, with its rows of W^O.

    The outputs are the same; weights that are returned come in the new order of the heads.
    """
    return _reordered(projections, lambda g, h_kv: (g, h_kv))


def to_tiled(projections: Projections) -> Projections:
    """The inverse: head j g + t becomes head t h_kv + j."""
    return _reordered(projections, lambda g, h_kv: (h_kv, g))


def _reordered(p: Projections, axes: Callable[[int, int], tuple[int, int]]) -> Projections:
    check_projections(p)
    h, h_kv = head_counts(FORM, p.w_q.shape[0], p.w_k.shape[0])
    size = axes(h // h_kv, h_kv)

    def turn(x: Array) -> Array:
        xp = array_api_compat.array_namespace(x)
        grid = xp.reshape(x, (*size, *x.shape[1:]))
        return xp.reshape(xp.moveaxis(grid, 0, 1), x.shape)

    return p._replace(w_q=turn(p.w_q), w_o=turn(p.w_o), b_q=None if p.b_q is None else turn(p.b_q))
