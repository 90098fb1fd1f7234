"""The rules of the designated sets: errors are counted together, over all replies of a case, and searched for a broken clause."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mha_conformance.cases.calls import call_of
from mha_conformance.cases.case import Case, Request
from mha_conformance.judge.finding import Finding, malformed
from mha_conformance.judge.hypothesis import STEP, ZEROS, Hypothesis, asked, hypotheses, peaked
from mha_conformance.judge.reply import Reply
from mha_conformance.judge.truth import sigmas, truths
from mha_conformance.judge.verdict import Worst
from mha_spec.numerics import profile_of
from mha_spec.numerics_filter import filtered, nuisances, scale_budget, weight_budget
from mha_spec.numerics_random import Sigma, Statistics, statistics
from mha_spec.profiles import STATISTICS, Grade


class _Together(NamedTuple):
    """Error, truth and sigma of all outputs of a case, one after another."""

    error: Any
    truth: Any
    sigma: Sigma

    @property
    def posed(self) -> bool:
        """Whether the profile leaves enough elements of which something can be said."""
        return int(np.isfinite(self.sigma.output).sum()) >= int(STATISTICS["elements"])


NOT_POSED = Finding(True, "the profile grants errors so large that nothing is probable on this set", 0.0)


def _together(case: Case, replies: list[Reply], profile: str, grade: Grade) -> _Together | Finding:
    known, found = truths(case, profile), sigmas(case, profile, grade)
    if wrong := next(filter(None, map(malformed, replies, known)), None):
        return wrong
    got = [np.asarray(reply.output, dtype=np.float64) for reply in replies]
    if not all(np.isfinite(x).all() for x in got):
        return Finding(False, "output holds numbers that are not finite", np.inf)
    error = np.concatenate([(x - t.expected["output"]).ravel() for x, t in zip(got, known, strict=True)])
    truth = np.concatenate([t.expected["output"].ravel() for t in known])
    sigma = Sigma(np.concatenate([s.output.ravel() for s in found]), sum(s.shared for s in found))
    return _Together(error, truth, sigma)


def _measured(case: Case, replies: list[Reply], profile: str, grade: Grade) -> tuple[Statistics, _Together] | Finding:
    found = _together(case, replies, profile, grade)
    if isinstance(found, Finding):
        return found
    return (statistics(found.error, found.sigma, found.truth, grade), found) if found.posed else NOT_POSED


def statistical(case: Case, replies: list[Reply], profile: str, grade: Grade) -> Finding:
    """The mean square of e / sigma, and the sum of e / sigma, stay below the limits of the grade (MHA-NUM-19)."""
    found = _measured(case, replies, profile, grade)
    if isinstance(found, Finding):
        return found
    s, (error, _, _) = found
    C = STATISTICS["mean_square"][grade]
    words = (
        f"grade {grade}, {error.size} elements: the mean of (e / sigma)^2 is {s.variance * C:.3g}, limit {C}; "
        f"the sum of e / sigma is {s.bias:.3g} of its limit; the mean of e / sigma away from zero is {s.shrink:+.3g}"
    )
    ratio = max(s.variance, s.bias)
    return Finding(ratio <= 1.0, words, ratio)


def probable(case: Case, replies: list[Reply], profile: str, grade: Grade) -> Finding:
    """No element lies more than eight deviations from the truth (MHA-NUM-20)."""
    found = _measured(case, replies, profile, grade)
    if isinstance(found, Finding):
        return found
    s, (error, truth, sigma) = found
    at, first = _farthest(error, sigma.output, [np.shape(reply.output) for reply in replies])
    limit = float(STATISTICS["deviations"] * sigma.output[at])
    worst = Worst("output", first, float(truth[at] + error[at]), float(truth[at]), limit, s.farthest)
    if s.farthest <= 1.0:
        return Finding(True, ratio=s.farthest, worst=worst)
    return Finding(
        False, f"an element is {s.farthest * STATISTICS['deviations']:.3g} deviations from the truth", s.farthest, worst
    )


def _farthest(error: Any, sigma: Any, shapes: list[tuple[int, ...]]) -> tuple[int, tuple[int, ...]]:
    """The place of the largest |e| / sigma, and its index in its own output."""
    with np.errstate(all="ignore"):
        at = place = int(np.argmax(np.where(error == 0.0, 0.0, np.abs(error) / sigma)))
    for shape in shapes:
        if place < int(np.prod(shape)):
            return at, tuple(int(i) for i in np.unravel_index(place, shape))
        place -= int(np.prod(shape))
    raise AssertionError("an element beyond the last output")


class _Directions(NamedTuple):
    """The faults that apply to all requests of a case, how each moves all outputs, and how a sharper peak does."""

    faults: tuple[Hypothesis, ...]
    moves: tuple[Any, ...]
    peaks: Any


@lru_cache(maxsize=64)
def _directions(case: Case) -> _Directions:
    requests = case.make()
    right = [asked(call_of(request, request.operands)).output() for request in requests]
    turned = [{h.sentence: h.wrong() for h in hypotheses(request)} for request in requests]

    def moved(wrong: list[Any]) -> Any:
        return np.concatenate([(x - o).ravel() for x, o in zip(wrong, right, strict=True)])

    faults = tuple(
        h for h in hypotheses(requests[0])
        if all(h.sentence in wrong for wrong in turned) and h.sentence != ZEROS  # the output itself is a nuisance
    )  # fmt: skip
    moves = tuple(moved([wrong[h.sentence] for wrong in turned]) for h in faults)
    return _Directions(faults, moves, moved([peaked(request) for request in requests]))


def searched(case: Case, replies: list[Reply], profile: str, grade: Grade) -> Finding:
    """No fault of the dictionary is in the error, beyond what arithmetic may do to any result (MHA-NUM-22)."""
    found = _together(case, replies, profile, grade)
    if isinstance(found, Finding):
        return found
    if not found.posed:
        return NOT_POSED
    faults, moves, peaks = _directions(case)
    fit = filtered(found.error, found.sigma.output, moves, (*nuisances(found.truth, profile_of(profile)), peaks))
    by_scale, by_weight = (max(x) for x in zip(*(_budgets(request, profile, grade) for request in case.make()), strict=True))
    ratio, blame = 0.0, ""
    for fault, (times, deviations) in zip(faults, fit, strict=True):
        amount = fault.amount is not None
        if not amount and not 0.5 < times < 1.5:
            continue  # it is there or not
        here = min(abs(deviations) / STATISTICS["accuse"], abs(times) * (STEP / by_scale if amount else 1.0 / by_weight))
        if here > ratio:
            ratio = here
            share = "" if amount or abs(times - 1.0) < 0.005 else f", {times:.3f} times over"
            blame = f"{fault.words(1.0 + STEP * times)}{share}: {abs(deviations):.3g} deviations"
    return Finding(
        ratio <= 1.0, f"the error holds: {blame}" if ratio > 1.0 else "", ratio, hypothesis=blame if ratio > 1.0 else ""
    )


def _budgets(request: Request, profile: str, grade: Grade) -> tuple[float, float]:
    """What legal arithmetic may do to all scores alike, and to one weight."""
    call = call_of(request, request.operands)
    m, d = call.key.shape[-2:]
    with np.errstate(all="ignore"):
        largest = float(np.max(np.abs(call.scale * (call.query @ np.repeat(call.key, call.sizes.h // call.sizes.h_kv, -3).mT))))
    return scale_budget(d, profile_of(profile), grade), weight_budget(m, d, largest, profile_of(profile))
