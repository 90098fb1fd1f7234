"""A directory of vectors before its outputs are judged: it must be what was written, and hold nothing else.

Nothing in it is believed. What it should hold is made again from the catalogue, and compared byte by byte; paths come from
there too, so that no name in a manifest leads anywhere. Expected results and bounds are a courtesy to the device's engineers
and are not read.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from mha_conformance.cases import Case
from mha_conformance.run.conform import CannotRun
from mha_conformance.vectors import index
from mha_conformance.vectors.manifest import FORMAT, KIND, head, vector, without_answers
from mha_conformance.vectors.write import DOCUMENTS, INDEX, MANIFEST, chosen

AGAIN = "write the vectors again with `mha vectors write`"


def verified(
    directory: Path, progress: Callable[[list[Case]], Iterable[Case]] = iter
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """(the manifest, the calls of each case by its id). Raises ``CannotRun`` for a directory that is not as it was written."""
    manifest = _manifest(directory)
    covered, others = chosen(manifest["profile"], manifest["level"])
    told = {_id(entry): entry for entry in manifest["vectors"]}
    entries, wrong = {}, []
    for case in progress(covered):
        entry, files = vector(case, manifest["profile"], answers=False)
        entries[case.id] = entry
        if not _same(told.pop(case.id, None), entry):
            wrong.append(f"{MANIFEST}: {case.id}")
        wrong += [path for path, data in files.items() if _bytes(directory / path) != data]
    wrong += [f"{MANIFEST}: {name}" for name in told]
    if [_id(entry) for entry in manifest["not_in_files"]] != [case.id for case, _ in others]:
        wrong.append(f"{MANIFEST}: not_in_files")
    if _bytes(directory / INDEX) != index.text(manifest, entries.values()).encode():
        wrong.append(INDEX)
    if wrong:
        raise CannotRun(f"{directory} is not as it was written: {_some(wrong)} changed or missing; {AGAIN}")
    if strangers := sorted(_foreign(directory, entries.values())):
        raise CannotRun(
            f"{directory} holds what does not belong there: {_some(strangers)}; "
            f"outputs are plain files under the names of {MANIFEST}, everything else goes elsewhere"
        )
    return manifest, entries


def _manifest(directory: Path) -> dict[str, Any]:
    """The manifest, of this format, version, constants and suite."""
    path = directory / MANIFEST
    if not path.is_file():
        raise CannotRun(f"{directory} has no {MANIFEST}: it holds no vectors, or writing them was not finished")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CannotRun(f"{path} is no JSON ({type(error).__name__}: {error}); {AGAIN}") from error
    if not isinstance(found, dict) or found.get("kind") != KIND or found.get("format") != FORMAT:
        raise CannotRun(f"{path} is no manifest of {KIND}, format {FORMAT}; {AGAIN}")
    try:
        now = head(found["profile"], found["level"])
    except (KeyError, TypeError) as error:
        raise CannotRun(f"{path} names no profile and level that are known ({error}); {AGAIN}") from error
    for key, value in now.items():
        if found.get(key) != value:
            raise CannotRun(
                f"{path} has {key} {found.get(key)!r}, this suite has {value!r}; {AGAIN}, or check with that version"
            )
    if found["level"] not in ("smoke", "core", "full") or not all(
        isinstance(found.get(x), list) for x in ("vectors", "not_in_files")
    ):
        raise CannotRun(f"{path} does not keep the schema; {AGAIN}")
    return found


def _id(entry: Any) -> str:
    """The id of an entry; of something else, what it looks like."""
    return str(entry.get("id") if isinstance(entry, dict) else entry)[:400]


def _same(told: Any, entry: dict[str, Any]) -> bool:
    """Whether an entry of the directory says what the catalogue says; its answers aside."""
    try:
        return json.dumps(without_answers(told), sort_keys=True) == json.dumps(without_answers(entry), sort_keys=True)
    except (KeyError, TypeError, AttributeError):
        return False


def _bytes(path: Path) -> bytes | None:
    """The bytes of a plain file."""
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _foreign(directory: Path, entries: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Paths that no vector names, and everything that is neither a plain file nor a folder."""
    known = {MANIFEST, INDEX, *DOCUMENTS}
    for entry in entries:
        for call in entry["calls"]:
            known |= {one["file"] for one in (*call["inputs"].values(), *call["outputs"].values())}
            known |= {f"{call['folder']}/{kind}.{name}.npy" for name in call["outputs"] for kind in ("expected", "bound")}
    folders = {str(Path(path).parent.as_posix()) for path in known}
    folders |= {str(Path(path).parent.as_posix()) for path in folders} | {"cases"}

    def walk(place: Path, prefix: str) -> Iterator[str]:
        with os.scandir(place) as found:
            for item in found:
                path = f"{prefix}{item.name}"
                if item.is_symlink():
                    yield f"{path} (a link)"
                elif item.is_dir(follow_symlinks=False):
                    yield from walk(Path(item.path), f"{path}/") if path in folders else (f"{path}/",)
                elif path not in known or not item.is_file(follow_symlinks=False):
                    yield path

    return walk(directory, "")


def _some(names: list[str]) -> str:
    """The first few names, and how many there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
