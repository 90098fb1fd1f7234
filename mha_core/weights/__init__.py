"""Everybody's weights: ``Projections`` to and from the formats in which frameworks and checkpoints store a layer (MHA-PROJ-19).

``FORMATS["torch-mha"].read(module.state_dict(), heads=8)`` gives ``Projections``, ``.write(projections)`` goes back; arrays of
any library, kept in it. ``under(arrays, prefix)`` picks one layer out of a checkpoint. Only matrices are converted: the scale,
positions, norms of queries and keys and the like are options of a call, or outside of it.
"""

from mha_core.weights.formats import FORMATS, Format
from mha_core.weights.interleaved import from_interleaved, to_interleaved
from mha_core.weights.linears import from_linears, to_linears
from mha_core.weights.packed import Packed, from_packed, to_packed
from mha_core.weights.per_head import PerHead, from_per_head, to_per_head
from mha_core.weights.reading import under
from mha_core.weights.tiled import from_tiled, to_tiled
from mha_core.weights.torch_mha import from_torch_mha, to_torch_mha

__all__ = [
    "FORMATS",
    "Format",
    "Packed",
    "PerHead",
    "from_interleaved",
    "from_linears",
    "from_packed",
    "from_per_head",
    "from_tiled",
    "from_torch_mha",
    "to_interleaved",
    "to_linears",
    "to_packed",
    "to_per_head",
    "to_tiled",
    "to_torch_mha",
    "under",
]
