"""A process of its own for the implementation under test: a crash, a hang or a flood of memory costs its case, not the run."""

import os
import traceback
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeAlias

from mha_conformance.run.environment import libraries, settings
from mha_conformance.run.implementation import Target, open_target
from mha_conformance.run.perform import Reply, perform
from mha_conformance.run.spawned import Spawned

Answer: TypeAlias = tuple[Literal["replies", "crash", "timeout", "error"], Any]


class Worker:
    """Opens the target in a spawned process and answers cases by id. ``open`` must be called first, and again after a crash."""

    def __init__(self, target: Target, timeout: float) -> None:
        self.target, self.timeout = target, timeout
        self._process: Spawned | None = None

    def open(self) -> tuple[bool, Any]:
        """(True, what the implementation says of itself) or (False, why it could not be opened)."""
        self._process = Spawned(_serve, self.target)
        kind, value = self._process.receive(self.timeout + 60)
        return kind == "opened", value

    def answer(self, case_id: str) -> Answer:
        """The replies to a case, or how the process ended instead."""
        assert self._process is not None, "open() comes first"
        kind, value = self._process.ask(case_id, self.timeout)
        if kind == "unopened":
            kind, value = "crash", f"it could not be opened again: {value}"
        if kind in ("crash", "timeout"):
            self.close()
            self.open()
        return kind, value

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


def _serve(target: Target, pipe: Connection) -> None:
    """The other side: open, then answer until the pipe closes."""
    from mha_conformance.cases import catalogue

    os.dup2(2, 1)  # what the implementation prints is no part of a report on standard output
    try:
        implementation = open_target(target)
    except BaseException as error:
        pipe.send(("unopened", f"{type(error).__name__}: {error}"))
        return
    about = {
        "name": implementation.name,
        "claims": implementation.claims,
        "excludes": implementation.excludes,
        "native_offset": implementation.native_offset,
        "expected_failures": implementation.expected_failures,
        "measured_on": implementation.measured_on,
        "version": implementation.version,
        "heads_mix": implementation.heads_mix,
        "doors": implementation.doors,
        "arrays": implementation.claims.arrays,
        "layer": implementation.layer is not None,
        "merge": implementation.merge is not None,
        "libraries": libraries(),
        "settings": settings(),
        "pid": os.getpid(),
    }
    pipe.send(("opened", about))
    cases = {case.id: case for case in catalogue()}
    while True:
        try:
            case_id = pipe.recv()
        except EOFError:
            return
        try:
            replies: list[Reply] = perform(implementation, cases[case_id])
            pipe.send(("replies", replies))
        except Exception:
            pipe.send(("error", traceback.format_exc()))
