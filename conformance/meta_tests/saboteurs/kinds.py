"""What a saboteur declares of itself."""

from collections.abc import Callable
from typing import NamedTuple

from honest import Honest


class Saboteur(NamedTuple):
    """A class of ``Honest`` with one step replaced; ``clause`` is blamed first.

    ``after`` says what is wrong, and names the threads where the fault was seen; ``bugs`` are its rows in ``known_bugs.tsv``.
    """

    clause: str
    make: Callable[[], Honest]
    after: str
    bugs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return getattr(self.make, "__name__", "saboteur")


REGISTER: list[Saboteur] = []


def breaks(clause: str, after: str = "", bug: str = "") -> Callable[[type[Honest]], type[Honest]]:
    """Register a class as the saboteur of a clause; ``bug`` holds ids of known bugs, separated by spaces."""

    def register(subject: type[Honest]) -> type[Honest]:
        REGISTER.append(Saboteur(clause, subject, after, tuple(bug.split())))
        return subject

    return register
