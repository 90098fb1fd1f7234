"""The commands of ``mha``. Each ends in an exit code of ``mha_conformance.cli.codes``."""

from pathlib import Path
from typing import Annotated

import typer

from mha_conformance.cases.case import LEVELS
from mha_conformance.cli import conform as conform_command
from mha_conformance.cli import examples as examples_command
from mha_conformance.cli import listings, terminal
from mha_conformance.run.conform import Selection
from mha_conformance.run.implementation import Target

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Multi-Head Attention: its clauses, its backends, and whether they agree. "
    "Exit codes: 0 all holds, 1 something does not, 2 could not run, 3 a defect of the suite.",
)

Json = Annotated[bool, typer.Option("--json", help="For a program: JSON on standard output.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write one HTML page that needs nothing else.")]
OptionalId = Annotated[str | None, typer.Argument(metavar="[ID]", help="A clause such as MHA-MASK-2.")]


def _version(wanted: bool) -> None:
    if wanted:
        now = terminal.versions()
        terminal.say(f"MHA specification {now['spec_version']}, mha-core {now['package_version']}")
        raise typer.Exit


@app.callback()
def options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    """Options that come before a command."""


@app.command()
def backends(json: Json = False) -> None:
    """List the backends that are installed, usable or not, and why not."""
    listings.backends(json)


@app.command()
def clauses(clause: OptionalId = None, json: Json = False) -> None:
    """List the clauses of an area, or all; or print one with its reason, its foundations and its examples."""
    listings.clauses(clause, json)


@app.command()
def cite(clause: OptionalId = None) -> None:
    """Print how to cite the specification, or one clause of it."""
    listings.cite(clause)


@app.command()
def examples(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A backend of `mha backends`.")],
    clause: Annotated[list[str] | None, typer.Option("--clause", metavar="ID", help="Only this clause; repeatable.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of arrays that name none; default float64 where claimed.")] = None,
    json: Json = False,
) -> None:
    """Run the examples of the specification on a backend, each in the words of the text."""
    examples_command.examples(name, clause or [], dtype, json)


@app.command()
def conform(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A backend of `mha backends`, or module:callable.")],
    level: Annotated[str, typer.Option(help="smoke (seconds), core (a minute or two) or full.")] = "core",
    clause: Annotated[list[str] | None, typer.Option("--clause", metavar="ID", help="Only this clause; repeatable.")] = None,
    case: Annotated[list[str] | None, typer.Option("--case", metavar="ID", help="Only this case; repeatable.")] = None,
    first: Annotated[bool, typer.Option("--first", help="Stop at the first failure.")] = False,
    arrays: Annotated[str, typer.Option(help="For a callable: numpy, torch, jax, cupy or array_api_strict.")] = "numpy",
    device: Annotated[str | None, typer.Option(help="For a callable: a device of that library.")] = None,
    layout: Annotated[str, typer.Option(help="For a callable: bhnd or bnhd.")] = "bhnd",
    claims: Annotated[Path | None, typer.Option(help="A TOML file of what the implementation claims.")] = None,
    workers: Annotated[int, typer.Option("-n", help="Processes at once.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds for one case.")] = 60.0,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report; - for standard output.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    html: Html = None,
) -> None:
    """Judge an implementation by the specification: which clause it breaks, where, and how to see it again."""
    if level not in LEVELS or layout not in ("bhnd", "bnhd"):
        terminal.could_not_run(
            f"given --level {level} --layout {layout}; the levels are {', '.join(LEVELS)}, the layouts bhnd, bnhd"
        )
    if claims is not None and not claims.is_file():
        terminal.could_not_run(f"no claims file at {claims}")
    target = Target(name, arrays, device, layout, None if claims is None else str(claims))
    chosen = Selection(level, tuple(clause or ()), tuple(case or ()), first)
    conform_command.conform(target, chosen, workers, timeout, json, junit, html)


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(metavar="A.json B.json", help="Files that --json wrote.")],
    html: Html = None,
) -> None:
    """Compare reports: the cases on which they differ, and their verdicts; or see them side by side in one page."""
    conform_command.compare(files, html)
