"""A picture of a bench as SVG: speed against length, and memory against length. Text stays text; light and dark.

Speed is a share of this machine's GEMM rate, so 100 % is the roof. Memory is what a call holds beside its operands; both of its axes
are logarithmic, so a line twice as steep as another grows with the square.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mha_conformance.bench.memory import RESOLUTION
from mha_conformance.bench.record import Contest, Measurement

WIDE, HIGH = 380, 240
"""Pixels of a panel inside its axes."""
MIB = 2**20
COLOURS = 8
"""From the ninth competitor on lines are dashed and the colours begin anew."""

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """A competitor in a diagram, in pixels."""

    colour: int
    dashed: bool
    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram: its lines, and the marks of both axes in pixels."""

    title: str
    lines: list[Line]
    across: list[tuple[float, str]]
    up: list[tuple[float, str]]
    missing: str
    """Why there is nothing to see; empty where there is."""


def plot(contests: Sequence[Contest]) -> str:
    """One contest for each length. In noise the diagram of speed is empty and says why."""
    names = list(dict.fromkeys(m.name for c in contests for m in c.measurements))
    shares = {name: _points(contests, name, Contest.share) for name in names}
    memory = {name: _points(contests, name, _mebibytes) for name in names}
    noise = next((reason for c in contests for reason in c.noise), "")
    tens = [(x / 5, f"{20 * x} %") for x in range(6)]
    panels = [
        _panel("share of the GEMM rate", shares, tens, noise or "nothing was timed", logarithmic=False),
        _panel("extra memory, MiB", memory, _decades(memory), "nothing above a mebibyte was seen", logarithmic=True),
    ]
    ends = dict.fromkeys(c.workload for c in (contests[0], contests[-1]))
    told = [f"{name} {', '.join(f'{share:.0%} at {n:g} tokens' for n, share in line)}" for name, line in shares.items() if line]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("plot.svg.jinja").render(
        panels=panels, names=names, wide=WIDE, high=HIGH, what=" to ".join(ends), says="; ".join(told) or noise
    )


def _points(contests: Sequence[Contest], name: str, of: Callable[[Contest, Measurement], float | None]) -> Points:
    """(tokens, value) of a competitor, where it has one."""
    found = [(c.n, of(c, m)) for c in contests for m in c.measurements if m.name == name]
    return [(float(n), value) for n, value in found if value is not None]


def _mebibytes(contest: Contest, m: Measurement) -> float | None:
    return None if m.peak_bytes is None or m.peak_bytes < RESOLUTION else m.peak_bytes / MIB


def _panel(
    title: str, found: dict[str, Points], marks: list[tuple[float, str]], missing: str, *, logarithmic: bool
) -> Panel:  # fmt: skip
    lengths = sorted({n for points in found.values() for n, _ in points})
    if not lengths:
        return Panel(title, [], [], [], missing)

    def across(n: float) -> float:
        return WIDE * _between(math.log(n), math.log(lengths[0]), math.log(lengths[-1]))

    def up(value: float) -> float:
        kind = math.log if logarithmic else float
        return HIGH * (1 - _between(kind(value), kind(marks[0][0]), kind(marks[-1][0])))

    lines = [
        Line(i % COLOURS, i >= COLOURS, name, [(across(n), up(value)) for n, value in points])
        for i, (name, points) in enumerate(found.items())
        if points
    ]
    return Panel(title, lines, [(across(n), f"{n:g}") for n in lengths], [(up(v), text) for v, text in marks], "")


def _between(x: float, low: float, high: float) -> float:
    return 0.5 if low == high else (x - low) / (high - low)


def _decades(found: dict[str, Points]) -> list[tuple[float, str]]:
    """The powers of ten around all values."""
    values = [value for points in found.values() for _, value in points] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [(10.0**power, f"{10.0**power:g}") for power in range(low, max(high, low + 1) + 1)]
