"""The dictionary of faults: each is computed here by the equations of another call, and the judge must call it by its name."""

from dataclasses import replace

import numpy as np
import pytest

from mha_conformance.cases.calls import call_of
from mha_conformance.cases.case import Request
from mha_conformance.judge.hypothesis import hypotheses, named, peaked
from mha_core import Dropout
from mha_spec import equations, equations_dropout
from mha_spec.contract import attention_call

R = np.random.default_rng(11)
B, H, H_KV, N, M, D = 2, 4, 2, 11, 11, 4


def operands(m=M, n=N, h_kv=H_KV):
    return tuple(
        R.standard_normal(shape).astype(np.float32).astype(float) for shape in ((B, H, n, D), (B, h_kv, m, D), (B, h_kv, m, 3))
    )


SQUARE, LONG = operands(), operands(m=19)
BIAS = R.standard_normal((B, H, N, M))
HIDING = np.where(R.random((N, M)) < 0.3, -np.inf, R.standard_normal((N, M)))
HIDING[:, 4] = 0.5
MASK = R.random((N, M)) < 0.6
MASK[:, 3] = MASK[3] = True
LENGTHS = np.array([7, 10])
SEGMENTS = np.sort(R.integers(0, 3, (B, N)), axis=-1)
SINK = np.array([0.5, 2.0, 1.0, -1.0])
EMPTY = MASK & (np.arange(N) != 5)[:, None]


def request(arrays=SQUARE, **options):
    names = ("mask", "bias", "key_lengths", "query_segments", "key_segments", "sink_logits", "keep")
    return Request(arrays, "float32", arrays={x: options.pop(x) for x in names if x in options}, options=options)


def output(arrays=SQUARE, **options):
    with np.errstate(all="ignore"):
        return equations.attention(attention_call(*arrays, **options)).output


def without(key, arrays=SQUARE, **options):
    """The keys of this slice alone."""
    return output((arrays[0], *(x[..., key, :] for x in arrays[1:])), **options)


def exchanged(axis, order, x):
    return np.take(x, order, axis=axis)


SCORES = SQUARE[0] @ SQUARE[1].repeat(2, 1).mT / 2
TURNED = SQUARE[0], *(np.take(x, [0, 1, 0, 1], axis=1) for x in SQUARE[1:])
"""Query head i reads key head i mod 2."""
DROP = Dropout(0.4, 2**40 + 3, query_start=2, key_start=5)
KEEP = R.random((N, M)) < 0.6


def spared(**changed):
    """The mask of the first request, changed."""
    call = attention_call(*SQUARE, dropout=DROP._replace(**changed))
    return equations_dropout.drawn(call)


CASES = {
    "no weight is dropped (MHA-DROP-1)": (request(dropout=DROP), output()),
    "the weights that are kept are not scaled up (MHA-DROP-1)": (
        request(keep=KEEP, dropout=Dropout(0.4)), output(dropout=Dropout(0, keep=KEEP))
    ),
    "what should be kept is dropped, and the rest is kept (MHA-DROP-1)": (
        request(keep=KEEP, dropout=Dropout(0.4)), output(dropout=Dropout(0.4, keep=~KEEP))
    ),
    "all heads have the mask of the first (MHA-DROP-2)": (
        request(dropout=DROP), output(dropout=Dropout(0.4, keep=spared()[:, :1]))
    ),
    "the mask is that of the low word of the seed (MHA-DROP-3)": (
        request(dropout=DROP), output(dropout=DROP._replace(seed=3))
    ),
    "the mask begins at 0, whatever the starts are (MHA-DROP-4)": (
        request(dropout=DROP), output(dropout=Dropout(0.4, DROP.seed))
    ),
    "the mask is drawn with the query offset added (MHA-DROP-5)": (
        request(dropout=DROP, is_causal=True, query_offset=3),
        output(dropout=DROP._replace(query_start=5), is_causal=True, query_offset=3),
    ),
    "the scale is 1.0500 times what it should be (MHA-ATTN-2)": (request(), output(scale=0.525)),
    "the scale is 0.5000 times what it should be (MHA-ATTN-3)": (request(scale=0.8), output(scale=0.4)),
    "the bias is multiplied by the scale (MHA-ATTN-11)": (request(bias=BIAS), output(bias=BIAS / 2)),
    "the bias is 1.2500 times what it should be (MHA-ATTN-11)": (request(bias=BIAS), output(bias=1.25 * BIAS)),
    "the bias is not added (MHA-ATTN-11)": (request(bias=BIAS), output()),
    "the softcap is not applied (MHA-ATTN-10)": (request(softcap=0.7), output()),
    "the softcap comes after the bias (MHA-ATTN-9)": (
        request(softcap=1.5, bias=BIAS, mask=MASK),
        output((0 * SQUARE[0], *SQUARE[1:]), mask=MASK, bias=1.5 * np.tanh((SCORES + BIAS) / 1.5)),
    ),
    "the sink is left out (MHA-ATTN-12)": (request(sink_logits=SINK), output()),
    "the sink is counted twice (MHA-ATTN-12)": (request(sink_logits=SINK), output(sink_logits=SINK + np.log(2))),
    "the first key is left out (MHA-ATTN-6)": (request(LONG), without(slice(1, None), LONG)),
    "the last key is left out (MHA-ATTN-6)": (request(LONG), without(slice(18), LONG)),
    "the last 3 of 19 keys, a rest of tiles of 8, are left out (MHA-ATTN-6)": (request(LONG), without(slice(16), LONG)),
    "the last 8 keys are left out (MHA-ATTN-6)": (request(LONG), without(slice(11), LONG)),
    "one key too many under causal (MHA-MASK-7)": (request(is_causal=True), output(is_causal=True, query_offset=1)),
    "one key too few under causal (MHA-MASK-7)": (request(is_causal=True), output(is_causal=True, query_offset=-1)),
    "the causal mask is not applied (MHA-MASK-7)": (request(is_causal=True), output()),
    "one key too many under the window's right side (MHA-MASK-10)": (request(window=(2, 3)), output(window=(2, 4))),
    "one key too few under the window's right side (MHA-MASK-10)": (request(window=(2, 3)), output(window=(2, 2))),
    "the window's right side is not applied (MHA-MASK-10)": (request(window=(2, 3)), output(window=(2, None))),
    "one key too many under the window's left side (MHA-MASK-10)": (request(window=(2, 3)), output(window=(3, 3))),
    "one key too few under the window's left side (MHA-MASK-10)": (request(window=(2, 3)), output(window=(1, 3))),
    "the window's left side is not applied (MHA-MASK-10)": (request(window=(2, 3)), output(window=(None, 3))),
    "positions are counted from the top left (MHA-MASK-8)": (
        request(LONG, is_causal=True, query_offset=4), output(LONG, is_causal=True, query_offset=0)
    ),
    "positions are counted from the bottom right (MHA-MASK-8)": (
        request(LONG, is_causal=True, query_offset=4), output(LONG, is_causal=True, query_offset=8)
    ),
    "the mask is inverted (MHA-MASK-2)": (request(mask=MASK), output(mask=~MASK)),
    "the mask is not applied (MHA-MASK-2)": (request(mask=MASK), output()),
    "the mask is transposed (MHA-MASK-2)": (request(mask=MASK), output(mask=MASK.T)),
    "the lengths are not applied (MHA-MASK-12)": (request(key_lengths=LENGTHS), output()),
    "one key too many by length (MHA-MASK-12)": (request(key_lengths=LENGTHS), output(key_lengths=LENGTHS + 1)),
    "one key too few by length (MHA-MASK-12)": (request(key_lengths=LENGTHS), output(key_lengths=LENGTHS - 1)),
    "the segments are not applied (MHA-MASK-13)": (request(query_segments=SEGMENTS, key_segments=SEGMENTS), output()),
    "a bias of minus infinity does not hide (MHA-MASK-5)": (request(bias=HIDING), output(bias=np.maximum(HIDING, -9e9) * (HIDING > -9e9))),
    "a row that sees nothing is the mean of all values (MHA-MASK-15)": (
        request(mask=EMPTY), np.where((np.arange(N) == 5)[:, None], SQUARE[2].repeat(2, 1).mean(-2, keepdims=True), output(mask=EMPTY))
    ),
    "heads 0 and 1 are exchanged (MHA-HEAD-1)": (request(), exchanged(1, [1, 0, 2, 3], output())),
    "heads 2 and 3 are exchanged (MHA-HEAD-1)": (request(), exchanged(1, [0, 1, 3, 2], output())),
    "query head i reads key head i mod h_kv (MHA-HEAD-2)": (request(), output(TURNED)),
    "batch items 0 and 1 are exchanged (MHA-EXEC-12)": (request(), exchanged(0, [1, 0], output())),
    "the output is zero (MHA-ATTN-6)": (request(), 0 * output()),
}  # fmt: skip


@pytest.mark.parametrize("sentence", CASES)
def test_a_fault_is_called_by_its_name(sentence):
    asked, wrong = CASES[sentence]
    assert named(asked, wrong, "P32") == sentence


@pytest.mark.parametrize("sentence", CASES)
def test_what_is_right_and_what_is_no_known_fault_have_no_name(sentence):
    asked, _ = CASES[sentence]
    with np.errstate(all="ignore"):
        right = equations.attention(call_of(asked, asked.operands)).output
    assert named(asked, right, "P32") == ""
    assert named(asked, right + R.standard_normal(right.shape), "P32") == ""


def test_the_dictionary_is_this_one():
    """Every sentence of it is asked above, whatever stands in place of its numbers."""
    said = set()
    for asked, _ in CASES.values():
        said |= {hypothesis.sentence for hypothesis in hypotheses(asked)}
    told = {sentence.rpartition(" (")[0] for sentence in CASES}
    beside = {"heads 1 and 2 are exchanged", "the last 3 of 11 keys, a rest of tiles of 8, are left out",
              "the last 3 of 19 keys, a rest of tiles of 16, are left out"}  # fmt: skip
    for sentence in said - told - beside:
        assert "{}" in sentence and any(x.startswith(sentence.partition("{}")[0]) for x in told), sentence


def test_only_faults_that_change_the_call_are_tried():
    plain = {h.sentence for h in hypotheses(request())}
    assert not any(
        word in sentence
        for sentence in plain
        for word in ("mask", "bias", "sink", "softcap", "length", "segment", "causal", "window")
    )
    single = operands(m=1, n=1, h_kv=4)
    alone = {h.sentence for h in hypotheses(request(single))}
    assert not any("key" in sentence for sentence in alone)
    one_head = tuple(x[:1, :1] for x in single)
    assert {h.sentence for h in hypotheses(request(one_head))} == {
        "the scale is {} times what it should be",
        "the output is zero",
    }
    nine = {h.sentence for h in hypotheses(request(operands(m=9)))}
    assert "the last 8 keys are left out" in nine and "the last 1 of 9 keys, a rest of tiles of 8, are left out" in nine
    eight = {h.sentence for h in hypotheses(request(operands(m=8)))}
    assert not any("8" in sentence for sentence in eight)
    assert not any("transposed" in h.sentence for h in hypotheses(request(LONG, mask=np.ones((N, 19), dtype=bool))))
    many = tuple(R.standard_normal((1, 12, 2, 2)) for _ in range(3))
    heads = [h.sentence for h in hypotheses(request(many)) if h.sentence.startswith("heads")]
    assert heads == [f"heads {i} and {i + 1} are exchanged" for i in range(7)]


def rests(m):
    """(rest, tile) of every fault of a tail that is tried for so many keys."""
    words = (h.sentence.split() for h in hypotheses(request(operands(m=m))) if "tiles" in h.sentence)
    return [(int(said[2]), int(said[11].rstrip(","))) for said in words]


def test_a_rest_of_each_tile_that_does_not_divide_the_keys():
    assert rests(67) == [(3, 8), (3, 16), (3, 32), (3, 64)]
    assert rests(63) == [(7, 8), (15, 16), (31, 32)]
    assert rests(64) == rests(8) == rests(7) == []
    assert rests(48) == [(16, 32)]


def test_a_factor_near_one_is_told_to_seven_digits():
    (scale,) = (h for h in hypotheses(request()) if h.amount)
    assert scale.words(1.0001) == "the scale is 1.0001000 times what it should be (MHA-ATTN-2)"
    assert scale.words(0.9) == "the scale is 0.9000 times what it should be (MHA-ATTN-2)"
    np.testing.assert_allclose(scale.wrong(), output(scale=0.505), rtol=1e-12)  # a hundredth more
    np.testing.assert_allclose(scale.amount(2.0), output(scale=1.0), rtol=1e-12)


def test_the_peak_is_the_largest_score_of_each_row():
    """It grows by a hundredth, and nothing else does."""
    asked = request(mask=MASK, bias=BIAS)
    s = np.where(MASK, SCORES + BIAS, -np.inf)
    more = np.where(s == s.max(-1, keepdims=True), 0.01, 0.0)
    np.testing.assert_allclose(peaked(asked), output(mask=MASK, bias=BIAS + more), rtol=1e-12)
    more = np.where(SCORES.max(-1, keepdims=True) == SCORES, 0.01, 0.0)
    np.testing.assert_allclose(peaked(request()), output(bias=more), rtol=1e-12)


def test_what_is_not_diagnosed():
    """Other targets, other shapes, nothing at all, and more scores than a diagnosis has time for."""
    asked, wrong = CASES["the output is zero (MHA-ATTN-6)"]
    assert named(replace(asked, target="layer"), wrong, "P32") == ""
    assert named(asked, wrong[..., :1], "P32") == ""
    assert named(asked, wrong[:1], "P32") == ""
    nothing = request(operands(n=0))
    assert named(nothing, np.zeros((B, H, 0, 3)), "P32") == ""
    for n, said in ((512, "the output is zero (MHA-ATTN-6)"), (513, "")):
        long = tuple(R.standard_normal((1, 1, size, 2)) for size in (n, 512, 512))
        assert named(request(long), np.zeros((1, 1, n, 2)), "P32") == said


def test_a_fault_of_float16_may_reach_beyond_its_largest_number():
    """The bound of the fault's own truth has the room of its output's type."""
    large = SQUARE[0], SQUARE[1], np.round(8000 * SQUARE[2])
    asked = replace(request(large, is_causal=True), dtype="float16")
    wrong = output(large)
    assert named(asked, wrong.astype(np.float16).astype(float), "P16") == "the causal mask is not applied (MHA-MASK-7)"


def test_a_row_that_sees_nothing_is_no_mean_of_the_biased_values():
    """Its bias hides as its mask does: all keys count alike in it, and the other rows keep theirs."""
    mean = SQUARE[2].repeat(2, 1).mean(-2, keepdims=True)
    wrong = np.where((np.arange(N) == 5)[:, None], mean, output(mask=EMPTY, bias=BIAS))
    assert (
        named(request(mask=EMPTY, bias=BIAS), wrong, "P32") == "a row that sees nothing is the mean of all values (MHA-MASK-15)"
    )


def test_a_fit_that_does_not_settle_names_no_factor():
    """The scores are zero, so no factor of the scale can explain anything; and an output that moves away from every factor."""
    blind = (0 * SQUARE[0], *SQUARE[1:])
    assert named(request(blind), output(blind) + 0.1, "P32") == ""
    opposite = 2 * output() - output(scale=2.0)
    assert not named(request(), opposite, "P32").startswith("the scale")


@pytest.mark.parametrize("factor", [0.05, 0.3, 3.0, 8.0])
def test_a_factor_far_from_one_is_found_too(factor):
    """By steps of at most e^0.7, of which twelve are made."""
    assert (
        named(request(scale=0.2), output(scale=0.2 * factor), "P32")
        == f"the scale is {factor:.4f} times what it should be (MHA-ATTN-3)"
    )
