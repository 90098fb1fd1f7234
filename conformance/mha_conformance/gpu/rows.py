"""What a run finds: rows. Each was planned before anything ran, and is NOT RUN until somebody says otherwise."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

Status: TypeAlias = Literal["HOLDS", "FAILS", "MEASURED", "CRASHED", "NOT RUN"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``value`` in ``unit`` where something was measured or counted; ``why`` says what a status rests on."""

    what: str
    status: Status = "NOT RUN"
    value: float | None = None
    unit: str = ""
    why: str = ""


class Part(NamedTuple):
    """What is done in a process of its own, within ``seconds``: a crash costs this part alone.

    ``rows`` are planned by name; ``run`` yields them as they are found.
    """

    name: str
    does: str
    seconds: int
    rows: tuple[str, ...]
    run: Callable[[], Iterator[Row]]


def planned(part: Part, why: str) -> list[Row]:
    """The rows of a part that was not run."""
    return [Row(what, why=why) for what in part.rows]


def merged(part: Part, found: list[Row], why: str, crashed: bool) -> list[Row]:
    """The planned rows, those that were found in their place; ``why`` the others are missing. The first of them is the one that crashed."""
    by_name = {row.what: row for row in found}
    assert by_name.keys() <= set(part.rows), f"{part.name} found what was not planned: {by_name.keys() - set(part.rows)}"
    missing = [what for what in part.rows if what not in by_name]
    others = {what: Row(what, "CRASHED" if crashed and what == missing[0] else "NOT RUN", why=why) for what in missing}
    return [(by_name | others)[what] for what in part.rows]
