"""Which cases fit into files, and where each one lies."""

import hashlib
import re

from mha_conformance.cases import Case
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
    if case.clause == CONCURRENT:
        return f"{LIVE}calls at the same time"
    if any(request.target in TARGETS for request in case.make()):
        return f"{LIVE}a cache is filled in many calls, and packs and statistics are functions of this project"
    if any(request.layout != "contiguous" for request in case.make()):
        return f"{LIVE}a file has no strides"
    return ""


def folder(case_id: str) -> str:
    """The folder of a case below the directory: its id in lower-case letters, digits and hyphens, with a hash that keeps it unique.

    Such a name is legal in every file system, also where capitals do not count, and stays the same as long as the id does.
    """
    words = re.sub(r"[^a-z0-9]+", "-", case_id.lower()).strip("-")[:70].strip("-")
    return f"cases/{words}-{hashlib.sha256(case_id.encode()).hexdigest()[:8]}"
