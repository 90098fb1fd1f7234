"""Failures that an implementation lists in its claims file: with reason, link and date of expiry, and strict (MHA-CONF-5).

[[xfail]]
clause = "MHA-MASK-15"          # or: case = "MHA-MASK-15/a masked row/float32"
reason = "empty rows are the mean of the values"
link = "https://example.org/issues/1"
expires = 2027-01-31
"""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mha_conformance.cases import catalogue
from mha_conformance.judge.verdict import FAILING, Verdict

KEYS = {"case", "clause", "reason", "link", "expires"}


@dataclass(frozen=True, slots=True)
class Expected:
    """A case, or a clause with all its cases, that is known to fail until ``expires``, that day included."""

    name: str
    whole_clause: bool
    reason: str
    link: str
    expires: datetime.date

    def names(self, verdict: Verdict) -> bool:
        return self.name == (verdict.clause if self.whole_clause else verdict.case)


def read(entries: Sequence[dict[str, Any]], file: str) -> tuple[Expected, ...]:
    """The entries of a claims file. Raises ``ValueError`` for one that is incomplete, or that names nothing."""
    return tuple(_entry(entry, f"{file}: [[xfail]] {at + 1}") for at, entry in enumerate(entries))


def _entry(entry: dict[str, Any], where: str) -> Expected:
    if unknown := set(entry) - KEYS:
        raise ValueError(f"{where}: unknown keys {sorted(unknown)}; known are {', '.join(sorted(KEYS))}")
    if ("case" in entry) == ("clause" in entry):
        raise ValueError(f"{where}: give a case or a clause, one of them")
    whole = "clause" in entry
    name = entry["clause" if whole else "case"]
    if name not in {case.clause if whole else case.id for case in catalogue()}:
        raise ValueError(f"{where}: no case matches {name!r}")
    for key in ("reason", "link"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise ValueError(f"{where}: an expected failure has a {key}, as text")
    expires = entry.get("expires")
    if not isinstance(expires, datetime.date) or isinstance(expires, datetime.datetime):
        raise ValueError(f"{where}: an expected failure expires on a date, such as expires = 2027-01-31; given {expires!r}")
    return Expected(name, whole, entry["reason"], entry["link"], expires)


def applied(verdict: Verdict, expected: Iterable[Expected], today: datetime.date | None = None) -> Verdict:
    """XFAIL for a failure that is listed; FAIL for one whose listing has expired, and for a listed case that passes."""
    entry = next((entry for entry in expected if entry.names(verdict)), None)
    if entry is None:
        return verdict
    if verdict.status in FAILING:
        if (today or datetime.date.today()) > entry.expires:
            return replace(verdict, reason=f"{verdict.reason} (listed as expected, but that expired on {entry.expires})")
        return replace(verdict, status="XFAIL", reason=f"{entry.reason}, {entry.link}, until {entry.expires}: {verdict.reason}")
    if verdict.status == "PASS" and not entry.whole_clause:
        return _unexpected(verdict, entry)
    return verdict


def strictly(verdicts: Sequence[Verdict], expected: Iterable[Expected]) -> tuple[Verdict, ...]:
    """A listed clause all of whose judged cases pass fails in the first of them: the list is out of date."""
    found = list(verdicts)
    for entry in expected:
        mine = [at for at, verdict in enumerate(found) if entry.whole_clause and entry.names(verdict)]
        passed = [at for at in mine if found[at].status == "PASS"]
        if passed and not any(found[at].status in ("XFAIL", *FAILING) for at in mine):
            found[passed[0]] = _unexpected(found[passed[0]], entry)
    return tuple(found)


def _unexpected(verdict: Verdict, entry: Expected) -> Verdict:
    return replace(
        verdict,
        status="FAIL",
        reason=f"passes, but is listed as an expected failure ({entry.reason}): take {entry.name} off the list",
    )
