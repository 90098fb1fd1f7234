"""What fails after other calls and holds alone is a fault of history (MHA-CONF-16)."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from mha_conformance.judge.verdict import Verdict

HISTORY = "MHA-EXEC-5"


def alone(blame: Iterable[Verdict], again: Callable[[str], Verdict]) -> list[Verdict]:
    """The blame, with MHA-EXEC-5 in place of each clause whose blamed case holds as the only one of a new process.

    ``again`` judges the case of that id there. What holds alone is computed rightly; an earlier call has changed the result.
    """
    found: dict[str, Verdict] = {}
    for verdict in blame:
        if verdict.status == "FAIL" and verdict.clause != HISTORY and again(verdict.case).status == "PASS":
            verdict = replace(verdict, clause=HISTORY, reason=f"{verdict.reason} after other calls; alone, the case holds")
        if verdict.clause not in found or verdict.size < found[verdict.clause].size:
            found[verdict.clause] = verdict
    return sorted(found.values(), key=lambda verdict: (verdict.size, verdict.clause))
