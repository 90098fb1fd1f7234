"""Two implementations side by side: the cases on which they part, and the clause that separates them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mha_conformance.cases import Case, Request
from mha_conformance.judge.blame import blamed
from mha_conformance.judge.judge import judge, verdict
from mha_conformance.judge.reply import Reply
from mha_conformance.judge.truth import truths
from mha_conformance.judge.verdict import Verdict, Worst, pattern
from mha_conformance.run.conform import CannotRun, Selection, open_crew
from mha_conformance.run.fit import not_judged
from mha_conformance.run.implementation import Target
from mha_conformance.run.worker import About, Answer, Worker
from mha_conformance.shrink.search import CUT, smallest
from mha_conformance.shrink.sound import sound
from mha_spec.clauses import load
from mha_spec.numerics import error_ratio


@dataclass(frozen=True, slots=True)
class Parting:
    """A case on which two implementations part.

    ``between`` is the verdict on the second by the first: its numbers are the second's (got) and the first's (expected), within
    the sum of both bounds. ``each`` holds what each of them is found to be by the truth.
    """

    between: Verdict
    each: tuple[Verdict, Verdict]
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Differences:
    """How many cases both answered, those on which they part, and of these the one that shows why, made smaller."""

    compared: int
    partings: tuple[Parting, ...]
    first: Parting | None


def differences(one: Target, other: Target, selection: Selection, *, timeout: float = 60.0) -> Differences:
    """Where two implementations give answers that cannot both be right. Raises ``CannotRun`` where they share no case."""
    workers = Worker(one, timeout), Worker(other, timeout)
    try:
        abouts = open_crew([workers[0]]), open_crew([workers[1]])
        part = _parting(workers, abouts)
        shared = [case for case in selection.choose() if not any(not_judged(case, about) for about in abouts)]
        if not shared:
            raise CannotRun(f"{one.name} and {other.name} claim no case together")
        partings = tuple(found for case in shared if (found := part(case)) is not None)
        first = _first(partings, {case.id: case for case in shared}, part)
    finally:
        for worker in workers:
            worker.close()
    return Differences(len(shared), partings, first)


def _first(partings: tuple[Parting, ...], cases: dict[str, Case], part: Callable[[Case], Parting | None]) -> Parting | None:
    """The parting that is to blame, in the smallest case that shows it."""
    blame = blamed([parting.between for parting in partings], load())
    if not blame:
        return None
    original = next(parting for parting in partings if parting.between == blame[0])
    small = smallest(cases[blame[0].case], part)
    if small is None:
        return original
    found: Parting = small.found
    return replace(found, between=replace(found.between, case=blame[0].case))


def _parting(workers: tuple[Worker, Worker], abouts: tuple[About, About]) -> Callable[[Case], Parting | None]:
    def part(case: Case) -> Parting | None:
        if any(not_judged(case, about) or not _sound(case, about) for about in abouts):
            return None
        answers = [worker.answer(case) for worker in workers]
        by_truth = (
            replace(case, rule="bound") if case.rule == "agree" else case
        )  # who is right, not only who agrees with itself
        each = tuple(
            judge(by_truth, value, about.claims, rivals=False)
            if kind == "replies"
            else verdict(case, "CRASH", str(value), np.inf)
            for (kind, value), about in zip(answers, abouts, strict=True)
        )
        between = _between(case, answers, abouts, each)
        return None if between is None else Parting(between, (each[0], each[1]), case.make())

    return part


def _sound(case: Case, about: About) -> bool:
    """A case of the catalogue is; one that was made smaller may have lost the law that it asks for."""
    return case.lasting or sound(case, about.claims.profiles[case.dtype])


def _between(case: Case, answers: list[Answer], abouts: tuple[About, About], each: tuple[Verdict, ...]) -> Verdict | None:
    """The verdict on the second by the first, where they part: by their status, or by numbers that cannot both be right."""
    if each[0].status != each[1].status:
        said = [f"{about.name}: {v.status}{f', {v.reason}' if v.reason else ''}" for about, v in zip(abouts, each, strict=True)]
        worst = next((v.worst for v in each if v.status != "PASS"), None)
        return verdict(case, "FAIL", "; ".join(said), np.inf, worst=worst)
    if case.rule not in CUT or any(kind != "replies" for kind, _ in answers):
        return None
    rooms = [truths(case, about.claims.profiles[case.dtype]) for about in abouts]
    for at, (mine, theirs) in enumerate(zip(answers[0][1], answers[1][1], strict=True)):
        for name in rooms[0][at].expected:
            room = rooms[0][at].bounds[name] + rooms[1][at].bounds[name]
            if (found := _apart(case, name, mine, theirs, room)) is not None:
                return found
    return None


def _apart(case: Case, name: str, mine: Reply, theirs: Reply, room: Any) -> Verdict | None:
    one, two = (None if r.status != "ok" else getattr(r, name) for r in (mine, theirs))
    if one is None or two is None or np.shape(one) != np.shape(two):
        return None  # both fail alike, which their own verdicts say
    expected, got = np.asarray(one, float), np.asarray(two, float)
    ratios = error_ratio(got, expected, np.broadcast_to(room, got.shape), np.inf)
    if not ratios.size or not (wrong := ~(ratios <= 1)).any():
        return None
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratios)), ratios.shape))
    worst = Worst(name, at, float(got[at]), float(expected[at]), float(np.broadcast_to(room, got.shape)[at]), float(ratios[at]))
    return verdict(case, "FAIL", f"{name}: no truth is near both", worst.ratio, worst=worst, pattern=pattern(wrong, name))
