"""A process of its own for the implementation under test: a crash, a hang or a flood of memory costs its case, not the run."""

import os
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeAlias

from mha_conformance.cases.case import Case
from mha_conformance.judge.reply import Reply
from mha_conformance.run.declaration import Declaration
from mha_conformance.run.environment import libraries, settings
from mha_conformance.run.implementation import Implementation, Target, open_target
from mha_conformance.run.perform import Asked, perform
from mha_conformance.run.spawned import Spawned
from mha_core import Claims

Answer: TypeAlias = tuple[Literal["replies", "crash", "timeout", "error"], Any]


@dataclass(frozen=True, slots=True)
class About:
    """What an implementation says of itself, sent back from its process: everything but its functions."""

    name: str
    claims: Claims
    declared: Declaration
    inferred: bool
    doors: bool
    functions: frozenset[str]
    """Of attention, layer, merge, vjp, layer vjp and explain, those that it has."""
    libraries: dict[str, str]
    settings: dict[str, Any]
    pid: int


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

    def answer(self, case: Case, loud: bool = True) -> Answer:
        """The replies to a case, or how the process ended instead. One of the catalogue travels by its id.

        Where it is not ``loud``, what surrounds its arrays is 0 and not NaN.
        """
        assert self._process is not None, "open() comes first"
        asked = case.id if case.lasting and loud else Asked.by(case, loud)
        kind, value = self._process.ask(asked, self.timeout)
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
    pipe.send(("opened", _about(implementation)))
    cases = {case.id: case for case in catalogue()}
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            return
        try:
            replies: list[Reply] = perform(implementation, Asked.by(cases[asked]) if isinstance(asked, str) else asked)
            pipe.send(("replies", replies))
        except Exception:
            pipe.send(("error", traceback.format_exc()))


def _about(implementation: Implementation) -> About:
    optional = {
        "layer": implementation.layer,
        "merge": implementation.merge,
        "vjp": implementation.vjp,
        "layer vjp": implementation.layer_vjp,
        "cache": implementation.cache,
        "varlen": implementation.varlen,
        "statistics": implementation.statistics,
        "explain": implementation.explain,
    }
    return About(
        name=implementation.name,
        claims=implementation.claims,
        declared=implementation.declared,
        inferred=implementation.inferred,
        doors=implementation.doors,
        functions=frozenset({"attention", *(name for name, function in optional.items() if function is not None)}),
        libraries=libraries(),
        settings=settings(),
        pid=os.getpid(),
    )
