"""Heat maps as SVG, alone or on a page that works offline; both in light and in dark. Text stays text.

A cell's colour is one of 21 steps of a single hue, on one scale for all heads, so that they can be compared; where there is
room its share stands in it. Strings of the user are escaped by the templates.
"""

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.cells import cell_len, set_cell_size

from mha_conformance.trace import words
from mha_conformance.trace.heat import GROUND
from mha_conformance.trace.tokens import label
from mha_conformance.trace.trace import Trace
from mha_spec.clauses import load
from mha_spec.steps_html import RISING, mixed, pictures, shape

LEVELS = 20
SIDE, SQUARE, LEGIBLE = 400, 32, 24
"""In pixels: the most a heat map measures where it has many cells, the largest cell, the smallest that holds a number."""
LONGEST, LINE, SLANTED = 12, 13, 19
"""The most terminal cells of a label, and the pixels that its line needs, upright and slanted."""
ACROSS, WIDEST, NARROWEST, GAP, MARGIN = 4, 1200, 520, 24, 24
"""At most so many heads in a row of the picture, and in so many pixels; the narrowest picture still holds its notes."""
TITLE_CELL = 10
"""How wide a terminal cell of the title is in pixels."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One heat map with its labels, laid out; ``paths`` are the cells of each step of colour."""

    name: str
    says: str
    left: float
    top: float
    cell: int
    width: float
    height: float
    slanted: bool
    paths: list[tuple[str, str]]
    rows: list[tuple[float, str]]
    columns: list[tuple[float, str]]
    shares: list[tuple[float, float, str, str]]


def svg(trace: Trace) -> str:
    """One picture: the single head, and beside it the heads in rows."""
    one, heads = _panels(trace)
    wide, high = one[0].width + GAP, one[0].height + GAP
    first = MARGIN + max(
        wide, TITLE_CELL * len(words.names(trace)[0])
    )  # where the heads begin: right of the single one's title
    across = max(1, min(ACROSS, len(heads), int(WIDEST // wide)))
    placed: list[tuple[float, float, Panel]] = [(MARGIN, 0.0, one[0])]
    placed += [(first + wide * (i % across), high * (i // across), panel) for i, panel in enumerate(heads)]
    size = (max(first + wide * across - GAP + MARGIN, NARROWEST), high * (1 + (len(heads) - 1) // across))
    headline = _cut(label(trace.title), int((size[0] - 2 * MARGIN) // TITLE_CELL))
    return _render("picture.svg.jinja", trace, placed=placed, size=size, heads_at=first, headline=headline)


def html(trace: Trace, versions: dict[str, str]) -> str:
    """One page: the six steps, each head, one head beside them, the cost, and the merged form."""
    one, heads = _panels(trace)
    steps = [(step, shape(step), words.STEPS[step.name], pictures(step)) for step in trace.steps]
    used = dict.fromkeys([*(step.clause for step in trace.steps), "MHA-HEAD-6", "MHA-HEAD-7", "MHA-PROJ-5", "MHA-COST-4"])
    levels = {name: load()[name].level for name in used}
    return _render("page.html.jinja", trace, one=one, heads=heads, steps=steps, levels=levels, versions=versions)


def _render(template: str, trace: Trace, **values: Any) -> str:
    folder = Path(__file__).with_name("templates")
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    colours = [(i, _hex(RISING, i), _hex(GROUND, i)) for i in range(LEVELS + 1)]
    known = {
        "trace": trace, "title": label(trace.title), "names": words.names(trace), "colours": colours, "levels": LEVELS,
        "top": f"{100 * trace.top:.0f}", "cost": words.cost(trace), "agreement": words.agreement(trace),
    }  # fmt: skip
    return environment.get_template(template).render(known | values)


def _panels(trace: Trace) -> tuple[list[Panel], list[Panel]]:
    top = trace.top
    queries, keys = [_cut(label(token)) for token in trace.queries], [_cut(label(token)) for token in trace.keys]
    heads = [_panel(grid, f"head {i}", queries, keys, top) for i, grid in enumerate(trace.weights)]
    return [_panel(trace.one_head[0], "one head", queries, keys, top)], heads


def _panel(grid: Any, name: str, queries: list[str], keys: list[str], top: float) -> Panel:
    n, m = grid.shape
    cell = max(1, min(SQUARE, SIDE // max(n, m)))
    longest = max(map(_pixels, keys))
    slanted = longest > cell - 4
    left, head = max(map(_pixels, queries)) + 8, (0.71 * longest if slanted else 0.0) + LINE + 4
    right = max(0.0, 0.71 * longest - cell / 2) if slanted else 0.0
    every, across = -(-LINE // cell), -(-(SLANTED if slanted else LINE) // cell)  # labels of smaller cells would overlap
    shares = [(j, i, grid[i, j]) for i in range(n) for j in range(m)] if cell >= LEGIBLE else []
    return Panel(
        name, _in_words(grid, name, queries, keys), left, LINE + 6 + head, cell, left + m * cell + right,
        LINE + 6 + head + n * cell, slanted, _paths(grid, top, merge=cell < LEGIBLE),
        [((i + 0.5) * cell, queries[i]) for i in range(0, n, every)],
        [((j + 0.5) * cell, keys[j]) for j in range(0, m, across)],
        [((j + 0.5) * cell, (i + 0.5) * cell, _percent(x), _ink(x, top, grid[i])) for j, i, x in shares],
    )  # fmt: skip


def _paths(grid: Any, top: float, merge: bool) -> list[tuple[str, str]]:
    """For each step of colour the cells that have it, in units of a cell. ``merge`` joins neighbours of a row."""
    found: dict[str, list[str]] = {}
    for i, row in enumerate(grid):
        names = [_level(x, top) for x in row]
        j = 0
        while j < len(names):
            end = j + 1
            while merge and end < len(names) and names[end] == names[j]:
                end += 1
            found.setdefault(names[j], []).append(f"M{j} {i}h{end - j}v1h-{end - j}z")
            j = end
    return [(name, "".join(cells)) for name, cells in sorted(found.items())]


def _level(x: float, top: float) -> str:
    return "nan" if np.isnan(x) else f"s{round(LEVELS * x / top) if top else 0}"


def _ink(x: float, top: float, row: Any) -> str:
    """The class of a number: dark or bright with its ground, bold where it is the largest of its row."""
    ground = "on" if top and x / top > 0.5 else "off"
    return f"{ground} most" if x == np.max(row, initial=0.0, where=~np.isnan(row)) else ground


def _percent(x: float) -> str:
    return "NaN" if np.isnan(x) else f"{100 * x:.0f}"


def _in_words(grid: Any, name: str, queries: list[str], keys: list[str]) -> str:
    """The picture for those who do not see it: from which key each query reads most; of long sentences the first tokens."""
    told = []
    for query, row in list(zip(queries, grid, strict=True))[:12]:
        if np.isnan(row).all():
            told.append(f"{query} is NaN")
        else:
            j = int(np.nanargmax(row))
            told.append(f"{query} reads most from {keys[j]}, {100 * row[j]:.0f} percent")
    more = f"; and {len(queries) - len(told)} more" if len(queries) > len(told) else ""
    return f"{name}: {'; '.join(told)}{more}."


def _cut(text: str, cells: int = LONGEST) -> str:
    return text if cell_len(text) <= cells else set_cell_size(text, cells - 1).rstrip() + "…"


def _pixels(text: str) -> float:
    """About how wide a label of 12 pixels is: 12 for a character that is wide, or wide in some fonts, and 7 for another."""
    return sum(12.0 if unicodedata.east_asian_width(character) in ("W", "F", "A") else 7.0 for character in text)


def _hex(anchors: Any, level: int) -> str:
    return "#{:02x}{:02x}{:02x}".format(*mixed(anchors, level / LEVELS))
