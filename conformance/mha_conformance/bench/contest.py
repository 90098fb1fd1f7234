"""Runs a contest: every competitor is judged, then they take turns against the clock, then they are judged again."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from mha_conformance.bench import child, gemm
from mha_conformance.bench.competitor import Competitor
from mha_conformance.bench.record import Contest, Measurement, Status
from mha_conformance.bench.workload import Heads, Truth, Workload
from mha_conformance.run.spawned import Spawned
from mha_spec.numerics import PROFILES, TYPES, error_ratio

TIMEOUT = 600.0
"""Seconds for one answer of a competitor."""


def contest(
    workload: Workload,
    competitors: Sequence[Competitor],
    pairs: Sequence[tuple[str, str]],
    *,
    rounds: int,
    seconds: float,
    size: int = gemm.SIZE,
    progress: Callable[[str], None] = lambda doing: None,
) -> Contest:
    """One workload. ``seconds`` is how long a competitor's turn lasts at least, ``size`` that of the GEMM that measures the machine."""

    truths: dict[tuple[Workload, str], Truth] = {}
    lanes = []
    for competitor in competitors:
        own = competitor.workload or workload
        key = (own, competitor.profile(own.dtype))
        if key not in truths:
            truths[key] = own.truth(key[1])
        lanes.append(_Lane(competitor, own, truths[key]))
    machine = Spawned(gemm.serve, workload.dtype, size, workload.d if isinstance(workload, Heads) else 0)
    rates = []
    try:
        for lane in lanes:
            progress(f"{lane.found.name} is judged and weighed")
            lane.open()
            lane.weigh()
        for turn in range(rounds if any(lane.running for lane in lanes) else 0):
            progress(f"round {turn + 1} of {rounds}")
            kind, rate = machine.ask(None, TIMEOUT)
            if kind != "rate":
                raise RuntimeError(f"the GEMM that measures the machine: {rate}")
            rates.append(rate)
            first = turn % len(lanes)  # nobody always follows the same neighbour
            for lane in (*lanes[first:], *lanes[:first]):
                lane.time(seconds)
        for lane in lanes:
            lane.judge_again()
    finally:
        machine.close()
        for lane in lanes:
            lane.close()
    found = tuple(lane.found for lane in lanes)
    return Contest(workload.label, workload.flops, tuple(rates), found, tuple(pairs), workload.n)


class _Lane:
    """A competitor on its way through the contest. ``found`` is what is known of it so far."""

    def __init__(self, competitor: Competitor, workload: Workload, truth: Truth) -> None:
        self.competitor, self.workload, self.truth = competitor, workload, truth
        self.found = Measurement(competitor.name, "timed")
        self._process: Spawned | None = None

    @property
    def running(self) -> bool:
        return self.found.status == "timed"

    def open(self) -> None:
        """Start the process and judge its first call: whoever is wrong never meets the clock."""
        if missing := [module for module in self.competitor.needs if find_spec(module) is None]:
            self.found = replace(self.found, status="not installed", reason=f"needs {', '.join(missing)}")
            return
        self._process = Spawned(child.serve, self.competitor, self.workload)
        kind, about = self._process.receive(TIMEOUT)
        if kind != "opened":
            self._stop(kind, about)
            return
        self.found = replace(self.found, libraries=about["libraries"], settings=about["settings"])
        if (reply := self._ask("call", "called")) is not None:
            self._judge(reply, "before the clock started")

    def weigh(self) -> None:
        if not self.running:
            return
        scales = Spawned(child.weigh, self.competitor, self.workload)
        try:
            kind, value = scales.receive(TIMEOUT)
        finally:
            scales.close()
        if kind == "weighed":
            self.found = replace(self.found, peak_bytes=value)
        else:
            self._stop(kind, value)

    def time(self, seconds: float) -> None:
        if self.running and (reply := self._ask("time", "timed", seconds)) is not None:
            found = self.found
            self.found = replace(
                found, seconds=(*found.seconds, reply["seconds"]), calls=(*found.calls, reply["calls"])
            )  # fmt: skip

    def judge_again(self) -> None:
        if self.running and (reply := self._ask("call", "called")) is not None:
            self._judge(reply, "after the clock stopped")

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    def _ask(self, request: str, wanted: str, seconds: float | None = None) -> Any:
        assert self._process is not None, "open() comes first"
        kind, value = self._process.ask((request, seconds), TIMEOUT)
        if kind == wanted:
            return value
        self._stop(kind, value)
        return None

    def _judge(self, reply: dict[str, Any], when: str) -> None:
        got, (truth, bound) = reply["rows"], self.truth
        if got.shape != truth.shape or got.dtype.name != self.workload.dtype:
            wrong = f"{got.dtype.name} of shape {got.shape} in the judged rows, expected {self.workload.dtype} of {truth.shape}"
            error = np.inf
        else:
            io = PROFILES[self.competitor.profile(self.workload.dtype)].output
            error = float(np.max(error_ratio(got, truth, bound, TYPES[io].largest), initial=0.0))
            wrong = f"error/bound is {error:.3g} (MHA-NUM-6)" if error > 1 else ""
            wrong = wrong or ("" if reply["finite"] else "a row that is not judged holds NaN or an infinity")
        self.found = replace(self.found, error=(*self.found.error, error))
        if wrong:
            self.found = replace(self.found, status="wrong", reason=f"{when}: {wrong}")

    def _stop(self, kind: str, value: Any) -> None:
        """It is out; a traceback keeps its first line, which names the error."""
        reason = str(value).splitlines()[0]
        status: Status = "not installed" if kind == "unavailable" else "failed"
        self.found = replace(self.found, status=status, reason=reason if kind == "unavailable" else f"{kind}: {reason}")
        self.close()
