"""``mha diff A B``: where two implementations part, in the smallest call that shows it, and the clause between them."""

import typer

from mha_conformance.cli.codes import Code
from mha_conformance.cli.terminal import could_not_run, say
from mha_conformance.judge.verdict import Verdict
from mha_conformance.report.diagnosis import worst_element
from mha_conformance.report.snippet import snippet
from mha_conformance.run.conform import CannotRun, Selection
from mha_conformance.run.difference import Differences, Parting, differences
from mha_conformance.run.implementation import Target
from mha_spec.clauses import load


def diff(one: Target, other: Target, selection: Selection, timeout: float) -> None:
    try:
        found = differences(one, other, selection, timeout=timeout)
    except CannotRun as error:
        could_not_run(str(error))
    if found.first is None:
        say(f"{one.name} and {other.name} agree on {found.compared} cases, each within its bound", "bold green")
        raise typer.Exit(Code.HOLDS)
    _print(found, found.first, one, other)
    raise typer.Exit(Code.FAILS)


def _print(found: Differences, first: Parting, one: Target, other: Target) -> None:
    between = first.between
    say(f"{between.clause} separates {one.name} and {other.name}", "bold red")
    say(f"    {load()[between.clause].plain}")
    say(f"    case     {between.case}")
    say(f"    smallest {between.request}")
    for target, v in zip((one, other), first.each, strict=True):
        say(f"    {target.name}: {_said(v)}")
    if between.worst is not None and first.each[0].status == first.each[1].status:
        say(f"    apart    {worst_element(between.worst)} (got: {other.name}, expected: {one.name})")
    if code := snippet(one, first.requests[0]):
        say("    the call, for the first of the two:\n")
        say("\n".join(f"        {line}".rstrip() for line in code.splitlines()) + "\n")
    clauses = sorted({parting.between.clause for parting in found.partings})
    say(f"they part in {len(found.partings)} of {found.compared} cases: {', '.join(clauses)}")


def _said(v: Verdict) -> str:
    worst = f"; {worst_element(v.worst)}" if v.worst is not None else ""
    return f"{v.status}{f', {v.reason}' if v.reason else ''}{worst}"
