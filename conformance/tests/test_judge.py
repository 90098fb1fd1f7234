"""The judge: which case is judged at all, what becomes of a reply that is none, which profiles are kept, and when a failure is suspect."""

import pickle
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from test_judge_rules import MANNERS, answer, request

from mha_conformance.cases.case import Case, Request
from mha_conformance.judge.blame import blamed, foundations
from mha_conformance.judge.judge import judge, unclaimed, verdict
from mha_conformance.judge.reply import Reply
from mha_conformance.judge.statistical import probable, searched, statistical
from mha_conformance.judge.training import expected_gradients
from mha_conformance.judge.truth import sigmas, truth, truths
from mha_conformance.judge.verdict import Verdict
from mha_core import Claims
from mha_spec.clauses import load
from mha_spec.numerics import PROFILES as ALL
from mha_spec.numerics import attention_sigma
from mha_spec.numerics_filter import scale_budget, weight_budget

PROFILES = {"float64": "P64", "float32": "P32", "float16": "P16", "bfloat16": "PB16"}
CLAIMS = Claims("numpy", tuple(PROFILES), frozenset({"mask", "lse"}), PROFILES, strict=False, determinism="none")


NUMBER = count()


@pytest.fixture(autouse=True)
def _cache_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("MHA_CACHE", str(tmp_path))


def case(rule="bound", *requests, clause="MHA-ATTN-6", **more):
    made = requests or (request(),)
    known = {"group": "semantics", "level": "core", "features": frozenset(), "dtype": "float32", "lasting": False, **more}
    return Case(f"{clause}/by hand, {next(NUMBER)}/float32", clause, rule=rule, make=lambda: made, **known)


# which cases are judged


@pytest.mark.parametrize(
    ("more", "claims", "why"),
    [
        ({}, {}, ""),
        ({"dtype": "float16"}, {"dtypes": ("float32",), "profiles": {"float32": "P32"}}, "float16 is not claimed"),
        ({"features": frozenset({"mask", "sink", "bias"})}, {}, "not claimed: bias, sink"),
        ({"features": frozenset({"mask"})}, {}, ""),
        ({"group": "strict"}, {}, "class strict is not claimed"),
        ({"group": "strict"}, {"strict": True}, ""),
        ({"group": "determinism"}, {}, "determinism class none promises no bits"),
        ({"group": "determinism"}, {"determinism": "run-to-run"}, ""),
        (
            {"group": "decode", "rule": "same rows"},
            {"determinism": "run-to-run"},
            "one row has the bits of the whole in class bit-exact alone",
        ),
        ({"group": "decode", "rule": "same rows"}, {"determinism": "bit-exact"}, ""),
        ({"group": "decode"}, {"determinism": "run-to-run"}, ""),
        ({"rule": "same rows"}, {"determinism": "run-to-run"}, ""),
    ],
)
def test_what_is_not_claimed_is_not_judged(more, claims, why):
    assert unclaimed(case(**more), replace(CLAIMS, **claims)) == why


def test_options_that_exclude_each_other_are_not_judged_together():
    pair = [frozenset({"mask", "lse"})]
    assert unclaimed(case(features=frozenset({"mask", "lse"})), CLAIMS, pair) == "declared to exclude each other: lse, mask"
    assert unclaimed(case(features=frozenset({"mask"})), CLAIMS, pair) == ""


# what is no answer


@pytest.mark.parametrize(
    ("reply", "status", "reason"),
    [
        (Reply("not run", error="no GPU", kernel="fused"), "NOT_RUN", "no GPU"),
        (Reply("inexpressible", error="strides"), "NOT_EXPRESSIBLE", "strides"),
        (Reply("no room", error="memory"), "NOT_RUN", "memory"),
        (Reply("refused", error="rank"), "FAIL", "claimed, but refused: rank"),
        (Reply("unsupported", error="later"), "FAIL", "claimed, but refused: later"),
    ],
)
def test_a_reply_that_is_no_answer(reply, status, reason):
    for replies in ([reply, answer(1.0)], [answer(1.0), reply]):
        found = judge(case("bound", request(), request()), replies, CLAIMS)
        assert (found.status, found.reason) == (status, reason)
        assert found.kernel == ("fused" if status == "NOT_RUN" and reply.kernel else "")
        assert found.ratio == (np.inf if status == "FAIL" else None)


def test_a_refusal_is_what_a_case_of_refusals_wants():
    assert judge(case("refused", clause="MHA-VAL-1"), [Reply("refused", clause="MHA-VAL-1")], CLAIMS).status == "PASS"
    assert judge(case("refused", clause="MHA-VAL-1"), [answer(1.0)], CLAIMS).status == "FAIL"
    assert judge(case("refused", clause="MHA-VAL-1"), [Reply("not run", error="no GPU")], CLAIMS).status == "NOT_RUN"


def test_where_the_profile_has_no_bound_nothing_is_asked():
    """1024 keys in float16 sums: 2 k u = 1 (MHA-NUM-4)."""
    many = Request((np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1024, 1)), np.ones((1, 1, 1024, 1))), "float16")
    claims = replace(CLAIMS, profiles={**PROFILES, "float16": "P16-acc16"})
    found = judge(case("bound", many, dtype="float16"), [answer(1.0)], claims)
    assert found.status == "NOT_SUPPORTED" and found.reason.startswith("not posed: ")
    assert judge(case("bound", many, dtype="float16"), [answer(1.0)], CLAIMS).profiles == ("P16", "P16-eager", "P16-acc16")


# profiles, words, and what is suspect


def test_the_profiles_that_are_kept_are_told_strictest_first():
    """Off by 2^-11: too much for float32 throughout, and little for operands and weights of 11 bits."""
    coarse = judge(case(), [answer(1 + 2.0**-11)], CLAIMS)
    assert (coarse.status, coarse.profiles) == ("FAIL", ("PTF32",))
    assert judge(case(), [answer(1.0)], CLAIMS).profiles == ("P32", "PTF32")
    assert judge(case(), [answer(2.0)], CLAIMS).profiles == ()
    assert judge(case(), [answer(1.0)], CLAIMS, rivals=False).profiles == ()
    assert judge(case("same bits", request(), request()), [answer(1.0), answer(1.0)], CLAIMS).profiles == ()


def test_a_verdict_has_the_names_and_the_size_of_its_case():
    found = verdict(case("bound", request(), request()), "PASS", "why", 0.5)
    assert found.case.startswith("MHA-ATTN-6/by hand")
    assert (found.clause, found.group, found.level, found.dtype) == ("MHA-ATTN-6", "semantics", "core", "float32")
    assert (found.status, found.reason, found.ratio, found.size) == ("PASS", "why", 0.5, 10)  # twice 1 + 2 + 2 numbers
    assert judge(case(), [answer(1.0, kernel="fused")], CLAIMS).kernel == "fused"


def test_a_known_fault_is_named_only_where_something_failed_and_words_are_wanted():
    zeros = judge(case(), [answer(0.0)], CLAIMS)
    assert (zeros.status, zeros.hypothesis) == ("FAIL", "the first key is left out (MHA-ATTN-6)") or "zero" in zeros.hypothesis
    assert judge(case(), [answer(0.0)], CLAIMS, explain=False).hypothesis == ""
    assert judge(case(), [answer(1.0)], CLAIMS).hypothesis == ""
    second = judge(case("bound", request(), request(values=(1.0, 3.0))), [answer(1.0), answer(3.0)], CLAIMS)
    assert second.hypothesis == "the first key is left out (MHA-ATTN-6)"


def scattered(seed, n=64, m=8, d=4):
    r = np.random.default_rng(seed)
    return Request(
        tuple(
            r.standard_normal(shape).astype(np.float32).astype(float) for shape in ((1, 1, n, d), (1, 1, m, d), (1, 1, m, 32))
        ),
        "float32",
    )


def right(one, profile="P32"):
    return truth(one, profile).expected["output"]


def test_what_is_improbable_fails_grade_rn_and_is_suspect_in_any():
    one = scattered(0)
    output = right(one)
    output[0, 0, 40, 7] += 2.0**-14
    asked = case("probable", one, clause="MHA-NUM-20")
    assert judge(asked, [Reply("ok", output)], replace(CLAIMS, grade="RN")).status == "FAIL"
    suspect = judge(asked, [Reply("ok", output)], CLAIMS)
    assert suspect.status == "SUSPECT" and suspect.worst.index == (0, 0, 40, 7)
    output[0, 0, 0, 0] = np.nan
    assert judge(asked, [Reply("ok", output)], CLAIMS).status == "FAIL"
    bound = judge(case("bound", one), [Reply("ok", np.where(np.isnan(output), 9.0, output))], CLAIMS)
    assert bound.status == "FAIL"


def test_profiles_are_decided_by_what_binds_the_grade():
    one = scattered(1)
    asked = case("probable", one, clause="MHA-NUM-20")
    for grade in ("RN", "ANY"):
        claims = replace(CLAIMS, grade=grade)
        found = judge(asked, [Reply("ok", right(one))], claims)
        assert (found.profiles, found.nearest) == ((), ("P32", "PTF32"))
        for rule in ("statistics", "filter"):
            found = judge(case(rule, one), [Reply("ok", right(one))], claims)
            assert (found.profiles, found.nearest) == (("P32", "PTF32"), ("P32", "PTF32"))
        found = judge(case("bound", one), [Reply("ok", right(one))], claims)
        assert (found.profiles, found.nearest) == (("P32", "PTF32"), None)
    assert judge(asked, [Reply("ok", right(one))], CLAIMS, rivals=False).nearest is None


def test_where_flushing_is_declared_every_profile_flushes():
    """The mean of two values of 2^-127 may be 0 then, and only then."""
    tiny = request(values=(2.0**-127, 2.0**-127))
    assert judge(case("bound", tiny), [answer(0.0)], CLAIMS).status == "FAIL"
    found = judge(case("bound", tiny), [answer(0.0)], replace(CLAIMS, flushes_subnormals=True))
    assert (found.status, found.profiles) == ("PASS", ("P32", "PTF32"))


def test_what_was_written_around_the_arrays_fails_whatever_the_case_asks():
    for rule in ("bound", "refused"):
        replies = [answer(1.0), replace(answer(1.0), touched=("value", "query"))]
        found = judge(case(rule, request(), request()), replies, CLAIMS)
        assert (found.status, found.clause, found.ratio) == ("FAIL", "MHA-EXEC-2", np.inf)
        assert "around query, value" in found.reason


# the sets


def test_the_farthest_element_is_found_in_its_own_reply():
    requests = (scattered(0), scattered(1), scattered(2))
    outputs = [right(one) for one in requests]
    for at, place in ((0, (0, 0, 0, 0)), (1, (0, 0, 0, 0)), (1, (0, 0, 63, 31)), (2, (0, 0, 5, 6))):
        changed = [x.copy() for x in outputs]
        changed[at][place] += 1e-3
        found = probable(case("probable", *requests), [Reply("ok", x) for x in changed], "P32", "RN")
        assert not found.holds and found.worst.index == place
        assert found.worst.got - found.worst.expected == pytest.approx(1e-3)
        assert found.worst.expected == outputs[at][place]
        assert found.ratio == pytest.approx(1e-3 / found.worst.bound)


def test_eight_deviations_are_the_limit_and_the_bound_that_is_told():
    one = scattered(3)
    sigma = attention_sigma(*one.operands, ALL["P32"], "RN", scale=0.5).output[0, 0, 9, 9]
    for part, holds in ((0.999, True), (1.001, False)):
        output = right(one)
        output[0, 0, 9, 9] -= 8 * part * sigma
        found = probable(case("probable", one), [Reply("ok", output)], "P32", "RN")
        assert found.holds == holds and found.ratio == pytest.approx(part, rel=1e-6)
        assert found.worst.bound == pytest.approx(8 * sigma)
        assert holds or found.reason == "an element is 8.01 deviations from the truth"


def test_errors_of_one_deviation_each_are_the_limit_of_the_mean_square_and_their_sum_of_the_other():
    """e = +-sigma: the mean square is 1. All of one sign: |sum| = T against sqrt(10 T) for T outputs (T' is small here)."""
    one = scattered(4)
    for grade, C in (("RN", 1), ("ANY", 4)):
        sigma = attention_sigma(*one.operands, ALL["P32"], grade, scale=0.5)
        signs = np.where(np.arange(sigma.output.size).reshape(sigma.output.shape) % 2, 1.0, -1.0)
        for part, holds in ((0.99, True), (1.01, False)):
            output = right(one) + part * C**0.5 * signs * sigma.output
            found = statistical(case("statistics", one), [Reply("ok", output)], "P32", grade)
            assert found.holds == holds and found.ratio == pytest.approx(part**2, rel=1e-4)
            assert f"grade {grade}, 2048 elements" in found.reason and f"limit {C};" in found.reason
        one_way = statistical(case("statistics", one), [Reply("ok", right(one) + 0.1 * sigma.output)], "P32", grade)
        limit = np.sqrt(10 * C * (2048 + sigma.shared))
        assert one_way.ratio == pytest.approx(204.8 / limit, rel=1e-4) and one_way.holds == (limit > 204.8)


@pytest.mark.parametrize("rule", [statistical, probable, searched])
def test_fewer_than_a_thousand_elements_say_nothing(rule):
    few = scattered(5, n=31)  # 31 * 32 = 992
    found = rule(case("statistics", few), [Reply("ok", right(few) + 1.0)], "P32", "RN")
    assert found.holds and "nothing is probable" in found.reason and found.ratio == 0
    enough = scattered(5, n=32)
    assert not rule(case("statistics", enough), [Reply("ok", right(enough) * 1.5)], "P32", "RN").holds or rule is searched


@pytest.mark.parametrize("rule", [statistical, probable, searched])
def test_no_set_takes_what_is_not_finite_or_of_another_shape(rule):
    one = scattered(6)
    for bad in (np.nan, np.inf):
        output = right(one)
        output[0, 0, 3, 3] = bad
        found = rule(case("statistics", one, one), [Reply("ok", right(one)), Reply("ok", output)], "P32", "RN")
        assert (found.holds, found.ratio, found.reason) == (False, np.inf, "output holds numbers that are not finite")
    assert "shape" in rule(case("statistics", one), [Reply("ok", right(one)[..., :3])], "P32", "RN").reason


@pytest.mark.parametrize("grade", ["RN", "ANY"])
def test_the_filter_finds_a_scale_beyond_its_budget_and_says_how_large_it_is(grade):
    """RN grants 3 u_s to the scale: 1 + 2^-20 is 16 u, five times that. ANY grants some hundreds of u."""
    one = scattered(7, n=256, m=32)
    for part, rn, any_ in ((2.0**-20, False, True), (2.0**-24, True, True), (2.0**-10, False, False)):
        off = replace(one, options={"scale": 0.5 * (1 + part)})
        found = searched(case("filter", one), [Reply("ok", right(off))], "P32", grade)
        assert found.holds == (rn if grade == "RN" else any_), part
        if not found.holds:
            assert found.hypothesis.startswith(
                f"the scale is {1 + part:.{4 if part > 2e-4 else 7}f} times what it should be (MHA-ATTN-2): "
            )
            assert found.reason == f"the error holds: {found.hypothesis}"
            assert found.ratio > 1
        else:
            assert found.hypothesis == found.reason == ""


def test_a_fault_is_there_or_not():
    """The last key lost is found once; a third or twice of it is another error."""
    one = scattered(8, n=256, m=8)
    lost = replace(one, operands=(one.operands[0], *(x[..., :-1, :] for x in one.operands[1:])))
    for times, found in ((1.0, True), (0.7, True), (0.4, False), (1.6, False)):
        output = right(one) + times * (right(lost) - right(one))
        finding = searched(case("filter", one), [Reply("ok", output)], "P32", "RN")
        said = finding.hypothesis.startswith("the last key is left out (MHA-ATTN-6)")
        assert said == found, finding
        if found:
            assert (", 0.700 times over: " in finding.hypothesis) == (times != 1.0)


# truth by hand


def test_the_truth_of_a_merge():
    """Parts (1, lse log 1), (5, lse log 3), and one that is empty: (1 + 15) / 4 and log 4."""
    parts = [(1.0, 0.0), (5.0, np.log(3.0)), (0.0, -np.inf)]
    operands = tuple(x for o, lse in parts for x in (np.full((1, 1, 1, 1), o), np.full((1, 1, 1), lse)))
    found = truth(Request(operands, "float32", "merge"), "P32")
    assert found.expected["output"].item() == pytest.approx(4.0) and found.expected["lse"].item() == pytest.approx(np.log(4.0))
    assert 0 < found.bounds["output"].item() < 1e-4 and 0 < found.bounds["lse"].item() < 1e-5
    nothing = truth(Request(operands[4:] * 2, "float32", "merge"), "P32")
    assert (nothing.expected["output"].item(), nothing.expected["lse"].item()) == (0, -np.inf)


def test_only_what_was_asked_has_a_truth():
    for options, names in (
        ({}, ["output"]),
        ({"return_lse": True}, ["output", "lse"]),
        ({"return_weights": True}, ["output", "weights"]),
    ):
        found = truth(request(**options), "P32")
        assert list(found.expected) == list(found.bounds) == names


def test_the_truth_of_gradients_and_that_only_the_wanted_ones_are_looked_at():
    """Two keys of score 0, values 0 and 4, dO = 1: weights 1/2, D = 2, dS = (-1, 1)."""
    operands = (np.array([[[[1.0]]]]), np.array([[[[0.0], [0.0]]]]), np.array([[[[0.0], [4.0]]]]))
    one = Request(operands, "float32", "vjp", arrays={"grad_output": np.ones((1, 1, 1, 1))}, options={"scale": 2.0})
    expected, room = expected_gradients(one, "P32")
    assert {name: x.ravel().tolist() for name, x in expected.items()} == {
        "query gradient": [0], "key gradient": [-2, 2], "value gradient": [0.5, 0.5],
    }  # fmt: skip
    assert all(x.shape == expected[name].shape and (x > 0).all() and (x < 1e-4).all() for name, x in room.items())
    assert list(expected_gradients(replace(one, gradients=("value",)), "P32")[0]) == ["value gradient"]
    wild = replace(one, operands=(np.array([[[[np.inf]]]]), *operands[1:]))
    with np.errstate(all="ignore"):
        expected, room = expected_gradients(wild, "P32")
    assert np.isnan(expected["query gradient"]).all() and np.isinf(room["query gradient"]).all()


# blame


def failing(clause, size=1, dtype="float32", status="FAIL", reason="outside"):
    return Verdict(f"{clause}/a case/{dtype}", clause, "semantics", "core", dtype, status, reason, size=size)


def test_of_clauses_that_fail_the_one_below_is_blamed_and_of_its_cases_the_smallest():
    above, below = "MHA-MASK-7", "MHA-ATTN-6"
    assert below in foundations(load())[above]
    found = blamed([failing(above, 1), failing(below, 9), failing(below, 4), failing(below, 7)], load())
    assert [(v.clause, v.size) for v in found] == [(below, 4)]
    apart = blamed([failing("MHA-MASK-12", 9), failing("MHA-MASK-10", 4)], load())
    assert [v.clause for v in apart] == ["MHA-MASK-10", "MHA-MASK-12"]
    assert blamed([failing(below, status="PASS")], load()) == []


def test_statuses_that_fail():
    for status, blames in (
        ("FAIL", 1),
        ("CRASH", 1),
        ("TIMEOUT", 1),
        ("SUSPECT", 0),
        ("XFAIL", 0),
        ("NOT_RUN", 0),
        ("ERROR", 0),
    ):
        assert len(blamed([failing("MHA-ATTN-6", status=status)], load())) == blames


def test_a_case_that_fails_in_a_dtype_where_what_is_below_holds_is_blamed_but_comes_later():
    above, below = "MHA-MASK-7", "MHA-ATTN-6"
    held = failing(below, status="PASS")
    found = blamed([failing(above, 1), failing(below, 9, "float64"), held], load())
    assert [v.clause for v in found] == [below, above]


# what is kept


def test_a_truth_is_computed_once_and_kept_by_case_profile_and_code(tmp_path):
    """A second process reads what the first one wrote; nothing is kept of a case that was made on the way."""

    def kept():
        return sorted((tmp_path / "truth").glob("*"))

    truths(case(), "P32")
    assert not kept()
    asked = case(lasting=True)
    first = truths(asked, "P32")
    (file,) = kept()
    assert file.suffix == ".pickle" and pickle.loads(file.read_bytes())[0].expected["output"] == 1
    assert truths(asked, "P32") is first
    file.write_bytes(pickle.dumps("what was kept"))
    truths.cache_clear()
    assert truths(asked, "P32") == "what was kept"
    assert truths(asked, "P64") != "what was kept" and len(kept()) == 2
    sigmas(asked, "P32", "RN")
    sigmas(asked, "P32", "ANY")
    assert len(kept()) == 4


def test_a_fault_is_held_to_the_budget_of_a_weight_and_a_scale_to_its_own():
    """Many deviations: what decides is how often a budget is in it. In bfloat16 one weight of 8 may change by about a fiftieth."""
    p, one = ALL["PB16"], replace(scattered(9, n=256, m=8), dtype="bfloat16")
    query, key, value = one.operands
    largest = float(np.abs(query @ key.mT).max() / 2)
    lost = replace(one, operands=(query, key[..., :-1, :], value[..., :-1, :]))
    found = searched(case("filter", one, dtype="bfloat16"), [Reply("ok", right(lost, "PB16"))], "PB16", "RN")
    assert found.ratio == pytest.approx(1 / weight_budget(8, 4, largest, p), rel=1e-3)
    for grade in ("RN", "ANY"):
        off = replace(one, options={"scale": 0.505})
        found = searched(case("filter", one, dtype="bfloat16"), [Reply("ok", right(off, "PB16"))], "PB16", grade)
        assert found.hypothesis.startswith("the scale is 1.0100 times")
        deviations = float(found.hypothesis.rpartition(": ")[2].split()[0])
        assert found.ratio == pytest.approx(min(deviations / 8, 0.01 / scale_budget(4, p, grade)), rel=0.01)


@pytest.mark.parametrize("rule", ["bound", "agree", "history", "facts", "statistics", "filter"])
def test_a_reply_that_is_missing_is_a_defect_and_no_verdict(rule):
    one = scattered(10)
    reply = Reply("ok", right(one), facts=MANNERS)
    with pytest.raises(ValueError, match="zip"):
        judge(case(rule, one, one, clause="MHA-EXEC-5" if rule == "history" else "MHA-EXEC-1"), [reply], CLAIMS)


@pytest.mark.parametrize("name", ["query", "key", "value", "bias"])
def test_what_sees_an_infinity_may_be_any_number_and_nan(name):
    """MHA-MASK-24: row 0 sees it, row 1 does not, and keeps its bound."""
    arrays = {
        "query": np.zeros((1, 1, 2, 1)),
        "key": np.zeros((1, 1, 2, 1)),
        "value": np.ones((1, 1, 2, 1)),
        "bias": np.zeros((2, 2)),
    }
    arrays[name][..., 0, 0] = np.inf
    mask = np.array([[True, True], [False, True]])
    operands = tuple(arrays[x] for x in ("query", "key", "value"))
    found = truth(Request(operands, "float32", arrays={"bias": arrays["bias"], "mask": mask}), "P32")
    assert np.isnan(found.expected["output"]).ravel().tolist() == [True, False]
    assert np.isinf(found.bounds["output"]).ravel().tolist() == [True, False]
    assert found.expected["output"][0, 0, 1, 0] == 1
