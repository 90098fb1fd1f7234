"""A failure made smaller on the implementation that failed."""

from collections.abc import Callable
from dataclasses import dataclass

from mha_conformance.cases import Case, Request, catalogue
from mha_conformance.judge.judge import judge
from mha_conformance.judge.verdict import Verdict
from mha_conformance.run.fit import not_judged
from mha_conformance.run.worker import About, Worker
from mha_conformance.shrink.search import smallest
from mha_conformance.shrink.sound import sound


@dataclass(frozen=True, slots=True, eq=False)
class Shrunk:
    """The smallest requests that fail as the case did, and the verdict on them."""

    requests: tuple[Request, ...]
    verdict: Verdict
    tries: int


def shrunk(verdict: Verdict, worker: Worker, about: About) -> Shrunk | None:
    """The failure of ``verdict``, made smaller; None where it is a crash or a hang, or no call of attention."""
    if verdict.status != "FAIL":
        return None
    case = next(case for case in catalogue() if case.id == verdict.case)
    found = smallest(case, failing_alike(verdict, worker, about))
    return None if found is None else Shrunk(found.case.make(), found.found, found.tries)


def failing_alike(verdict: Verdict, worker: Worker, about: About) -> Callable[[Case], Verdict | None]:
    """A case's verdict where it fails for the reason of ``verdict``, whatever numbers stand in it; else None."""

    def still(case: Case) -> Verdict | None:
        if not_judged(case, about) or not sound(case, about.claims.profiles[case.dtype]):
            return None
        kind, value = worker.answer(case)
        if kind != "replies":
            return None
        found = judge(case, value, about.claims, rivals=False)
        return found if found.status == "FAIL" and _kind(found.reason) == _kind(verdict.reason) else None

    return still


def _kind(reason: str) -> str:
    """The words of a reason without what follows its first colon or number."""
    head = reason.partition(":")[0]
    return "".join(letter for letter in head if not letter.isdigit())
