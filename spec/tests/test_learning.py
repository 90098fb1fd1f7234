"""MHA-HEAD-12: the exchange that fewer heads than tokens do not notice, the least error that follows, and small trainings."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parents[1] / "campaigns"))

import learning
import learning_plot
import record
from learning_models import GRADIENTS, created, cross_entropy, projections, squares
from learning_tasks import CONTENT, TOKENS, WIDTH, Batch, floor, floor_of_a_sample, relations

from mha_backends.reference import multi_head_attention
from mha_spec.numerics import PROFILES, layer_bound


def null_direction(rows):
    """A unit vector that every row (r, c) maps to 0; r < c."""
    return np.linalg.svd(rows, full_matrices=True)[2][-1]


def exchanged(rng, heads, tokens=6, content=5, asked=None, width=9):
    """(layer, query, tokens, tokens with ``asked`` contents moved): a random layer and an exchange that it does not notice."""
    asked = heads + 1 if asked is None else asked
    d = int(rng.integers(1, 6))
    p = created(rng, tokens, width, 4, 1, positions=False) | {
        "w_q": rng.normal(size=(heads, width, d)), "w_k": rng.normal(size=(heads, width, d)),
        "w_v": rng.normal(size=(heads, width, d)), "w_o": rng.normal(size=(heads, d, 4)),
    }  # fmt: skip
    C = rng.normal(size=(content, width))
    contents, roles = rng.normal(size=(tokens, content)), rng.normal(size=(tokens, width))
    x, query = roles + contents @ C, p["query"]
    weights = multi_head_attention(query, x, x, projections(p), return_weights=True).weights[:, 0]  # (h, m)
    q = np.einsum("nd,hdk->hk", query, p["w_q"])
    betas = np.einsum("cd,hdk,hk->hc", C, p["w_k"], q)
    t = null_direction(betas)
    moved = sorted(rng.permutation(tokens)[:asked].tolist())
    step = np.zeros((tokens, content))
    step[moved] = null_direction(weights[:, moved])[:, None] * t
    return p, query, x, x + 3 * step @ C


def output_and_bound(p, query, x):
    layer = projections(p)
    bound = layer_bound(query, x, x, layer, PROFILES["P64"], scale=p["w_q"].shape[-1] ** -0.5).output
    return multi_head_attention(query, x, x, layer), bound


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_no_layer_of_fewer_heads_notices_the_exchange(heads):
    for seed in range(40):
        p, query, before, after = exchanged(np.random.default_rng((heads, seed)), heads)
        assert np.abs(after - before).max() > 0.1, seed
        (one, room), (other, more) = output_and_bound(p, query, before), output_and_bound(p, query, after)
        assert (np.abs(one - other) <= room + more).all(), seed


def test_another_direction_is_noticed():
    """The same size of step, without regard to weights or scores: the test above can fail."""
    rng = np.random.default_rng(5)
    p, query, before, after = exchanged(rng, 1)
    turned = before + (after - before)[:, rng.permutation(after.shape[-1])]
    (one, room), (other, more) = output_and_bound(p, query, before), output_and_bound(p, query, turned)
    assert (np.abs(one - other) > 1e6 * (room + more)).all()


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    with threadpool_limits(1):  # products this small are faster in one thread
        yield


def test_a_short_training_shows_what_is_proved():
    """More steps would not help one head; two heads of half the width are far below its floor already."""
    one, two = (learning.read_relations(2, heads, seed=0, steps=120) for heads in (1, 2))
    assert floor(2, 1) == 7 / 16 and floor(2, 2) == 0
    assert one >= floor_of_a_sample(2, 1, learning.TESTED)
    assert two < floor(2, 1) / 4


def test_both_libraries_train_alike():
    errors = [learning.read_relations(2, 2, seed=1, library=library, steps=5) for library in GRADIENTS]
    assert abs(errors[0] - errors[1]) <= 1e-12


@pytest.mark.parametrize("task", ["relations", "classes"])
def test_both_libraries_have_the_same_gradients(task):
    rng = np.random.default_rng(3)
    batch = relations(rng, 7, 2) if task == "relations" else Batch(rng.normal(size=(7, TOKENS, WIDTH)), rng.integers(0, 16, 7))
    p = created(rng, TOKENS, WIDTH, 2 * CONTENT, 4, positions=task == "classes")
    found = [gradients(p, batch, squares if task == "relations" else cross_entropy) for gradients in GRADIENTS.values()]
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    assert set(found[0][1]) == set(found[1][1]) == set(p)
    for name in p:
        np.testing.assert_allclose(found[0][1][name], found[1][1][name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("loss", "targets"), [(squares, np.ones((4, 3))), (cross_entropy, np.asarray([0, 2, 1, 0]))])
def test_what_a_loss_sends_back_is_its_slope(loss, targets):
    rng = np.random.default_rng(4)
    at, along = rng.normal(size=(2, 4, 3))
    slope = (loss(at + 1e-5 * along, targets)[0] - loss(at - 1e-5 * along, targets)[0]) / 2e-5
    assert slope == pytest.approx(np.sum(loss(at, targets)[1] * along), rel=1e-7)


@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn, which only the campaign needs, is not installed")
def test_digits_are_learned():
    assert learning.read_digits(8, seed=0, steps=40) > 0.5


FOUND = record.read("learning")


def test_the_result_is_of_this_code():
    assert FOUND["code"] == record.code(learning.DEPENDS), (
        "python spec/campaigns/learning.py && python spec/campaigns/tables.py"
    )
    assert FOUND["held"]


def test_no_training_was_better_than_what_is_proved_and_enough_heads_were_far_better():
    rows = {(r["asked"], r["heads"]): r for r in FOUND["relations"]}
    for (asked, heads), r in rows.items():
        assert r["floor"] == floor(asked, heads) and len(r["errors"]) == FOUND["seeds"]
        assert min(r["errors"]) >= floor_of_a_sample(asked, heads, FOUND["tested"])
        assert abs(r["torch"] - r["errors"][0]) <= learning.LIBRARIES_AGREE
    assert max(rows[2, 2]["errors"]) < 1e-3 < floor(2, 1) <= max(rows[2, 1]["errors"])
    assert np.median(rows[4, 4]["errors"]) < 1e-2 < floor(4, 2)


def test_more_heads_of_the_same_width_read_more_digits():
    right = {row["heads"]: row["right"] for row in FOUND["digits"]}
    assert max(right[1]) < min(right[4]) and np.median(right[2]) < np.median(right[16])


def test_the_plot_is_drawn_from_the_result(tmp_path):
    learning_plot.write(FOUND, tmp_path / "learning.svg")
    assert (tmp_path / "learning.svg").read_bytes() == (record.RESULTS / "learning.svg").read_bytes()
