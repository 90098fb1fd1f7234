"""One case, its replies, a verdict."""

from typing import Any

from mha_conformance.cases.case import Case
from mha_conformance.cases.described import described
from mha_conformance.judge.rules import RULES
from mha_conformance.judge.verdict import Status, Verdict
from mha_conformance.run.perform import Reply
from mha_core import Claims
from mha_spec.numerics import PROFILES

STRICTEST_FIRST = ("P64", "P32", "PTF32", "P16", "PB16", "P16-eager", "PB16-eager")

UNCLAIMED = "not claimed: "


def unclaimed(case: Case, claims: Claims, excludes: Any = ()) -> str:
    """Why a case is not judged for these claims; empty where it is."""
    if case.dtype not in claims.dtypes:
        return f"{case.dtype} is not claimed"
    if missing := sorted(case.features - claims.features):
        return f"{UNCLAIMED}{', '.join(missing)}"
    if case.group == "strict" and not claims.strict:
        return "class strict is not claimed"
    if case.group == "determinism" and claims.determinism == "none":
        return "determinism class none promises no bits"
    for pair in excludes:
        if pair <= case.features:
            return f"declared to exclude each other: {', '.join(sorted(pair))}"
    return ""


def judge(case: Case, replies: list[Reply], claims: Claims, rivals: bool = True) -> Verdict:
    """The verdict on replies to a case that is claimed; with ``rivals`` every profile of its dtype is tried."""
    profile = claims.profiles[case.dtype]
    for reply in replies:
        if reply.status == "not run":
            return verdict(case, "NOT_RUN", reply.error, kernel=reply.kernel)
    if case.rule != "refused":
        for reply in replies:
            if reply.status == "inexpressible":
                return verdict(case, "NOT_EXPRESSIBLE", reply.error)
            if reply.status != "ok":
                return verdict(case, "FAIL", f"claimed, but refused: {reply.error}", float("inf"))
    finding = RULES[case.rule](case, replies, profile)
    kept: tuple[str, ...] = ()
    if rivals and case.rule == "bound":
        kept = tuple(name for name in _rivals(case.dtype) if RULES[case.rule](case, replies, name).holds)
    return verdict(
        case, "PASS" if finding.holds else "FAIL", finding.reason, finding.ratio, worst=finding.worst, pattern=finding.pattern,
        profiles=kept, kernel=next((reply.kernel for reply in replies if reply.kernel), ""),
    )  # fmt: skip


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
