"""The rules, one reply just inside and one just outside: bounds are the ones that the text derives by pencil (MHA-NUM-6 to 8)."""

from dataclasses import replace
from math import log

import numpy as np
import pytest

from mha_backends import reference
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.linear import granted
from mha_conformance.judge.hypothesis import ZEROS
from mha_conformance.judge.judge import judge
from mha_conformance.judge.reply import Reply
from mha_conformance.judge.rules import GRADED, RULES, ruled

ALL = reference.create().claims
U = 2.0**-24
"""The unit roundoff of float32."""
B, B_LSE, B_WEIGHTS = 30 * U, (10 + 6 * (1 + 2 * log(2))) * U, 12 * U
"""Two scores of 0 and values of 1 in float32: the bounds of output, lse and weights, to first order."""
FULL = {"return_weights": True, "return_lse": True}


def request(values=(1.0, 1.0), channels=1, **options):
    """One query that looks at two keys with scores of 0: the answer is the mean of their values."""
    value = np.repeat(np.reshape(values, (1, 1, 2, 1)), channels, axis=-1)
    return Request((np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), value), "float32", options=options)


def case(rule, *requests, clause="MHA-ATTN-6"):
    return Case(
        f"{clause}/by hand/float32", clause, "semantics", "core", frozenset(), "float32", rule, lambda: requests, lasting=False
    )


def answer(*outputs, **more):
    """A reply of one row."""
    return Reply("ok", np.reshape(np.array(outputs, dtype=np.float64), (1, 1, 1, -1)), **more)


def found(rule, requests, replies, profile="P32", **names):
    finding = ruled(case(rule, *requests, **names), replies, profile, "ANY")
    assert finding.holds == (finding.reason == "")
    return finding


def mean(part, lse=0.0, weights=0.0, sign=1):
    """The right answer to ``request(**FULL)``, off by parts of its bounds."""
    return answer(
        1 + sign * part * B,
        lse=np.full((1, 1, 1), log(2) + sign * lse * B_LSE),
        weights=np.full((1, 1, 1, 2), 0.5 + sign * weights * B_WEIGHTS),
    )


# bound


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("off", [{"part": 0.99}, {"part": 0, "lse": 0.99}, {"part": 0, "weights": 0.99}])
def test_just_inside_the_bound_holds(off, sign):
    finding = found("bound", [request(**FULL)], [mean(**off, sign=sign)])
    assert finding.holds and finding.reason == ""
    assert finding.ratio == pytest.approx(0.99, rel=1e-3)
    assert finding.worst.ratio == finding.ratio


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("name", "off"), [("output", {"part": 1.01}), ("lse", {"part": 0, "lse": 1.01}), ("weights", {"part": 0, "weights": 1.01})]
)
def test_just_outside_fails_and_says_where(name, off, sign):
    finding = found("bound", [request(**FULL)], [mean(**off, sign=sign)])
    assert not finding.holds and finding.reason == f"{name} is outside the bound"
    assert finding.ratio == pytest.approx(1.01, rel=1e-3)
    assert (finding.worst.array, finding.worst.index[:3]) == (name, (0, 0, 0))
    assert finding.worst.bound == pytest.approx({"output": B, "lse": B_LSE, "weights": B_WEIGHTS}[name], rel=1e-5)
    assert abs(finding.worst.got - finding.worst.expected) == pytest.approx(1.01 * finding.worst.bound, rel=1e-3)
    assert finding.pattern.startswith("all ")


def test_of_many_elements_the_farthest_is_named_and_the_pattern_says_which_are_wrong():
    finding = found("bound", [request(channels=4)], [answer(1, 1 + 3 * B, 1 + 2 * B, 1)])
    assert (finding.worst.index, finding.ratio) == ((0, 0, 0, 1), pytest.approx(3, rel=1e-3))
    assert finding.pattern == "2 of 4 elements: channel 1-2 of 4"


def test_of_many_replies_the_worst_that_fails_is_told_and_of_arrays_too():
    one = request()
    finding = found("bound", [one] * 3, [answer(1.0), answer(1 + 5 * B), answer(1 + 2 * B)])
    assert finding.ratio == pytest.approx(5, rel=1e-3)
    assert found("bound", [request(**FULL)], [mean(2, lse=3, weights=1.5)]).worst.array == "lse"
    assert found("bound", [one] * 2, [answer(1 + 0.2 * B), answer(1 + 0.6 * B)]).ratio == pytest.approx(0.6, rel=1e-3)


def test_a_nan_or_an_infinity_is_infinitely_wrong_and_without_elements_nothing_is():
    for wrong in (np.nan, np.inf, -np.inf):
        assert found("bound", [request()], [answer(wrong)]).ratio == np.inf
    nothing = found("bound", [request(channels=0)], [Reply("ok", np.zeros((1, 1, 1, 0)))])
    assert nothing.holds and nothing.ratio == 0


def test_the_largest_number_is_that_of_the_outputs_type_and_of_the_lse_that_of_its_own():
    """65504 is the largest float16, and the lse of float16 is float32: a lse of 90000 is no infinity."""
    large = request(values=(65504.0, 65504.0))
    large = replace(large, dtype="float16")
    assert found("bound", [large], [answer(np.inf)], "P16").holds
    assert not found("bound", [large], [answer(-np.inf)], "P16").holds
    assert not found("bound", [large], [answer(np.inf)], "P32").holds
    far = Request(
        (np.full((1, 1, 1, 1), 300.0),) * 2 + (np.ones((1, 1, 1, 1)),), "float16", options={"return_lse": True, "scale": 1.0}
    )
    right = answer(1.0, lse=np.full((1, 1, 1), 90000.0))
    assert found("bound", [far], [right], "P16").holds
    assert not found("bound", [far], [replace(right, lse=np.full((1, 1, 1), np.inf))], "P16").holds


# what is no answer


@pytest.mark.parametrize("rule", ["bound", "agree", "as first", "same bits", "same rows", "history"])
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply("ok"), "no output came back, though it was asked for"),
        (answer(1.0, 1.0), "output has shape (1, 1, 1, 2), expected (1, 1, 1, 1)"),
        (Reply("ok", np.ones((1, 1, 1, 1), dtype=int)), "output holds int64, expected floating numbers"),
    ],
)
def test_what_is_no_answer_fails_under_every_rule(rule, reply, reason):
    for replies in ([reply, answer(1.0)], [answer(1.0), reply]):
        finding = found(rule, [request()] * 2, replies)
        assert (finding.holds, finding.reason, finding.ratio) == (False, reason, np.inf)


def test_what_was_asked_beside_the_output_must_come():
    assert found("bound", [request(return_lse=True)], [answer(1.0)]).reason == "no lse came back, though it was asked for"


# laws


def test_replies_agree_within_the_sum_of_both_bounds():
    pair = [request(), request()]
    assert found("agree", pair, [answer(1 + B), answer(1 - 0.98 * B)]).holds
    apart = found("agree", pair, [answer(1 + B), answer(1 - 1.02 * B)])
    assert not apart.holds and apart.ratio == pytest.approx(2.02 / 2, rel=1e-3)
    three = found("agree", [request()] * 3, [answer(1.0), answer(1.0), answer(1 + 3 * B)])
    assert three.ratio == pytest.approx(3 / 2, rel=1e-3)


def test_channels_that_are_added_at_the_end_are_not_compared():
    wide = request(channels=2)
    assert found("agree", [request(), wide], [answer(1.0), answer(1.0, 7.0)]).holds
    assert not found("agree", [request(), wide], [answer(1.0), answer(7.0, 1.0)]).holds


def test_what_must_not_matter_is_held_to_the_first_truth():
    other = request(values=(2.0, 2.0))
    assert found("as first", [request(), other], [answer(1.0), answer(1 + 0.9 * B)]).holds
    assert not found("as first", [request(), other], [answer(1.0), answer(2.0)]).holds
    assert not found("as first", [request(), other], [answer(2.0), answer(1.0)]).holds


# history


A, OTHER = request(), request(values=(2.0, 2.0))
WIDER = request(channels=2)


def history(requests, *outputs):
    return found("history", requests, [answer(*np.atleast_1d(output)) for output in outputs], clause="MHA-EXEC-5")


def test_a_history_that_is_right_throughout_holds_and_tells_its_farthest():
    finding = history([A, OTHER, A], 1 + 0.25 * B, 2, 1 + 0.5 * B)
    assert finding.holds and finding.ratio == pytest.approx(0.5, rel=1e-3)


def test_a_request_that_is_answered_otherwise_the_second_time_is_told_so():
    finding = history([A, OTHER, A], 1, 2, 2)
    assert not finding.holds and finding.reason == "asked again, call 2: output is outside the bound"


def test_a_request_that_finds_what_another_left_is_no_repetition():
    finding = history([A, OTHER], 1, 1)
    assert not finding.holds and finding.reason == "call 1: output is outside the bound"
    again = history([A, OTHER, OTHER], 1, 1, 1)
    assert not again.holds and again.reason == "call 1: output is outside the bound"


def test_what_is_wrong_from_the_start_is_no_matter_of_history_unless_it_changes():
    assert history([A, OTHER, A], 5, 2, 5).holds
    assert history([A, OTHER, A], 5, 2, 5 + 1.9 * B).holds
    moved = history([A, OTHER, A], 5, 2, 5 + 2.1 * B)
    assert not moved.holds and moved.reason == "asked again, call 2 is call 0, and its output is another"
    assert history([A, OTHER, A], np.nan, 2, 1).holds  # nothing can be compared with it
    assert history([A, WIDER, A], 1, (5, 5), 1).holds
    wider = history([A, WIDER, A, WIDER], 1, (5, 5), 1, (5, 6))
    assert not wider.holds and wider.reason.startswith("asked again, call 3 is call 1")


def test_requests_are_equal_by_what_they_ask_and_not_by_where_it_lies():
    moved = replace(A, layout="reversed")
    assert history([A, moved], 1, 2).reason.startswith("asked again, call 1")
    other_option = request(scale=2.0)
    assert history([A, other_option], 1, 2).reason == "call 1: output is outside the bound"


# bits


def test_the_same_bits_are_the_same_bits():
    pair = [request(**FULL)] * 2
    right = mean(0)
    assert found("same bits", pair, [right, mean(0)]).holds
    for name in ("output", "lse", "weights"):
        x = getattr(right, name).copy()
        x.flat[-1] = np.nextafter(x.flat[-1], 9)
        finding = found("same bits", pair, [right, replace(right, **{name: x})])
        assert not finding.holds and finding.reason == f"{name} of call 1 has other bits than that of call 0"
        assert (finding.worst.array, finding.worst.got, finding.worst.bound) == (name, x.flat[-1], 0)
        assert finding.worst.expected == getattr(right, name).flat[-1]
    third = found("same bits", [request()] * 3, [answer(1.0), answer(1.0), answer(1 + U)])
    assert not third.holds and third.reason.startswith("output of call 2")


def test_zero_and_minus_zero_are_other_bits_and_a_nan_is_its_own():
    one = [request(values=(0.0, 0.0))] * 2
    assert not found("same bits", one, [answer(0.0), answer(-0.0)]).holds
    assert found("same bits", one, [answer(np.nan), answer(np.nan)]).holds


def test_an_array_that_only_one_call_gave_is_a_difference():
    pair = [request()] * 2
    more = answer(1.0, lse=np.zeros((1, 1, 1)))
    for replies in ([answer(1.0), more], [more, answer(1.0)]):
        finding = found("same bits", pair, replies)
        assert (finding.holds, finding.ratio) == (False, np.inf)
        assert finding.reason == "lse of call 0 and call 1 differ in shape"


def rows(n, values=(1.0, 1.0)):
    one = request(values=values)
    return replace(one, operands=(np.zeros((1, 1, n, 1)), *one.operands[1:]))


def of_rows(*outputs):
    return Reply("ok", np.reshape(np.array(outputs, dtype=np.float64), (1, 1, -1, 1)))


def test_rows_one_behind_the_other_have_the_bits_of_the_whole():
    asked = [rows(3), rows(1), rows(2)]
    assert found("same rows", asked, [of_rows(1, 2, 3), of_rows(1), of_rows(2, 3)]).holds
    assert not found("same rows", asked, [of_rows(1, 2, 3), of_rows(1), of_rows(3, 2)]).holds
    assert not found("same rows", asked, [of_rows(1, 2, 3), of_rows(1), of_rows(2, 3 + 2 * U)]).holds


def hidden(poison, in_key=False, heads=1):
    """Two rows: row 0 sees key 0, row 1 both keys; the requests differ in key 1, or its value. ``heads`` query heads share it."""
    mask = np.array([[True, False], [True, True]])
    operands = [np.zeros((1, heads, 2, 1)), np.zeros((1, 1, 2, 1)), np.ones((1, 1, 2, 1))]
    operands[1 if in_key else 2][0, 0, 1] = poison
    return Request(tuple(operands), "float32", arrays={"mask": mask})


@pytest.mark.parametrize("in_key", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
def test_a_row_that_does_not_see_what_differs_keeps_its_bits(in_key, heads):
    pair = [hidden(1.0, in_key, heads), hidden(3.0, in_key, heads)]
    for at in range(heads):
        before, seen, unseen = (np.ones((1, heads, 2, 1)) for _ in range(3))
        seen[0, at, 1] = 2.0
        unseen[0, at, 0] = 1 + 2 * U
        assert found("hidden bits", pair, [Reply("ok", before), Reply("ok", seen)], clause="MHA-MASK-19").holds
        wrong = found("hidden bits", pair, [Reply("ok", before), Reply("ok", unseen)], clause="MHA-MASK-19")
        assert not wrong.holds and wrong.worst.index == (0, at, 0, 0)


def test_a_nan_that_both_requests_hold_is_no_difference():
    both = [hidden(np.nan), hidden(np.nan)]
    assert not found("hidden bits", both, [of_rows(1, 1), of_rows(1, 2)]).holds
    assert found("hidden bits", [hidden(1.0), hidden(np.nan)], [of_rows(1, 1), of_rows(1, np.nan)]).holds


# gradients


def training(value=1.0, gradient=1.0, query=0.0):
    """Row 0 sees key 0, row 1 keys 0 and 1, row 2 key 2; the value of key 1, what arrives at row 0, and query 2 vary."""
    see = np.array([[True, False, False], [True, True, False], [False, False, True]])
    q, k, v, dO = np.zeros((1, 1, 3, 1)), np.zeros((1, 1, 3, 1)), np.ones((1, 1, 3, 1)), np.ones((1, 1, 3, 1))
    v[0, 0, 1], dO[0, 0, 0], q[0, 0, 2] = value, gradient, query
    return Request((q, k, v), "float32", "vjp", arrays={"mask": see, "grad_output": dO})


def gradients(**changed):
    """Gradients of zero, but for one row of one of them."""
    found = {f"{name} gradient": np.zeros((1, 1, 3, 1)) for name in ("query", "key", "value")}
    for name, row in changed.items():
        found[f"{name} gradient"][0, 0, row] = 1.0
    return Reply("ok", gradients=found)


@pytest.mark.parametrize(
    ("other", "blind"),
    [
        ({"value": 2.0}, {"query": [0, 2], "key": [2], "value": [2]}),  # row 1 meets it, and row 1 sees keys 0 and 1
        ({"gradient": 2.0}, {"query": [1, 2], "key": [1, 2], "value": [1, 2]}),  # row 0 alone, which sees key 0
        ({"query": 2.0}, {"query": [0, 1], "key": [0, 1], "value": [0, 1]}),
    ],
)
def test_gradients_keep_their_bits_where_the_difference_is_hidden_from_them(other, blind):
    pair = [training(), training(**other)]
    for name in ("query", "key", "value"):
        for row in range(3):
            finding = found("hidden gradient bits", pair, [gradients(), gradients(**{name: row})], clause="MHA-GRAD-15")
            assert finding.holds == (row not in blind[name]), (name, row)


def facts(**changed):
    known = {"dtypes": {"query gradient": ("float32", "float32")}, "libraries": {"query gradient": ("numpy", "numpy")},
             "devices": {"query gradient": ("cpu", "cpu")}, "modified": [], "absent": []}  # fmt: skip
    return replace(gradients(), facts={**known, **changed})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dtypes": {"query gradient": ("float64", "float32")}}, "dtypes of query gradient: float64, expected float32"),
        ({"libraries": {"query gradient": ("torch", "numpy")}}, "libraries of query gradient: torch, expected numpy"),
        ({"devices": {"query gradient": ("cuda:0", "cpu")}}, "devices of query gradient: cuda:0, expected cpu"),
        ({"modified": ["key", "value"]}, "key was modified; value was modified"),
        ({"absent": ["bias"]}, "a gradient of bias is missing, or there is one too many"),
    ],
)
def test_facts_of_gradients(changed, reason):
    assert found("gradient facts", [training()], [facts()], clause="MHA-GRAD-1").holds
    finding = found("gradient facts", [training()], [facts(**changed)], clause="MHA-GRAD-1")
    assert (finding.holds, finding.reason, finding.ratio) == (False, reason, np.inf)


def test_a_gradient_of_another_shape_is_no_gradient():
    reply = facts()
    reply.gradients["key gradient"] = np.zeros((1, 1, 2, 1))
    assert "key gradient has shape" in found("gradient facts", [training()], [reply], clause="MHA-GRAD-1").reason


# refusals and manners


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply("refused", clause="MHA-VAL-1", error="rank"), ""),
        (Reply("refused", error="no"), ""),
        (Reply("unsupported", error="no"), ""),
        (answer(1.0), "accepted, though it must be refused"),
        (Reply("refused", clause="MHA-VAL-2", error="rank"), "refused for MHA-VAL-2: rank"),
    ],
)
def test_a_refusal_names_its_own_clause_or_none(reply, reason):
    finding = found("refused", [request()], [reply], clause="MHA-VAL-1")
    assert (finding.holds, finding.reason) == (not reason, reason)
    assert finding.ratio == (np.inf if reason else 0)
    assert found("refused", [request()] * 2, [Reply("refused"), reply], clause="MHA-VAL-1").holds == (not reason)


def test_a_refusal_that_must_teach_is_held_to_it():
    good, bad = (Reply("refused", error="wrong", clause="MHA-VAL-1", facts={"teaches": teaches}) for teaches in (True, False))
    assert found("refused", [request()] * 2, [good, good], clause="MHA-VAL-22").holds
    for replies in ([good, bad], [bad, good], [replace(bad, facts={}), good]):
        finding = found("refused", [request()] * 2, replies, clause="MHA-VAL-22")
        assert not finding.holds and finding.reason.endswith("what to do: wrong")


MANNERS = {"asked library": "numpy", "library": "numpy", "dtype": "float32", "device": True, "modified": [], "shared": [],
           "lse dtype": "float32", "form": "array", "state": True}  # fmt: skip


@pytest.mark.parametrize(
    ("clause", "changed", "reason"),
    [
        ("MHA-EXEC-1", {"library": "torch"}, "library is torch, expected numpy"),
        ("MHA-EXEC-1", {"dtype": "float64"}, "dtype is float64, expected float32"),
        ("MHA-EXEC-1", {"device": False}, "device is False, expected True"),
        ("MHA-EXEC-2", {"modified": ["query"]}, "query was modified"),
        ("MHA-EXEC-3", {"shared": ["key", "value"]}, "the output shares memory with key; the output shares memory with value"),
        ("MHA-AUX-5", {"lse dtype": "float16"}, "lse is float16, expected float32"),
        ("MHA-AUX-11", {"form": ("output", "lse")}, "the result is ('output', 'lse')"),
        ("MHA-EXEC-6", {"state": False}, "a random generator or an error mode was changed"),
    ],
)
def test_manners(clause, changed, reason):
    right, wrong = (answer(1.0, facts={**MANNERS, **more}) for more in ({}, changed))
    assert found("facts", [request()], [right], clause=clause).holds
    for replies in ([wrong, right], [right, wrong]):
        finding = found("facts", [request()] * 2, replies, clause=clause)
        assert (finding.holds, finding.reason, finding.ratio) == (False, reason, np.inf)


def test_the_shape_is_that_of_query_and_value():
    wide = replace(request(channels=3), operands=(np.zeros((1, 1, 4, 1)), *request(channels=3).operands[1:]))
    for shape, holds in (((1, 1, 4, 3), True), ((1, 1, 4, 1), False), ((1, 1, 2, 3), False)):
        reply = Reply("ok", np.ones(shape), facts=MANNERS)
        assert found("facts", [wide], [reply], clause="MHA-EXEC-1").holds == holds


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({}, "array"),
        ({"return_lse": True}, ("output", "lse")),
        ({"return_weights": True}, ("output", "weights")),
        (FULL, ("output", "weights", "lse")),
    ],
)
def test_the_form_is_what_was_asked_for(options, form):
    right = mean(0)
    assert found("facts", [request(**options)], [replace(right, facts={**MANNERS, "form": form})], clause="MHA-AUX-11").holds
    assert not found(
        "facts", [request(**options)], [replace(right, facts={**MANNERS, "form": "strange"})], clause="MHA-AUX-11"
    ).holds


def test_the_lse_of_float64_is_float64():
    for kind, holds in (("float64", True), ("float32", False)):
        reply = answer(1.0, facts={**MANNERS, "lse dtype": kind})
        assert found("facts", [request()], [reply], "P64", clause="MHA-AUX-5").holds == holds


def test_every_rule_of_a_case_is_one_of_these():
    from typing import get_args

    from mha_conformance.cases.case import Rule

    assert set(RULES) | set(GRADED) == set(get_args(Rule))
    assert not set(RULES) & set(GRADED)


# Memory and batch items.


@pytest.mark.parametrize(("held", "holds"), [(3, True), (4, True), (5, False)])
def test_what_is_held_beside_the_output_is_at_most_what_is_granted(held, holds):
    """Beside the output's own bytes; a quarter of what is granted at a time."""
    asked = request(channels=2)
    room = granted(asked)
    reply = answer(1, 1, facts={"held": held * room / 4 + 16})  # two numbers of 8 bytes came back
    finding = found("memory", [asked], [reply])
    assert finding.holds == holds and finding.ratio == held / 4
    assert holds or "are granted" in finding.reason


def test_who_holds_less_than_the_output_holds_nothing_beside_it():
    assert found("memory", [request()], [answer(1, facts={"held": 0})]).ratio == 0


def test_what_was_measured_must_be_the_answer_that_was_asked_for():
    finding = found("memory", [request()], [answer(1, 1, facts={"held": 0})])
    assert finding.reason == "output has shape (1, 1, 1, 2), expected (1, 1, 1, 1)"


def test_items_one_behind_the_other_have_the_bits_of_the_whole():
    one = request()
    whole = replace(one, operands=tuple(np.repeat(x, 2, axis=0) for x in one.operands))
    both = Reply("ok", np.ones((2, 1, 1, 1)))
    assert found("same items", [whole, one, one], [both, answer(1), answer(1)]).holds
    assert not found("same items", [whole, one, one], [both, answer(1), answer(1 + U)]).holds
    assert not found("same items", [whole, one, one], [both, answer(1), Reply("ok", None)]).holds


def test_what_was_held_and_granted_is_told_in_mebibytes():
    """2.75 and 1.75 of them are told as 3 and 2."""
    n = 7 * 2**17  # with two keys, 1.75 MiB are granted
    asked = rows(n)
    assert granted(asked) == 7 * 2**18
    reply = Reply("ok", np.ones((1, 1, n, 1)), facts={"held": 8 * n + 11 * 2**18})
    words = "it held 3 MiB beside inputs and output, where 2 MiB are granted"
    assert found("memory", [asked], [reply]).reason == words


def test_only_a_comparison_with_the_truth_is_explained_by_a_known_fault():
    """Two answers to one call that are not the same bits are that, though one of them is zero."""
    asked = case("same bits", request(), request())
    found = judge(asked, [answer(0), answer(U)], ALL)
    assert (found.status, found.hypothesis) == ("FAIL", "")
    assert judge(case("bound", request()), [answer(0)], ALL).hypothesis.startswith(ZEROS)
