"""The suite as a pytest plugin: one item per case, with the verdicts of ``mha conform``.

    pytest --pyargs mha_conformance.suite -p mha_conformance.plugin --mha-backend=NAME

Loaded with ``-p`` and by no entry point, so that it is nowhere unless it is asked for. It imports pytest and the standard library
alone; the suite comes with the first collection. Items take no fixtures and no warnings filters, and the implementation runs in a
process of its own, so that a user's conftest or settings change no verdict. Under xdist each worker opens the implementation for
itself and judges its share; the verdict is one, on all that they found. ``python -m mha_conformance.suite`` runs the same
with an ini file of its own and without PYTEST_ADDOPTS and PYTEST_PLUGINS.
"""

import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SUITE = Path(__file__).parent / "suite" / "test_conformance.py"
BENCH: "pytest.StashKey[Bench]" = pytest.StashKey()
FOUND: "pytest.StashKey[Found]" = pytest.StashKey()
TOLD = "mha_conformance"
"""Under this name a worker of xdist hands over what it found."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mha", "conformance to Multi-Head Attention")
    group.addoption("--mha-backend", metavar="NAME", help="a backend of `mha backends`, or module:callable")
    group.addoption("--mha-level", default="core", choices=("smoke", "core", "full"), help="default: core")
    group.addoption("--mha-claims", metavar="FILE", help="a TOML file of what the implementation claims")
    group.addoption("--mha-arrays", default="numpy", metavar="LIBRARY", help="for a callable: numpy, torch, jax, ...")
    group.addoption("--mha-device", metavar="DEVICE", help="for a callable: a device of that library")
    group.addoption("--mha-layout", default="bhnd", choices=("bhnd", "bnhd"), help="for a callable")
    group.addoption("--mha-timeout", default=60.0, type=float, metavar="SECONDS", help="for one case; default: 60")


class Found:
    """The verdicts so far on one implementation, of this process or of all workers of xdist."""

    def __init__(self, target: Any, about: Any, timeout: float, chosen: int) -> None:
        self.target, self._about, self._timeout, self._chosen = target, about, timeout, chosen
        self.verdicts: dict[str, Any] = {}

    def report(self) -> Any:
        """What was judged, in the order of the catalogue, as ``mha conform`` would report it."""
        from mha_conformance.cases import catalogue
        from mha_conformance.judge.alone import alone
        from mha_conformance.judge.around import around
        from mha_conformance.judge.blame import blamed
        from mha_conformance.run.conform import judged_alone
        from mha_conformance.run.results import Report
        from mha_spec.clauses import load

        found = tuple(self.verdicts[case.id] for case in catalogue() if case.id in self.verdicts)
        blame = alone(blamed(found, load()), lambda case: judged_alone(case, self.target, self._timeout))
        blame = around(blame, lambda case: judged_alone(case, self.target, self._timeout, loud=False))
        only = "" if len(found) == self._chosen else f"{len(found)} of {self._chosen} cases"
        return Report(self.target, self._about.claims, self._about.declared, found, tuple(blame), only=only)


class Bench:
    """The implementation in its process, the cases that were chosen, and what was found so far."""

    def __init__(self, config: pytest.Config) -> None:
        from mha_conformance.run.conform import CannotRun, Selection, open_crew
        from mha_conformance.run.implementation import Target
        from mha_conformance.run.worker import Worker

        option = config.option
        if not option.mha_backend:
            raise pytest.UsageError("which implementation? Give --mha-backend=NAME, one of `mha backends` or module:callable")
        target = Target(option.mha_backend, option.mha_arrays, option.mha_device, option.mha_layout, option.mha_claims)
        self.cases = Selection(option.mha_level).choose()
        self._worker = Worker(target, option.mha_timeout)
        try:
            self._about = open_crew([self._worker])
        except CannotRun as error:
            raise pytest.UsageError(str(error)) from None
        self.found = Found(target, self._about, option.mha_timeout, len(self.cases))

    def verdict(self, case: Any) -> Any:
        """The verdict on a case; a clause that is listed as failing is judged as a whole, because the list is strict."""
        from mha_conformance.run.conform import verdict_on
        from mha_conformance.run.xfail import strictly

        verdicts = self.found.verdicts
        if case.id not in verdicts:
            listed = [entry for entry in self._about.declared.xfail if entry.whole_clause and entry.name == case.clause]
            together = [other for other in self.cases if other.clause == case.clause] if listed else [case]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = strictly([verdict_on(other, self._worker, self._about) for other in together], listed)
            verdicts.update((verdict.case, verdict) for verdict in found)
        return verdicts[case.id]

    def close(self) -> None:
        self._worker.close()


class Failure(Exception):
    """A case that failed; its text is the diagnosis."""


class SuiteDefect(Exception):
    """A case that the suite itself could not judge."""


class CaseItem(pytest.Item):
    """One case. It is judged in its setup, so that a defect of the suite shows as an error and not as a failure."""

    def __init__(self, *, case: Any, **more: Any) -> None:
        super().__init__(**more)
        self.case = case
        self.verdict: Any = None

    def setup(self) -> None:
        self.verdict = self.config.stash[BENCH].verdict(self.case)
        if self.verdict.status == "ERROR":
            raise SuiteDefect(self.verdict.reason)

    def runtest(self) -> None:
        from mha_conformance.judge.verdict import FAILING
        from mha_conformance.report.diagnosis import diagnosis

        if self.verdict.status in FAILING:
            raise Failure("\n".join(diagnosis(self.config.stash[FOUND].target, self.verdict)))
        if self.verdict.status == "XFAIL":
            pytest.xfail(self.verdict.reason)
        if self.verdict.status != "PASS":
            pytest.skip(f"{self.verdict.status}: {self.verdict.reason}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, Failure | SuiteDefect):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


class Catalogue(pytest.File):
    """Stands in the place of the suite's module."""

    def collect(self) -> Iterator[CaseItem]:
        if BENCH not in self.config.stash:
            self.config.stash[BENCH] = bench = Bench(self.config)
            self.config.stash[FOUND] = bench.found
        for case in self.config.stash[BENCH].cases:
            yield CaseItem.from_parent(self, name=case.id, case=case)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Any:
    return Catalogue.from_parent(parent, path=module_path) if module_path == SUITE else None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    """What a worker of xdist found comes to the process that sums up. A worker that crashed has handed nothing over."""
    told = getattr(node, "workeroutput", {}).get(TOLD)
    if told is None:
        return
    theirs: Found = pickle.loads(told)  # from our own process, through xdist's pipe
    ours = node.config.stash.setdefault(FOUND, theirs)
    ours.verdicts.update(theirs.verdicts)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nothing judged is no success (MHA-CONF-8)."""
    config = session.config
    if BENCH in config.stash:
        config.stash[BENCH].close()
    found = config.stash.get(FOUND, None)
    if found is None or not found.verdicts:
        return
    if hasattr(config, "workeroutput"):
        config.workeroutput[TOLD] = pickle.dumps(found)
    elif session.exitstatus == pytest.ExitCode.OK and not found.report().judged:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    found = config.stash.get(FOUND, None)
    if found is None or not found.verdicts:
        return
    report = found.report()
    for line in report.arithmetic:
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"{report.target.name} {report.sentence}")
