"""What a claims file can say beyond features and profiles: limits, layouts, hooks; and what an adapter can."""

from pathlib import Path

import pytest

from mha_conformance.run.conform import Selection, conform
from mha_conformance.run.declaration import parse
from mha_conformance.run.implementation import Target

CROSS = "MHA-ATTN-6/the weighted sum/float32"
LAYOUTS = "MHA-EXEC-4"


@pytest.fixture
def claims(tmp_path):
    def write(text):
        file = tmp_path / "claims.toml"
        file.write_text(text)
        return str(file)

    return write


@pytest.fixture(autouse=True)
def _strangers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")


def judged(name, file=None, *, level="core", clauses=(), cases=()):
    return conform(Target(name, claims=file), Selection(level, clauses, cases))


def test_limits_keep_cases_out_and_stand_in_the_verdict(claims):
    clauses = ("MHA-ATTN-6", "MHA-EXEC-12")
    without = judged("strangers:at_most_eight", clauses=clauses)
    assert not without.holds
    file = claims("limits = { d_k = { max = 8, multiple_of = 2 }, batch_axes = { min = 1, max = 1 } }")
    within = judged("strangers:at_most_eight", file, clauses=clauses)
    assert within.holds, within.blame
    assert "within its limits: d_k max 8 multiple of 2; batch_axes min 1 max 1" in within.sentence
    reasons = {v.reason for v in within.verdicts if v.status == "NOT_SUPPORTED"}
    assert "beyond its limits: d_k = 64" in reasons
    assert "beyond its limits: batch_axes = 0" in reasons


def test_layouts_that_are_not_claimed_are_not_judged(claims):
    report = judged("strangers:attention", claims('layouts = ["contiguous", "transposed"]'), clauses=(LAYOUTS,))
    assert {v.request.rpartition("layout ")[2] for v in report.verdicts if v.status == "PASS"} == {
        "transposed",
        "options transposed",
    }
    assert "beyond its limits: the layout padded" in {v.reason for v in report.verdicts}
    assert report.sentence.endswith("within its limits: layouts contiguous, transposed.")


def test_hooks_bring_arrays_of_any_library_and_say_what_these_cannot_hold(claims):
    file = claims('hooks = { to_native = "strangers:box", from_native = "strangers:unbox" }')
    report = judged("strangers:boxed", file, clauses=(LAYOUTS, "MHA-ATTN-8", "MHA-EXEC-1"))
    assert report.holds, report.blame
    lost = {v.case: v.reason for v in report.verdicts if v.status == "NOT_EXPRESSIBLE"}
    assert lost["MHA-EXEC-4/reversed, odd sizes/float32"] == "a box holds no negative strides, as query has"
    assert not judged("strangers:boxed", cases=(CROSS,)).holds


def test_a_system_that_compiles_is_told_the_shapes_and_its_kernel_is_reported():
    report = judged("strangers:compiled", clauses=("MHA-ATTN-8",))
    assert report.holds, report.blame
    assert "compiled for 257 queries" in {v.kernel for v in report.verdicts}
    assert report.provenance["kernels"]["compiled for 257 queries"] >= 1


def test_our_backends_say_which_kernel_answered():
    report = judged("numpy", clauses=("MHA-MASK-2",))
    assert all(v.kernel.startswith(("short", "blocked")) for v in report.verdicts if v.status == "PASS")


def test_who_flushes_subnormal_numbers_says_so(claims):
    """MHA-NUM-23: without the claim each case fails; with it the bound is wider there, and the sentence says it."""
    clauses = ("MHA-NUM-23", "MHA-NUM-6")
    silent = judged("strangers:flushes", clauses=clauses)
    assert [v.clause for v in silent.blame] == ["MHA-NUM-23"]
    failing = [v.case for v in silent.verdicts if v.status == "FAIL"]
    assert failing == [f"MHA-NUM-23/subnormal {what}/float32" for what in ("values", "queries", "keys", "outputs")]
    said = judged("strangers:flushes", claims("flushes_subnormals = true"), clauses=clauses)
    assert said.holds, said.blame
    assert said.satisfied == silent.satisfied | {"float32": "P32"}
    assert (
        "; flushes subnormal numbers"
        in judged("strangers:attention", claims("flushes_subnormals = true"), level="smoke").sentence
    )


def test_what_works_and_is_not_claimed_is_reported(claims):
    bare = judged("strangers:attention", level="smoke")
    assert bare.inferred
    assert "d_v" in bare.undeclared
    assert "mask" not in bare.undeclared
    modest = judged("strangers:attention", claims("features = []"), level="smoke")
    assert not modest.inferred
    assert {"d_v", "mask", "causal"} >= set(modest.undeclared) >= {"d_v", "mask"}


def test_the_request_of_a_failure_is_described():
    report = judged("strangers:mask_ignored", cases=("MHA-MASK-2/mask shared/float32",))
    [verdict] = report.verdicts
    assert verdict.status == "FAIL"
    assert verdict.request == "query (1,1,5,4), key (1,1,7,4), value (1,1,7,4), float32; mask (5,7)"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"limits": {"d": {"max": 3}}}, "a limit on 'd'; sizes are batch_axes, h, h_kv, n, m, d_k, d_v"),
        ({"limits": {"n": 3}}, "the limit on n is a table of min, max, multiple_of; given 3"),
        ({"limits": {"n": {"most": 3}}}, "the limit on n is a table of min, max, multiple_of"),
        ({"limits": {"n": {"max": -3}}}, "the limit on n counts"),
        ({"limits": {"n": {"multiple_of": 0}}}, "the limit on n counts"),
        ({"layouts": ["strange"]}, r"layouts \['strange'\]; known are contiguous, transposed"),
        ({"layout": "hbnd"}, "layout is bhnd or bnhd; given 'hbnd'"),
        ({"hooks": {"native": "a:b"}}, r"hooks \['native'\]; known are to_native and from_native"),
        ({"dtypes": ["float8"]}, r"dtypes \['float8'\]; known are float64"),
        ({"flushes_subnormals": 1}, "flushes_subnormals is true or false; given 1"),
        ({"strict": "yes"}, "strict is true or false; given 'yes'"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused_in_words(found, said):
    with pytest.raises(ValueError, match=f"claims.toml: {said}"):
        parse(found, "claims.toml")
