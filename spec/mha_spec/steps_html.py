"""The steps as a table in HTML, which a notebook shows: equation, shape, clause, and a small picture of each array.

A picture has one pixel per number. It is a PNG inside the page, so the table stays whole in a saved notebook, and it needs
nothing but the standard library. Weights run from white to dark blue; other numbers from orange through white to blue.
"""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape
from typing import Any, Protocol

Colour = tuple[int, int, int]

RISING: tuple[Colour, ...] = ((245, 248, 252), (169, 201, 234), (63, 127, 196), (11, 47, 102))
"""From nothing to the largest weight: one hue, darker and darker."""
SIGNED: tuple[Colour, ...] = ((133, 56, 0), (227, 154, 79), (247, 247, 245), (107, 163, 220), (15, 74, 143))
"""From the most negative number to the most positive: orange and blue, which every kind of colour vision tells apart."""
NO_NUMBER: Colour = (128, 128, 128)

HEADS, NUMBERS = 16, 1 << 14
"""How many heads are drawn, and how many numbers of one head: beyond that a picture of pixels says little."""


class _Step(Protocol):
    @property
    def number(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def equation(self) -> str: ...
    @property
    def clause(self) -> str: ...
    @property
    def axes(self) -> tuple[str, ...]: ...
    @property
    def array(self) -> Any: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def table(steps: Sequence[_Step]) -> str:
    """One row per step. Of a batch, the first item is drawn."""
    left = 'style="text-align:left;vertical-align:top"'
    head = "".join(f"<th {left}>{name}</th>" for name in ("step", "name", "equation", "shape", "clause", "numbers"))
    rows = (
        "".join(f"<td {left}>{cell}</td>" for cell in (
            step.number, escape(step.name), f"<code>{escape(step.equation)}</code>", f"<code>{escape(shape(step))}</code>",
            escape(step.clause), pictures(step),
        ))
        for step in steps
    )  # fmt: skip
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def shape(step: _Step) -> str:
    """The shape of a step in words: ``(h, n, d_k) = (8, 4, 64)``."""
    return f"({', '.join(step.axes)}) = ({', '.join(map(str, step.shape))})"


def mixed(anchors: Sequence[Colour], share: float) -> Colour:
    """The colour at ``share``, 0 to 1, of the way along ``anchors``."""
    at = share * (len(anchors) - 1)
    low = min(int(at), len(anchors) - 2)
    pairs = zip(anchors[low], anchors[low + 1], strict=True)
    red, green, blue = (round(a + (b - a) * (at - low)) for a, b in pairs)
    return red, green, blue


def pictures(step: _Step) -> str:
    """The numbers of a step as one image per head, or in words what keeps them from being drawn."""
    lead = 3 if "h" in step.axes or "h_kv" in step.axes else 2
    array, batch = step.array, len(step.shape) - lead
    if 0 in step.shape:
        return "empty"
    *_, rows, columns = step.shape
    if rows * columns > NUMBERS:
        return f"{rows} by {columns} numbers: too many to draw"
    for _ in range(batch):
        array = array[0, ...]
    heads = [array] if lead == 2 else [array[head, ...] for head in range(min(step.shape[-3], HEADS))]
    numbers = [_nested(head) for head in heads]
    top = _largest(numbers)
    names = [step.name] if lead == 2 else [f"{step.name} of head {head}" for head in range(len(heads))]
    rising, room = step.name == "weights", 384 if lead == 2 else 96  # pixels, so that eight heads stand in a row
    drawn = "".join(_picture(grid, top, rising, name, room) for grid, name in zip(numbers, names, strict=True))
    left_out = step.shape[-3] - len(heads) if lead == 3 else 0
    return drawn + (f" and {left_out} more heads" if left_out else "") + (" of batch item 0" if batch else "")


def _picture(numbers: list[list[float]], top: float, rising: bool, name: str, room: int) -> str:
    rows, columns = len(numbers), len(numbers[0])
    levels = [[_level(x, top, rising) for x in row] for row in numbers]
    used = sorted({level for row in levels for level in row})  # a palette of these alone makes the picture half as large
    palette = [NO_NUMBER if level == 255 else mixed(RISING if rising else SIGNED, level / 254) for level in used]
    place = {level: at for at, level in enumerate(used)}
    source = base64.b64encode(_png([[place[level] for level in row] for row in levels], palette)).decode()
    wide, high = max(1, min(8, room // columns)) * columns, max(1, min(8, 128 // rows)) * rows
    words = escape(f"{name}, {rows} by {columns}, {'0' if rising else f'{-top:.3g}'} to {top:.3g}", quote=True)
    style = f"display:inline-block;margin:1px 3px;image-rendering:pixelated;width:{wide}px;height:{high}px"
    return f'<img alt="{words}" title="{words}" style="{style}" src="data:image/png;base64,{source}">'


def _level(x: float, top: float, rising: bool) -> int:
    """The place of a number among 255 colours; 255 is that of NaN."""
    if math.isnan(x):
        return 255
    share = max(-1.0, min(1.0, x / top)) if top else 0.0
    return round(254 * max(share, 0.0)) if rising else round(127 * (share + 1.0))


def _largest(heads: list[list[list[float]]]) -> float:
    return max((abs(x) for head in heads for row in head for x in row if math.isfinite(x)), default=0.0)


def _nested(array: Any) -> Any:
    """An array of any library as lists of Python numbers."""
    if hasattr(array, "tolist"):
        return array.tolist()
    return [_nested(array[at, ...]) for at in range(array.shape[0])] if array.shape else float(array)


def _png(levels: list[list[int]], palette: list[Colour]) -> bytes:
    """An indexed PNG (ISO/IEC 15948): header, palette, one filter byte before each row, end."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", len(levels[0]), len(levels), 8, 3, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(row) for row in levels)
    colours = b"".join(bytes(colour) for colour in palette)
    parts = chunk(b"IHDR", header) + chunk(b"PLTE", colours) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts
