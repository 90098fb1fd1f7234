"""The gradients of chapter 5 against difference quotients, torch's own derivatives, the twin, and identities that need no truth."""

import array_api_strict
import numpy as np
import pytest
import torch
import twin_gradients
from random_calls import request

from mha_backends import reference
from mha_core import Projections, Tangents

CLOSE = {"rtol": 2e-12, "atol": 2e-12}


def arriving(rng, query, key, value, some=True):
    """Gradients of all three results, each with signs and sizes of its own."""
    rows, m = query.shape[:-1], key.shape[-2]
    found = {"grad_lse": rng.normal(size=rows), "grad_weights": rng.normal(size=(*rows, m))}
    return rng.normal(size=(*rows, value.shape[-1])), found if some else {}


def drawn(seed, most=4):
    rng = np.random.default_rng(seed)
    query, key, value, options = request(rng, most=most)
    grad, more = arriving(rng, query, key, value, some=seed % 3 > 0)
    return query, key, value, grad, more, options


def compare(got, wanted, message):
    for name, a, b in zip(got._fields, got, wanted, strict=True):
        assert (a is None) == (b is None), f"{message}: {name}"
        if a is not None:
            np.testing.assert_allclose(np.asarray(a), b, **CLOSE, err_msg=f"{message}: {name}")


@pytest.mark.parametrize("block", range(4))
def test_the_reference_agrees_with_difference_quotients_of_forty_digits(block):
    for seed in range(block * 15, block * 15 + 15):
        query, key, value, grad, more, options = drawn(seed, most=3)
        got = reference.attention_vjp(query, key, value, grad, **more, **options)
        compare(got, twin_gradients.attention_vjp(query, key, value, grad, **more, **options), f"seed {seed}")


def loss(grad, more, options, **operands):
    """<dO, O> + <dL, L> + <dA, A>, and the options that are no operands."""
    given = {**options, **{name: operands[name] for name in ("bias", "sink_logits") if name in operands}}
    arrays = (operands[name] for name in ("query", "key", "value"))
    found = reference.attention(*arrays, return_weights=True, return_lse=True, **given)
    seen = np.isfinite(found.lse)
    total = np.sum(grad * found.output)
    if more:
        total += np.sum(np.where(seen, more["grad_lse"] * np.where(seen, found.lse, 0), 0))
        total += np.sum(more["grad_weights"] * found.weights)
    return total


@pytest.mark.parametrize("seed", range(40))
def test_a_step_along_any_direction_changes_the_loss_as_the_gradients_say(seed):
    """Central differences in float64 of the public forward, all operands at once."""
    query, key, value, grad, more, options = drawn(100 + seed, most=6)
    rng = np.random.default_rng(seed)
    operands = {"query": query, "key": key, "value": value}
    operands |= {name: options[name] for name in ("bias", "sink_logits") if name in options}
    got = reference.attention_vjp(query, key, value, grad, **more, **options)._asdict()
    directions = {name: rng.normal(size=x.shape) for name, x in operands.items()}
    ends = [
        loss(grad, more, options, **{name: x + sign * 1e-5 * directions[name] for name, x in operands.items()})
        for sign in (1, -1)
    ]
    slope = sum(np.sum(got[name] * directions[name]) for name in operands)
    size = sum(np.sum(np.abs(got[name] * directions[name])) for name in operands)
    assert abs((ends[0] - ends[1]) / 2e-5 - slope) <= 1e-6 * (1 + size)


@pytest.mark.parametrize("seed", range(20))
def test_torch_differentiates_the_equations_to_the_same_numbers(seed):
    """Automatic differentiation of chapter 3's own code, in a call that hides nothing: no rule of this chapter enters."""
    query, key, value, grad, more, options = drawn(300 + seed)
    options = {name: x for name, x in options.items() if name in ("bias", "scale", "softcap", "sink_logits")}
    options = {name: np.maximum(x, -9.0) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    leaves = {name: torch.tensor(x).requires_grad_() for name, x in (("query", query), ("key", key), ("value", value))}
    leaves |= {name: torch.tensor(x).requires_grad_() for name, x in options.items() if isinstance(x, np.ndarray)}
    rest = {name: leaves.get(name, x) for name, x in options.items()}
    found = reference.attention(leaves["query"], leaves["key"], leaves["value"], return_weights=True, return_lse=True, **rest)
    total = (torch.tensor(grad) * found.output).sum()
    if more:
        total = total + (torch.tensor(more["grad_lse"]) * found.lse).sum()
        total = total + (torch.tensor(more["grad_weights"]) * found.weights).sum()
    total = total + sum(0.0 * x.sum() for x in leaves.values())  # without keys nothing else depends on them
    wanted = torch.autograd.grad(total, list(leaves.values()))
    got = reference.attention_vjp(query, key, value, grad, **more, **options)._asdict()
    for name, x in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(got[name], x.numpy(), **CLOSE, err_msg=name)


@pytest.mark.parametrize("library", [torch.asarray, array_api_strict.asarray], ids=["torch", "array_api_strict"])
def test_the_gradients_run_unchanged_on_other_libraries(library):
    for seed in range(20):
        query, key, value, grad, more, options = drawn(400 + seed)
        wanted = reference.attention_vjp(query, key, value, grad, **more, **options)
        more, options = ({n: library(x) if isinstance(x, np.ndarray) else x for n, x in d.items()} for d in (more, options))
        got = reference.attention_vjp(*map(library, (query, key, value, grad)), **more, **options)
        compare(got, wanted, f"seed {seed}")


@pytest.mark.parametrize("seed", range(20))
def test_identities(seed):
    """<dQ, Q> = <dK, K> without a cap; dS sums to dL over a row and its sink; the vjp is linear in what arrives."""
    query, key, value, grad, more, options = drawn(500 + seed)
    options.pop("softcap", None)
    rows, m = query.shape[:-1], key.shape[-2]
    options["bias"] = np.zeros((*rows, m)) if "bias" not in options else np.broadcast_to(options["bias"], (*rows, m)).copy()
    found = reference.attention_vjp(query, key, value, grad, **more, **options)
    np.testing.assert_allclose(np.sum(found.query * query), np.sum(found.key * key), rtol=1e-9, atol=1e-9)
    if "sink_logits" not in options:
        lse = reference.attention(query, key, value, return_lse=True, **options).lse
        arrived = more.get("grad_lse", np.zeros(rows))
        np.testing.assert_allclose(found.bias.sum(-1), np.where(lse == -np.inf, 0.0, arrived), atol=1e-9)
    twice = reference.attention_vjp(query, key, value, 2 * grad, **{name: 2 * x for name, x in more.items()}, **options)
    for a, b in zip(found, twice, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_array_equal(2 * a, b)
    positive = reference.attention_vjp(query, key, value, np.abs(grad), **options).value
    assert (positive >= 0).all()


def poisoned(rng, x, *, share=0.15):
    return np.where(rng.random(x.shape) < share, np.nan, x)


@pytest.mark.parametrize("seed", range(25))
def test_nan_reaches_what_the_twin_says_and_nothing_else(seed):
    rng = np.random.default_rng(600 + seed)
    query, key, value, grad, more, options = drawn(600 + seed, most=4)
    query, key, value, grad = (poisoned(rng, x, share=0.06) for x in (query, key, value, grad))
    more = {name: poisoned(rng, x, share=0.05) for name, x in more.items()}
    if "sink_logits" in options and seed % 2:
        options["sink_logits"] = poisoned(rng, options["sink_logits"])
    got = reference.attention_vjp(query, key, value, grad, **more, **options)
    compare(got, twin_gradients.attention_vjp(query, key, value, grad, **more, **options), f"seed {seed}")


def test_hidden_pairs_move_no_bit():
    rng = np.random.default_rng(7)
    query, key, value, grad = (rng.normal(size=(2, 2, 4, 3)) for _ in range(4))
    mask = rng.random((4, 4)) < 0.6
    mask[1, 2] = False
    clean = reference.attention_vjp(query, key, value, grad, mask=mask)
    for wild in (np.nan, np.inf, -1e300):
        k, v, q, g = (x.copy() for x in (key, value, query, grad))
        k[..., 2, :] = v[..., 2, :] = wild
        q[..., 1, :] = g[..., 1, :] = wild
        by_keys = reference.attention_vjp(query, k, v, grad, mask=mask)
        blind = ~mask[:, 2]
        assert by_keys.query[..., blind, :].tobytes() == clean.query[..., blind, :].tobytes()
        by_rows = reference.attention_vjp(q, key, value, g, mask=mask)
        unseen = ~mask[1]
        for a, b in ((by_rows.key, clean.key), (by_rows.value, clean.value)):
            assert a[..., unseen, :].tobytes() == b[..., unseen, :].tobytes()


@pytest.mark.parametrize("h_kv", [4, 2])
def test_the_layer(h_kv):
    rng = np.random.default_rng(h_kv)
    x, y = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 4, 6))
    shapes = ((4, 5, 3), (h_kv, 6, 3), (h_kv, 6, 2), (4, 2, 7))
    biases = [rng.normal(size=(shape[0], shape[-1])) for shape in shapes[:3]] + [rng.normal(size=7)]
    for given in (biases, [None] * 4):
        p = Projections(*(rng.normal(size=shape) for shape in shapes), *given)
        options = {"softcap": 2.0, "bias": rng.normal(size=(3, 4)), "sink_logits": rng.normal(size=4)}
        more = {"grad_lse": rng.normal(size=(2, 4, 3)), "grad_weights": rng.normal(size=(2, 4, 3, 4))}
        dY = rng.normal(size=(2, 3, 7))
        got = reference.multi_head_attention_vjp(x, y, y, p, dY, **more, **options)
        wanted = twin_gradients.layer_vjp(x, y, y, p, dY, **more, **options)
        compare(got._replace(projections=None), wanted._replace(projections=None), "layer")
        compare(got.projections, wanted.projections, "projections")
        slope = _directional(x, y, p, dY, options)
        np.testing.assert_allclose(slope[0], slope[1], rtol=1e-6)


def _directional(x, y, p, dY, options):
    """The layer's public forward along a random direction of all its matrices, and what the gradients say of it."""
    rng = np.random.default_rng(3)
    got = reference.multi_head_attention_vjp(x, y, y, p, dY, **options)
    step = [None if w is None else rng.normal(size=w.shape) for w in p]
    ends = []
    for sign in (1, -1):
        moved = Projections(*(w if w is None else w + sign * 1e-6 * s for w, s in zip(p, step, strict=True)))
        ends.append(np.sum(dY * reference.multi_head_attention(x, y, y, moved, **options)))
    return (ends[0] - ends[1]) / 2e-6, sum(np.sum(g * s) for g, s in zip(got.projections, step, strict=True) if g is not None)


@pytest.mark.parametrize("seed", range(30))
def test_forwards_and_backwards_are_one_derivative(seed):
    """<dO, jvp> = <vjp, tangents> for every direction; and the jvp is the slope of the public forward."""
    query, key, value, grad, _, options = drawn(800 + seed, most=5)
    rng = np.random.default_rng(seed)
    operands = {"query": query, "key": key, "value": value}
    operands |= {name: options[name] for name in ("bias", "sink_logits") if name in options}
    moving = {name: rng.normal(size=x.shape).astype(x.dtype) for name, x in operands.items()}
    more = {"grad_lse": rng.normal(size=query.shape[:-1]), "grad_weights": rng.normal(size=(*query.shape[:-1], key.shape[-2]))}
    ask = {"return_weights": True, "return_lse": True}
    result, rate = reference.attention_jvp(query, key, value, Tangents(**moving), **ask, **options)
    for a, b in zip(result, reference.attention(query, key, value, **ask, **options), strict=True):
        np.testing.assert_array_equal(a, b)
    forwards = np.sum(grad * rate.output) + np.sum(more["grad_lse"] * rate.lse) + np.sum(more["grad_weights"] * rate.weights)
    found = reference.attention_vjp(query, key, value, grad, **more, **options)._asdict()
    backwards = [found[name] * x for name, x in moving.items()]
    size = 1 + sum(np.sum(np.abs(x)) for x in backwards)
    assert abs(forwards - sum(np.sum(x) for x in backwards)) <= 1e-12 * size


def test_hidden_tangents_and_empty_rows_move_nothing():
    q, k, v = (np.random.default_rng(at).normal(size=(1, 2, 3)) for at in range(3))
    mask = np.asarray([[False, False], [True, False]])
    wild = np.full_like(k, np.nan)
    wild[:, 0] = 1.0
    moving = Tangents(query=np.ones_like(q), key=wild, value=wild, sink_logits=np.ones(1))
    _, rate = reference.attention_jvp(q, k, v, moving, mask=mask, sink_logits=np.zeros(1), return_weights=True, return_lse=True)
    assert (rate.output[0, 0] == 0).all() and (rate.weights[0, 0] == 0).all() and rate.lse[0, 0] == 1
    assert np.isfinite(rate.output).all() and np.isfinite(rate.lse).all()
