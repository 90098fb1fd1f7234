"""``mha conform``: exit codes, selections, claims, layouts, statuses, and the sentence at the end."""

import datetime
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mha_conformance.cases import catalogue
from mha_conformance.cli.app import app
from mha_conformance.cli.codes import Code
from mha_conformance.judge.blame import blamed
from mha_conformance.judge.verdict import AGAIN, Verdict
from mha_conformance.run import xfail
from mha_conformance.run.conform import CannotRun, Selection, conform
from mha_conformance.run.implementation import Target
from mha_spec import SPEC_VERSION
from mha_spec.clauses import load

MASKED = "MHA-MASK-2/mask shared/float32"
CROSS = "MHA-ATTN-8/n = 1, m = 9/float32"
AROUND_NINE = (CROSS, "MHA-ATTN-8/n = 9, m = 1/float32", "MHA-ATTN-8/n = 2, m = 64/float32")
NUMERIC = ("MHA-NUM-11", "MHA-NUM-6", "MHA-ATTN-5", "MHA-ATTN-6")


@pytest.fixture(autouse=True)
def _among_strangers(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)


@pytest.fixture
def claims(tmp_path):
    def write(text):
        file = tmp_path / "claims.toml"
        file.write_text(text, encoding="utf-8")
        return str(file)

    return write


def judged(name, claims=None, *, layout="bhnd", timeout=60.0, workers=1, **selection):
    return conform(Target(name, layout=layout, claims=claims), Selection(**selection), timeout=timeout, workers=workers)


def mha(*arguments):
    return CliRunner().invoke(app, ["conform", *arguments], catch_exceptions=False)


def test_one_that_conforms_is_code_0_and_one_sentence():
    told = mha("strangers:attention", "--level", "smoke")
    assert told.exit_code == Code.HOLDS, told.stdout
    sentence = told.stdout.splitlines()[-1]
    assert sentence.startswith(
        f"strangers:attention conforms to MHA {SPEC_VERSION}, profile P32, for core, causal, mask; determinism none"
    )
    assert "not claimed: bias, d_v, dropout, grouped," in sentence
    assert "float32: claimed P32, strictest profile kept: P32; grade ANY claimed, strictest kept: RN" in told.stdout


def test_one_that_does_not_is_code_1_and_the_clause():
    told = mha("strangers:mask_ignored", "--level", "smoke")
    assert told.exit_code == Code.FAILS
    lines = told.stdout.splitlines()
    assert lines[0] == "MHA-MASK-2 FAIL"
    assert lines[-1] == f"strangers:mask_ignored does not conform to MHA {SPEC_VERSION}: MHA-MASK-2."
    assert "times the bound" in told.stdout
    assert f"mha conform strangers:mask_ignored --case '{MASKED}'" in told.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nobody",), "could not be opened"),
        (("nowhere:attention",), "No module named 'nowhere'"),
        (("strangers:nothing",), "has no attribute 'nothing'"),
        (("strangers:not_callable",), "could not be opened"),
        (("strangers:attention", "--case", "MHA-ATTN-1/nothing/float32"), "no case matches MHA-ATTN-1/nothing/float32"),
        (("strangers:attention", "--clause", "MHA-ATTN-0"), "no case matches MHA-ATTN-0"),
        (("strangers:attention", "--clause", "MHA-PROJ-3"), "not claimed: layer"),
        (("strangers:attention", "--level", "most"), "the levels are smoke, core, full"),
        (("strangers:attention", "--claims", "nowhere.toml"), "no claims file at nowhere.toml"),
        (("strangers:attention", "--arrays", "paper"), "unknown array library 'paper'"),
    ],
)
def test_what_could_not_run_is_code_2_with_the_reason(arguments, said):
    told = mha(*arguments)
    assert told.exit_code == Code.NOT_RUN
    assert said in told.stderr


def test_a_defect_of_the_suite_is_code_3(monkeypatch):
    from mha_conformance.run import conform as module

    def broken(*arguments, **more):
        raise ZeroDivisionError("in the judge")

    monkeypatch.setattr(module, "judge", broken)
    with pytest.raises(ZeroDivisionError):  # entry.main makes it code 3; test_cli.py shows that
        mha("strangers:attention", "--case", CROSS)
    monkeypatch.setattr(module, "judge", lambda case, *_: module.verdict(case, "ERROR", "in the suite"))
    assert mha("strangers:attention", "--case", CROSS).exit_code == Code.DEFECT


def test_selections():
    report = judged("strangers:attention", cases=(CROSS, MASKED))
    assert [v.case for v in report.verdicts] == [CROSS, MASKED]
    report = judged("strangers:attention", clauses=("MHA-ATTN-8",), workers=2)
    assert {v.clause for v in report.verdicts} == {"MHA-ATTN-8"}
    assert len(report.verdicts) == sum(case.clause == "MHA-ATTN-8" and case.wanted_at("core") for case in catalogue())
    assert report.holds


def test_first_stops_at_the_first_failure():
    everything = judged("strangers:mask_ignored", clauses=("MHA-MASK-2", "MHA-MASK-15"))
    first = judged("strangers:mask_ignored", clauses=("MHA-MASK-2", "MHA-MASK-15"), first=True)
    assert len(first.verdicts) < len(everything.verdicts)
    assert [v.status for v in first.verdicts].count("FAIL") == 1
    assert first.verdicts[-1].status == "FAIL"


def test_more_processes_give_the_same_verdicts():
    one = judged("strangers:attention", level="smoke")
    two = judged("strangers:attention", level="smoke", workers=2)
    assert one.verdicts == two.verdicts


def test_a_coarser_arithmetic_is_held_to_its_claim(claims):
    stricter = judged("strangers:tf32", claims('profiles = {float32 = "P32"}'), clauses=NUMERIC)
    assert not stricter.holds
    assert stricter.satisfied == {"float32": "PTF32"}
    declared = judged("strangers:tf32", claims('profiles = {float32 = "PTF32"}'), clauses=NUMERIC)
    assert declared.holds or {v.clause for v in declared.blame} == {"MHA-NUM-11"}
    assert "profile PTF32" in declared.sentence
    assert declared.satisfied == {"float32": "PTF32"}
    finer = judged("strangers:attention", claims('profiles = {float32 = "PTF32"}'), clauses=NUMERIC)
    assert finer.holds
    assert finer.satisfied == {"float32": "P32"}
    file = claims('profiles = {float32 = "P32"}')
    told = mha("strangers:tf32", "--claims", file, "--clause", "MHA-NUM-6")
    assert told.exit_code == Code.FAILS
    assert "float32: claimed P32, strictest profile kept: PTF32" in told.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('feature = ["mask"]', "unknown keys ['feature']"),
        ('features = ["msk"]', "unknown features ['msk']"),
        ('profiles = {float32 = "P64"}', "profile 'P64' for float32; known are P32, PTF32"),
        ('dtypes = ["float32"]\nprofiles = {float16 = "P16"}', "one profile per dtype"),
        ('native_offset = "middle"', "native_offset is top-left or bottom-right; given 'middle'"),
        ('determinism = "mostly"', "determinism 'mostly'"),
        ("features = [", "TOMLDecodeError"),
        ('[[xfail]]\nclause = "MHA-MASK-2"\nreason = "r"\nlink = "l"', "expires on a date"),
        ('[[xfail]]\nclause = "MHA-MASK-2"\nlink = "l"\nexpires = 2999-01-01', "has a reason"),
        ('[[xfail]]\nclause = "MHA-MASK-2"\nreason = "r"\nexpires = 2999-01-01', "has a link"),
        ('[[xfail]]\ncase = "MHA-MASK-2/x"\nreason = "r"\nlink = "l"\nexpires = 2999-01-01', "no case matches 'MHA-MASK-2/x'"),
        ('[[xfail]]\nreason = "r"\nlink = "l"\nexpires = 2999-01-01', "give a case or a clause"),
        ('[[xfail]]\nwhy = "r"', "unknown keys ['why']"),
    ],
)
def test_a_claims_file_that_makes_no_sense_is_refused_in_words(text, said, claims):
    told = mha("strangers:attention", "--claims", claims(text), "--case", CROSS)
    assert told.exit_code == Code.NOT_RUN
    assert said in told.stderr


def test_positions_before_heads():
    assert judged("strangers:positions_first", layout="bnhd", clauses=("MHA-HEAD-1", "MHA-ATTN-8", "MHA-EXEC-12")).holds
    assert not judged("strangers:positions_first", clauses=("MHA-HEAD-1",)).holds


def test_the_layout_may_stand_in_the_claims(claims):
    assert judged("strangers:positions_first", claims('layout = "bnhd"'), clauses=("MHA-HEAD-1",)).holds


def test_options_that_exclude_each_other_and_an_alignment_of_its_own(claims):
    file = claims(
        'features = ["mask", "causal", "offset"]\nexcludes = [["mask", "causal"]]\nnative_offset = "bottom-right"\n'
        'version = "2.0"\nmeasured_on = "1.9"\n'
    )
    report = judged("strangers:one_of_two", file, clauses=("MHA-MASK-2", "MHA-MASK-7", "MHA-MASK-8", "MHA-MASK-14"))
    assert report.holds, report.blame
    reasons = {v.case: v.reason for v in report.verdicts if v.status == "NOT_SUPPORTED"}
    assert "declared to exclude each other: causal, mask" in reasons["MHA-MASK-14/mask and causal/float32"]
    assert reasons["MHA-MASK-8/causal, top-left/float32"] == "its causal mask begins bottom-right"
    passed = {v.case for v in report.verdicts if v.status == "PASS"}
    assert {"MHA-MASK-7/causal, square/float32", "MHA-MASK-8/causal, bottom-right/float32", MASKED} <= passed
    assert (report.provenance["measured on"], report.provenance["installed"]) == ("1.9", "2.0")


def test_a_combination_that_is_claimed_and_refused_is_a_failure(claims):
    file = claims('features = ["mask", "causal", "offset"]')
    report = judged("strangers:one_of_two", file, cases=("MHA-MASK-14/mask and causal/float32",))
    assert [v.status for v in report.verdicts] == ["FAIL"]
    assert (
        "claimed, but refused: TypeError: one_of_two() got an unexpected keyword argument 'query_offset'"
        in report.verdicts[0].reason
    )


def test_the_environment_is_set_before_the_import(claims, monkeypatch, tmp_path):
    (tmp_path / "needs_env.py").write_text(
        "import os\nassert os.environ['MHA_TEST_MODE'] == '1'\nfrom strangers import attention\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(CannotRun, match="MHA_TEST_MODE"):
        judged("needs_env:attention", cases=(CROSS,))
    assert judged("needs_env:attention", claims("environment = {MHA_TEST_MODE = 1}"), cases=(CROSS,)).holds


def test_a_crash_costs_its_case_and_not_the_run():
    report = judged("strangers:crashes", cases=AROUND_NINE)
    assert [v.status for v in report.verdicts] == ["PASS", "CRASH", "PASS"]
    assert "code 77" in report.verdicts[1].reason
    assert not report.holds


def test_a_hang_costs_its_case_and_not_the_run():
    report = judged("strangers:hangs", cases=AROUND_NINE, timeout=4)
    assert [v.status for v in report.verdicts] == ["PASS", "TIMEOUT", "PASS"]
    assert "no answer within 4 s" in report.verdicts[1].reason


LISTED = '[[xfail]]\n{what}\nreason = "the mean of the values"\nlink = "https://example.org/1"\nexpires = {day}\n'
EMPTY = "MHA-MASK-15/a masked row/float32"


def test_an_expected_failure_is_xfail_and_the_sentence_says_so(claims):
    file = claims(LISTED.format(what=f'case = "{EMPTY}"', day="2999-12-31"))
    report = judged("strangers:no_mean_of_nothing", file, cases=(EMPTY, MASKED))
    assert [v.status for v in report.verdicts] == ["PASS", "XFAIL"]
    assert "the mean of the values, https://example.org/1, until 2999-12-31: " in report.verdicts[1].reason
    assert report.holds
    assert report.sentence.endswith("; listed as failing: MHA-MASK-15.")
    assert not judged("strangers:no_mean_of_nothing", cases=(EMPTY,)).holds


def test_an_expected_failure_expires(claims):
    file = claims(LISTED.format(what='clause = "MHA-MASK-15"', day="2020-01-31"))
    report = judged("strangers:no_mean_of_nothing", file, cases=(EMPTY,))
    assert report.verdicts[0].status == "FAIL"
    assert "expired on 2020-01-31" in report.verdicts[0].reason


@pytest.mark.parametrize("what", [f'case = "{EMPTY}"', 'clause = "MHA-MASK-15"'])
def test_an_expected_failure_that_passes_is_a_failure(what, claims):
    file = claims(LISTED.format(what=what, day="2999-12-31"))
    report = judged("strangers:attention", file, clauses=("MHA-MASK-15",))
    failing = [v for v in report.verdicts if v.status == "FAIL"]
    assert [v.case for v in failing] == [EMPTY]
    assert "passes, but is listed as an expected failure" in failing[0].reason


def test_the_day_of_expiry_still_counts():
    day = datetime.date(2026, 1, 31)
    entry = xfail.Expected("MHA-MASK-15", True, "r", "l", day)
    verdict = Verdict(EMPTY, "MHA-MASK-15", "semantics", "smoke", "float32", "FAIL", "wrong")
    assert xfail.applied(verdict, (entry,), day).status == "XFAIL"
    assert xfail.applied(verdict, (entry,), day + datetime.timedelta(days=1)).status == "FAIL"


def test_a_program_reads_the_verdict_on_standard_output():
    told = mha("strangers:attention", "--case", CROSS, "--json", "-")
    assert told.exit_code == Code.HOLDS
    found = json.loads(told.stdout)
    assert (found["holds"], found["conforms"], found["only"]) == (True, False, f"the case {CROSS}")


def test_what_is_asked_in_part_does_not_conform(claims):
    """MHA-CONF-7: one clause that holds is no conformance, in the sentence or in the record; the exit code is that of the claim."""
    told = mha("strangers:attention", "--clause", "MHA-ATTN-8")
    assert told.exit_code == Code.HOLDS
    assert told.stdout.splitlines()[-1] == (
        f"strangers:attention holds MHA-ATTN-8 of MHA {SPEC_VERSION}, profile P32; only this was asked, and nothing conforms by it."
    )
    report = judged("strangers:attention", clauses=("MHA-ATTN-8", "MHA-MASK-2"))
    assert report.holds
    assert not report.conforms
    assert "holds MHA-ATTN-8 and MHA-MASK-2 of MHA" in report.sentence
    assert "holds 4 clauses of MHA" in judged("strangers:attention", clauses=("MHA-ATTN-8", *NUMERIC[1:])).sentence
    failing = judged("strangers:mask_ignored", clauses=("MHA-MASK-2",))
    assert not failing.holds
    assert failing.sentence == f"does not conform to MHA {SPEC_VERSION}: MHA-MASK-2."
    whole = judged("strangers:attention", level="smoke")
    assert whole.conforms
    assert whole.sentence.startswith("conforms to MHA")


def failing(case, size=1):
    found = next(known for known in catalogue() if known.id == case)
    return Verdict(case, found.clause, found.group, found.level, found.dtype, "FAIL", size=size)


def test_a_case_that_uses_what_is_broken_says_nothing_of_its_own_clause():
    """MHA-CONF-4: MASK-18 hides by window, which its needs do not speak of; alone it is blamed all the same."""
    hidden = failing("MHA-MASK-18/1e+18 hidden by window/float32")
    window = failing("MHA-MASK-10/window (1, 1), square/float32", size=9)
    assert [v.clause for v in blamed([hidden, window], load())] == ["MHA-MASK-10"]
    assert [v.clause for v in blamed([hidden], load())] == ["MHA-MASK-18"]


def test_an_earlier_call_that_changes_a_later_one_is_blamed_alone():
    """Only where the same request was answered in two ways: a history of other numbers may be wrong for their own sake."""
    mask = failing("MHA-MASK-2/mask shared/float32")
    history = failing("MHA-EXEC-5/another mask in between/float32", size=99)
    again = replace(history, reason=f"{AGAIN}call 4: output is outside the bound")
    assert [v.clause for v in blamed([mask, again], load())] == ["MHA-EXEC-5"]
    assert [v.clause for v in blamed([mask, history], load())] == ["MHA-MASK-2"]


def test_a_fault_in_one_dtype_excuses_none_in_another():
    """An attention that is computed in float32 for float64, and gives the mean of the values where nothing is seen."""
    coarse = replace(failing("MHA-ATTN-6/the weighted sum/float64"), dtype="float64")
    held = replace(failing("MHA-ATTN-6/the weighted sum/float32"), status="PASS")
    empty = failing("MHA-MASK-15/a masked row/float32", size=9)
    assert [v.clause for v in blamed([empty, coarse, held], load())] == ["MHA-ATTN-6", "MHA-MASK-15"]
    assert [v.clause for v in blamed([empty, coarse], load())] == ["MHA-ATTN-6"]
