"""Draws ``results/learning.svg`` from ``results/learning.json``: error and share of right digits, against the number of heads.

python spec/campaigns/learning_plot.py
"""

import math
from pathlib import Path
from typing import Any

import record

PANEL, GAP, LEFT, TOP, HEIGHT = 190, 75, 55, 40, 170
INK, COLOUR, FLOOR = "#555", "#2b6cb0", "#c05621"
FONT = "font-family='system-ui, sans-serif' font-size='12'"


def write(found: dict[str, Any], file: Path) -> None:
    panels = []
    for at, asked in enumerate(sorted({r["asked"] for r in found["relations"]})):
        rows = [r for r in found["relations"] if r["asked"] == asked]
        points = [(r["heads"], r["errors"]) for r in rows]
        panels.append(panel(at, f"{asked} relations: error", points, 0.0, 0.8, [(r["heads"], r["floor"]) for r in rows]))
    digits = [(r["heads"], r["right"]) for r in found["digits"]]
    panels.append(panel(len(panels), "digits: share right", digits, 0.8, 1.0, []))
    width = LEFT + len(panels) * (PANEL + GAP)
    title = "Error and share of right digits against the number of heads in one width; a mark is a training, the dashes are what is proved"
    body = "\n".join(panels)
    file.write_text(
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {TOP + HEIGHT + 50}' role='img' {FONT} fill='{INK}'>\n"
        f"<title>{title}</title>\n{body}\n</svg>\n",
        encoding="utf-8",
    )


def panel(
    at: int, title: str, points: list[tuple[int, list[float]]], low: float, high: float, floor: list[tuple[int, float]]
) -> str:
    """Marks for every seed over heads 1, 2, 4, ... side by side; a dash where less is impossible."""
    x0 = LEFT + at * (PANEL + GAP)
    count = len(points)

    def x(heads: int) -> float:
        return x0 + (math.log2(heads) + 0.5) * PANEL / count

    def y(value: float) -> float:
        return TOP + HEIGHT * (high - value) / (high - low)

    def text(where: tuple[float, float], words: str, anchor: str = "middle") -> str:
        return f"<text x='{where[0]:.1f}' y='{where[1]:.1f}' text-anchor='{anchor}'>{words}</text>"

    parts = [text((x0 + PANEL / 2, TOP - 15), title), text((x0 + PANEL / 2, TOP + HEIGHT + 38), "heads")]
    for tick in (low, (low + high) / 2, high):
        parts.append(f"<line x1='{x0}' x2='{x0 + PANEL}' y1='{y(tick):.1f}' y2='{y(tick):.1f}' stroke='{INK}' opacity='0.3'/>")
        parts.append(text((x0 - 6, y(tick) + 4), f"{tick:.1f}", "end"))
    for heads, least in floor:
        line = f"<line x1='{x(heads) - 15:.1f}' x2='{x(heads) + 15:.1f}' y1='{y(least):.1f}' y2='{y(least):.1f}'"
        parts.append(f"{line} stroke='{FLOOR}' stroke-width='2' stroke-dasharray='5 3'/>")
    for heads, values in points:
        parts.append(text((x(heads), TOP + HEIGHT + 18), str(heads)))
        parts += [f"<circle cx='{x(heads):.1f}' cy='{y(v):.1f}' r='3.5' fill='{COLOUR}' opacity='0.6'/>" for v in values]
    return "\n".join(parts)


if __name__ == "__main__":
    write(record.read("learning"), record.RESULTS / "learning.svg")
