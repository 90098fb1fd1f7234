"""``mha examples NAME``: every example of the specification on one backend, and what that says.

Only a failing MUST makes the backend fail (code 1). A failing SUITE example is a defect of the suite (code 3), since it is
a rule for the suite itself; a failing SHOULD, MAY or INFO example is a warning and changes no code. Not supported is no pass.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.progress import track

from mha_conformance.cli.codes import Code
from mha_conformance.cli.listings import find
from mha_conformance.cli.terminal import as_json, console, could_not_run, say, versions
from mha_conformance.run.examples import Outcome, run
from mha_core import BackendUnavailable, load
from mha_spec import clauses as spec_clauses


def examples(name: str, clause_ids: Sequence[str], dtype: str | None, json: bool) -> None:
    api = _ready(name)
    if dtype is not None and dtype not in api.backend.claims.dtypes:
        could_not_run(f"{name} does not claim {dtype}; it claims {', '.join(api.backend.claims.dtypes)}")
    wanted = {find(clause_id).id for clause_id in clause_ids}
    chosen = [e for e in spec_clauses.load().examples if not wanted or e.clause in wanted]
    if not chosen:
        could_not_run(f"no example belongs to {', '.join(sorted(wanted)) or 'any clause'}")
    shown = track(chosen, "examples", console=console(sys.stderr), transient=True, disable=not sys.stderr.isatty())
    outcomes = [run(example, api, dtype) for example in shown]
    code = exit_code(outcomes)
    if json:
        as_json(_report(name, dtype, outcomes, code))
    else:
        _print(name, outcomes, code)
    raise typer.Exit(code)


def _ready(name: str) -> Any:
    try:
        api = load(name)
        devices = api.backend.devices()
    except (LookupError, BackendUnavailable) as error:
        could_not_run(str(error.args[0]))
    except Exception as error:  # a plug-in may fail in any way, and that is no defect of the suite
        could_not_run(f"{name} is broken: {type(error).__name__}: {error}")
    if not devices:
        could_not_run(f"{name} finds no device on this machine, so nothing was run and nothing is known")
    return api


def exit_code(outcomes: Sequence[Outcome]) -> Code:
    """What these outcomes say together. A defect of the suite outweighs a verdict, because it puts the verdict in doubt."""
    failed = {_level(outcome) for outcome in outcomes if outcome.status == "FAIL"}
    if "SUITE" in failed:
        return Code.DEFECT
    if "MUST" in failed:
        return Code.FAILS
    return Code.HOLDS if any(outcome.status == "PASS" for outcome in outcomes) else Code.NOT_RUN


def verdict(name: str, outcomes: Sequence[Outcome], code: Code) -> str:
    """One sentence with every count: nothing is skipped quietly."""
    count = Counter(outcome.status for outcome in outcomes)
    words = {
        Code.HOLDS: f"{name} agrees with the examples of MHA",
        Code.FAILS: f"{name} does NOT agree with the examples of MHA",
        Code.NOT_RUN: f"{name} supports none of the chosen examples of MHA",
        Code.DEFECT: f"a rule of the suite itself fails; this is no verdict on {name}: MHA",
    }[code]
    counts = f"{count['PASS']} passed, {count['FAIL']} failed, {count['NOT_SUPPORTED']} not supported"
    return f"{words} {versions()['spec_version']}: {counts} of {len(outcomes)}"


def _print(name: str, outcomes: Sequence[Outcome], code: Code) -> None:
    for outcome in outcomes:
        if outcome.status == "PASS":
            continue
        level = _level(outcome)
        warning = outcome.status == "FAIL" and level not in ("MUST", "SUITE")
        word = "WARNING" if warning else outcome.status
        say(f"{word} {outcome.example.clause} ({level}) {_place(outcome)}", "yellow" if word != "FAIL" else "bold red")
        if outcome.status == "FAIL":
            say(f"    {spec_clauses.load()[outcome.example.clause].plain}")
        say(f"    {outcome.message}")
    say(verdict(name, outcomes, code), "bold green" if code is Code.HOLDS else "bold red")


def _report(name: str, dtype: str | None, outcomes: Sequence[Outcome], code: Code) -> dict[str, Any]:
    return {
        **versions(),
        "backend": name,
        "dtype": dtype,
        "verdict": verdict(name, outcomes, code),
        "exit_code": int(code),
        "outcomes": [
            {
                "clause": outcome.example.clause,
                "level": _level(outcome),
                "status": outcome.status,
                "message": outcome.message,
                "file": Path(outcome.example.file).name,
                "line": outcome.line or outcome.example.line,
            }
            for outcome in outcomes
        ],
    }


def _level(outcome: Outcome) -> str:
    return spec_clauses.load()[outcome.example.clause].level


def _place(outcome: Outcome) -> str:
    return f"{outcome.example.file}:{outcome.line or outcome.example.line}"
