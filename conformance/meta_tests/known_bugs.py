"""The list of known bugs: threads of public trackers, each with what became of it here (``known_bugs.tsv``)."""

import csv
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("known_bugs.tsv")

DISPOSITIONS = {
    "saboteur": "a faulty backend of its kind is in the kill table",
    "control": "no fault: an honest kernel of the zoo does the same, and must not be accused",
    "clause": "no fault of an attention: a clause says what is right, and a test of core holds its function to it",
    "due": "its feature is not there yet",
    "outside": "outside of what is specified, for the reason that is given",
}


class Known(NamedTuple):
    """One bug: the thread, what became of it, and the saboteur's name or the reason."""

    id: str
    thread: str
    disposition: str
    words: str


def known_bugs() -> list[Known]:
    """The rows of ``known_bugs.tsv`` in their order."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return [Known(**row) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
