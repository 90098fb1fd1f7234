"""The files that a run is asked to write: checked before the work, written after it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mha_conformance.cli.terminal import as_json, could_not_run
from mha_conformance.report import document, html, issue, junit
from mha_conformance.run.results import Report

STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a report goes beside the terminal; ``json`` may be standard output, and then takes the terminal's place."""

    json: Path | None = None
    junit: Path | None = None
    html: Path | None = None
    issue: Path | None = None

    @property
    def to_a_program(self) -> bool:
        return self.json == STANDARD_OUTPUT

    def check(self) -> None:
        """Ends the command with code 2 where one of them cannot be written."""
        files = (None if self.to_a_program else self.json, self.junit, self.html, self.issue)
        can_be_written([file for file in files if file is not None])

    def write(self, report: Report) -> None:
        if self.to_a_program:
            as_json(document.as_json(report))
        elif self.json is not None:
            document.write(report, self.json)
        if self.junit is not None:
            junit.write(report, self.junit)
        if self.html is not None:
            html.write([document.as_json(report)], self.html)
        if self.issue is not None:
            issue.write(report, self.issue)


def can_be_written(files: Sequence[Path], read: Sequence[Path] = ()) -> None:
    """Said before the work and not after it. No file is written over a report that is read, or over another of the same run."""
    taken = {file.resolve() for file in read}
    for file in files:
        if file == STANDARD_OUTPUT:
            could_not_run("given - as a file; only the JSON of a report can go to standard output")
        if file.is_dir() or not file.parent.is_dir():
            could_not_run(
                f"cannot write {file}: {'that is a folder' if file.is_dir() else f'there is no folder {file.parent}'}"
            )
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            could_not_run(f"cannot write {file}: permission denied")
        if file.resolve() in taken:
            could_not_run(f"cannot write {file}: it is named twice, and would be overwritten")
        taken.add(file.resolve())
