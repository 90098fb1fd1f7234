"""Gradients of callables: a function that a claims file names, or the differentiation of the arrays' library."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from mha_conformance.judge.judge import judge
from mha_conformance.run.conform import Selection, conform
from mha_conformance.run.declaration import parse
from mha_conformance.run.differentiated import differentiated
from mha_conformance.run.fit import not_judged
from mha_conformance.run.implementation import Target, open_target
from mha_conformance.run.perform import Asked, perform
from mha_conformance.run.worker import _about

EXAMPLES = Path(__file__).parents[1] / "examples"
PLAIN = ("MHA-GRAD-1", "MHA-GRAD-2", "MHA-GRAD-4", "MHA-GRAD-5", "MHA-GRAD-6")


@pytest.fixture(autouse=True)
def _strangers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")


@pytest.fixture
def claims(tmp_path):
    def write(text):
        file = tmp_path / "claims.toml"
        file.write_text(text)
        return str(file)

    return write


def verdicts(name, file, *clauses, arrays="numpy", layout="bhnd", cases=()):
    """By case, the status of each that is judged, in this process."""
    found = open_target(Target(name, arrays, layout=layout, claims=file))
    about = _about(found)
    chosen = [case for case in Selection("smoke", clauses, cases).choose() if not not_judged(case, about)]
    return {case.id: judge(case, perform(found, Asked.by(case)), found.claims).status for case in chosen}


def by_clause(found):
    return {(case.partition("/")[0], status) for case, status in found.items()}


def test_a_function_that_a_claims_file_names_is_judged(claims):
    clauses = (*PLAIN, "MHA-GRAD-13", "MHA-GRAD-14")
    file = claims('vjp = "strangers_gradients:attention_vjp"')
    report = conform(Target("strangers_gradients:attention", claims=file), Selection("smoke", clauses))
    assert report.judged and not report.blame
    assert {"vjp", "mask"} <= report.claims.features
    assert {v.clause for v in report.verdicts if v.status == "PASS"} == set(clauses)


def test_its_fault_is_blamed_on_the_clauses_of_the_fault(claims):
    found = verdicts("strangers_gradients:attention", claims('vjp = "strangers_gradients:without_mean"'), *PLAIN[2:])
    assert by_clause(found) == {("MHA-GRAD-4", "PASS"), ("MHA-GRAD-5", "FAIL"), ("MHA-GRAD-6", "FAIL")}


def test_without_a_word_on_gradients_none_are_judged(claims):
    assert not verdicts("strangers_gradients:attention", None, *PLAIN)


def test_torch_differentiates_what_takes_its_tensors(claims):
    clauses = (*PLAIN, "MHA-GRAD-3", "MHA-GRAD-7", "MHA-GRAD-10")
    found = verdicts("strangers_gradients:of_torch", claims("differentiable = true"), *clauses, arrays="torch")
    assert by_clause(found) == {(clause, "PASS") for clause in clauses}


def test_weights_that_are_constants_are_noticed(claims):
    found = verdicts("strangers_gradients:detached", claims("differentiable = true"), *PLAIN[2:], arrays="torch")
    assert by_clause(found) == {("MHA-GRAD-4", "PASS"), ("MHA-GRAD-5", "FAIL"), ("MHA-GRAD-6", "FAIL")}


def test_gradients_come_in_the_layout_of_the_operands(claims):
    file = claims("differentiable = true")
    found = verdicts("strangers_gradients:positions_first", file, *PLAIN[2:], arrays="torch", layout="bhnd")
    assert ("MHA-GRAD-5", "FAIL") in by_clause(found)
    found = verdicts("strangers_gradients:positions_first", file, *PLAIN[2:], arrays="torch", layout="bnhd")
    assert by_clause(found) == {(clause, "PASS") for clause in PLAIN[2:]}


def test_limits_hold_for_gradients_too(claims):
    file = claims("differentiable = true\nlimits = { n = { max = 6 } }")
    cases = ("MHA-GRAD-5/one head/float32", "MHA-GRAD-5/long/float32")
    assert verdicts("strangers_gradients:of_torch", file, arrays="torch", cases=cases) == {cases[0]: "PASS"}


def test_torchs_own_function_in_training(monkeypatch):
    """Every gradient of torch's is within its bound; but a row that sees nothing and holds NaN sends NaN back."""
    monkeypatch.syspath_prepend(EXAMPLES)
    bound = ("13/by mask/float32", "14/by causal/float32", "19/tail/bfloat16", "12/2 of 4 heads/float32")
    cases = [f"MHA-GRAD-{case}" for case in (*bound, "13/a row that holds NaN/float32")]
    found = verdicts("torch_sdpa:dispatched", str(EXAMPLES / "torch_sdpa_train.toml"), arrays="torch", cases=cases)
    assert list(found) and {case for case, status in found.items() if status == "FAIL"} == {cases[-1]}
    assert {cases[0], cases[2], cases[3]} <= set(found)


@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed: no extra of this project brings it")
def test_jax_differentiates_what_takes_its_arrays():
    import jax.numpy as jnp
    from jax.nn import softmax

    def attention(query, key, value, *, bias):
        return softmax(query @ jnp.swapaxes(key, -1, -2) + bias) @ value

    q, k, v, b = jnp.ones((1, 1)), jnp.log(jnp.asarray([[1.0], [3.0]])), jnp.asarray([[0.0], [4.0]]), jnp.zeros((1, 2))
    found = differentiated(attention, "jax")(q, k, v, jnp.ones((1, 1)), bias=b)
    for x in (found.key[:, 0], found.bias[0]):
        np.testing.assert_allclose(np.asarray(x), [-3 / 4, 3 / 4], rtol=1e-6)
    assert found.sink_logits is None


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"vjp": "my_module"}, "vjp is a module:function; given 'my_module'"),
        ({"vjp": 3}, "vjp is a module:function; given 3"),
        ({"vjp": "a:b", "differentiable": True}, "vjp and differentiable; gradients come from one of them"),
        ({"differentiable": "yes"}, "differentiable is true or false; given 'yes'"),
        ({"features": ["vjp"]}, "the feature vjp without its function"),
    ],
)
def test_a_declaration_of_gradients_that_makes_no_sense_is_refused_in_words(found, said):
    with pytest.raises(ValueError, match=f"claims.toml: {said}"):
        parse(found, "claims.toml")


def test_arrays_that_nobody_differentiates_and_backends_are_refused(claims):
    with pytest.raises(ValueError, match="differentiable is for arrays of torch and jax; given numpy"):
        open_target(Target("strangers:attention", claims=claims("differentiable = true")))
    with pytest.raises(ValueError, match="the backend numpy claims its own gradients"):
        open_target(Target("numpy", claims=claims('vjp = "strangers_gradients:attention_vjp"')))
