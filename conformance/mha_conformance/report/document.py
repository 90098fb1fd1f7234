"""The report as JSON, by the schema beside this file, and back."""

import json
import math
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mha_conformance.judge.verdict import Verdict
from mha_conformance.report.snippet import snippet
from mha_conformance.run.implementation import Target
from mha_conformance.run.results import Report
from mha_spec import SPEC_VERSION
from mha_spec.clauses import load

SCHEMA = Path(__file__).with_name("schema.json")
FORMAT = 1
_WRITTEN_BY = "`mha conform NAME --json FILE` writes one"


def as_json(report: Report) -> dict[str, Any]:
    """The whole report as plain values: no NaN, no infinity, so that any program can read it."""
    clauses = load()
    return {
        "format": FORMAT,
        "spec_version": SPEC_VERSION,
        "name": report.target.name,
        "verdict": report.sentence,
        "conforms": report.conforms,
        "holds": report.holds,
        "only": report.only,
        "blame": [
            {
                "clause": v.clause,
                "sentence": clauses[v.clause].plain,
                "case": v.case,
                "reproduce": reproduce(report, v),
                "smallest": _smallest(report, v),
            }
            for v in report.blame
        ],
        "claims": {
            "arrays": report.claims.arrays,
            "features": sorted(report.claims.features),
            "profiles": dict(report.claims.profiles),
            "strict": report.claims.strict,
            "determinism": report.claims.determinism,
            "grade": report.claims.grade,
            "flushes_subnormals": report.claims.flushes_subnormals,
            "memory": report.claims.memory,
        },
        "undeclared": list(report.undeclared),
        "satisfied": report.satisfied,
        "grades": report.grades,
        "provenance": report.provenance,
        "cases": [_case(v) for v in report.verdicts],
    }


def _smallest(report: Report, verdict: Verdict) -> dict[str, Any] | None:
    """The same failure in the smallest call: what was asked and found, and Python that anyone can paste."""
    found = report.smallest.get(verdict.case)
    if found is None:
        return None
    seen = _case(found.verdict)
    asked = {name: seen[name] for name in ("request", "reason", "worst", "pattern")}
    return {**asked, "code": snippet(report.target, found.requests[0])}


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
    if target.vectors is not None:
        parts = ["mha", "vectors", "check", shlex.quote(target.vectors), "--name", shlex.quote(target.name)]
    else:
        parts = ["mha", "conform", target.name]
    parts += ["--case", f"'{case}'"]
    if target.vectors is None:
        called = ":" in target.name
        parts += ["--arrays", target.arrays] if called and target.arrays != "numpy" else []
        parts += ["--device", shlex.quote(target.device)] if target.device else []
        parts += ["--layout", target.layout] if called and target.layout != "bhnd" else []
    parts += ["--claims", shlex.quote(target.claims)] if target.claims else []
    return " ".join(parts)


def write(report: Report, path: Path) -> None:
    path.write_text(json.dumps(as_json(report), indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """A report file. Raises ``ValueError`` where it is none of this format, or lacks what every reader needs."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}; {_WRITTEN_BY}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{path} is no report of format {FORMAT}; {_WRITTEN_BY}")
    if missing := _missing(found):
        raise ValueError(f"{path} is no whole report: {missing}; {_WRITTEN_BY}")
    return found


def _missing(found: dict[str, Any]) -> str:
    """What a report of this format cannot be read without, by name; "" where all is there."""
    kinds = (("name", str), ("verdict", str), ("spec_version", str), ("conforms", bool), ("blame", list), ("cases", list))
    if wrong := [name for name, kind in kinds if not isinstance(found.get(name), kind)]:
        return f"without a proper {', '.join(wrong)}"
    for part, names in (("blame", ("clause", "sentence", "case", "reproduce")), ("cases", ("case", "clause", "status"))):
        for at, item in enumerate(found[part]):
            if not isinstance(item, dict) or any(not isinstance(item.get(name), str) for name in names):
                return f"{part}[{at}] lacks one of {', '.join(names)}"
    return "" if found["cases"] else "it holds no case"
