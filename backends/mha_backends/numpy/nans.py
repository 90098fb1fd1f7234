"""NaN given back to the rows that see one, after the arithmetic was done without it (see ``Keys``)."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mha_backends.numpy.forward import Rows
    from mha_backends.numpy.keys import Keys, Tile


class SeenNans:
    """Which rows of a block saw a key, and which of their channels a value, that was not finite."""

    def __init__(self, keys: "Keys") -> None:
        self.bad_key, self.bad_value, self.start = keys.bad_key, keys.bad_value, keys.start
        self.rows: Any = False  # (items, heads, r, 1)
        self.channels: Any = False  # (items, heads, r, d_v)

    def note(self, rows: "Rows", tile: "Tile", shape: tuple[int, ...]) -> None:
        """Look at a tile whose scores have this shape, (items, heads, r, w)."""
        sees = np.ones(shape, np.bool_)
        if tile.hidden:
            rows.split(sees)[..., tile.hidden.columns] = ~tile.hidden.pairs
        keys = slice(tile.j0 - self.start, tile.j1 - self.start)
        if self.bad_key is not None:
            self.rows = self.rows | (sees & self.bad_key[:, :, None, keys]).any(-1, keepdims=True)
        if self.bad_value is not None:
            counts = np.matmul(sees.astype(np.float32), self.bad_value[:, :, keys].astype(np.float32))
            self.channels = self.channels | (counts > 0)
