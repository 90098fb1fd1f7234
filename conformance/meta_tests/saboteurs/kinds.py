"""What a saboteur declares of itself."""

from collections.abc import Callable
from typing import NamedTuple

from honest import Honest


class Saboteur(NamedTuple):
    """A class of ``Honest`` with one step replaced; ``clause`` is blamed first, ``after`` names where the fault was seen."""

    clause: str
    make: Callable[[], Honest]
    after: str

    @property
    def name(self) -> str:
        return getattr(self.make, "__name__", "saboteur")


REGISTER: list[Saboteur] = []


def breaks(clause: str, after: str = "") -> Callable[[type[Honest]], type[Honest]]:
    """Register a class as the saboteur of a clause."""

    def register(subject: type[Honest]) -> type[Honest]:
        REGISTER.append(Saboteur(clause, subject, after))
        return subject

    return register
