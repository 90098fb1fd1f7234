"""``mha conform NAME``: the main job, from cases to an exit code; and ``mha report`` for what it wrote."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from mha_conformance.cli.codes import Code
from mha_conformance.cli.outputs import Outputs, can_be_written
from mha_conformance.cli.terminal import console, could_not_run, say, table
from mha_conformance.judge.judge import UNCLAIMED
from mha_conformance.judge.verdict import FAILING
from mha_conformance.report import document, html
from mha_conformance.report.diagnosis import diagnosis
from mha_conformance.run.conform import CannotRun, Selection
from mha_conformance.run.conform import conform as run
from mha_conformance.run.implementation import Target
from mha_conformance.run.results import Report


def conform(target: Target, selection: Selection, workers: int, timeout: float, outputs: Outputs) -> NoReturn:
    outputs.check()
    try:
        report = _run(target, selection, workers, timeout)
    except CannotRun as error:
        could_not_run(str(error))
    conclude(report, outputs)


def conclude(report: Report, outputs: Outputs) -> NoReturn:
    """Say and write what a run found, and end with its exit code."""
    if not outputs.to_a_program:
        _print(report)
    outputs.write(report)
    if any(v.status == "ERROR" for v in report.verdicts):
        raise typer.Exit(Code.DEFECT)
    if report.missing and not report.blame:
        raise typer.Exit(Code.NOT_RUN)
    raise typer.Exit(Code.HOLDS if report.holds else Code.FAILS)


def _run(target: Target, selection: Selection, workers: int, timeout: float) -> Report:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("cases", total=None)
        return run(
            target, selection, workers=workers, timeout=timeout,
            progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )  # fmt: skip


def _print(report: Report) -> None:
    for v in report.blame:
        clause, *rest = diagnosis(report.target, v, report.smallest.get(v.case))
        say(clause, "bold red")
        say("\n".join(rest))
    failing = [v for v in report.verdicts if v.status in FAILING]
    if len(failing) > len(report.blame):
        others = Counter(v.clause for v in failing)
        say(f"\n{len(failing)} cases fail in all: {', '.join(f'{clause} {count}' for clause, count in sorted(others.items()))}")
    _counts(report)
    for line in report.arithmetic:
        say(line)
    say(f"\n{report.target.name} {report.sentence}", "bold green" if report.holds else "bold red")


def _counts(report: Report) -> None:
    groups = list(dict.fromkeys(v.group for v in report.verdicts))
    rows = []
    for group in groups:
        mine = [v for v in report.verdicts if v.group == group]
        count = Counter(v.status for v in mine)
        ratios = [v.ratio for v in mine if v.ratio is not None and v.status == "PASS"]
        rows.append(
            (
                group,
                str(count["PASS"]),
                str(sum(v.status in FAILING for v in mine)),
                str(count["NOT_SUPPORTED"]),
                str(sum(v.status not in ("PASS", "NOT_SUPPORTED", *FAILING) for v in mine)),
                f"{max(ratios, default=0):.3f}",
            )
        )
    say("")
    table(("group", "pass", "fail", "not claimed", "other", "worst error/bound"), rows)
    for v in report.verdicts:
        if v.status == "SUSPECT":
            say(f"suspect: {v.case}: {v.reason}", "yellow")
    for reason, cases in _left_out(report).items():
        say(f"not judged: {cases} cases, {reason}", "dim")
    if report.inferred:
        say("its features were read off its signature; a claims file (--claims) can say more, such as grouped and d_v", "dim")
    if report.undeclared:
        say(f"not claimed, and yet it passes the first cases of: {', '.join(report.undeclared)}", "yellow")
    say("")


def _left_out(report: Report) -> Counter[str]:
    """How many cases were not judged for each reason; features that are not claimed are one reason together."""
    reasons = [v.reason for v in report.verdicts if v.status not in ("PASS", "SUSPECT", *FAILING)]
    features = {feature for r in reasons if r.startswith(UNCLAIMED) for feature in r.removeprefix(UNCLAIMED).split(", ")}
    together = f"{UNCLAIMED}{', '.join(sorted(features))}"
    return Counter(together if reason.startswith(UNCLAIMED) else reason for reason in sorted(reasons))


def compare(files: Sequence[Path], html_file: Path | None = None) -> None:
    """Where reports differ, case by case; and their verdicts. ``html_file`` gets them side by side."""
    can_be_written([] if html_file is None else [html_file], read=files)
    try:
        reports = [document.read(file) for file in files]
    except (OSError, ValueError) as error:
        could_not_run(str(error))
    if html_file is not None:
        html.write(reports, html_file, [file.name for file in files])
    if len({report["spec_version"] for report in reports}) > 1:
        say("these reports judge by different versions of the specification", "yellow")
    for report in reports:
        say(f"{report['name']}: {report['verdict']}", "bold")
    statuses = [{case["case"]: case["status"] for case in report["cases"]} for report in reports]
    rows = [
        (case, *(found.get(case, "-") for found in statuses))
        for case in sorted(set().union(*statuses))
        if len({found.get(case, "-") for found in statuses}) > 1
    ]
    if rows:
        say("")
        table(("case", *(f"{html.letter(at)} {report['name']}" for at, report in enumerate(reports))), rows)
    else:
        say("no case differs")
    raise typer.Exit(Code.HOLDS if all(report.get("holds", report["conforms"]) for report in reports) else Code.FAILS)
