"""What the door of the gradients refuses, and by which clause."""

from dataclasses import replace

import numpy as np
import pytest

from mha_backends import reference
from mha_backends.reference import attention_jvp, attention_vjp, multi_head_attention_vjp
from mha_core import Projections, Tangents, Unsupported, Violation, bind

Q, K, V = np.ones((2, 4, 3, 5)), np.ones((2, 2, 6, 5)), np.ones((2, 2, 6, 7))
G = np.ones((2, 4, 3, 7))


@pytest.mark.parametrize(
    ("clause", "arrays", "options"),
    [
        ("MHA-GRAD-2", (Q, K, V, G[..., :1]), {}),
        ("MHA-GRAD-2", (Q, K, V, G.astype("float32")), {}),
        ("MHA-GRAD-2", (Q, K, V, G), {"grad_lse": np.ones((2, 4, 3, 1))}),
        ("MHA-GRAD-2", (Q.astype("f4"), K.astype("f4"), V.astype("f4"), G.astype("f4")), {"grad_lse": np.ones((2, 4, 3))}),
        ("MHA-GRAD-2", (Q, K, V, G), {"grad_weights": np.ones((3, 6))}),
        ("MHA-GRAD-3", (Q, K, V, G), {"lse": np.ones((2, 4, 3))}),
        ("MHA-GRAD-3", (Q, K, V, G), {"output": G}),
        ("MHA-GRAD-3", (Q, K, V, G), {"output": G[..., :2], "lse": np.ones((2, 4, 3))}),
        ("MHA-VAL-1", (Q, K, V, None), {}),
        ("MHA-VAL-1", (Q, K, V, G), {"grad_lse": [1.0]}),
        ("MHA-VAL-5", (Q, K[..., :2], V, G), {}),
        ("MHA-VAL-11", (Q, K, V, G), {"is_causal": True}),
    ],
)
def test_refused_by_clause(clause, arrays, options):
    with pytest.raises(Violation, match=clause) as refusal:
        attention_vjp(*arrays, **options)
    assert refusal.value.clause == clause


@pytest.mark.parametrize("name", ["return_weights", "return_lse", "library", "temperature"])
def test_what_is_no_option_of_a_gradient_is_a_type_error(name):
    with pytest.raises(TypeError, match=rf"attention_vjp\(\) got an unexpected keyword argument '{name}'"):
        attention_vjp(Q, K, V, G, **{name: True})


def test_the_layer_checks_what_arrives():
    x, w = np.ones((2, 3, 4)), np.ones((2, 4, 5))
    p = Projections(w, w, w, np.ones((2, 5, 6)))
    for wrong in (np.ones((2, 3, 4)), np.ones((2, 3, 6), dtype="float32")):
        with pytest.raises(Violation, match="MHA-GRAD-2"):
            multi_head_attention_vjp(x, x, x, p, wrong)
    with pytest.raises(TypeError, match="output"):
        multi_head_attention_vjp(x, x, x, p, np.ones((2, 3, 6)), output=x)


@pytest.mark.parametrize(("left_out", "options"), [("vjp", {}), ("lse", {"grad_lse": np.ones((2, 4, 3))}), ("grouped", {})])
def test_what_is_not_claimed_is_unsupported(left_out, options):
    own = reference.create()
    api = bind(replace(own, claims=replace(own.claims, features=own.claims.features - {left_out})))
    with pytest.raises(Unsupported, match=f"MHA-EXEC-9: .* was given {left_out}") as refusal:
        api.attention_vjp(Q, K, V, G, **options)
    assert refusal.value.unclaimed == (left_out,)


def test_the_layer_of_a_backend_without_gradients_is_unsupported():
    own = reference.create()
    api = bind(replace(own, attend_vjp=None, claims=replace(own.claims, features=own.claims.features - {"vjp"})))
    x, w = np.ones((3, 4)), np.ones((2, 4, 5))
    with pytest.raises(Unsupported, match="vjp"):
        api.multi_head_attention_vjp(x, x, x, Projections(w, w, w, np.ones((2, 5, 4))), x)


def test_a_claim_without_a_function_is_no_backend():
    with pytest.raises(ValueError, match="claims the feature vjp"):
        replace(reference.create(), attend_vjp=None)


@pytest.mark.parametrize(
    "tangents",
    [Q, {"query": Q}, Tangents(query=Q[..., :1]), Tangents(key=K.astype("float32")), Tangents(bias=np.ones((3, 6)))],
    ids=["an array", "a dict", "a shape", "a dtype", "a bias that is not there"],
)
def test_tangents_that_do_not_fit(tangents):
    with pytest.raises(Violation, match="MHA-GRAD-21"):
        attention_jvp(Q, K, V, tangents)


def test_tangents_of_a_bias_of_rank_2_and_strange_options():
    _, rate = attention_jvp(Q, K, V, Tangents(bias=np.ones((3, 6))), bias=np.zeros((3, 6)), return_lse=True)
    np.testing.assert_allclose(rate.lse, 1.0)
    with pytest.raises(TypeError, match="'temperature'"):
        attention_jvp(Q, K, V, Tangents(), temperature=2)


def test_a_backend_without_jvp_says_so():
    own = reference.create()
    api = bind(replace(own, attend_jvp=None, claims=replace(own.claims, features=own.claims.features - {"jvp"})))
    with pytest.raises(Unsupported, match=r"MHA-EXEC-9: .* was given jvp"):
        api.attention_jvp(Q, K, V, Tangents())
