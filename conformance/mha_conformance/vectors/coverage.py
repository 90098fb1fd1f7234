"""Which cases fit into files, and where each one lies."""

import hashlib
import re

from mha_conformance.cases import Case, Request
from mha_conformance.run.perform import CONCURRENT
from mha_conformance.run.sequences import TARGETS

LIVE = "needs a live callable: "
"""How the reason of a case begins that files cannot hold."""


def why_not(case: Case) -> str:
    """Why no file can answer this case; empty where files can."""
    if case.rule == "refused":
        return f"{LIVE}a refusal is no file"
    if case.rule == "facts":
        return f"{LIVE}library, memory and state are facts about a call"
    if any(request.target in ("vjp", "layer vjp") for request in case.make()):
        return f"{LIVE}gradients have no files yet"
    if case.rule == "memory":
        return f"{LIVE}how much memory a call holds is a fact about it"
    if case.clause == CONCURRENT:
        return f"{LIVE}calls at the same time"
    if "dropout" in case.features:
        return f"{LIVE}dropout has no form in files yet"
    if any(request.target in TARGETS for request in case.make()):
        return f"{LIVE}a cache is filled in many calls, and packs and statistics are functions of this project"
    if any(request.layout != "contiguous" for request in case.make()):
        return f"{LIVE}a file has no strides"
    if any("int" in kind and kind != "int64" for request in case.make() for kind in request.dtypes.values()):
        return f"{LIVE}files hold integers as int64"
    if any(abs(i) > 2**53 for request in case.make() for i in _integers(request)):
        return f"{LIVE}integers beyond 2^53, which not every language holds"
    return ""


def _integers(request: Request) -> list[int]:
    """Every integer of the options, in arrays, windows and alone."""
    found = [int(i) for x in request.arrays.values() if x.dtype.kind in "iu" for i in x.flat]
    for value in request.options.values():
        found += [side for side in (value if isinstance(value, tuple) else (value,)) if isinstance(side, int)]
    return found


def folder(case_id: str) -> str:
    """The folder of a case below the directory: its id in lower-case letters, digits and hyphens, with a hash that keeps it unique.

    Such a name is legal in every file system, also where capitals do not count, and stays the same as long as the id does.
    """
    words = re.sub(r"[^a-z0-9]+", "-", case_id.lower()).strip("-")[:70].strip("-")
    return f"cases/{words}-{hashlib.sha256(case_id.encode()).hexdigest()[:8]}"
