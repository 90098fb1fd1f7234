"""From many failing cases to one clause (MHA-CONF-4)."""

from collections.abc import Iterable, Mapping

from mha_conformance.cases import catalogue
from mha_conformance.judge.verdict import AGAIN, FAILING, Verdict
from mha_spec.clauses import Clauses


def blamed(verdicts: Iterable[Verdict], clauses: Clauses) -> list[Verdict]:
    """One failing verdict per blamed clause, the first of them the diagnosis.

    A failing clause is blamed if none of the clauses that it builds on, directly or through others, fails; one that fails in
    another dtype only, and holds in this one, excuses nothing here, but comes first. Of several, the one with the smallest failing
    case comes first. A case that happens to use other clauses beside its own says nothing where one of them, or what it builds on, fails in a
    case of its own. If the same request is seen to be answered in two ways, any other case may have failed for what an earlier
    call left behind: then that clause is the only one to blame.
    """
    needs = foundations(clauses)
    verdicts = list(verdicts)
    failing = [verdict for verdict in verdicts if verdict.status in FAILING]
    failing = [verdict for verdict in failing if verdict.reason.startswith(AGAIN)] or _telling(failing, needs)
    broken = {(verdict.clause, verdict.dtype) for verdict in failing}
    somewhere = {clause for clause, _ in broken}
    holds = {(verdict.clause, verdict.dtype) for verdict in verdicts if verdict.status == "PASS"} - broken
    smallest: dict[str, Verdict] = {}
    for verdict in failing:
        below = needs.get(verdict.clause, frozenset()) & somewhere
        explained = any((clause, verdict.dtype) not in holds for clause in below)
        if not explained and (verdict.clause not in smallest or verdict.size < smallest[verdict.clause].size):
            smallest[verdict.clause] = verdict

    def order(verdict: Verdict) -> tuple[bool, int, str]:
        return bool(needs.get(verdict.clause, frozenset()) & somewhere), verdict.size, verdict.clause

    return sorted(smallest.values(), key=order)


def _telling(failing: list[Verdict], needs: Mapping[str, frozenset[str]]) -> list[Verdict]:
    """The failures that no clause used beside their own explains."""
    named = {case.id: case.beside for case in catalogue()}
    known = {verdict.clause: needs.get(verdict.clause, frozenset()) | {verdict.clause} for verdict in failing}
    beside = {verdict.case: named.get(verdict.case, frozenset()) - known[verdict.clause] for verdict in failing}
    alone = {verdict.clause for verdict in failing if not beside[verdict.case]}

    def explained(verdict: Verdict) -> bool:
        used = beside[verdict.case]
        return bool(used.union(*(needs[clause] for clause in used)) & alone)

    return [verdict for verdict in failing if not explained(verdict)]


def foundations(clauses: Clauses) -> dict[str, frozenset[str]]:
    """For each clause, everything it builds on."""
    direct = {clause.id: clause.needs for clause in clauses.clauses}
    found: dict[str, frozenset[str]] = {}

    def walk(clause: str, path: tuple[str, ...]) -> frozenset[str]:
        if clause in path:
            raise ValueError(f"the needs of {clause} run in a circle: {' -> '.join((*path, clause))}")
        if clause not in found:
            below = [frozenset({need}) | walk(need, (*path, clause)) for need in direct.get(clause, ())]
            found[clause] = frozenset().union(*below)
        return found[clause]

    for clause in direct:
        walk(clause, ())
    return found
