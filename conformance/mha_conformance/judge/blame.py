"""From many failing cases to one clause (MHA-CONF-4)."""

from collections.abc import Iterable

from mha_conformance.judge.verdict import FAILING, Verdict
from mha_spec.clauses import Clauses


def blamed(verdicts: Iterable[Verdict], clauses: Clauses) -> list[Verdict]:
    """One failing verdict per blamed clause, the first of them the diagnosis.

    A failing clause is blamed if none of the clauses that it builds on, directly or through others, fails too. Of several,
    the one with the smallest failing case comes first.
    """
    failing = [verdict for verdict in verdicts if verdict.status in FAILING]
    broken = {verdict.clause for verdict in failing}
    needs = foundations(clauses)
    to_blame = {clause for clause in broken if not (needs.get(clause, frozenset()) & broken)}
    smallest: dict[str, Verdict] = {}
    for verdict in failing:
        if verdict.clause in to_blame and (verdict.clause not in smallest or verdict.size < smallest[verdict.clause].size):
            smallest[verdict.clause] = verdict
    return sorted(smallest.values(), key=lambda verdict: (verdict.size, verdict.clause))


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
