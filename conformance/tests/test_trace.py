"""What a trace computes: tokens, seeded numbers, files, one head beside many, merged against looped."""

import numpy as np
import pytest

from mha_conformance.trace import read, seeded, words
from mha_conformance.trace.read import CannotTrace
from mha_conformance.trace.tokens import label, split
from mha_conformance.trace.trace import Agreement, of_heads, of_sentence
from mha_core import Violation
from mha_spec.clauses import load

CHINESE = "老白 拿起 他的 锅铲"


def traced(sentence=CHINESE, d_model=64, h=8, seed=0, placed=True, given=None):
    return of_sentence(split(sentence), d_model, h, seed, placed=placed, given=given)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def saved(folder, **arrays):
    file = folder / "arrays.npz"
    np.savez(file, **arrays)
    return file


def projections(h=8, h_kv=2, d_model=32, d=16):
    return {
        "w_q": numbers(h, d_model, d), "w_k": numbers(h_kv, d_model, d, seed=1), "w_v": numbers(h_kv, d_model, d, seed=2),
        "w_o": numbers(h, d, d_model, seed=3), "b_q": numbers(h, d, seed=4), "b_o": numbers(d_model, seed=5),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sentence", "tokens"),
    [
        (CHINESE, ("老白", "拿起", "他的", "锅铲")),
        ("老白拿起他的锅铲。", tuple("老白拿起他的锅铲。")),
        ("我用Python写代码", ("我", "用", "Python", "写", "代", "码")),
        ("  a\tb\n c ", ("a", "b", "c")),
        ("word", ("word",)),
        ("👍👍", ("👍👍",)),
        (" \n", ()),
    ],
)
def test_tokens_are_what_a_reader_sees(sentence, tokens):
    assert split(sentence).tokens == tokens


def test_the_rule_is_said():
    assert "each of its wide characters" in traced("锅铲").notes[0]
    assert "what spaces separate" in traced().notes[0]


def test_a_label_steers_no_terminal():
    assert label("\x1b[31mred\u202e") == "\ufffd[31mred\ufffd"
    assert label("锅铲 é 👨\u200d👩") == "锅铲 é 👨\u200d👩"


def test_the_same_token_has_the_same_row_everywhere():
    first, second = (seeded.embeddings(tokens, 16, 3) for tokens in (("锅", "铲", "锅"), ("铲",)))
    assert (first[0] == first[2]).all() and (first[1] == second[0]).all()
    assert not (first[0] == first[1]).any()
    assert not (seeded.embeddings(("锅",), 16, 4) == first[0]).any()


def test_seeded_numbers_have_mean_0_and_variance_1():
    x = seeded.drawn("anything", (20_000,), 0)
    assert abs(x.mean()) < 0.05 and abs(x.var() - 1) < 0.05 and np.abs(x).max() < 3**0.5


def test_positions_are_those_of_the_paper():
    table = seeded.positions(3, 5)
    assert table[0].tolist() == [0, 1, 0, 1, 0]
    for i in range(3):
        for c in range(5):
            angle = i / 10000 ** ((c - c % 2) / 5)
            assert table[i, c] == pytest.approx(np.cos(angle) if c % 2 else np.sin(angle))


def test_without_positions_a_token_reads_alike_in_both_places():
    twice = traced("锅 铲 锅", placed=False).weights
    np.testing.assert_allclose(twice[:, 0], twice[:, 2])
    assert not np.allclose(*(traced("锅 铲 锅").weights[:, i] for i in (0, 2)))


def test_the_shapes_of_the_six_steps():
    found = {step.name: step.shape for step in traced().steps}
    assert found["input"] == found["concatenation"] == found["output"] == (4, 64)
    assert found["query"] == found["heads"] == (8, 4, 8) and found["weights"] == (8, 4, 4)
    assert list(words.STEPS) == list(found)


def test_every_clause_that_is_named_exists():
    for step in traced().steps:
        assert load()[step.clause].id == step.clause


def test_one_head_reads_the_same_channels_side_by_side():
    found = traced()
    scores = found.steps.array("scores").sum(axis=0) * 8**0.5 / 64**0.5  # the products of all channels, scaled once
    E = np.exp(scores - scores.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(found.one_head[0], E / E.sum(axis=-1, keepdims=True))
    assert found.flops[0] == found.flops[1] > 0
    np.testing.assert_allclose(traced(h=1).one_head, traced(h=1).weights)


def test_merged_and_looped_agree_within_the_bound():
    a = traced().agreement
    assert 0 < a.ratio < 1 and a.within and a.difference < 1e-12
    assert (a.loop_products, a.merged_products) == (25, 4)
    assert a.compared == 4 * 64
    assert not Agreement(1.0, 1.5, 256, 25, 4).within


@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("name", ["w_q", "w_v", "w_o"])
def test_what_overflows_is_not_compared(tmp_path, name, bad):
    arrays = projections()
    arrays[name][0, 0, 0] = bad
    found = traced("a b c", d_model=32, given=read.projections(saved(tmp_path, **arrays)))
    assert found.agreement.within


def test_an_output_without_channels_is_not_compared(tmp_path):
    arrays = projections() | {"w_o": numbers(8, 16, 0), "b_o": numbers(0)}
    found = traced("a b c", d_model=32, given=read.projections(saved(tmp_path, **arrays)))
    assert "nothing was compared" in words.agreement(found)


def test_a_difference_of_nan_is_none(tmp_path):
    arrays = projections()
    arrays["w_o"][:] = np.nan
    found = traced("a b c", d_model=32, given=read.projections(saved(tmp_path, **arrays)))
    assert np.isnan(found.steps.array("output")).all()
    assert found.agreement.within and found.agreement.difference == 0
    assert "w_o not finite everywhere" in found.notes[-1]


def test_small_heads_are_a_note_and_no_warning():
    assert any("MHA-PROJ-11" in note for note in traced().notes)
    assert not any("MHA-PROJ-11" in note for note in traced(h=4).notes)


def test_projections_of_a_file(tmp_path):
    arrays = projections()
    found = traced("a b c", d_model=32, h=8, given=read.projections(saved(tmp_path, **arrays)))
    assert found.sizes == {"d_model": 32, "h": 8, "h_kv": 2, "n": 3, "m": 3, "d_k": 16, "d_v": 16}
    assert found.agreement.within and found.agreement.loop_products == 13
    assert found.flops[0] < found.flops[1]
    assert "shares no keys and values" in words.cost(found)
    X = found.steps.array("input")
    Q = np.einsum("nc,hcd->hnd", X, arrays["w_q"]) + arrays["b_q"][:, None]
    np.testing.assert_allclose(found.steps.array("query"), Q)
    assert not any("untrained" in note for note in found.notes)


def test_heads_of_a_file(tmp_path):
    q, k, v = numbers(4, 2, 8).astype(np.float16), numbers(2, 3, 8).astype(np.float16), numbers(2, 3, 5).astype(np.float16)
    arrays, labels = read.heads(saved(tmp_path, q=q, k=k, v=v, tokens=np.array(["锅", "铲"])))
    found = of_heads("arrays.npz", **arrays, labels=labels)
    assert found.queries == ("锅", "铲") and found.keys == ("0", "1", "2")
    assert found.weights.shape == (4, 2, 3) and found.agreement is None
    S = np.einsum("hic,hjc->hij", q.astype(float), k.astype(float)[[0, 0, 1, 1]]) / np.sqrt(8)
    np.testing.assert_allclose(found.steps.array("scores"), S)


def test_nan_and_infinity_show_in_the_rows_that_see_them():
    q = numbers(1, 3, 4)
    q[0, 1, 0], q[0, 2, 0] = np.nan, np.inf
    found = of_heads("q", q, q, q, {})
    assert np.isnan(found.weights[0, 1]).all()
    assert "q, k, v not finite everywhere" in found.notes[-1]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"q": numbers(2, 3), "k": numbers(2, 3), "v": numbers(2, 3)}, "add a head axis: q\\[None\\]"),
        ({"q": numbers(1, 1, 2, 3), "k": numbers(2, 3), "v": numbers(2, 3)}, "save one item of the batch: q\\[0\\]"),
        ({"q": numbers(1, 2, 3), "key": numbers(1, 2, 3)}, "k, v missing and key unknown"),
        ({"q": numbers(1, 2, 3), "k": numbers(1, 2, 3), "v": np.array([object()])}, "allow_pickle=False"),
        ({**dict.fromkeys("qkv", numbers(1, 2, 3)), "tokens": np.array([1, 2])}, "expected one row of strings"),
    ],
)
def test_arrays_that_cannot_be_traced(tmp_path, arrays, words):
    with pytest.raises(CannotTrace, match=words):
        read.heads(saved(tmp_path, **arrays))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", b"\x93NUMPY\x01\x00", b"words"])
def test_files_that_cannot_be_read(tmp_path, content):
    file = tmp_path / "broken.npz"
    file.write_bytes(content)
    with pytest.raises(CannotTrace, match="cannot be read"):
        read.heads(file)
    with pytest.raises(CannotTrace, match="no file at"):
        read.heads(tmp_path)


def test_one_array_alone_is_no_archive(tmp_path):
    np.save(tmp_path / "q.npy", numbers(1, 2, 3))
    with pytest.raises(CannotTrace, match="holds one array"):
        read.projections(tmp_path / "q.npy")


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        ({"w_q": numbers(32, 128)}, "MHA-PROJ-2"),
        ({"w_k": numbers(2, 31, 16)}, "MHA-PROJ-2"),
        ({"b_o": numbers(31)}, "MHA-PROJ-2"),
        ({"w_v": numbers(2, 32, 16).astype(np.float32)}, "MHA-VAL-2"),
    ],
)
def test_projections_that_do_not_fit(tmp_path, change, clause):
    with pytest.raises(Violation) as refused:
        read.projections(saved(tmp_path, **(projections() | change)))
    assert refused.value.clause == clause


def test_heads_that_do_not_divide(tmp_path):
    given = read.projections(saved(tmp_path, **projections(h=3)))
    with pytest.raises(Violation, match="MHA-VAL-7"):
        traced(d_model=32, h=3, given=given)
    with pytest.raises(Violation, match="MHA-PROJ-10"):
        traced(h=7)
    with pytest.raises(CannotTrace, match="at least one head"):
        read.projections(saved(tmp_path, **projections(h=0, h_kv=0)))


@pytest.mark.parametrize(
    ("shapes", "labels", "words"),
    [
        (((1, 0, 2), (1, 3, 2), (1, 3, 2)), {}, "at least one head, one query and one key"),
        (((1, 2, 2), (1, 3, 2), (1, 3, 2)), {"key_tokens": ("a",)}, "given key_tokens of length 1; expected 3"),
        (((1, 2, 2), (1, 2, 2), (1, 2, 2)), {"tokens": ("a", "\udcff")}, "expected text in UTF-8"),
        (((64, 2000, 0), (64, 2000, 0), (64, 2000, 0)), {}, "slow on purpose"),
    ],
)
def test_heads_that_cannot_be_traced(shapes, labels, words):
    with pytest.raises(CannotTrace, match=words):
        of_heads("q", *(np.zeros(shape) for shape in shapes), labels)


@pytest.mark.parametrize(("sentence", "words"), [("", "without tokens"), ("\udcff b", "expected text in UTF-8")])
def test_sentences_that_cannot_be_traced(sentence, words):
    with pytest.raises(CannotTrace, match=words):
        traced(sentence)
