"""Reports as one HTML file that needs nothing else: no network, no script to be readable, and no trust in what it shows.

Every string of a report may come from a third party. Jinja2 escapes all of them; the policy of the page runs the two
scripts that are written here, by their hash, and loads nothing.
"""

import base64
import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mha_conformance.judge.verdict import FAILING
from mha_conformance.report import matrix
from mha_conformance.report.facts import ABOUT, LABELS, facts, flat, words
from mha_spec import SPEC_VERSION
from mha_spec.plain import plain

_SHOWN = ("format", "name", "verdict", "conforms", "holds", "only", "undeclared", "blame", "cases")
_IN_ITS_NAME = ("dtype", "group", "level", "size")
_HEAD_SCRIPT = 'document.documentElement.className = "js"'
_MARKED = re.compile(r"(\$[^$]+\$|`[^`]+`|\*\w[\w ]*\*)")


@dataclass(frozen=True, slots=True)
class Column:
    """What the page says of one report as a whole."""

    letter: str
    name: str
    source: str
    word: str
    kind: str
    """good, bad or none: the style of the verdict, beside its word."""
    verdict: str
    counts: tuple[tuple[str, int], ...]
    undeclared: str
    blame: tuple[Mapping[str, Any], ...]


def write(reports: Sequence[Mapping[str, Any]], path: Path, sources: Sequence[str] = ()) -> None:
    """The page of these reports. A character that is none (half a surrogate pair) becomes a question mark."""
    path.write_text(render(reports, sources), encoding="utf-8", errors="replace")


def render(reports: Sequence[Mapping[str, Any]], sources: Sequence[str] = ()) -> str:
    """The page; ``sources`` names the file of each report, where it came from one. The same reports give the same page."""
    areas = matrix.areas(reports)
    environment = Environment(
        loader=PackageLoader("mha_conformance", "report/page"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.filters["pieces"] = pieces
    script, style = (environment.loader.get_source(environment, f"page.{end}")[0] for end in ("js", "css"))  # type: ignore[union-attr]
    return environment.get_template("page.html.j2").render(
        columns=[_column(report, at, [*sources, *[""] * len(reports)][at]) for at, report in enumerate(reports)],
        about=_about(reports),
        areas=areas,
        silent=matrix.without_a_case(reports),
        spec_version=SPEC_VERSION,
        judged_by=list(dict.fromkeys(words(report.get("spec_version")) or "?" for report in reports)),
        cases=sum(area.size for area in areas),
        clauses=sum(len(area.clauses) for area in areas),
        statuses=_counted(areas),
        meaning=matrix.MEANING,
        failing=FAILING,
        data=_data(reports),
        head_script=_HEAD_SCRIPT,
        script=script,
        style=style,
        hashes=[_hash(_HEAD_SCRIPT), _hash(script)],
    )


def _hash(script: str) -> str:
    """How a Content-Security-Policy names an inline script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _column(report: Mapping[str, Any], at: int, source: str) -> Column:
    counts = Counter(case["status"] for case in report["cases"])
    order = [*matrix.STATUSES, *sorted(set(counts) - set(matrix.STATUSES))]
    word, kind = ("conforms", "good") if report["conforms"] else ("does not conform", "bad")
    if report.get("only") and report.get("holds"):
        word, kind = "holds in what was asked", "good"
    if counts["ERROR"]:
        word, kind = f"{word}; the suite failed" if kind == "bad" else "the suite failed", "bad"
    elif kind == "bad" and not any(counts[status] for status in FAILING):
        word, kind = "not judged", "none"
    by_name = {case["case"]: case for case in report["cases"]}
    blame = [_diagnosis(entry, by_name.get(entry["case"], {})) for entry in report.get("blame", ())]
    return Column(
        letter(at), report["name"], source, word, kind, report["verdict"],
        tuple((status, counts[status]) for status in order if counts[status]), words(report.get("undeclared")), tuple(blame),
    )  # fmt: skip


def _diagnosis(entry: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, Any]:
    """A blamed case, without what its name says."""
    said = {label: value for label, value in facts(case).items() if label not in _IN_ITS_NAME}
    known = ("clause", "sentence", "case", "reproduce", "smallest")
    more = {label: words(value) for label, value in entry.items() if label not in known}
    smallest = dict(entry["smallest"]) if isinstance(entry.get("smallest"), Mapping) else {}
    code = words(smallest.pop("code", ""))
    return {**entry, "status": case.get("status", ""), "facts": {**said, **more}, "smallest": facts(smallest), "code": code}


def _about(reports: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Claims, provenance and whatever else the files hold: a label, and what each report says under it."""
    found: dict[str, list[str]] = {}
    for at, report in enumerate(reports):
        rest = {name: value for name, value in report.items() if name not in _SHOWN}
        made_with = rest.pop("provenance", {}) if isinstance(rest.get("provenance"), Mapping) else {}
        for label, said in (*flat(made_with), *flat(rest)):
            found.setdefault(label, [""] * len(reports))[at] = said
    return list(found.items())


def letter(at: int) -> str:
    """A, B, ... Z, A2, B2, ...: a short name for a column."""
    round_, place = divmod(at, len(ascii_uppercase))
    return ascii_uppercase[place] + (str(round_ + 1) if round_ else "")


def _counted(areas: Sequence[matrix.Area]) -> list[tuple[str, int]]:
    """Each status that some report gives some case, and to how many cases; the gravest first."""
    rows = [row for area in areas for clause in area.clauses for row in clause.cases]
    counts = Counter(status for row in rows for status in {cell.status for cell in row.cells})
    return sorted(counts.items(), key=lambda item: matrix.gravity(item[0]))


def _data(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the panel shows of each case: a row of facts for each report, 0 where it has no such case.

    A fact stands at the place of its label, as the number of its words among ``strings``, each of which is written once:
    a large report stays a small file.
    """
    labels = {label: place for place, label in enumerate(("status", *LABELS))}
    strings = {"": 0}
    cases: dict[str, list[list[int] | int]] = {}
    for at, report in enumerate(reports):
        for case in report["cases"]:
            row = [0] * len(labels)
            for label, said in {"status": case["status"], **facts(case)}.items():
                place = labels.setdefault(label, len(labels))
                row += [0] * (place + 1 - len(row))
                row[place] = strings.setdefault(said, len(strings))
            cases.setdefault(case["case"], [0] * len(reports))[at] = row
    names = [{"name": report["name"], "letter": letter(at), **_again(report)} for at, report in enumerate(reports)]
    return {"labels": list(labels), "about": labels[ABOUT], "reports": names, "strings": list(strings), "cases": cases}


def _again(report: Mapping[str, Any]) -> dict[str, str]:
    """The command around the name of a case: as the report itself gives it for its blame, else from the report's name."""
    for entry in report.get("blame", ()):
        before, found, after = str(entry.get("reproduce", "")).partition(f"'{entry['case']}'")
        if found:
            return {"before": before, "after": after, "hint": ""}
    hint = "Add the --arrays, --layout, --device and --claims of the run." if ":" in report["name"] else ""
    return {"before": f"mha conform {shlex.quote(report['name'])} --case ", "after": "", "hint": hint}


def pieces(sentence: str) -> list[tuple[str, str]]:
    """A sentence in parts, each with the element that it becomes: code, a formula in plain characters, a stressed word, text."""
    return [_piece(part) for part in _MARKED.split(sentence) if part]


def _piece(part: str) -> tuple[str, str]:
    if not _MARKED.fullmatch(part):
        return "span", part
    if part[0] != "$":
        return {"`": "code", "*": "em"}[part[0]], part[1:-1]
    try:
        return "var", plain(part)
    except ValueError:  # a file of another version may hold a formula that this one does not know
        return "code", part[1:-1]
