"""What was measured, as it was measured, and the few numbers that are derived from it."""

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, TypeAlias

from mha_conformance.bench.gemm import Gemm
from mha_conformance.bench.memory import RESOLUTION
from mha_conformance.bench.noise import reasons

FORMAT = "mha-bench/1"

Status: TypeAlias = Literal["timed", "wrong", "failed", "not installed"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One competitor on one workload. Only ``timed`` has seconds that count; the other states say in ``reason`` why not.

    ``seconds`` are for one call, one number a round, each the mean of ``calls`` calls. ``error`` is the worst error/bound before
    and after the clock, and ``peak_bytes`` what a call holds at most, in a process of its own; None where it is not measured.
    """

    name: str
    status: Status
    reason: str = ""
    seconds: tuple[float, ...] = ()
    calls: tuple[int, ...] = ()
    error: tuple[float, ...] = ()
    peak_bytes: int | None = None
    libraries: dict[str, str] | None = None
    settings: dict[str, Any] | None = None

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median of the rounds."""
        return (max(self.seconds) - min(self.seconds)) / self.median


@dataclass(frozen=True, slots=True)
class Ratio:
    """``of`` over ``to``. ``time`` is the median of the ratios of single rounds, None where noise or a missing run forbids it."""

    of: str
    to: str
    time: float | None
    memory: float | None


@dataclass(frozen=True, slots=True)
class Contest:
    """One workload: its rounds, in which GEMM and every competitor took turns."""

    workload: str
    flops: int
    gemm: tuple[Gemm, ...]
    measurements: tuple[Measurement, ...]
    pairs: tuple[tuple[str, str], ...]
    n: int = 0
    """Its tokens, for a plot."""

    @property
    def noise(self) -> tuple[str, ...]:
        """Why no ratio of times may be printed; empty where it may."""
        return reasons(self.gemm)

    def share(self, measurement: Measurement) -> float | None:
        """The median of FLOPs / seconds / GEMM rate of the same round; a ratio, so None in noise."""
        if self.noise or measurement.status != "timed":
            return None
        return median(self.flops / s / g.all for s, g in zip(measurement.seconds, self.gemm, strict=True))

    def loop_share(self, measurement: Measurement) -> float | None:
        """The same of the bare loop's rate; None also where that was not measured."""
        if self.share(measurement) is None or not all(g.loop for g in self.gemm):
            return None
        return median(self.flops / s / g.loop for s, g in zip(measurement.seconds, self.gemm, strict=True))

    @property
    def ratios(self) -> tuple[Ratio, ...]:
        """Of the pairs whose two sides were both timed. Memory does not depend on who else uses the machine."""
        timed = {m.name: m for m in self.measurements if m.status == "timed"}
        return tuple(self._ratio(timed[of], timed[to]) for of, to in self.pairs if of in timed and to in timed)

    def _ratio(self, of: Measurement, to: Measurement) -> Ratio:
        time = None if self.noise else median(a / b for a, b in zip(of.seconds, to.seconds, strict=True))
        return Ratio(of.name, to.name, time, _over(of.peak_bytes, to.peak_bytes))


def _over(of: int | None, to: int | None) -> float | None:
    """A ratio of memory, where both sides are more than what cannot be told from nothing."""
    if of is None or to is None or min(of, to) < RESOLUTION:
        return None
    return of / to


def machine() -> dict[str, Any]:
    """Where this was measured."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"platform": platform.platform(), "python": platform.python_version(), "cores": cores}


def as_json(contests: Sequence[Contest], code: int) -> dict[str, Any]:
    """Plain values; infinite errors, which JSON has not, become null."""
    return {"format": FORMAT, "machine": machine(), "contests": [_contest(c) for c in contests], "exit_code": int(code)}


def _contest(contest: Contest) -> dict[str, Any]:
    return {
        "workload": contest.workload,
        "n": contest.n,
        "flops": contest.flops,
        "convention": "visible",
        "noise": list(contest.noise),
        "gemm": [{"threads": g.threads, "all": g.all, "one": g.one, "two": g.two, "loop": g.loop} for g in contest.gemm],
        "competitors": [_measurement(contest, m) for m in contest.measurements],
        "ratios": [{"of": r.of, "to": r.to, "time": r.time, "memory": r.memory} for r in contest.ratios],
    }


def _measurement(contest: Contest, m: Measurement) -> dict[str, Any]:
    return {
        "name": m.name,
        "status": m.status,
        "reason": m.reason,
        "seconds": list(m.seconds),
        "calls": list(m.calls),
        "median": m.median if m.seconds else None,
        "spread": m.spread if m.seconds else None,
        "gemm_share": contest.share(m),
        "loop_share": contest.loop_share(m),
        "error_per_bound": [e if math.isfinite(e) else None for e in m.error],
        "peak_bytes": m.peak_bytes,
        "libraries": m.libraries,
        "settings": m.settings,
    }
