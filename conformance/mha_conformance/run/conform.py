"""The main job: every case that is claimed, on an implementation in a process of its own, to a report."""

import datetime
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from queue import SimpleQueue
from typing import Any

import numpy as np

from mha_conformance.cases import Case, Level, Request, catalogue
from mha_conformance.judge.alone import alone
from mha_conformance.judge.blame import blamed
from mha_conformance.judge.judge import judge, unclaimed, verdict
from mha_conformance.judge.verdict import FAILING, JUDGED, Status, Verdict
from mha_conformance.run import xfail
from mha_conformance.run.implementation import Target
from mha_conformance.run.worker import Worker
from mha_core import Claims
from mha_spec import SPEC_VERSION
from mha_spec.clauses import load
from mha_spec.numerics import constants_hash


class CannotRun(Exception):
    """The suite could not run: exit code 2, with what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which cases: a level, and from it only these clauses or ids; ``first`` stops at the first failure of each worker."""

    level: Level = "core"
    clauses: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    first: bool = False

    def choose(self) -> list[Case]:
        """The chosen cases. Raises ``CannotRun`` for a name that matches nothing (MHA-CONF-8)."""
        found = list(catalogue())
        for wanted, names in ((self.clauses, {case.clause for case in found}), (self.cases, {case.id for case in found})):
            if unknown := [name for name in wanted if name not in names]:
                raise CannotRun(f"no case matches {', '.join(unknown)}; `mha clauses` lists the clauses")
        if self.cases:
            return [case for case in found if case.id in self.cases]
        chosen = [case for case in found if case.wanted_at(self.level)]
        return [case for case in chosen if not self.clauses or case.clause in self.clauses]


@dataclass(frozen=True, slots=True)
class Report:
    """All that a run found; ``as_json`` in ``mha_conformance.report`` writes it down."""

    target: Target
    claims: Claims
    verdicts: tuple[Verdict, ...]
    blame: tuple[Verdict, ...]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def judged(self) -> int:
        return sum(v.status in JUDGED for v in self.verdicts)

    @property
    def conforms(self) -> bool:
        return self.judged > 0 and not any(v.status in FAILING for v in self.verdicts)

    @property
    def satisfied(self) -> dict[str, str | None]:
        """For each dtype the strictest profile whose bound every judged value keeps; None where none is kept.

        Refusals, poison, class strict and determinism have verdicts of their own, and say nothing of a profile.
        """
        kept: dict[str, str | None] = {}
        for dtype in self.claims.dtypes:
            mine = [
                v for v in self.verdicts
                if v.dtype == dtype and v.group in ("semantics", "numerics") and (v.profiles or v.status in FAILING)
            ]  # fmt: skip
            common = [p for p in (mine[0].profiles if mine else ()) if all(p in v.profiles for v in mine)]
            kept[dtype] = common[0] if common else None
        return kept

    @property
    def sentence(self) -> str:
        """The verdict (MHA-CONF-7)."""
        if not self.judged:
            return f"not judged by MHA {SPEC_VERSION}: no case could be judged."
        if self.blame:
            others = f" and {len(self.blame) - 1} more" if len(self.blame) > 1 else ""
            return f"does not conform to MHA {SPEC_VERSION}: {self.blame[0].clause}{others}."
        profiles = ", ".join(dict.fromkeys(self.claims.profiles[dtype] for dtype in self.claims.dtypes))
        asked = ", ".join(("core", *sorted(self.claims.features - {"vjp", "dropout"})))
        every = {feature for case in catalogue() for feature in case.features}
        left = ", ".join(sorted(every - self.claims.features)) or "nothing"
        strict = "; class strict" if self.claims.strict else ""
        known = ", ".join(dict.fromkeys(v.clause for v in self.verdicts if v.status == "XFAIL"))
        return (
            f"conforms to MHA {SPEC_VERSION}, profile {profiles}, for {asked}{strict}; determinism {self.claims.determinism}; "
            f"not claimed: {left}{f'; listed as failing: {known}' if known else ''}."
        )


def conform(
    target: Target,
    selection: Selection,
    *,
    workers: int = 1,
    timeout: float = 60.0,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Judge ``target`` by the selected cases. Raises ``CannotRun`` where nothing can be judged."""
    chosen = selection.choose()
    started = time.monotonic()
    crew = [Worker(target, timeout) for _ in range(max(1, workers))]
    try:
        about = open_crew(crew)
        verdicts = tuple(_judged(crew, chosen, about, selection.first, progress))
        if not selection.cases:
            verdicts = xfail.strictly(verdicts, about["expected_failures"])
    finally:
        for worker in crew:
            worker.close()
    if not any(v.status in (*JUDGED, "ERROR") for v in verdicts):
        reasons = [reason for reason, _ in Counter(v.reason for v in verdicts).most_common(3)]
        raise CannotRun(f"no case could be judged: {'; '.join(reasons)}")
    blame = blamed(verdicts, load())
    if len(chosen) > 1:
        blame = alone(blame, lambda case: judged_alone(case, target, timeout))
    provenance = {
        **_machine(),
        "libraries": about["libraries"],
        "settings": about["settings"],
        "seconds": round(time.monotonic() - started, 1),
        "level": selection.level,
        "measured on": about["measured_on"],
        "installed": about["version"],
    }
    return Report(target, about["claims"], verdicts, tuple(blame), provenance)


def judged_alone(case_id: str, target: Target, timeout: float) -> Verdict:
    """The verdict on one case in a process that has run no other."""
    worker = Worker(target, timeout)
    try:
        about = open_crew([worker])
        return next(verdict_on(case, worker, about) for case in catalogue() if case.id == case_id)
    finally:
        worker.close()


def open_crew(crew: list[Worker]) -> dict[str, Any]:
    """What the implementation says of itself, from the first of its processes. Raises ``CannotRun``."""
    with ThreadPoolExecutor(len(crew)) as pool:
        opened = list(pool.map(lambda worker: worker.open(), crew))
    for good, value in opened:
        if not good:
            raise CannotRun(f"{crew[0].target.name} could not be opened: {value}")
    return opened[0][1]  # type: ignore[no-any-return]


def _judged(
    crew: list[Worker], chosen: list[Case], about: dict[str, Any], first: bool, progress: Callable[[int, int], None] | None
) -> Iterable[Verdict]:
    idle: SimpleQueue[Worker] = SimpleQueue()
    for worker in crew:
        idle.put(worker)
    stopped = done = 0

    def one(case: Case) -> Verdict | None:
        nonlocal stopped, done
        if stopped:
            return None
        worker = idle.get()
        try:
            found = verdict_on(case, worker, about)
        finally:
            idle.put(worker)
        stopped |= first and found.status in FAILING
        done += 1
        if progress is not None:
            progress(done, len(chosen))
        return found

    with ThreadPoolExecutor(len(crew)) as pool:
        return [found for found in pool.map(one, chosen) if found is not None]


def verdict_on(case: Case, worker: Worker, about: dict[str, Any]) -> Verdict:
    """The verdict on one case, as every door of the suite gives it."""
    return xfail.applied(_verdict_on(case, worker, about), about["expected_failures"])


def _verdict_on(case: Case, worker: Worker, about: dict[str, Any]) -> Verdict:
    claims: Claims = about["claims"]
    if why := unclaimed(case, claims, about["excludes"]) or _absent(case, about) or _misaligned(case, about):
        return verdict(case, "NOT_SUPPORTED", why)
    kind, value = worker.answer(case.id)
    if kind == "replies":
        return judge(case, value, claims)
    status: Status = {"crash": "CRASH", "timeout": "TIMEOUT"}.get(kind, "ERROR")  # type: ignore[assignment]
    return verdict(case, status, str(value), float("inf") if status != "ERROR" else None)


def _absent(case: Case, about: dict[str, Any]) -> str:
    """The layer and the merge are functions of their own; a callable may have neither."""
    for target in {request.target for request in case.make()} - {"attention"}:
        if not about[target]:
            return f"there is no function for {target}"
    if case.rule == "refused" and not about["doors"] and case.clause in NAMED_BY_OUR_DOOR:
        return "the names and forms of these arguments are those of this project's door"
    if case.rule == "refused" and frozenset({"mask", "bias"}) in about["excludes"] and any(map(_mistaken, case.make())):
        return "mask and bias are one argument, which its dtype tells apart"
    if about["heads_mix"] and any(np.isnan(x).any() for request in case.make() for x in request.operands):
        return "its heads are mixed by products over all channels, which carry a NaN everywhere"
    return ""


def _mistaken(request: Request) -> bool:
    """A mask of floats, or a boolean bias: each is the other one."""
    bias = request.arrays.get("bias")
    return request.dtypes.get("mask", "").startswith("float") or (bias is not None and bias.dtype == bool)


NAMED_BY_OUR_DOOR = (
    "MHA-VAL-11",
    "MHA-VAL-12",
    "MHA-VAL-13",
    "MHA-VAL-14",
    "MHA-VAL-15",
    "MHA-VAL-16",
    "MHA-VAL-17",
    "MHA-VAL-18",
)


def _misaligned(case: Case, about: dict[str, Any]) -> str:
    """A system without ``query_offset`` gets the cases whose offset is where its own causal mask begins (MHA-CONF-9)."""
    native = about["native_offset"]
    if native is None or not case.features & {"causal", "window"}:
        return ""
    for request in case.make():
        n, m = request.operands[0].shape[-2], request.operands[1].shape[-2]
        begins = 0 if native == "top-left" else m - n
        if "query_offset" in request.arrays or request.options.get("query_offset", 0) != begins:
            return f"its causal mask begins {native}"
    return ""


def _machine() -> dict[str, Any]:
    return {
        "spec": SPEC_VERSION, "suite": version("mha-core"), "constants": constants_hash(), "python": platform.python_version(),
        "platform": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
