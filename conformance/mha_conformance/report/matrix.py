"""Reports side by side: the areas of the text, their clauses, the cases of each, and one cell for each report.

It reads the JSON of a report, old or new: what it does not know it hands on as words, and drops nothing.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mha_conformance.judge.verdict import FAILING
from mha_conformance.report.facts import fraction, measured, number, words
from mha_spec.clauses import Clause, load

_ID = re.compile(r"MHA-[A-Z]+-\d+")
ABSENT = "ABSENT"
STATUSES = (
    "CRASH", "TIMEOUT", "FAIL", "ERROR", "XFAIL", "PASS", "NOT_RUN", "NOT_EXPRESSIBLE", "NOT_SUPPORTED", ABSENT,
)  # fmt: skip
"""Gravest first: a clause has the first status that one of its cases has."""

MEANING = {
    "CRASH": "the process ended",
    "TIMEOUT": "no answer in time",
    "FAIL": "not what the clause says",
    "ERROR": "a defect of the suite, and no verdict",
    "XFAIL": "fails, and the implementation lists it as failing",
    "PASS": "what the clause says",
    "NOT_RUN": "could have been judged, but not here",
    "NOT_EXPRESSIBLE": "this library cannot say it",
    "NOT_SUPPORTED": "not claimed, and no pass",
    ABSENT: "this report has no such case",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One report on one case, or on all cases of a clause: then ``note`` counts, and ``case`` is the one to look at."""

    status: str
    ratio: str
    share: float | None
    """error / bound from 0 to 1, for a bar; 1 stands for everything outside the bound."""
    note: str
    case: str

    @property
    def kind(self) -> str:
        """The status as a name of a style, whatever a file holds."""
        return self.status if self.status in STATUSES else "OTHER"


@dataclass(frozen=True, slots=True)
class Row:
    """A case in every report."""

    case: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class ClauseRow:
    """A clause in every report, and its cases. ``known`` is None where the text at hand has no such clause."""

    id: str
    known: Clause | None
    cells: tuple[Cell, ...]
    cases: tuple[Row, ...]

    @property
    def anchor(self) -> str:
        """The name of its place in the page; "" for what is no id of a clause, and might be a name of the page's own."""
        return self.id if _ID.fullmatch(self.id) else ""


@dataclass(frozen=True, slots=True)
class Area:
    """The clauses ``MHA-<name>-n`` that a case names. ``clauses`` has one element at least."""

    name: str
    clauses: tuple[ClauseRow, ...]

    @property
    def chapter(self) -> str:
        return next((row.known.chapter for row in self.clauses if row.known), "")

    @property
    def size(self) -> int:
        return sum(len(row.cases) for row in self.clauses)

    @property
    def failing(self) -> tuple[int, ...]:
        """How many clauses fail in each report."""
        columns = zip(*(row.cells for row in self.clauses), strict=True)
        return tuple(sum(cell.status in FAILING for cell in column) for column in columns)


def areas(reports: Sequence[Mapping[str, Any]]) -> tuple[Area, ...]:
    """The matrix, in the order of the text; clauses that the text does not know stand last."""
    known = {clause.id: clause for clause in load().clauses}
    found: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = {}
    for at, report in enumerate(reports):
        for case in report["cases"]:
            found.setdefault(case["clause"], {}).setdefault(case["case"], {})[at] = case
    order = [*(name for name in known if name in found), *sorted(name for name in found if name not in known)]
    rows: dict[str, list[ClauseRow]] = {}
    for name in order:
        columns = range(len(reports))
        cases = tuple(Row(case, tuple(_one(case, by.get(at)) for at in columns)) for case, by in found[name].items())
        cells = tuple(_all([by[at] for by in found[name].values() if at in by], len(cases)) for at in columns)
        rows.setdefault(_area(name), []).append(ClauseRow(name, known.get(name), cells, cases))
    return tuple(Area(area, tuple(clauses)) for area, clauses in rows.items())


def without_a_case(reports: Sequence[Mapping[str, Any]]) -> tuple[Clause, ...]:
    """The clauses of the text that no case of these reports names."""
    named = {case["clause"] for report in reports for case in report["cases"]}
    return tuple(clause for clause in load().clauses if clause.id not in named)


def _area(clause: str) -> str:
    return clause.split("-")[1] if _ID.fullmatch(clause) else "others"


def _one(name: str, case: Mapping[str, Any] | None) -> Cell:
    if case is None:
        return Cell(ABSENT, "", None, "", name)
    note = "" if case["status"] == "PASS" else words(case.get("reason"))
    ratio = measured(case)
    return Cell(case["status"], number(ratio), fraction(ratio), note, name)


def _all(cases: Sequence[Mapping[str, Any]], known: int) -> Cell:
    """The gravest status, the worst error / bound of the cases that have it, and how many they are."""
    if not cases:
        return Cell(ABSENT, "", None, "", "")
    status = min((case["status"] for case in cases), key=gravity)
    same = [case for case in cases if case["status"] == status]
    worst = max(same, key=lambda case: _size_of_error(measured(case)))
    shown = worst if status == "PASS" else min(same, key=lambda case: _sort_key(case.get("size")))
    ratio = measured(worst)
    return Cell(status, number(ratio), fraction(ratio), _shares(cases, status, known), shown["case"])


def _shares(cases: Sequence[Mapping[str, Any]], status: str, known: int) -> str:
    """How many cases have another status than the gravest; "" where none has."""
    counts = Counter(case["status"] for case in cases)
    counts[ABSENT] += known - len(cases)
    others = [f"{count} {name}" for name, count in counts.items() if count and name != status]
    return f"{counts[status]} of {known}; {', '.join(others)}" if others else ""


def gravity(status: str) -> int:
    """A status that this version does not know is graver than a pass, so that it is seen."""
    return STATUSES.index(status) if status in STATUSES else STATUSES.index("PASS") - 1


def _size_of_error(ratio: Any) -> float:
    return -1.0 if fraction(ratio) is None else _sort_key(ratio)


def _sort_key(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("inf")
