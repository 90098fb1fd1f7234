"""A failure in words: the clause and its sentence, the worst element, the pattern, and one command that shows it again."""

from mha_conformance.judge.verdict import Verdict
from mha_conformance.report.document import command
from mha_conformance.run.implementation import Target
from mha_spec.clauses import load


def diagnosis(target: Target, v: Verdict) -> list[str]:
    """The lines; the first is the clause and the status."""
    lines = [f"{v.clause} {v.status}", f"    {load()[v.clause].sentence}", f"    case     {v.case}", f"    finding  {v.reason}"]
    if v.worst is not None:
        w = v.worst
        room = f"within {w.bound:.3g}: {w.ratio:.3g} times the bound" if w.bound else "exactly"
        lines.append(f"    worst    {w.array}{list(w.index)} = {w.got:.9g}, expected {w.expected:.9g} {room}")
    if v.pattern:
        lines.append(f"    where    {v.pattern}")
    history = not v.case.startswith(f"{v.clause}/")  # MHA-CONF-15
    return [*lines, f"    again    {'run all cases, for alone it holds' if history else command(target, v.case)}"]
