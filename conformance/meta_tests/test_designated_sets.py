"""Cases of the designated sets and the words of their verdicts: what is suspect, what is no noise, and which fault it is."""

import re
from dataclasses import replace

import numpy as np
import pytest
from honest import ALL, Honest, implementation
from saboteurs import heads, pairs, scores, wholesale
from zoo.kernels import Eager, HalfWeights, TruncatedOutputs

from mha_conformance.cases import catalogue
from mha_conformance.cases.statistics import DTYPES, FILTERED, SETS
from mha_conformance.judge.judge import judge
from mha_conformance.judge.truth import sigmas, truths
from mha_conformance.report.diagnosis import diagnosis
from mha_conformance.run.declaration import Declaration
from mha_conformance.run.implementation import Target
from mha_conformance.run.perform import Asked, perform
from mha_conformance.run.results import Report
from mha_spec.numerics import STATISTICS

CASES = {case.id: case for case in catalogue()}


def verdict(subject, case_id, grade="RN", **claims):
    case = CASES[case_id]
    return judge(case, perform(implementation(subject), Asked.by(case)), replace(subject.claims, grade=grade, **claims))


class Scaled(HalfWeights):
    """An honest kernel, but for a scale that is wrong by a part."""

    part = 1.001

    def finished(self, call, q, k):
        return super().finished(replace(call, scale=call.scale * self.part), q, k)


class OneElement(Honest):
    """One element is 5 % too large."""

    def result(self, call, output, a, lse):
        output = output.copy()
        output.flat[np.argsort(np.abs(output).ravel())[output.size // 2]] *= 1.05
        return super().result(call, output, a, lse)


class NearWeights(HalfWeights):
    """Weights are stored in a type of 7 bits."""

    def read(self, a, kind):
        fraction, exponent = np.frexp(a)
        return np.ldexp(np.rint(fraction * 2**7) / 2**7, exponent).astype(a.dtype)


def test_every_set_has_cases_in_every_dtype_at_core_and_full():
    for level in ("core", "full"):
        found = {(c.clause, c.id.split("/")[1].removesuffix(", large"), c.dtype) for c in CASES.values()
                 if c.rule in ("statistics", "probable", "filter") and (c.level == "full") == (level == "full")}  # fmt: skip
        wanted = {(clause, name, dtype) for clause in ("MHA-NUM-19", "MHA-NUM-20") for name in SETS for dtype in DTYPES}
        assert found == wanted | {("MHA-NUM-22", name, dtype) for name in FILTERED for dtype in DTYPES}


@pytest.mark.parametrize(
    "case", [c for c in CASES.values() if c.rule == "statistics" and c.level != "full"], ids=lambda c: c.id
)
def test_a_set_is_what_the_text_says(case):
    """At least 1000 elements of both signs with a sigma, and hardly any scores that are equal below the maximum."""
    known = truths(case, ALL.profiles[case.dtype])
    outputs = np.concatenate([truth.expected["output"].ravel() for truth in known])
    assert 0.25 < np.mean(outputs > 0) < 0.75
    finite = sum(np.isfinite(s.output).sum() for s in sigmas(case, ALL.profiles[case.dtype], "RN"))
    assert outputs.size >= finite >= STATISTICS["elements"]
    for request in case.make():
        query, key, _ = request.operands
        s = np.sort(query @ key.mT, axis=-1)
        apart = np.diff(s, axis=-1) > 1e-12 * np.abs(s[..., -1:])
        assert apart.size == 0 or np.mean(apart | (s[..., 1:] >= s[..., -1:] * (1 - 1e-12))) > 0.99


def test_the_honest_attention_keeps_every_statistic_of_either_grade():
    for case in CASES.values():
        if case.rule in ("statistics", "probable", "filter") and case.level != "full":
            for grade in ("RN", "ANY"):
                found = verdict(Honest(), case.id, grade)
                assert found.status == "PASS", found
                assert found.ratio < 0.7


def test_a_scale_of_1_001_is_named_though_it_keeps_every_bound():
    assert verdict(Scaled(), "MHA-NUM-6/tail/bfloat16").status == "PASS"
    for case_id in ("MHA-NUM-22/S0 ordinary/float16", "MHA-NUM-22/S2 causal, large/bfloat16"):
        found = verdict(Scaled(), case_id)
        assert found.status == "FAIL"
        assert found.hypothesis.startswith("the scale is 1.0010 times what it should be (MHA-ATTN-2)")
        assert any("likely   the scale is 1.0010" in line for line in diagnosis(Target("mine"), found))


def test_a_bound_that_is_left_says_by_what():
    Scaled.part = 1.05
    try:
        found = verdict(Scaled(), "MHA-NUM-6/tail/float32")
    finally:
        Scaled.part = 1.001
    assert found.status == "FAIL"
    assert found.hypothesis == "the scale is 1.0500 times what it should be (MHA-ATTN-2)"


@pytest.mark.parametrize(
    ("subject", "clause", "words"),
    [
        (scores.ScaleOne, "MHA-NUM-6", f"the scale is {64**0.5:.4f} times what it should be (MHA-ATTN-2)"),
        (scores.SoftcapIgnored, "MHA-ATTN-10", "the softcap is not applied (MHA-ATTN-10)"),
        (scores.SoftcapAfterBias, "MHA-ATTN-9", "the softcap comes after the bias (MHA-ATTN-9)"),
        (scores.BiasScaled, "MHA-ATTN-11", "the bias is multiplied by the scale (MHA-ATTN-11)"),
        (scores.SinkIgnored, "MHA-ATTN-12", "the sink is left out (MHA-ATTN-12)"),
        (scores.SinkTwice, "MHA-ATTN-12", "the sink is counted twice (MHA-ATTN-12)"),
        (pairs.MaskInverted, "MHA-MASK-2", "the mask is inverted (MHA-MASK-2)"),
        (pairs.MaskIgnored, "MHA-MASK-2", "the mask is not applied (MHA-MASK-2)"),
        (pairs.CausalPlusOne, "MHA-MASK-7", "one key too many under causal (MHA-MASK-7)"),
        (pairs.CausalIgnored, "MHA-MASK-7", "the causal mask is not applied (MHA-MASK-7)"),
        (pairs.AlwaysTopLeft, "MHA-MASK-8", "positions are counted from the top left (MHA-MASK-8)"),
        (pairs.AlwaysBottomRight, "MHA-MASK-8", "positions are counted from the bottom right (MHA-MASK-8)"),
        (pairs.WindowLeftPlusOne, "MHA-MASK-10", "one key too many under the window's left side (MHA-MASK-10)"),
        (pairs.WindowRightExclusive, "MHA-MASK-10", "one key too few under the window's right side (MHA-MASK-10)"),
        (pairs.LengthInclusive, "MHA-MASK-12", "one key too many by length (MHA-MASK-12)"),
        (pairs.SegmentsIgnored, "MHA-MASK-13", "the segments are not applied (MHA-MASK-13)"),
        (pairs.EmptyRowMean, "MHA-MASK-15", "a row that sees nothing is the mean of all values (MHA-MASK-15)"),
        (heads.HeadsSwapped, "MHA-HEAD-1", "heads 1 and 2 are exchanged (MHA-HEAD-1)"),
        (wholesale.Zeros, "MHA-NUM-6", "the output is zero (MHA-ATTN-6)"),
    ],
)  # fmt: skip
def test_known_faults_are_named(subject, clause, words):
    mine = [case for case in CASES.values() if case.clause == clause and case.rule == "bound" and case.level != "full"]
    found = [verdict(subject(), case.id) for case in mine]
    named = [v.hypothesis for v in found if v.status == "FAIL" and v.hypothesis]
    assert words in named
    alike = [re.sub(r"[\d.]+", "#", name) for name in named]  # of another size, the scale is another
    assert alike.count(re.sub(r"[\d.]+", "#", words)) > len(named) / 2, named


def test_what_is_no_known_fault_has_no_name():
    assert verdict(scores.KeysReversed(), "MHA-NUM-6/tail/float32").hypothesis == ""


def test_one_wrong_element_fails_grade_rn_and_is_suspect_in_any():
    case_id = "MHA-NUM-20/S3 products of one sign, large/bfloat16"
    assert verdict(OneElement(), case_id.replace("NUM-20", "NUM-19")).status == "PASS"
    found = verdict(OneElement(), case_id)
    assert (found.status, found.worst.array) == ("FAIL", "output")
    assert "deviations from the truth" in found.reason
    assert verdict(OneElement(), case_id.replace("bfloat16", "float16"), "ANY").status == "SUSPECT"


def test_coarser_weights_fail_by_the_mean_square_of_either_grade_and_are_no_known_fault():
    for grade in ("RN", "ANY"):
        found = verdict(NearWeights(), "MHA-NUM-19/S0 ordinary/float16", grade)
        assert found.status == "FAIL"
        assert f"grade {grade}" in found.reason and "the mean of (e / sigma)^2" in found.reason
    assert verdict(NearWeights(), "MHA-NUM-22/S0 ordinary/float16").status == "PASS"


def test_a_profile_that_grants_too_much_is_not_judged_by_a_set():
    found = verdict(Honest(), "MHA-NUM-19/S7 saturated scores/float16", profiles={**ALL.profiles, "float16": "P16-eager"})
    assert found.status == "PASS"
    assert "nothing is probable" in found.reason


def test_numbers_that_are_not_finite_fail_every_set():
    class Broken(Honest):
        def result(self, call, output, a, lse):
            return super().result(call, np.where(np.arange(output.shape[-1]) > 0, output, np.nan), a, lse)

    for clause in ("MHA-NUM-19", "MHA-NUM-20", "MHA-NUM-22"):
        for grade in ("RN", "ANY"):
            assert verdict(Broken(), f"{clause}/S0 ordinary/float32", grade).status == "FAIL"


def test_the_sets_decide_which_profile_is_kept():
    """Rounded to TF32 within the products: PTF32 is kept, P32 is not, though every bound of P32 might be."""

    class Tf32(HalfWeights):
        def dot(self, a, b):
            return super().dot(_tf32(a), _tf32(b))

        def read(self, a, kind):
            return _tf32(a)

        def values(self, a, v, see):
            return super().values(a, _tf32(v), see)

    found = verdict(Tf32(), "MHA-NUM-19/S0 ordinary/float32")
    assert found.status == "FAIL"
    assert found.profiles == ("PTF32",)


def _tf32(x):
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.rint(fraction * 2**11) / 2**11, exponent).astype(x.dtype)


@pytest.mark.parametrize(
    ("kernel", "claimed", "kept"), [(Eager, "ANY", "RN"), (TruncatedOutputs, "ANY", "ANY"), (TruncatedOutputs, "RN", "ANY")]
)
def test_the_strictest_grade_that_is_kept_is_printed_beside_the_strictest_profile(kernel, claimed, kept):
    """Whatever is claimed: roundings to nearest are seen from outside, and so are those that are none (MHA-NUM-5)."""
    asked = ("MHA-NUM-6/tail", "MHA-NUM-19/S0 ordinary", "MHA-NUM-20/S0 ordinary", "MHA-NUM-22/S0 ordinary")
    claims = {"dtypes": ("bfloat16",), "profiles": {"bfloat16": "PB16"}}
    found = [verdict(kernel(), f"{case}/bfloat16", claimed, **claims) for case in asked]
    assert found[0].nearest is None  # a bound says nothing of the direction of roundings
    report = Report(Target("it"), replace(kernel.claims, grade=claimed, **claims), Declaration(), tuple(found), ())
    assert report.satisfied == {"bfloat16": "PB16"}
    assert report.grades == {"bfloat16": kept}
    line = f"bfloat16: claimed PB16, strictest profile kept: PB16; grade {claimed} claimed, strictest kept: {kept}"
    assert report.arithmetic == [line]
    assert replace(report, verdicts=tuple(found[:1])).grades == {"bfloat16": None}
