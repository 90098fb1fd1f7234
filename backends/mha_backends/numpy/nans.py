"""NaN given back to the rows that see one in V, after the arithmetic was done without it (see ``Keys.mend``)."""

from typing import TYPE_CHECKING, Any

import numpy as np

from mha_spec.call import Array

if TYPE_CHECKING:
    from mha_backends.numpy.forward import Rows
    from mha_backends.numpy.keys import Tile


class SeenNans:
    """The channels of each row of a block that saw a value that was not finite."""

    def __init__(self, bad_value: Array, start: int) -> None:
        self.bad_value, self.start = bad_value, start
        self.channels: Any = False  # (items, heads, r, d_v)

    def note(self, rows: "Rows", tile: "Tile", shape: tuple[int, ...]) -> None:
        """Look at a tile whose scores have this shape, (items, heads, r, w)."""
        sees = np.ones(shape, np.float32)
        if tile.hidden:
            rows.split(sees)[..., tile.hidden.columns] = ~tile.hidden.pairs
        bad = self.bad_value[:, :, tile.j0 - self.start : tile.j1 - self.start].astype(np.float32)
        self.channels = self.channels | (np.matmul(sees, bad) > 0)
