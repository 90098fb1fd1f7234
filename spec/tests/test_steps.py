"""The six steps against one einsum each, on NumPy and on the strict array API."""

from types import SimpleNamespace
from typing import Any

import array_api_strict
import numpy as np
import pytest

from mha_spec import equations
from mha_spec.steps import Steps, attention_steps, steps

SHAPES = {"w_q": (4, 6, 2), "w_k": (2, 6, 2), "w_v": (2, 6, 3), "w_o": (4, 3, 5)}
BIASES = {"b_q": (4, 2), "b_k": (2, 2), "b_v": (2, 3), "b_o": (5,)}


def made(xp: Any, shapes: dict[str, tuple[int, ...]], biases: bool = True) -> SimpleNamespace:
    random = np.random.default_rng(1)
    arrays = {name: xp.asarray(random.standard_normal(shape)) for name, shape in shapes.items()}
    arrays |= {name: xp.asarray(random.standard_normal(shape)) if biases else None for name, shape in BIASES.items()}
    return SimpleNamespace(**arrays)


def by_name(taken: Steps) -> dict[str, Any]:
    return {step.name: np.asarray(step.array) for step in taken}


@pytest.mark.parametrize("xp", [np, array_api_strict], ids=["numpy", "strict"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_every_step(xp: Any, batch: tuple[int, ...]) -> None:
    p = made(xp, SHAPES)
    X = xp.asarray(np.random.default_rng(0).standard_normal((*batch, 3, 6)))
    taken = steps(X, p)
    got = by_name(taken)
    w = {name: np.asarray(x) for name, x in vars(p).items()}
    close = np.testing.assert_allclose

    def projected(name: str) -> Any:
        return np.einsum("...ni,hid->...hnd", np.asarray(X), w[f"w_{name}"]) + w[f"b_{name}"][:, None, :]

    for step, name in (("query", "q"), ("key", "k"), ("value", "v")):
        close(got[step], projected(name), rtol=1e-12)
    K, V = (projected(name)[..., [0, 0, 1, 1], :, :] for name in "kv")
    close(got["scores"], np.einsum("...hic,...hjc->...hij", projected("q"), K) / np.sqrt(2.0), rtol=1e-12, atol=1e-12)
    E = np.exp(got["scores"])
    close(got["weights"], E / E.sum(-1, keepdims=True), rtol=1e-12)
    close(got["heads"], np.einsum("...hij,...hjc->...hic", got["weights"], V), rtol=1e-12, atol=1e-12)
    close(got["concatenation"], np.concatenate([got["heads"][..., i, :, :] for i in range(4)], axis=-1))
    close(got["output"], np.einsum("...hnc,hco->...no", got["heads"], w["w_o"]) + w["b_o"], rtol=1e-12, atol=1e-12)
    assert [step.number for step in taken] == [1, 2, 2, 2, 3, 4, 4, 5, 6]
    assert all(len(step.axes) == len(step.shape) for step in taken)


def test_the_shapes_of_the_paper() -> None:
    base = {"w_q": (8, 512, 64), "w_k": (8, 512, 64), "w_v": (8, 512, 64), "w_o": (8, 64, 512)}
    p = SimpleNamespace(**{name: np.zeros(shape) for name, shape in base.items()}, b_q=None, b_k=None, b_v=None, b_o=None)
    shapes = [step.shape for step in steps(np.ones((4, 512)), p)]
    assert shapes == [
        (4, 512), (8, 4, 64), (8, 4, 64), (8, 4, 64), (8, 4, 4), (8, 4, 4), (8, 4, 64), (4, 512), (4, 512)
    ]  # fmt: skip


def test_scale_and_no_biases() -> None:
    p = made(np, SHAPES, biases=False)
    X = np.random.default_rng(0).standard_normal((3, 6))
    usual, flat = by_name(steps(X, p)), steps(X, p, scale=0.0)
    np.testing.assert_array_equal(by_name(steps(X, p, scale=2**-0.5))["output"], usual["output"])
    np.testing.assert_allclose(by_name(flat)["weights"], 1 / 3)
    assert next(step for step in flat if step.name == "scores").equation == "S_i = 0.0 Q_i K_i^T"


def test_no_channels_and_no_tokens() -> None:
    p = made(np, {**SHAPES, "w_q": (4, 6, 0), "w_k": (2, 6, 0)}, biases=False)
    assert by_name(steps(np.ones((2, 6)), p))["weights"].tolist() == [[[0.5, 0.5]] * 2] * 4
    assert [step.shape for step in steps(np.ones((0, 6)), p)][-3:] == [(4, 0, 3), (0, 12), (0, 5)]


def test_the_output_is_the_equation_of_the_heads() -> None:
    p = made(np, SHAPES)
    taken = {step.name: step.array for step in steps(np.ones((2, 6)), p)}
    assert np.array_equal(taken["output"], equations.output_projection(taken["heads"], p.w_o, p.b_o))


def test_a_bias_shows_in_its_equation() -> None:
    X = np.ones((2, 6))
    plain = {step.name: step.equation for step in steps(X, made(np, SHAPES, biases=False))}
    biased = {step.name: step.equation for step in steps(X, made(np, SHAPES))}
    assert {name for name in plain if plain[name] != biased[name]} == {"query", "key", "value", "output"}
    assert biased["query"] == "Q_i = X W_i^Q + b_i^Q"


def test_from_projected_arrays_the_same_steps_follow() -> None:
    whole = steps(np.random.default_rng(0).standard_normal((3, 6)), made(np, SHAPES))
    part = attention_steps(*(whole.array(name) for name in ("query", "key", "value")))
    assert [step.number for step in part] == [2, 2, 2, 3, 4, 4, 5]
    for step in part:
        np.testing.assert_array_equal(step.array, whole.array(step.name))
    crossed = attention_steps(np.ones((4, 2, 3)), np.ones((2, 5, 3)), np.ones((2, 5, 1)))
    assert [step.axes for step in crossed if step.name == "weights"] == [("h", "n", "m")]
    assert crossed.array("weights").tolist() == [[[0.2] * 5] * 2] * 4


def test_a_step_has_a_name() -> None:
    with pytest.raises(KeyError, match="no step is called 'logits'; there are query, key, value, scores"):
        attention_steps(*[np.ones((1, 2, 3))] * 3).array("logits")
