"""All parts, one after another, each in a process of its own; and what became of them."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mha_conformance.gpu.child import read
from mha_conformance.gpu.parts import BUDGET, PARTS
from mha_conformance.gpu.rows import Part, Row, merged, planned

CHILD = (sys.executable, "-m", "mha_conformance.gpu.child")


@dataclass(frozen=True, slots=True)
class Done:
    """A part and its rows, as planned. ``trouble`` says how its process ended where that was not as it should be."""

    part: Part
    rows: tuple[Row, ...]
    seconds: float = 0.0
    trouble: str = ""


def dry(why: str, parts: Sequence[Part] = PARTS) -> list[Done]:
    """Every part with its rows, none of them run."""
    return [Done(part, tuple(planned(part, why))) for part in parts]


def check(
    tell: Callable[[str], None], parts: Sequence[Part] = PARTS, budget: float = BUDGET, start: Sequence[str] = CHILD
) -> list[Done]:
    """What each part found; ``tell`` is told what is being done, ``start`` begins the command of a part."""
    end = time.monotonic() + budget
    done = []
    for part in parts:
        left = min(part.seconds, end - time.monotonic())
        tell(f"{part.name}: {part.does}")
        done.append(_alone(part, left, start) if left >= 1 else Done(part, tuple(planned(part, "the time was up"))))
    return done


def _alone(part: Part, seconds: float, start: Sequence[str]) -> Done:
    began, crashed = time.monotonic(), False
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows"
        try:
            ended = subprocess.run(
                [*start, part.name, str(file)], capture_output=True, text=True, errors="replace", timeout=seconds
            )
            crashed = ended.returncode != 0
            trouble = f"its process ended with {ended.returncode}: {_last(ended.stderr)}" if crashed else ""
        except subprocess.TimeoutExpired:
            trouble = f"stopped after {seconds:.0f} s"
        rows = merged(part, read(file), trouble or "this part left it out", crashed)
    return Done(part, tuple(rows), round(time.monotonic() - began, 1), trouble)


def _last(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "it said nothing"
