"""The main job: every case that is claimed, on an implementation in a process of its own, to a report."""

import datetime
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from mha_conformance.cases import Case, Level, catalogue
from mha_conformance.judge.alone import alone
from mha_conformance.judge.around import around
from mha_conformance.judge.blame import blamed
from mha_conformance.judge.judge import judge, verdict
from mha_conformance.judge.needed import needed
from mha_conformance.judge.verdict import FAILING, JUDGED, Status, Verdict
from mha_conformance.run import undeclared, xfail
from mha_conformance.run.environment import package_version
from mha_conformance.run.fit import not_judged
from mha_conformance.run.implementation import Target
from mha_conformance.run.results import Report
from mha_conformance.run.shrunk import shrunk
from mha_conformance.run.worker import About, Worker
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

    @property
    def only(self) -> str:
        """What alone is asked, in words; empty where it is all of the level."""
        named = self.cases or self.clauses
        if len(named) > 3:
            return f"{len(named)} {'cases' if self.cases else 'clauses'}"
        return f"{'the case ' if self.cases else ''}{' and '.join(named)}"

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
            verdicts = xfail.strictly(verdicts, about.declared.xfail)
        whole = not (selection.cases or selection.clauses or selection.first)
        working = undeclared.features(crew[0], about) if whole else ()
        blame = blamed(verdicts, load())
        if len(chosen) > 1:
            blame = alone(blame, lambda case: judged_alone(case, target, timeout))
        blame = around(blame, lambda case: _verdict_by_id(case, crew[0], about, loud=False))
        smallest = {v.case: found for v in blame if (found := shrunk(v, crew[0], about)) is not None}
        blame = needed(blame, {case: found.requests for case, found in smallest.items()})
    finally:
        for worker in crew:
            worker.close()
    if not any(v.status in (*JUDGED, "ERROR") for v in verdicts):
        reasons = [reason for reason, _ in Counter(v.reason for v in verdicts).most_common(3)]
        raise CannotRun(f"no case could be judged: {'; '.join(reasons)}")
    provenance = {
        **machine(),
        "libraries": about.libraries,
        "settings": about.settings,
        "kernels": dict(Counter(v.kernel for v in verdicts if v.kernel).most_common()),
        "seconds": round(time.monotonic() - started, 1),
        "level": selection.level,
        "measured on": about.declared.measured_on,
        "installed": about.declared.version,
    }
    return Report(
        target, about.claims, about.declared, verdicts, tuple(blame), provenance,
        inferred=about.inferred, undeclared=working, smallest=smallest, only=selection.only,
    )  # fmt: skip


def judged_alone(case_id: str, target: Target, timeout: float, loud: bool = True) -> Verdict:
    """The verdict on one case in a process that has run no other; with zeros around its arrays where it is not ``loud``."""
    worker = Worker(target, timeout)
    try:
        about = open_crew([worker])
        return _verdict_by_id(case_id, worker, about, loud)
    finally:
        worker.close()


def _verdict_by_id(case_id: str, worker: Worker, about: About, loud: bool) -> Verdict:
    return verdict_on(next(case for case in catalogue() if case.id == case_id), worker, about, loud)


def open_crew(crew: list[Worker]) -> About:
    """What the implementation says of itself, from the first of its processes. Raises ``CannotRun``."""
    with ThreadPoolExecutor(len(crew)) as pool:
        opened = list(pool.map(lambda worker: worker.open(), crew))
    for good, value in opened:
        if not good:
            raise CannotRun(f"{crew[0].target.name} could not be opened: {value}")
    return opened[0][1]  # type: ignore[no-any-return]


def _judged(
    crew: list[Worker], chosen: list[Case], about: About, first: bool, progress: Callable[[int, int], None] | None
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


def verdict_on(case: Case, worker: Worker, about: About, loud: bool = True) -> Verdict:
    """The verdict on one case, as every door of the suite gives it."""
    return xfail.applied(_verdict_on(case, worker, about, loud), about.declared.xfail)


def _verdict_on(case: Case, worker: Worker, about: About, loud: bool) -> Verdict:
    if why := not_judged(case, about):
        return verdict(case, "NOT_SUPPORTED", why)
    kind, value = worker.answer(case, loud)
    if kind == "replies":
        return judge(case, value, about.claims)
    status: Status = {"crash": "CRASH", "timeout": "TIMEOUT"}.get(kind, "ERROR")  # type: ignore[assignment]
    return verdict(case, status, str(value), float("inf") if status != "ERROR" else None)


def machine() -> dict[str, Any]:
    """Where and with what a report is made (MHA-CONF-10)."""
    return {
        "spec": SPEC_VERSION, "suite": package_version(), "constants": constants_hash(), "python": platform.python_version(),
        "platform": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
