"""The report as JSON, by the schema beside this file, and back."""

import json
import math
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mha_conformance.judge.verdict import Verdict
from mha_conformance.run.conform import Report
from mha_conformance.run.implementation import Target
from mha_spec import SPEC_VERSION
from mha_spec.clauses import load

SCHEMA = Path(__file__).with_name("schema.json")
FORMAT = 1


def as_json(report: Report) -> dict[str, Any]:
    """The whole report as plain values: no NaN, no infinity, so that any program can read it."""
    clauses = load()
    return {
        "format": FORMAT,
        "spec_version": SPEC_VERSION,
        "name": report.target.name,
        "verdict": report.sentence,
        "conforms": report.conforms,
        "blame": [
            {"clause": v.clause, "sentence": clauses[v.clause].sentence, "case": v.case, "reproduce": reproduce(report, v)}
            for v in report.blame
        ],
        "claims": {
            "arrays": report.claims.arrays,
            "features": sorted(report.claims.features),
            "profiles": dict(report.claims.profiles),
            "strict": report.claims.strict,
            "determinism": report.claims.determinism,
            "grade": report.claims.grade,
        },
        "satisfied": report.satisfied,
        "provenance": report.provenance,
        "cases": [_case(v) for v in report.verdicts],
    }


def _case(verdict: Verdict) -> dict[str, Any]:
    return {key: _plain(value) for key, value in asdict(verdict).items()}


def _plain(value: Any) -> Any:
    """Numbers that JSON does not know become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    return value


def reproduce(report: Report, verdict: Verdict) -> str:
    """One command that runs just this case again."""
    return command(report.target, verdict.case)


def command(target: Target, case: str) -> str:
    """The command that runs one case of a target."""
    parts = ["mha", "conform", target.name, "--case", f"'{case}'"]
    if ":" in target.name:
        parts += ["--arrays", target.arrays] if target.arrays != "numpy" else []
        parts += ["--device", shlex.quote(target.device)] if target.device else []
        parts += ["--layout", target.layout] if target.layout != "bhnd" else []
    parts += ["--claims", shlex.quote(target.claims)] if target.claims else []
    return " ".join(parts)


def write(report: Report, path: Path) -> None:
    path.write_text(json.dumps(as_json(report), indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """A report file. Raises ``ValueError`` where it is none of this format."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{path} is no report of format {FORMAT}; `mha conform NAME --json FILE` writes one")
    return found
