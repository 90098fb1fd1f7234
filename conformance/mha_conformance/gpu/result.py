"""What a check leaves behind: JSON, a table in Markdown, and a picture. What was not run says so in each, and has its own colour."""

import datetime
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment

from mha_conformance.gpu.check import Done
from mha_conformance.gpu.rows import Row
from mha_conformance.run.environment import package_version
from mha_spec import SPEC_VERSION

COLOURS = {"HOLDS": "#2e7d4f", "MEASURED": "#2f6f9f", "FAILS": "#b3261e", "CRASHED": "#7b1fa2", "NOT RUN": "#9e9e9e"}
NAMES = ("gpu-check.json", "gpu-check.md", "gpu-check.svg")


def counts(done: Sequence[Done]) -> Counter[str]:
    return Counter(row.status for one in done for row in one.rows)


def as_json(done: Sequence[Done], dry_run: bool) -> dict[str, Any]:
    return {
        "format": 1,
        "spec_version": SPEC_VERSION,
        "package_version": package_version(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "dry_run": dry_run,
        "counts": dict(counts(done)),
        "parts": [_part(one) for one in done],
    }


def _part(one: Done) -> dict[str, Any]:
    known = {"name": one.part.name, "does": one.part.does, "seconds": one.seconds, "trouble": one.trouble}
    return known | {"rows": [asdict(row) for row in one.rows]}


def as_markdown(done: Sequence[Done], dry_run: bool) -> str:
    lines = [f"# {headline(done, dry_run)}", ""]
    for one in done:
        lines += [f"## {one.part.name}: {one.part.does}", ""]
        lines += [one.trouble, ""] if one.trouble else []
        lines += ["| | status | | |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(map(_cell, (row.what, row.status, value(row), row.why)))} |" for row in one.rows]
        lines.append("")
    return "\n".join(lines)


def headline(done: Sequence[Done], dry_run: bool) -> str:
    found = counts(done)
    said = ", ".join(f"{found[status]} {status}" for status in COLOURS if found[status])
    return f"GPU check{' (dry run: nothing was run)' if dry_run else ''}: {said}"


def value(row: Row) -> str:
    return "" if row.value is None else f"{row.value:.4g} {row.unit}".strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def as_svg(done: Sequence[Done], dry_run: bool) -> str:
    """Bars within each part and unit, as long as the largest of them; a slot that was not run is hatched and says so."""
    bars: list[dict[str, Any]] = []
    for one in done:
        bars.append({"head": f"{one.part.name}: {one.part.does}"})
        most = {
            row.unit: max(r.value or 0 for r in one.rows if r.unit == row.unit) for row in one.rows if row.value is not None
        }
        for row in one.rows:
            share = 0 if row.value is None or not most[row.unit] or not row.unit else row.value / most[row.unit]
            bars.append(
                {"row": row, "share": share, "colour": COLOURS[row.status], "said": f"{row.status} {value(row)}".strip()}
            )
    template = files(__package__).joinpath("picture.svg.jinja").read_text(encoding="utf-8")
    return (
        Environment(autoescape=True)
        .from_string(template)
        .render(bars=bars, title=headline(done, dry_run), not_run=COLOURS["NOT RUN"])
    )


def write(done: Sequence[Done], folder: Path, dry_run: bool) -> None:
    """The three files of ``NAMES``."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = json.dumps(as_json(done, dry_run), indent=1) + "\n", as_markdown(done, dry_run), as_svg(done, dry_run)
    for name, text in zip(NAMES, texts, strict=True):
        (folder / name).write_text(text, encoding="utf-8")
