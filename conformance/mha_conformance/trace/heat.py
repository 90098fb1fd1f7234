"""Heat maps in a terminal: a cell holds its share in percent on a coloured ground, or after a mark where there are no colours.

Widths are counted in terminal cells, of which a Chinese character takes two. Marks are plain ASCII, since block characters
are as wide as the font of the terminal likes. The largest share of a row is bold.
"""

import math
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from mha_conformance.trace.tokens import label
from mha_spec.steps_html import Colour, mixed

MARKS = " .:-=+*#%@"
GROUND: tuple[Colour, ...] = ((22, 27, 36), (31, 74, 125), (91, 155, 224), (232, 243, 255))
"""From nothing to the largest share, dark to bright."""
LABEL, COLUMNS = 8, (4, 3)
"""The most cells of a label beside a row; and of one above a column, the wider where all columns fit with it."""
NAME, GAP = 8, 3
"""The cells that a map has at least, for its name, and those between two maps."""


class HeatMaps:
    """Heat maps (h, n, m) of weights, 0 to ``top``, as lines of at most ``width`` cells."""

    def __init__(
        self, weights: Any, top: float, queries: Sequence[str], keys: Sequence[str], width: int, colours: bool
    ) -> None:
        self.weights, self.top, self.colours = weights, top, colours
        rows, columns = [label(token) for token in queries], [label(token) for token in keys]
        self.side = min(LABEL, max(map(cell_len, rows)))
        longest = max(map(cell_len, columns))
        cells = [1 + max(COLUMNS[-1] if colours else most, min(most, longest)) for most in COLUMNS]
        fitting = [cell for cell in cells if self.side + cell * len(columns) <= width]
        self.digits, self.cell = bool(fitting), fitting[0] if fitting else 2
        room = max(1, (width - self.side) // self.cell)
        self.keys, self.queries = columns[:room], rows[: room if len(columns) > room else None]
        self.size = max(self.side + self.cell * len(self.keys), NAME)
        self.across = max(1, (width + GAP) // (self.size + GAP))

    @property
    def left_out(self) -> str:
        """What does not fit, in words; empty where all is shown."""
        n, m = self.weights.shape[-2:]
        if len(self.keys) == m and len(self.queries) == n:
            drawn = "colours" if self.colours else "marks"
            return "" if self.digits else f"no room for numbers, only for {drawn}; --json has them"
        return f"the first {len(self.queries)} of {n} queries and {len(self.keys)} of {m} keys fit; --html FILE shows all"

    def lines(self, names: Sequence[str]) -> list[Text]:
        """All heads, as many side by side as fit, each under its name."""
        drawn = [self._head(grid, name) for grid, name in zip(self.weights, names, strict=True)]
        found: list[Text] = []
        for first in range(0, len(drawn), self.across):
            for line in zip(*drawn[first : first + self.across], strict=True):
                for part in line:
                    part.pad_right(self.size - part.cell_len)
                found.append(Text(" " * GAP).join(line))
            found.append(Text())
        return found

    def _head(self, grid: Any, name: str) -> list[Text]:
        head = Text(set_cell_size(name, self.size), style="bold")
        above = _right if self.digits else set_cell_size
        columns = "".join(above(_start(key, self.cell - 1 if self.digits else 1), self.cell) for key in self.keys)
        return [head, Text(" " * self.side + columns), *(self._row(i, query, grid[i]) for i, query in enumerate(self.queries))]

    def _row(self, i: int, query: str, shares: Any) -> Text:
        line = Text(set_cell_size(_cut(query, self.side), self.side))
        known = [float(x) for x in shares if not math.isnan(x)]
        for share in map(float, shares[: len(self.keys)]):
            line.append(self._cell(share), self._style(share, bool(known) and share == max(known)))
        return line

    def _cell(self, share: float) -> str:
        nan = math.isnan(share)
        mark = "?" if nan else MARKS[round(self._part(share) * (len(MARKS) - 1))]
        if not self.digits:
            return "  " if self.colours and not nan else mark * self.cell
        number = "nan" if nan else f"{100 * share:.0f}"
        return f"{number:>{self.cell}}" if self.colours else f"{mark:>{self.cell - 3}}{number:>3}"

    def _style(self, share: float, strongest: bool) -> Style:
        if not self.colours or math.isnan(share):
            return Style(bold=strongest)
        part = self._part(share)
        ground, ink = mixed(GROUND, part), (12, 16, 22) if part > 0.5 else (225, 230, 236)
        return Style(color=_hex(ink), bgcolor=_hex(ground), bold=strongest)

    def _part(self, share: float) -> float:
        return share / self.top if self.top else 0.0


def _cut(text: str, cells: int) -> str:
    """At most that many cells; what is cut ends in two dots."""
    return text if cell_len(text) <= cells else set_cell_size(text, max(cells - 2, 0)).rstrip() + ".."[: max(cells, 0)]


def _right(text: str, cells: int) -> str:
    return " " * (cells - cell_len(text)) + text


def _start(text: str, cells: int) -> str:
    """The first characters that fit; at least one, which may be wider."""
    fitting = set_cell_size(text, cells).rstrip()
    return text if cell_len(text) <= cells else fitting or text[:1]


def _hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
