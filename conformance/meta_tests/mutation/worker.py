"""Puts the mutants of a session into the files, one after another, and has each faced by its tests in a process of its own.

    python -m mutation.worker SESSION

runs in the copy that is mutated. The tests are run in a fork of a process that has loaded the libraries of others and nothing of
ours, because most mutants die within a tenth of the time that loading takes.
"""

import contextlib
import difflib
import os
import signal
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from cosmic_ray.mutating import use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult

from mutation.selection import PYTEST, SECONDS, stages

LOADED = (
    "numpy",
    "numpy.testing",
    "pytest",
    "mpmath",
    "array_api_compat.numpy",
    "ml_dtypes",
    "jaxtyping",
    "concurrent.futures",
)


def main(session: Path) -> int:
    sys.dont_write_bytecode = True  # a mutant must leave nothing behind
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in LOADED:
        import_module(name)
    with use_db(str(session), WorkDB.Mode.open) as db:
        items = list(db.pending_work_items)
        for done, item in enumerate(items, start=1):
            (mutation,) = item.mutations
            result = faced(mutation)
            db.set_result(item.job_id, result)
            words = (
                f"{done} of {len(items)}: {mutation.module_path.name}, {mutation.operator_name}: {result.test_outcome.value}"
            )
            print(words, file=sys.stderr, flush=True)
    return 0


def faced(mutation: MutationSpec) -> WorkResult:
    """What became of one mutant; ``output`` is what the tests said, or "timeout"."""
    with use_mutation(mutation.module_path, get_operator(mutation.operator_name)(), mutation.occurrence) as (before, after):
        diff = "\n".join(difflib.unified_diff(before.split("\n"), after.split("\n"), "before", "after", lineterm="", n=0))
        for tests in stages(mutation.module_path):
            code, output = in_a_fork(tests)
            if code:
                return WorkResult(WorkerOutcome.NORMAL, output, TestOutcome.KILLED, diff)
    return WorkResult(WorkerOutcome.NORMAL, "", TestOutcome.SURVIVED, diff)


def in_a_fork(tests: tuple[str, ...]) -> tuple[int, str]:
    """The exit code of these tests, and what they said."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.setsid()
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            code = 1
            with contextlib.suppress(BaseException):
                code = int(import_module("pytest").main([*PYTEST, *tests]))
            os._exit(code)
        end = time.monotonic() + SECONDS
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return 1, "timeout"
            time.sleep(0.02)
        said.seek(0)
        return os.waitstatus_to_exitcode(ended[1]), said.read().decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
