"""The process of one competitor: a first call, whose memory is measured, then calls against the clock, then a last one.

Thread pools of different libraries disturb each other, and memory can only be seen per process: so each competitor has its own.
"""

import os
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from mha_conformance.bench.competitor import Competitor
from mha_conformance.bench.memory import rise
from mha_conformance.bench.workload import Workload
from mha_conformance.run.environment import libraries, settings
from mha_core import BackendUnavailable


def serve(competitor: Competitor, workload: Workload, pipe: Connection) -> None:
    """Open, then answer ``("call", None)`` and ``("time", seconds)`` until the pipe closes."""
    os.dup2(2, 1)  # what a library prints is no part of a table on standard output
    try:
        competitor.make(workload.small())()  # starts threads and loads what is loaded on first use
        call = competitor.make(workload)
        pipe.send(("opened", {"libraries": libraries(), "settings": settings()}))
        while True:
            request, seconds = pipe.recv()
            pipe.send(_timed(call, seconds) if request == "time" else _called(call, workload))
    except EOFError:
        return
    except BackendUnavailable as error:
        pipe.send(("unavailable", f"{error.reason}; {error.install}"))
    except Exception as error:
        pipe.send(("error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


def _called(call: Any, workload: Workload) -> tuple[str, Any]:
    output, peak = rise(call)
    whole = np.asarray(output)
    return "called", {
        "rows": whole[..., workload.rows, :] if whole.ndim > 1 and whole.shape[-2] > workload.rows[-1] else whole,
        "finite": bool(np.isfinite(whole).all()),
        "peak_bytes": peak,
    }


def _timed(call: Any, seconds: float) -> tuple[str, Any]:
    """Seconds for one call, the mean over as many calls as fill ``seconds``; at least one."""
    calls, began = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        passed = time.perf_counter() - began
        if passed >= seconds:
            return "timed", {"seconds": passed / calls, "calls": calls}
