"""A process of its own that answers through a pipe, and how it ended when it does not answer."""

import multiprocessing
from collections.abc import Callable
from typing import Any


class Spawned:
    """``serve(*arguments, pipe)`` in a spawned process. What it sends are pairs of a kind and a value.

    To those the kinds ``crash`` and ``timeout`` are added here, with the reason as the value.
    """

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(*arguments, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, request: Any, timeout: float) -> tuple[Any, Any]:
        """Send a request and wait for what comes back."""
        try:
            self._pipe.send(request)
        except OSError:  # it ended between two requests
            return "crash", self._ending()
        return self.receive(timeout)

    def receive(self, timeout: float) -> tuple[Any, Any]:
        try:
            if not self._pipe.poll(timeout):
                return "timeout", f"no answer within {timeout:g} s"
            return self._pipe.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            return "crash", self._ending()

    def close(self) -> None:
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _ending(self) -> str:
        self._process.join(5)
        code = self._process.exitcode
        return (
            f"the process ended with signal {-code}" if code is not None and code < 0 else f"the process ended with code {code}"
        )
