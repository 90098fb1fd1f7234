"""``mha vectors write``: a directory that tells a device without Python what to compute."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from mha_conformance.cases import Case, Level, catalogue
from mha_conformance.run.conform import CannotRun
from mha_conformance.vectors import index
from mha_conformance.vectors.coverage import why_not
from mha_conformance.vectors.manifest import GUIDE, head, vector
from mha_spec.numerics import PROFILES

MANIFEST, INDEX = "manifest.json", "index.txt"
DOCUMENTS = ("INTERPRETING.md", "schema.json")
"""The guide and the schema of the manifest, copied into each directory from ``mha_spec/vectors``."""


class Written(NamedTuple):
    """What a directory holds: cases, calls, files, bytes, and the cases that no file can hold."""

    vectors: int
    calls: int
    files: int
    size: int
    left_out: int


def chosen(profile: str, level: Level) -> tuple[list[Case], list[tuple[Case, str]]]:
    """(the cases that files hold, the others with the reason) of the profile's dtype. Raises ``CannotRun`` where there is none."""
    if profile not in PROFILES:
        raise CannotRun(f"there is no profile {profile!r}; the profiles are {', '.join(PROFILES)}")
    mine = [case for case in catalogue() if case.dtype == PROFILES[profile].io and case.wanted_at(level)]
    if not mine:
        raise CannotRun(f"profile {profile} reads {PROFILES[profile].io}, and the catalogue has no case of that dtype")
    reasons = [(case, why_not(case)) for case in mine]
    return [case for case, why in reasons if not why], [(case, why) for case, why in reasons if why]


def write(directory: Path, profile: str, level: Level, progress: Callable[[list[Case]], Iterable[Case]] = iter) -> Written:
    """Fill a new or empty directory. The manifest comes last, so that a directory without one is known to be unfinished."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        what = "already holds vectors" if (directory / MANIFEST).is_file() else "is not empty"
        raise CannotRun(f"{directory} {what}; name a new directory, nothing was written")
    covered, others = chosen(profile, level)
    entries, size, count = [], 0, 0
    for case in progress(covered):
        entry, files = vector(case, profile)
        entries.append(entry)
        for path, data in files.items():
            place = directory / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            size, count = size + len(data), count + 1
    left_out = [{"id": case.id, "clause": case.clause, "reason": why} for case, why in others]
    about = head(profile, level)
    manifest = {**about, "vectors": entries, "not_in_files": left_out}
    texts = {name: (GUIDE / name).read_text(encoding="utf-8") for name in DOCUMENTS}
    texts |= {INDEX: index.text(about, entries), MANIFEST: _text(manifest)}
    for name, words in texts.items():
        (directory / name).write_bytes(words.encode())
        size, count = size + len(words.encode()), count + 1
    return Written(len(entries), sum(len(entry["calls"]) for entry in entries), count, size, len(left_out))


def _text(manifest: dict[str, Any]) -> str:
    """The manifest as JSON with one case a line, so that ``grep`` finds it whole."""

    def rows(items: list[dict[str, Any]]) -> str:
        return "[\n" + ",\n".join(json.dumps(item, allow_nan=False) for item in items) + "\n]"

    parts = [f"{json.dumps(key)}: {rows(x) if isinstance(x, list) else json.dumps(x)}" for key, x in manifest.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"
