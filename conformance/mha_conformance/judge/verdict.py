"""The verdict on one case: a status, how near the bound, and where."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

Status: TypeAlias = Literal[
    "PASS", "SUSPECT", "FAIL", "NOT_SUPPORTED", "NOT_EXPRESSIBLE", "NOT_RUN", "XFAIL", "ERROR", "CRASH", "TIMEOUT"
]

FAILING = ("FAIL", "CRASH", "TIMEOUT")
JUDGED = ("PASS", "SUSPECT", "XFAIL", *FAILING)


AGAIN = "asked again, "
"""How a reason begins that nothing but an earlier call explains: the same request was answered in two ways (MHA-EXEC-5)."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The element farthest outside the bound, or nearest to it."""

    array: str
    index: tuple[int, ...]
    got: float
    expected: float
    bound: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a case. ``ratio`` is error / bound of the worst element; ``pattern`` says which elements are wrong."""

    case: str
    clause: str
    group: str
    level: str
    dtype: str
    status: Status
    reason: str = ""
    ratio: float | None = None
    worst: Worst | None = None
    pattern: str = ""
    size: int = 0
    profiles: tuple[str, ...] = field(default=())
    """The profiles of this dtype whose bound the result keeps, strictest first."""
    nearest: tuple[str, ...] | None = None
    """Those that it keeps with roundings to nearest, grade RN; None where the case says nothing of it."""
    request: str = ""
    """What was asked: shapes and options."""
    kernel: str = ""
    """Which kernel answered, where the implementation says so."""
    hypothesis: str = ""
    """What is wrong, in words, where one known fault explains the whole error."""


_AXES = {
    "output": ("head", "row", "channel"),
    "lse": ("head", "row"),
    "weights": ("head", "row", "key"),
    "query gradient": ("head", "row", "channel"),
    "key gradient": ("head", "key", "channel"),
    "value gradient": ("head", "key", "channel"),
    "sink_logits gradient": ("head",),
}


def pattern(wrong: Any, array: str) -> str:
    """Which elements are wrong, in words: (*batch, h, n[, d]) booleans."""
    axes = _AXES.get(array)
    share = f"{int(wrong.sum())} of {wrong.size} elements"
    if wrong.all() or axes is None or wrong.ndim < len(axes):
        return f"all {wrong.size} elements" if wrong.all() else share
    words = []
    names = [f"batch axis {axis}" for axis in range(wrong.ndim - len(axes))] + list(axes)
    for axis, name in enumerate(names):
        others = tuple(a for a in range(wrong.ndim) if a != axis)
        hit = np.flatnonzero(wrong.any(axis=others))
        if len(hit) < wrong.shape[axis]:
            words.append(f"{name} {_runs(hit.tolist())} of {wrong.shape[axis]}")
    return f"{share}: {', '.join(words)}" if words else f"{share}, in every head, row and channel"


def _runs(indices: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:4]]
    return ", ".join(shown) + (", ..." if len(runs) > 4 else "")
