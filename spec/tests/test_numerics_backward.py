"""The bounds of chapter 5: legal arithmetic stays inside, wrong gradients do not, and what is exact is exact."""

from itertools import product

import backward_ratios
import emulated
import emulated_backward
import numpy as np
import pytest
from test_gradients import drawn, poisoned

from mha_backends import reference
from mha_spec.call import Cotangents
from mha_spec.contract import attention_call
from mha_spec.equations import visible
from mha_spec.numerics import PROFILES, TYPES, error_ratio
from mha_spec.numerics_backward import gradient_bound

SOUND = [p for p in PROFILES.values() if "float8" not in p.io]


@pytest.mark.parametrize("p", SOUND, ids=lambda p: p.name)
def test_legal_gradients_stay_inside(p):
    """One seed of the campaign, with a third of its machines."""
    machines = emulated.MACHINES[:1] if p.io == "float64" else emulated.MACHINES[3:6]
    for name, case in emulated.cases(p, 1):
        arrives = emulated_backward.arriving(case, p, 1)
        bounds = backward_ratios.bounds_of(case, arrives, p)
        for machine, kernel in product(machines, emulated_backward.KERNELS):
            found = emulated_backward.gradients(case, arrives, p, machine, kernel)
            assert max(backward_ratios.ratios(found, bounds, p)) < 1, f"{name}, {kernel}, {machine}"


@pytest.mark.parametrize("p", SOUND, ids=lambda p: p.name)
def test_zeros_and_a_block_without_d_do_not_pass(p):
    zeros, left_out = backward_ratios.power(p)
    assert zeros > 10
    assert left_out > 1


MUTANTS = {
    "the scale is missing in dQ": lambda g, c: g._replace(query=g.query / c.scale),
    "the last query is lost in dV": lambda g, c: g._replace(value=g.value - _last_query(c)),
    "the last 8 keys are lost in dQ": lambda g, c: g._replace(query=g.query - c.scale * g.bias[..., -8:] @ c.k[..., -8:, :]),
    "the first 8 keys count twice in dQ": lambda g, c: g._replace(query=g.query + c.scale * g.bias[..., :8] @ c.k[..., :8, :]),
    "channels are turned": lambda g, c: g._replace(query=np.roll(g.query, 1, axis=-1)),
    "heads are exchanged": lambda g, c: g._replace(key=g.key[::-1]),
}


def _last_query(case):
    weights = backward_ratios.weights(case)
    dO, _, _ = emulated_backward.arriving(case, PROFILES["PB16"], 0)
    return np.swapaxes(weights[..., -1:, :], -1, -2) @ dO[..., -1:, :]


@pytest.mark.parametrize("name", ["PB16", "P32"])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_faults_of_real_kernels_lie_outside(mutant, name):
    p = PROFILES[name]
    case = dict(emulated.cases(PROFILES["PB16"], 0))["ordinary"]
    arrives = emulated_backward.arriving(case, PROFILES["PB16"], 0)
    bounds = backward_ratios.bounds_of(case, arrives, p)
    assert max(backward_ratios.ratios(MUTANTS[mutant](bounds.truth, case), bounds, p)) > 1


def of_request(arrays, more, options, p):
    call = attention_call(*arrays[:3], **options)
    see = np.broadcast_to(visible(call), (*arrays[0].shape[:-1], arrays[1].shape[-2]))
    arriving = Cotangents(arrays[3], more.get("grad_lse"), more.get("grad_weights"))
    return gradient_bound(
        *arrays[:3], arriving, p, scale=call.scale, softcap=call.softcap, bias=call.bias, visible=see, sink=call.sink_logits
    )


@pytest.mark.parametrize("share", [0.0, 0.07])
def test_the_truth_is_that_of_the_gradients_and_within_its_own_bound(share):
    """Emptiness, NaN and their exact places included."""
    for seed in range(700, 760):
        rng = np.random.default_rng(seed)
        *arrays, more, options = drawn(seed, most=5)
        arrays = [poisoned(rng, x, share=share) for x in arrays]
        bounds = of_request(arrays, more, options, PROFILES["P64"])
        for name, x in reference.attention_vjp(*arrays, **more, **options)._asdict().items():
            B, truth = getattr(bounds, name), getattr(bounds.truth, name)
            assert (x is None) == (B is None)
            if x is not None:
                assert not np.isnan(B).any()
                assert np.max(error_ratio(x.reshape(B.shape), truth, B), initial=0.0) <= 1, f"seed {seed}: {name}"


def test_what_is_hidden_or_empty_is_exact():
    q, k, v = (np.random.default_rng(at).normal(size=(1, 3, 2)) for at in range(3))
    see = np.asarray([[True, True, False], [False, False, False], [True, False, False]])
    bounds = gradient_bound(q, k, v, Cotangents(q), PROFILES["P32"], scale=1.0, visible=see)
    assert (bounds.query[0, 1] == 0).all() and (bounds.truth.query[0, 1] == 0).all()
    for B in (bounds.key, bounds.value):
        assert (B[0, 2] == 0).all() and (B[0, 0] > 0).all()


@pytest.mark.parametrize("where", ["query", "visible value", "arriving"])
def test_infinities_are_not_judged_and_hidden_ones_change_nothing(where):
    q, k, v, g = (np.random.default_rng(at).normal(size=(1, 3, 2)) for at in range(4))
    see = np.asarray([[True, True, False], [True, True, False], [False, False, True]])
    clean = gradient_bound(q, k, v, Cotangents(g), PROFILES["P32"], scale=1.0, visible=see)
    {"query": q, "visible value": v, "arriving": g}[where][0, 2] = np.inf  # query 2 sees key 2 alone
    bounds = gradient_bound(q, k, v, Cotangents(g), PROFILES["P32"], scale=1.0, visible=see)
    assert np.isinf(bounds.query[0, 2]).all() and np.isnan(bounds.truth.query[0, 2]).all()
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(bounds, name)[0, :2], getattr(clean, name)[0, :2])


def test_a_score_beyond_the_range_promises_nothing():
    q = np.full((1, 2, 2), 1e30)
    bounds = gradient_bound(q, q, q / 1e30, Cotangents(q / 1e30), PROFILES["P32"], scale=1.0)
    assert np.isinf(bounds.query).all() and np.isnan(bounds.truth.query).all()


def test_the_largest_number_of_the_type_may_be_passed_where_truth_and_bound_pass_it():
    p = PROFILES["P16"]
    one = np.ones((1, 1, 1))
    bounds = gradient_bound(one, one, one, Cotangents(np.full((1, 1, 1), 65504.0)), p, scale=1.0)
    assert error_ratio(np.inf, bounds.truth.value, bounds.value, TYPES[p.output].largest).max() == 0
