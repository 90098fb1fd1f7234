"""The processes of one competitor: one that weighs a call, and one that runs it against the clock.

Thread pools of different libraries disturb each other, and memory is seen per process: so each competitor has its own. What
makes memory plain to see makes allocations slow, so the clock has another process than the scales.
"""

import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from mha_conformance.bench.competitor import Call, Competitor
from mha_conformance.bench.memory import give_back_what_is_freed, rise
from mha_conformance.bench.workload import Workload
from mha_conformance.run.environment import libraries, settings
from mha_core import BackendUnavailable


def weigh(competitor: Competitor, workload: Workload, pipe: Connection) -> None:
    """Send the most bytes that a call holds, or None where that cannot be seen, and end."""
    give_back_what_is_freed()
    with _answers(pipe):
        call = _opened(competitor, workload)
        _, peak = rise(call)
        pipe.send(("weighed", peak))


def serve(competitor: Competitor, workload: Workload, pipe: Connection) -> None:
    """Open, then answer ``("call", None)`` and ``("time", seconds)`` until the pipe closes."""
    with _answers(pipe):
        call = _opened(competitor, workload)
        pipe.send(("opened", {"libraries": libraries(), "settings": settings()}))
        while True:
            request, seconds = pipe.recv()
            pipe.send(_timed(call, seconds) if request == "time" else _called(call, workload))


def _opened(competitor: Competitor, workload: Workload) -> Call:
    competitor.make(workload.small())()  # starts threads and loads what is loaded on first use
    return competitor.make(workload)


@contextmanager
def _answers(pipe: Connection) -> Iterator[None]:
    """Whatever goes wrong is an answer too. What a library prints is no part of a table on standard output."""
    os.dup2(2, 1)
    try:
        yield
    except EOFError:
        return
    except BackendUnavailable as error:
        pipe.send(("unavailable", f"{error.reason}; {error.install}"))
    except Exception as error:
        pipe.send(("error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


def _called(call: Call, workload: Workload) -> tuple[str, Any]:
    """The judged rows; all of an output that has not so many, which is then of the wrong shape."""
    whole = np.asarray(call())
    enough = whole.ndim > 1 and whole.shape[-2] > workload.rows[-1]
    return "called", {"rows": whole[..., workload.rows, :] if enough else whole, "finite": bool(np.isfinite(whole).all())}


def _timed(call: Call, seconds: float) -> tuple[str, Any]:
    """Seconds for one call, the mean over as many calls as fill ``seconds``; at least one."""
    calls, began = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        passed = time.perf_counter() - began
        if passed >= seconds:
            return "timed", {"seconds": passed / calls, "calls": calls}
