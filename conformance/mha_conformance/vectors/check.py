"""``mha vectors check``: the outputs that lie in a directory, judged as the replies of a callable are."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mha_conformance.cases import Case
from mha_conformance.judge.blame import blamed
from mha_conformance.judge.judge import judge, verdict
from mha_conformance.judge.verdict import JUDGED, Verdict
from mha_conformance.run import xfail
from mha_conformance.run.conform import CannotRun, Report, Selection, left_out, machine
from mha_conformance.run.environment import libraries
from mha_conformance.run.implementation import Implementation, Target, claims_file, declare
from mha_conformance.run.perform import Reply
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
    chosen = Selection(manifest["level"], cases=cases).choose()
    if absent := [case.id for case in chosen if not case.wanted_at(manifest["level"])]:
        raise CannotRun(f"{directory} was written for level {manifest['level']}, which leaves out {', '.join(absent)}")
    there = {case: [path for path in _outputs(entry) if (directory / path).exists()] for case, entry in entries.items()}
    if not any(there.values()):
        raise CannotRun(f"{directory} holds no outputs; each call takes the files that its entry lists under outputs")
    about = _about(target, manifest, entries, there)
    verdicts = tuple(
        xfail.applied(_verdict(case, directory, entries, there, about), about["expected_failures"]) for case in chosen
    )
    if not cases:
        verdicts = xfail.strictly(verdicts, about["expected_failures"])
    if not any(v.status in JUDGED for v in verdicts):
        raise CannotRun(f"no case could be judged: {'; '.join(dict.fromkeys(v.reason for v in verdicts))[:400]}")
    provenance = {
        **machine(), "libraries": libraries(), "seconds": round(time.monotonic() - started, 1), "level": manifest["level"],
        "vectors": target.vectors, "measured on": about["measured_on"], "installed": about["version"],
    }  # fmt: skip
    return Report(target, about["claims"], verdicts, tuple(blamed(verdicts, load())), provenance)


def _outputs(entry: dict[str, Any]) -> list[str]:
    return [one["file"] for call in entry["calls"] for one in call["outputs"].values()]


def _about(
    target: Target, manifest: dict[str, Any], entries: dict[str, dict[str, Any]], there: dict[str, list[str]]
) -> dict[str, Any]:
    """What the outputs and the claims file say together, in the words that a live implementation uses of itself.

    Without a file, an output that is there claims the features of its case, and neither class strict nor any determinism.
    """
    dtype, profile = manifest["dtype"], manifest["profile"]
    answered = [entry for case, entry in entries.items() if there[case]]
    features = frozenset(feature for entry in answered for feature in entry["features"])
    targets = {call["target"] for entry in answered for call in entry["calls"]}
    inferred = Implementation(
        name=target.name, attention=_nothing, layer=None, merge=None, convert=_nothing,
        claims=Claims(arrays=None, dtypes=(dtype,), features=features, profiles={dtype: profile}, strict=False, determinism="none"),
    )  # fmt: skip
    try:
        found = declare(inferred, claims_file(target), target)
    except Exception as error:  # a claims file may be wrong in any way
        if target.claims is None:
            raise
        raise CannotRun(f"the claims file {target.claims} cannot be used: {error}") from error
    if found.claims.profiles.get(dtype) != profile:
        raise CannotRun(f"the vectors are for {profile} in {dtype}, but {target.claims} claims {dict(found.claims.profiles)}")
    return {
        "claims": replace(found.claims, dtypes=(dtype,), profiles={dtype: profile}), "excludes": found.excludes,
        "native_offset": found.native_offset, "heads_mix": found.heads_mix, "doors": False, "attention": True,
        "layer": "layer" in found.claims.features, "merge": "merge" in targets, "expected_failures": found.expected_failures,
        "measured_on": found.measured_on, "version": found.version,
    }  # fmt: skip


def _nothing(*_: Any) -> Any:
    raise AssertionError("files are judged, nothing is called")


def _verdict(
    case: Case, directory: Path, entries: dict[str, dict[str, Any]], there: dict[str, list[str]], about: dict[str, Any]
) -> Verdict:
    if case.dtype not in about["claims"].dtypes:
        return verdict(case, "NOT_SUPPORTED", f"{case.dtype} has vectors of its own")
    if why := left_out(case, about):
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
    return judge(case, replies, about["claims"])


def _reply(directory: Path, call: dict[str, Any]) -> Reply:
    """The output files of a call as the reply of a callable."""
    found = {name: decoded(directory / one["file"], one["dtype"], tuple(one["shape"])) for name, one in call["outputs"].items()}
    return Reply("ok", found["output"], found.get("weights"), found.get("lse"))
