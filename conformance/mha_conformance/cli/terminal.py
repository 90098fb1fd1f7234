"""Printing. Text of clauses, errors and plug-ins is never markup: ``query[None]`` must arrive as it is."""

import json
import sys
from collections.abc import Sequence
from typing import IO, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mha_conformance.cli.codes import Code
from mha_conformance.run.environment import package_version
from mha_spec import SPEC_VERSION


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The reader went away before all was said: that is no verdict, so not Rich's code 1."""
        self.quiet = True
        raise SystemExit(Code.NOT_RUN)


def console(file: IO[str] | None = None) -> Console:
    """A console for standard output, or for ``file``; made on use, so that it follows a redirection."""
    return _Console(file=file or sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True)


def say(text: str, style: str = "") -> None:
    console().print(Text(text, style=style))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns of plain text: folded to the width of a terminal, one line a row where another program reads."""
    out = console()
    if not out.is_terminal:
        widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
        for row in (columns, *rows):
            out.print(Text("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()))
        return
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns[:-1]:
        grid.add_column(name, no_wrap=True)
    grid.add_column(columns[-1], overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    out.print(grid, soft_wrap=False)


def as_json(value: Any) -> None:
    """``value`` on standard output; everything else that is said meanwhile goes to standard error."""
    console().print(Text(json.dumps(value, indent=2, ensure_ascii=False)))


def could_not_run(reason: str) -> NoReturn:
    console(sys.stderr).print(Text(f"mha could not run: {reason}"))
    raise typer.Exit(Code.NOT_RUN)


def versions() -> dict[str, str]:
    """What every report and every citation names: the version of the text, and of the package that carries it."""
    return {"spec_version": SPEC_VERSION, "package_version": package_version()}
