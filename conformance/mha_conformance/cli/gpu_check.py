"""``mha gpu-check``: what a machine with a GPU can tell of the CuPy backend, in one run."""

import sys
from pathlib import Path
from typing import NoReturn

import typer

from mha_conformance.cli.codes import Code
from mha_conformance.cli.terminal import console, could_not_run, say, table
from mha_conformance.gpu.check import Done, check, dry
from mha_conformance.gpu.device import missing
from mha_conformance.gpu.result import NAMES, counts, headline, value, write

STYLES = {"HOLDS": "green", "MEASURED": "", "FAILS": "bold red", "CRASHED": "bold magenta", "NOT RUN": "dim"}


def gpu_check(out: Path | None, dry_run: bool) -> NoReturn:
    """``out`` gets the files of ``NAMES``; None is a folder of this name, and for a dry run none at all."""
    why = missing()
    if why and not dry_run:
        could_not_run(
            f"{why}; `mha gpu-check --dry-run` says what would be done, `mha conform cupy --device emulator` runs the kernels on a CPU"
        )
    if dry_run:
        say(f"a dry run: nothing is run{f', and nothing could be: {why}' if why else ''}", "bold")
    done = dry("a dry run") if dry_run else check(lambda text: console(sys.stderr).print(text))
    _print(done, dry_run)
    if out is not None or not dry_run:
        folder = out or Path("gpu-check")
        write(done, folder, dry_run)
        say(f"written: {', '.join(str(folder / name) for name in NAMES)}", "dim")
    raise typer.Exit(exit_code(done))


def exit_code(done: list[Done]) -> Code:
    """1 where something is wrong or crashed; 2 where a part was stopped; a dry run does what it is asked."""
    found = counts(done)
    if found["FAILS"] or found["CRASHED"]:
        return Code.FAILS
    return Code.NOT_RUN if any(one.trouble for one in done) else Code.HOLDS


def _print(done: list[Done], dry_run: bool) -> None:
    for one in done:
        say(f"\n{one.part.name}: {one.part.does}", "bold")
        if one.trouble:
            say(one.trouble, "bold red")
        table(("", "status", "", ""), [(row.what, row.status, value(row), row.why) for row in one.rows])
    say(f"\n{headline(done, dry_run)}", "bold")
