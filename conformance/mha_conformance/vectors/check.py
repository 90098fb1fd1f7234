"""``mha vectors check``: the outputs that lie in a directory, judged as the replies of a callable are."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mha_conformance.cases import Case
from mha_conformance.judge.blame import blamed
from mha_conformance.judge.judge import judge, verdict
from mha_conformance.judge.reply import Reply
from mha_conformance.judge.verdict import JUDGED, Verdict
from mha_conformance.run import xfail
from mha_conformance.run.conform import CannotRun, Selection, machine
from mha_conformance.run.declaration import read
from mha_conformance.run.environment import libraries
from mha_conformance.run.fit import not_judged
from mha_conformance.run.implementation import Target
from mha_conformance.run.results import Report
from mha_conformance.run.sequences import TARGETS
from mha_conformance.run.worker import About
from mha_conformance.vectors.arrays import Unreadable, decoded
from mha_conformance.vectors.coverage import folder, why_not
from mha_conformance.vectors.directory import verified
from mha_core import Claims
from mha_spec.clauses import load


def check(target: Target, cases: tuple[str, ...] = (), progress: Callable[[list[Case]], Iterable[Case]] = iter) -> Report:
    """Judge the outputs in ``target.vectors``. Raises ``CannotRun`` where the directory is not sound, or holds no output."""
    started = time.monotonic()
    directory = Path(str(target.vectors))
    manifest, entries = verified(directory, progress)
    chosen_by = Selection(manifest["level"], cases=cases)
    chosen = chosen_by.choose()
    if absent := [case.id for case in chosen if not case.wanted_at(manifest["level"])]:
        raise CannotRun(f"{directory} was written for level {manifest['level']}, which leaves out {', '.join(absent)}")
    there = {case: [path for path in _outputs(entry) if (directory / path).exists()] for case, entry in entries.items()}
    if not any(there.values()):
        raise CannotRun(f"{directory} holds no outputs; each call takes the files that its entry lists under outputs")
    about = _about(target, manifest, entries, there)
    verdicts = tuple(xfail.applied(_verdict(case, directory, entries, there, about), about.declared.xfail) for case in chosen)
    if not cases:
        verdicts = xfail.strictly(verdicts, about.declared.xfail)
    if not any(v.status in JUDGED for v in verdicts):
        raise CannotRun(f"no case could be judged: {'; '.join(dict.fromkeys(v.reason for v in verdicts))[:400]}")
    provenance = {
        **machine(), "libraries": about.libraries, "seconds": round(time.monotonic() - started, 1), "level": manifest["level"],
        "vectors": target.vectors, "measured on": about.declared.measured_on, "installed": about.declared.version,
    }  # fmt: skip
    return Report(
        target, about.claims, about.declared, verdicts, tuple(blamed(verdicts, load())), provenance, only=chosen_by.only
    )


def _outputs(entry: dict[str, Any]) -> list[str]:
    return [one["file"] for call in entry["calls"] for one in call["outputs"].values()]


def _about(target: Target, manifest: dict[str, Any], entries: dict[str, dict[str, Any]], there: dict[str, list[str]]) -> About:
    """What the outputs and the claims file say together, as a live implementation says it of itself.

    Without a file, an output that is there claims the features of its case, and neither class strict nor any determinism.
    """
    dtype, profile = manifest["dtype"], manifest["profile"]
    answered = [entry for case, entry in entries.items() if there[case]]
    inferred = Claims(
        arrays=None, dtypes=(dtype,), features=frozenset(feature for entry in answered for feature in entry["features"]),
        profiles={dtype: profile}, strict=False, determinism="none",
    )  # fmt: skip
    try:
        declared = read(target.claims)
        claims = declared.over(inferred)
    except Exception as error:  # a claims file may be wrong in any way
        if target.claims is None:
            raise
        raise CannotRun(f"the claims file {target.claims} cannot be used: {error}") from error
    if claims.profiles.get(dtype) != profile:
        raise CannotRun(f"the vectors are for {profile} in {dtype}, but {target.claims} claims {dict(claims.profiles)}")
    functions = {call["target"] for entry in answered for call in entry["calls"]} | ({"layer"} & claims.features)
    functions |= set(TARGETS)  # of which no file can tell: ``why_not`` says so
    return About(
        name=target.name, claims=replace(claims, dtypes=(dtype,), profiles={dtype: profile}), declared=declared, inferred=False,
        doors=False, functions=frozenset(functions), libraries=libraries(), settings={}, pid=os.getpid(),
    )  # fmt: skip


def _verdict(
    case: Case, directory: Path, entries: dict[str, dict[str, Any]], there: dict[str, list[str]], about: About
) -> Verdict:
    if case.dtype not in about.claims.dtypes:
        return verdict(case, "NOT_SUPPORTED", f"{case.dtype} has vectors of its own")
    if why := not_judged(case, about):
        return verdict(case, "NOT_SUPPORTED", why)
    if why := why_not(case):
        return verdict(case, "NOT_EXPRESSIBLE", why)
    entry = entries[case.id]
    if not there[case.id]:
        return verdict(case, "NOT_RUN", "claimed, but its output files are missing")
    if missing := sorted(set(_outputs(entry)) - set(there[case.id])):
        some = ", ".join(path.removeprefix(f"{folder(case.id)}/") for path in missing)
        return verdict(case, "NOT_RUN", f"claimed, but some of its output files are missing: {some}")
    try:
        replies = [_reply(directory, call) for call in entry["calls"]]
    except Unreadable as error:
        return verdict(case, "FAIL", f"an output file cannot be read: {error}", float("inf"))
    return judge(case, replies, about.claims)


def _reply(directory: Path, call: dict[str, Any]) -> Reply:
    """The output files of a call as the reply of a callable."""
    found = {name: decoded(directory / one["file"], one["dtype"], tuple(one["shape"])) for name, one in call["outputs"].items()}
    return Reply("ok", found["output"], found.get("weights"), found.get("lse"))
