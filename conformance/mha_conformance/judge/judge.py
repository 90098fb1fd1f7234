"""One case, its replies, a verdict."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.cases.case import Case, Rule
from mha_conformance.cases.described import described
from mha_conformance.judge.around import UNMODIFIED
from mha_conformance.judge.hypothesis import named
from mha_conformance.judge.reply import Reply
from mha_conformance.judge.rules import ruled
from mha_conformance.judge.verdict import Status, Verdict
from mha_core import Claims
from mha_spec.numerics import PROFILES
from mha_spec.profiles import FLUSHING, Grade
from mha_spec.violation import Violation

STRICTEST_FIRST = ("P64", "P32", "PTF32", "P16", "PB16", "P16-eager", "PB16-eager", "P16-acc16")

UNCLAIMED = "not claimed: "
OWN_MEMORY = "MHA-EXEC-3"


def unclaimed(case: Case, claims: Claims, excludes: Any = ()) -> str:
    """Why a case is not judged for these claims; empty where it is."""
    if case.dtype not in claims.dtypes:
        return f"{case.dtype} is not claimed"
    if missing := sorted(case.features - claims.features):
        return f"{UNCLAIMED}{', '.join(missing)}"
    if case.group == "strict" and not claims.strict:
        return "class strict is not claimed"
    if case.rule == "memory" and claims.memory != "linear":
        return "linear memory is not claimed"
    if case.group == "determinism" and claims.determinism == "none":
        return "determinism class none promises no bits"
    if case.rule == "same items" and claims.determinism not in ("batch-invariant", "bit-exact"):
        return "an item has the bits that it has alone in class batch-invariant"
    if case.group == "decode" and case.rule == "same rows" and claims.determinism != "bit-exact":
        return "one row has the bits of the whole in class bit-exact alone"
    for pair in excludes:
        if pair <= case.features:
            return f"declared to exclude each other: {', '.join(sorted(pair))}"
    return ""


def judge(case: Case, replies: list[Reply], claims: Claims, rivals: bool = True, explain: bool = True) -> Verdict:
    """The verdict on replies to a case that is claimed.

    With ``rivals`` every profile of its dtype is tried, with ``explain`` a failure is compared with known faults.
    """
    ending = FLUSHING if claims.flushes_subnormals else ""
    profile = claims.profiles[case.dtype] + ending
    for reply in replies:
        if reply.status == "not run":
            return verdict(case, "NOT_RUN", reply.error, kernel=reply.kernel)
    if touched := sorted({name for reply in replies for name in reply.touched}):
        reason = f"memory that is not its own was written: around {', '.join(touched)}, or in gaps between the elements"
        return replace(verdict(case, "FAIL", reason, np.inf), clause=UNMODIFIED)  # whatever the case asks
    if changed := sorted({name for reply in replies for name in reply.changed}):
        reason = f"a later call of the case changed what had come back: {', '.join(changed)}"
        return replace(verdict(case, "FAIL", reason, np.inf), clause=OWN_MEMORY)
    if case.rule != "refused":
        for reply in replies:
            if reply.status == "inexpressible":
                return verdict(case, "NOT_EXPRESSIBLE", reply.error)
            if reply.status == "no room":
                return verdict(case, "NOT_RUN", reply.error)
            if reply.status != "ok":
                return verdict(case, "FAIL", f"claimed, but refused: {reply.error}", float("inf"))
    try:
        finding = ruled(case, replies, profile, claims.grade)
    except Violation as error:  # MHA-NUM-4: the profile has no bound for so many keys or channels
        return verdict(case, "NOT_SUPPORTED", f"not posed: {error}")
    status: Status = "PASS" if finding.holds else "FAIL"
    if status == "FAIL" and case.rule == "probable" and claims.grade == "ANY" and np.isfinite(finding.ratio or 0.0):
        status = "SUSPECT"  # MHA-NUM-20 binds grade RN
    kept, nearest = (_kept(case, replies, grade, ending) if rivals else None for grade in ("ANY", "RN"))
    hypothesis = finding.hypothesis
    if explain and status in ("FAIL", "SUSPECT") and not hypothesis:
        hypothesis = _explained(case, replies, profile, claims.grade)
    return verdict(
        case, status, finding.reason, finding.ratio, worst=finding.worst, pattern=finding.pattern, profiles=kept or (), nearest=nearest,
        hypothesis=hypothesis, kernel=next((reply.kernel for reply in replies if reply.kernel), ""),
    )  # fmt: skip


def _keeps(case: Case, replies: list[Reply], profile: str, grade: Grade) -> bool:
    """Whether a profile is kept, or says nothing of this case."""
    try:
        return ruled(case, replies, profile, grade).holds
    except Violation:
        return True


DECIDES: Mapping[Grade, tuple[Rule, ...]] = {
    "RN": ("statistics", "probable", "filter"),
    "ANY": ("bound", "statistics", "filter"),
}
"""The rules that decide which profile is kept in any rounding mode, and which is kept with roundings to nearest."""


def _kept(case: Case, replies: list[Reply], grade: Grade, ending: str) -> tuple[str, ...] | None:
    """The profiles that are kept with this grade, strictest first; None where the rule of the case says nothing of it."""
    if case.rule not in DECIDES[grade]:
        return None
    return tuple(name for name in _rivals(case.dtype) if _keeps(case, replies, name + ending, grade))


def _explained(case: Case, replies: list[Reply], profile: str, grade: Grade) -> str:
    """The fault that explains the first wrong output, or that the filter finds in all of them."""
    if case.rule in ("statistics", "probable"):
        return ruled(replace(case, rule="filter"), replies, profile, grade).hypothesis
    if case.rule != "bound":
        return ""
    found = (named(request, np.asarray(reply.output), profile) for request, reply in zip(case.make(), replies, strict=True))
    return next(filter(None, found), "")


def _rivals(dtype: str) -> tuple[str, ...]:
    """The profiles of a dtype, strictest first."""
    return tuple(name for name in STRICTEST_FIRST if PROFILES[name].io == dtype)


def verdict(case: Case, status: Status, reason: str = "", ratio: float | None = None, **more: Any) -> Verdict:
    """A verdict with the names of its case."""
    requests = case.make()
    size = sum(getattr(x, "size", 0) for request in requests for x in request.operands)
    return Verdict(
        case.id, case.clause, case.group, case.level, case.dtype, status, reason, ratio, size=size, request=described(requests),
        **more,
    )  # fmt: skip
