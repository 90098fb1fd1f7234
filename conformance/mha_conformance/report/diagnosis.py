"""A failure in words: the clause and its sentence, the worst element, the pattern, and one command that shows it again."""

from collections.abc import Iterator
from pathlib import Path

from mha_conformance.judge.alone import HISTORY
from mha_conformance.judge.verdict import Verdict, Worst
from mha_conformance.report.document import command
from mha_conformance.run.implementation import Target
from mha_conformance.run.shrunk import Shrunk
from mha_conformance.vectors.coverage import folder
from mha_spec.clauses import load


def diagnosis(target: Target, v: Verdict, smallest: Shrunk | None = None) -> list[str]:
    """The lines; the first is the clause and the status. ``smallest`` is the same failure in the smallest call."""
    lines = [f"{v.clause} {v.status}", f"    {load()[v.clause].plain}", f"    case     {v.case}"]
    seen = list(_findings(v))
    if smallest is not None and smallest.verdict.request != v.request:
        seen += [said for said in _findings(smallest.verdict, first="smallest") if said not in seen]
    lines += [f"    {label:<8} {words}" for label, words in seen]
    if target.vectors is not None:
        lines.append(f"    files    {Path(target.vectors) / folder(v.case)}")
    history = v.clause == HISTORY and not v.case.startswith(f"{HISTORY}/")  # MHA-CONF-16
    return [*lines, f"    again    {'run all cases, for alone it holds' if history else command(target, v.case)}"]


def _findings(v: Verdict, first: str = "asked") -> Iterator[tuple[str, str]]:
    if v.request:
        yield first, v.request
    yield "finding", v.reason
    if v.worst is not None:
        yield "worst", worst_element(v.worst)
    if v.pattern:
        yield "where", v.pattern
    if v.hypothesis:
        yield "likely", v.hypothesis
    if v.kernel:
        yield "kernel", v.kernel


def worst_element(w: Worst) -> str:
    """The element farthest outside its bound."""
    room = f"within {w.bound:.3g}: {w.ratio:.3g} times the bound" if w.bound else "exactly"
    return f"{w.array}{list(w.index)} = {w.got:.9g}, expected {w.expected:.9g} {room}"
