"""The suite under pytest: the verdicts of ``mha conform``, whatever stands around it."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mha_conformance.run.conform import Selection, conform
from mha_conformance.run.implementation import Target
from mha_conformance.suite.__main__ import HERE, arguments

TESTS = Path(__file__).parent
HERMETIC = ("-m", "mha_conformance.suite")
PLAIN = ("-m", "pytest", "--pyargs", "mha_conformance.suite", "-p", "mha_conformance.plugin", "-n0")


def run(start, *given, cwd=TESTS, **environment):
    paths = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        [sys.executable, *start, *given], cwd=cwd, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": paths, **environment},
    )  # fmt: skip


def outcomes(file):
    """{case: outcome} of a JUnit file that pytest wrote."""
    found = {}
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        kinds = [node.tag for node in case if node.tag in ("failure", "error", "skipped")]
        found[case.get("name")] = kinds[0] if kinds else "passed"
    return found


MEANS = {"PASS": "passed", "FAIL": "failure", "NOT_SUPPORTED": "skipped", "XFAIL": "skipped", "NOT_EXPRESSIBLE": "skipped"}


@pytest.mark.parametrize("start", [HERMETIC, PLAIN], ids=["hermetic", "plain"])
@pytest.mark.parametrize("name", ["strangers:no_mean_of_nothing", "reference"])
def test_the_verdicts_are_those_of_mha_conform(start, name, tmp_path, monkeypatch):
    monkeypatch.chdir(TESTS)
    report = conform(Target(name), Selection(level="smoke"))
    told = run(start, f"--mha-backend={name}", "--mha-level=smoke", f"--junit-xml={tmp_path / 'j.xml'}", "-q")
    assert outcomes(tmp_path / "j.xml") == {v.case: MEANS[v.status] for v in report.verdicts}, told.stdout
    assert told.returncode == (0 if report.conforms else 1)
    assert f"{name} {report.sentence}" in told.stdout
    if not report.conforms:
        assert "mha conform strangers:no_mean_of_nothing --case 'MHA-MASK-15/a masked row/float32'" in told.stdout


@pytest.mark.parametrize("name", ["strangers:no_mean_of_nothing", "reference"])
def test_workers_of_xdist_give_one_verdict_together(name, tmp_path, monkeypatch):
    """Each opens the implementation for itself and judges its share of the cases; the sentence speaks of all of them."""
    monkeypatch.chdir(TESTS)
    report = conform(Target(name), Selection(level="smoke"))
    given = (f"--mha-backend={name}", "--mha-level=smoke", f"--junit-xml={tmp_path / 'j.xml'}", "-q")
    told = run(PLAIN[:-1], *given, "-n2")
    assert outcomes(tmp_path / "j.xml") == {v.case: MEANS[v.status] for v in report.verdicts}, told.stdout
    assert told.returncode == (0 if report.conforms else 1)
    assert told.stdout.count(f"{name} {report.sentence}") == 1
    assert all(told.stdout.count(line) == 1 for line in report.arithmetic)


def test_nothing_judged_by_any_worker_is_no_success():
    told = run(PLAIN[:-1], "--mha-backend=strangers:attention", "-k", "MHA-PROJ", "-q", "-n2")
    assert told.returncode == 5, told.stdout


def test_a_share_of_the_cases_does_not_conform():
    told = run(HERMETIC, "--mha-backend=strangers:attention", "-k", "MHA-MASK-15", "-q")
    assert told.returncode == 0, told.stdout
    assert "only this was asked, and nothing conforms by it" in told.stdout
    assert "conforms to MHA" not in told.stdout


def test_surroundings_change_no_verdict(tmp_path):
    """A conftest that breaks everything, warnings as errors, options in ini file and environment."""
    (tmp_path / "conftest.py").write_text(
        "import pytest, warnings\n"
        "@pytest.fixture(autouse=True)\ndef breaks(): raise RuntimeError('theirs')\n"
        "def pytest_collection_modifyitems(items): items.clear()\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --maxfail=1 -k nothing\nfilterwarnings = error\n")
    (tmp_path / "theirs.py").write_text("raise RuntimeError('loaded')\n")
    told = run(
        HERMETIC,
        "--mha-backend=reference",
        "--mha-level=smoke",
        "-q",
        cwd=tmp_path,
        PYTEST_ADDOPTS="-k nothing",
        PYTEST_PLUGINS="theirs",
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "reference conforms to MHA" in told.stdout
    assert "deselected" not in told.stdout
    assert not (tmp_path / ".pytest_cache").exists()


def test_warnings_as_errors_change_no_verdict_of_the_plain_command(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture(autouse=True)\ndef breaks(): raise RuntimeError('theirs')\n"
    )
    told = run(PLAIN, "--mha-backend=reference", "--mha-level=smoke", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr


def test_the_plugin_needs_pytest_and_the_standard_library(tmp_path):
    code = (
        "import sys, pytest; before = set(sys.modules); import mha_conformance.plugin\n"
        "print(*({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    assert run(("-c", code), cwd=tmp_path).stdout.split() == ["mha_conformance"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "which implementation? Give --mha-backend=NAME"),
        (("--mha-backend=nobody",), "nobody could not be opened"),
        (("--mha-backend=reference", "--mha-level=most"), "invalid choice: 'most'"),
    ],
)
def test_what_could_not_run_is_no_success(given, said):
    told = run(HERMETIC, *given)
    assert told.returncode in (2, 4)
    assert said in told.stdout + told.stderr


def test_without_the_plugin_it_says_what_to_give(tmp_path):
    told = run(("-m", "pytest", "--pyargs", "mha_conformance.suite", "-p", "no:cacheprovider"), cwd=tmp_path)
    assert told.returncode == 1
    assert "-p mha_conformance.plugin --mha-backend=NAME" in told.stdout


def test_nothing_judged_is_no_success():
    told = run(HERMETIC, "--mha-backend=strangers:attention", "-k", "MHA-PROJ", "-q")
    assert "passed" not in told.stdout
    assert told.returncode == 5


def test_a_listed_failure_is_xfailed_and_strict(tmp_path):
    claims = tmp_path / "claims.toml"
    claims.write_text('[[xfail]]\nclause = "MHA-MASK-15"\nreason = "r"\nlink = "l"\nexpires = 2999-12-31\n')
    given = (f"--mha-claims={claims}", "-k", "MHA-MASK-15", "-q")
    wrong = run(HERMETIC, "--mha-backend=strangers:no_mean_of_nothing", *given)
    assert wrong.returncode == 0, wrong.stdout
    assert "1 xfailed" in wrong.stdout
    right = run(HERMETIC, "--mha-backend=strangers:attention", *given)
    assert right.returncode == 1
    assert "passes, but is listed as an expected failure" in right.stdout


def test_a_defect_of_the_suite_is_an_error_and_no_failure(tmp_path):
    (tmp_path / "defect.py").write_text(
        "from mha_conformance.run import conform\n"
        "def broken(case, *_): return conform.verdict(case, 'ERROR', 'a defect in the judge')\n"
        "conform.judge = broken\n"
    )
    told = run(
        HERMETIC, "-p", "defect", "--mha-backend=strangers:attention", "-k", "MHA-ATTN-1", "-q",
        PYTHONPATH=os.pathsep.join((str(tmp_path), str(TESTS), os.environ.get("PYTHONPATH", ""))),
    )  # fmt: skip
    assert told.returncode == 1
    assert "failed" not in told.stdout
    assert "a defect in the judge" in told.stdout
    assert "errors in" in told.stdout


def test_the_suite_has_settings_of_its_own():
    given = arguments(["-q"])
    assert given[0] == str(HERE)
    assert given[given.index("-c") + 1] == str(HERE / "pytest.ini")
    assert (HERE / "pytest.ini").is_file()
