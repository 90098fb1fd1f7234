"""What misbehaves is reported for what it is, in a process of its own, and costs its cases, not the run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mha_conformance.cli.codes import Code
from mha_conformance.run.conform import CannotRun, Selection, conform
from mha_conformance.run.implementation import Target

HERE = Path(__file__).parent
BEFORE, ONE, AFTER = "MHA-ATTN-6/the weighted sum/float32", "MHA-ATTN-8/n = 1, m = 9/float32", "MHA-ATTN-8/n = 9, m = 1/float32"
TYPE, UNMODIFIED, NO_MEMORY = (
    "MHA-EXEC-1/library, device, dtype and shape/float32",
    "MHA-EXEC-2/inputs are not modified/float32",
    "MHA-EXEC-3/results share no memory, one key/float32",
)
FACTS = (TYPE, UNMODIFIED, NO_MEMORY)
AGREE, BITS, HISTORY = (
    "MHA-ATTN-14/keys in another order/float32",
    "MHA-EXEC-8/the same bits again/float32",
    "MHA-EXEC-5/A, B, A/float32",
)


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(HERE)


def report(name, *cases, timeout=60.0):
    return conform(Target(f"misbehaving:{name}"), Selection(cases=cases), timeout=timeout)


def verdicts(name, *cases, **more):
    return {v.case: v for v in report(name, *cases, **more).verdicts}


def test_the_honest_one_is_accused_of_nothing():
    assert conform(Target("misbehaving:honest"), Selection("smoke")).blame == ()


def test_what_is_wrong_only_after_other_calls_is_blamed_on_history():
    found = report("once", BEFORE, ONE)
    assert [(v.clause, v.case) for v in found.blame] == [("MHA-EXEC-5", ONE)]
    assert found.blame[0].reason.endswith("alone, the case holds")
    assert not found.conforms


@pytest.mark.parametrize(
    ("name", "status", "reason", "timeout"),
    [
        ("segfault", "CRASH", "the process ended with signal 11", 60),
        ("leaves", "CRASH", "the process ended with code 0", 60),
        ("hangs", "TIMEOUT", "no answer within 3 s", 3),
        ("eats_memory", "FAIL", "claimed, but refused: ", 60),
    ],
)
def test_it_costs_its_case_and_the_run_goes_on(name, status, reason, timeout):
    found = report(name, BEFORE, ONE, AFTER, timeout=timeout)
    statuses = {v.case: v.status for v in found.verdicts}
    assert statuses == {BEFORE: "PASS", ONE: status, AFTER: "PASS"}
    assert next(v.reason for v in found.verdicts if v.case == ONE).startswith(reason)
    assert found.verdicts[0].case != ONE != found.verdicts[-1].case
    assert [v.clause for v in found.blame] == ["MHA-ATTN-8"]
    assert not found.conforms


@pytest.mark.parametrize(
    ("name", "case", "reason"),
    [
        ("wide", TYPE, "dtype is float64, expected float32"),
        ("tensor", TYPE, "library is torch, expected numpy"),
        ("view", NO_MEMORY, "the output shares memory with value"),
        ("writes", UNMODIFIED, "query was modified"),
    ],
)
def test_bad_manners_are_blamed_on_their_clause_alone(name, case, reason):
    found = verdicts(name, ONE, *FACTS)
    assert {c for c, v in found.items() if v.status == "FAIL"} == {case}
    assert reason in found[case].reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("integers", "output holds int64, expected floating numbers"),
        ("short", "output has shape (1, 1, 6, 3), expected (1, 1, 6, 4)"),
        ("flat", "output has shape (24,), expected (1, 1, 6, 4)"),
        ("nothing", "no output came back, though it was asked for"),
        ("empty_tuple", "no output came back, though it was asked for"),
        ("words", "claimed, but refused: a result that is no array: str"),
        ("objects", "claimed, but refused: a result that is no array: ndarray (TypeError: its elements are object)"),
        ("strange", "claimed, but refused: a result that is no array: Strange (RuntimeError: do not look)"),
    ],
)
def test_what_is_no_answer_fails_under_every_rule_and_is_no_defect_of_the_suite(name, reason, tmp_path):
    claims = tmp_path / "claims.toml"
    claims.write_text('determinism = "run-to-run"\n')
    selection = Selection(cases=(ONE, AGREE, HISTORY, TYPE, BITS))
    found = {v.case: v for v in conform(Target(f"misbehaving:{name}", claims=str(claims)), selection).verdicts}
    assert len(found) == 5
    assert {v.status for v in found.values()} == {"FAIL"}, [(v.case, v.status, v.reason) for v in found.values()]
    assert reason in found[AGREE].reason


def test_what_cannot_be_imported_could_not_run(monkeypatch):
    for how, said in (("", "no driver on this machine"), ("crash", "ended with signal 11"), ("exit", "SystemExit")):
        monkeypatch.setenv("MISBEHAVE", how)
        with pytest.raises(CannotRun, match=said):
            conform(Target("misbehaving_import:attention"), Selection(cases=(ONE,)))


def mha(*arguments):
    code = "import sys; from mha_conformance.cli.entry import main; sys.exit(main())"
    environment = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, "conform", *arguments],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("misbehaving:honest", "--case", ONE), Code.HOLDS, "nothing conforms by it"),
        (("misbehaving:segfault", "--case", ONE, "--case", AFTER), Code.FAILS, "MHA-ATTN-8 CRASH"),
        (("misbehaving:hangs", "--case", ONE, "--timeout", "2"), Code.FAILS, "MHA-ATTN-8 TIMEOUT"),
        (("misbehaving_import:attention", "--case", ONE), Code.NOT_RUN, "no driver on this machine"),
        (("misbehaving:honest", "--case", "MHA-ATTN-8/none"), Code.NOT_RUN, "no case matches"),
        (("misbehaving:honest", "--clause", "MHA-MASK-0"), Code.NOT_RUN, "no case matches"),
        (("misbehaving:honest", "--clause", "MHA-MASK-2"), Code.NOT_RUN, "not claimed: mask"),
        (("misbehaving:spoils_the_suite", "--case", HISTORY), Code.DEFECT, "does not conform"),
    ],
)
def test_exit_codes(arguments, code, said):
    told = mha(*arguments)
    assert told.returncode == code, told.stdout + told.stderr
    if code != Code.DEFECT:
        assert said in told.stdout + told.stderr
        assert "Traceback" not in told.stdout + told.stderr
    else:
        assert said not in told.stdout


def test_what_it_prints_is_no_part_of_the_report():
    told = mha("misbehaving:chatty", "--case", ONE, "--json", "-")
    assert told.returncode == Code.HOLDS
    assert json.loads(told.stdout)["holds"] is True
    assert "from below" in told.stderr
