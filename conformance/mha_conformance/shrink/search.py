"""The search: the same cuts in the same order for the same failure, so the same smallest call on every machine.

A candidate is kept when it is legal, claimed, and still fails. Batch, heads, lengths and depths are cut first, by halves and then
one by one; then options are left out; then numbers become small integers. The search ends when a whole round keeps nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mha_conformance.cases import Case, Request
from mha_conformance.cases.calls import call_of, some_row_is_empty
from mha_conformance.cases.case import Rule
from mha_conformance.cases.described import OPERANDS
from mha_conformance.shrink.cut import keep, sizes, without, without_batch_axis
from mha_spec.violation import Violation

MOST_TRIES = 400
"""Calls of the implementation that one search may cost."""

CUT: tuple[Rule, ...] = ("bound", "agree", "as first", "same bits", "hidden bits")
"""The rules that say the same of smaller arrays; statistics need many elements, and a history needs its sizes."""

Still = Callable[[Case], Any]
"""What is found of a case that still fails; None where it passes, or is not to be judged."""


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest case that was found, what was found of it, and how many calls it took."""

    case: Case
    found: Any
    tries: int


def smallest(case: Case, still: Still) -> Smallest | None:
    """The smallest case made of ``case`` that still fails.

    None where it does not fail, where its calls are not of attention, or where numbers are not what it is about.
    """
    requests = case.make()
    if case.rule not in CUT or any(request.target != "attention" for request in requests):
        return None
    found = still(case)
    if found is None:
        return None
    seeing = not some_row_is_empty(requests)
    tries = 1
    kept = True
    while kept:
        kept = False
        for candidate in _candidates(requests):
            if tries == MOST_TRIES:
                return Smallest(_remade(case, requests), found, tries)
            if not _legal(candidate) or (seeing and some_row_is_empty(candidate)):
                continue  # an empty row would be another failure than that of rows that see
            tries += 1
            again = still(_remade(case, candidate))
            if again is not None:
                requests, found, kept = candidate, again, True
                break
    return Smallest(_remade(case, requests), found, tries)


def _remade(case: Case, requests: tuple[Request, ...]) -> Case:
    return replace(case, id=f"{case.id} (made smaller)", make=lambda: requests, lasting=False)


def _legal(requests: tuple[Request, ...]) -> bool:
    try:
        for request in requests:
            call_of(request, request.operands)
    except Violation:
        return False
    return True


def _candidates(requests: tuple[Request, ...]) -> Iterator[tuple[Request, ...]]:
    """Smaller ones first. Every request of a case is cut alike, so that what they have in common stays in common."""
    yield from _cuts(requests)
    first = requests[0]
    if len(first.operands[0].shape) > 3 and first.operands[0].shape[0] == 1:
        yield tuple(map(without_batch_axis, requests))
    for option in (*first.arrays, *first.options):
        if option not in ("return_weights", "return_lse"):
            yield tuple(without(request, option) for request in requests)
    if any(request.layout != "contiguous" for request in requests):
        yield tuple(replace(request, layout="contiguous") for request in requests)
    yield from _simpler(requests)


def _cuts(requests: tuple[Request, ...]) -> Iterator[tuple[Request, ...]]:
    mine = sizes(requests[0])
    if any(sizes(request) != mine for request in requests):
        return
    for axis, size in mine.items():
        for start, stop in _ranges(size):
            yield tuple(keep(request, axis, start, stop) for request in requests)
            if axis == "d_k" and size == mine["d_v"]:  # for those who take d_k = d_v alone
                yield tuple(keep(keep(request, "d_k", start, stop), "d_v", start, stop) for request in requests)


def _ranges(size: int) -> Iterator[tuple[int, int]]:
    """The one, the halves, all but the last, all but the first: of what is larger than one."""
    if size > 1:
        half = size // 2
        yield from dict.fromkeys(((0, 1), (size - 1, size), (0, half), (half, size), (0, size - 1), (1, size)))


def _simpler(requests: tuple[Request, ...]) -> Iterator[tuple[Request, ...]]:
    """Rounder numbers in one operand or option at a time, the same change in every request; NaN and infinities stay."""
    names = (*OPERANDS, *(name for name in ("bias", "sink_logits") if name in requests[0].arrays))
    for name in names:
        for change in (_zero, _whole, _eighths):
            old = [_part(request, name) for request in requests]
            new = [np.where(np.isfinite(x), change(x), x) for x in old]
            if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(old, new, strict=True)):
                yield tuple(_with_part(request, name, x) for request, x in zip(requests, new, strict=True))


def _part(request: Request, name: str) -> Any:
    return request.operands[OPERANDS.index(name)] if name in OPERANDS else request.arrays[name]


def _with_part(request: Request, name: str, x: Any) -> Request:
    if name not in OPERANDS:
        return replace(request, arrays={**request.arrays, name: x})
    at = OPERANDS.index(name)
    return replace(request, operands=(*request.operands[:at], x, *request.operands[at + 1 :]))


def _zero(x: Any) -> Any:
    return np.zeros_like(x)


def _whole(x: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return np.clip(np.round(x), -9, 9) + 0.0


def _eighths(x: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return np.clip(np.round(8 * x) / 8, -9, 9) + 0.0
