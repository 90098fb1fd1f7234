"""What fails with NaN around its arrays and holds with zeros there has read memory that is not its own (MHA-CONF-17)."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from mha_conformance.judge.alone import HISTORY
from mha_conformance.judge.verdict import Verdict

UNMODIFIED, VALUES_ALONE = "MHA-EXEC-2", "MHA-EXEC-4"


def around(blame: Iterable[Verdict], quietly: Callable[[str], Verdict]) -> list[Verdict]:
    """The blame, with MHA-EXEC-4 in place of each clause whose blamed case holds as soon as nothing loud surrounds its arrays.

    ``quietly`` judges the case of that id so.
    """
    found: dict[str, Verdict] = {}
    for verdict in blame:
        said = verdict.clause in (UNMODIFIED, VALUES_ALONE, HISTORY)  # already a matter of memory, or one that holds by itself
        if verdict.status == "FAIL" and not said and quietly(verdict.case).status == "PASS":
            reason = f"{verdict.reason}: only where NaN stands around the arrays; with zeros there, the case holds"
            verdict = replace(verdict, clause=VALUES_ALONE, reason=reason)
        if verdict.clause not in found or verdict.size < found[verdict.clause].size:
            found[verdict.clause] = verdict
    return list(found.values())
