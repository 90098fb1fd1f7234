"""The kill table: for every saboteur the clause that is blamed first, the case that shows it, and how many cases fail."""

from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from honest import diagnosis, judged
from known_bugs import DISPOSITIONS, known_bugs
from saboteurs.kinds import REGISTER, Saboteur

from mha_conformance.judge.verdict import FAILING

for room in sorted(file.stem for file in (Path(__file__).parent / "saboteurs").glob("*.py")):
    if room not in ("__init__", "kinds"):
        import_module(f"saboteurs.{room}")

SABOTEURS = tuple(REGISTER)


class Row(NamedTuple):
    """One saboteur, and what the suite makes of it at level core. ``blamed`` and ``case`` are empty where it is not caught."""

    clause: str
    saboteur: str
    bugs: str
    after: str
    blamed: str
    case: str
    failing: int

    @property
    def right(self) -> bool:
        return self.blamed == self.clause


def row(saboteur: Saboteur) -> Row:
    """Judge one saboteur."""
    verdicts = judged(saboteur.make())
    blame = diagnosis(saboteur.make, verdicts)
    first = blame[0] if blame else None
    return Row(
        saboteur.clause, saboteur.name, " ".join(saboteur.bugs), saboteur.after, first.clause if first else "",
        first.case if first else "", sum(verdict.status in FAILING for verdict in verdicts),
    )  # fmt: skip


def as_text(rows: list[Row]) -> list[str]:
    """The table in lines, then its sums, then the known bugs that no saboteur stands for, each with its reason."""
    head = ("clause", "saboteur", "bug", "caught by", "cases", "blamed first")
    body = [
        (r.clause, r.saboteur, r.bugs, r.case or "NOT CAUGHT", str(r.failing), r.blamed if r.right else f"{r.blamed} !")
        for r in rows
    ]
    widths = [max(len(line[at]) for line in (head, *body)) for at in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in (head, *body)]
    return [*lines, "", summary(rows), "", *left_over()]


def as_markdown(rows: list[Row]) -> list[str]:
    """The same, for documents."""
    head = ["| clause | saboteur | bug | what is wrong | caught by | cases | blamed first |", "|---|---|---|---|---|---|---|"]
    body = [
        f"| {r.clause} | {r.saboteur} | {r.bugs} | {r.after.replace('|', chr(92) + '|')} | {r.case} | {r.failing} | {r.blamed} |"
        for r in rows
    ]
    return [*head, *body, "", summary(rows), "", *(f"- {line}" for line in left_over())]


def summary(rows: list[Row]) -> str:
    bugs = {bug for r in rows for bug in r.bugs.split()}
    caught, right = sum(bool(r.blamed) for r in rows), sum(r.right for r in rows)
    return (
        f"{len(rows)} saboteurs, {len(bugs)} known bugs among them: {caught} caught at level core, {right} with blame on the right "
        "clause first."
    )


def left_over() -> list[str]:
    """The known bugs that no saboteur stands for."""
    bugs = [bug for bug in known_bugs() if bug.disposition != "saboteur"]
    order = list(DISPOSITIONS)
    return [
        f"{bug.id} {bug.thread} ({bug.disposition}) {bug.words}"
        for bug in sorted(bugs, key=lambda b: order.index(b.disposition))
    ]
