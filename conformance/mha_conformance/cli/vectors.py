"""``mha vectors write DIR`` and ``mha vectors check DIR``: conformance by files."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from mha_conformance.cases import Case
from mha_conformance.cases.case import LEVELS
from mha_conformance.cli.conform import conclude
from mha_conformance.cli.outputs import Outputs
from mha_conformance.cli.terminal import console, could_not_run, say
from mha_conformance.run.conform import CannotRun
from mha_conformance.run.implementation import Target
from mha_conformance.vectors.check import check as run_check
from mha_conformance.vectors.write import write as run_write

vectors = typer.Typer(
    no_args_is_help=True,
    help="Conformance by files: write inputs, compute them anywhere, judge the outputs. Nothing in the directory is executed.",
)

Directory = Annotated[Path, typer.Argument(metavar="DIR")]


@vectors.command()
def write(
    directory: Directory,
    level: Annotated[str, typer.Option(help="smoke, core or full.")] = "core",
    profile: Annotated[str, typer.Option(help="A numeric profile of chapter 4: P32, P64, P16, PB16, ...")] = "P32",
) -> None:
    """Write inputs, expected outputs, bounds and a guide into a new directory, for a device without Python."""
    if level not in LEVELS:
        could_not_run(f"given --level {level}; the levels are {', '.join(LEVELS)}")
    try:
        done = run_write(directory, profile, level, _progress)
    except (CannotRun, OSError) as error:
        could_not_run(str(error))
    say(f"wrote {done.vectors} vectors, {done.calls} calls, {done.files} files, {done.size / 1e6:.1f} MB to {directory}")
    say(f"{done.left_out} cases need a live callable: the manifest lists them under not_in_files")
    say(f"{directory / 'INTERPRETING.md'} says how to compute them; then: mha vectors check {directory}")


@vectors.command()
def check(
    directory: Directory,
    name: Annotated[str | None, typer.Option(help="What to call the device in the report; default the directory.")] = None,
    case: Annotated[list[str] | None, typer.Option("--case", metavar="ID", help="Only this case; repeatable.")] = None,
    claims: Annotated[Path | None, typer.Option(help="A TOML file of what the device claims; default: what it wrote.")] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report; - for standard output.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one HTML page that needs nothing else.")
    ] = None,
    issue: Annotated[
        Path | None, typer.Option("--issue", metavar="FILE", help="Write the failures as text for an issue.")
    ] = None,
) -> None:
    """Judge the outputs that lie in a directory of vectors. A claimed case without outputs is not run, and then nothing conforms."""
    if claims is not None and not claims.is_file():
        could_not_run(f"no claims file at {claims}")
    outputs = Outputs(json, junit, html, issue)
    outputs.check()
    target = Target(name or directory.name, claims=None if claims is None else str(claims), vectors=str(directory))
    try:
        report = run_check(target, tuple(case or ()), _progress)
    except (CannotRun, OSError) as error:
        could_not_run(str(error))
    conclude(report, outputs)


def _progress(cases: list[Case]) -> Iterable[Case]:
    return track(cases, "vectors", console=console(sys.stderr), transient=True, disable=not sys.stderr.isatty())
