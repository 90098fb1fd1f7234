"""|error| / bound of gradients in emulated arithmetic; for the tests and for the campaign."""

import emulated
import emulated_backward
import numpy as np

from mha_spec.call import Cotangents
from mha_spec.numerics import TYPES, error_ratio
from mha_spec.numerics_backward import gradient_bound

NAMES = ("query", "key", "value", "bias", "sink_logits")


def bounds_of(case, arrives, profile):
    options = dict(case.options)
    shape = (*case.q.shape[:-1], case.k.shape[-2])
    options["bias"] = np.broadcast_to(0.0 if case.bias is None else case.bias, shape)
    return gradient_bound(case.q, case.k, case.v, Cotangents(*arrives), profile, **options)


def ratios(found, bounds, profile):
    """The largest error / bound of each gradient of one run."""
    largest = TYPES[profile.output].largest
    return [
        0.0 if x is None else np.max(error_ratio(x, getattr(bounds.truth, name), getattr(bounds, name), largest), initial=0.0)
        for name, x in zip(NAMES, found, strict=True)
    ]


def power(profile):
    """(zeros, a block without D): the largest ratio of either, on ordinary data."""
    case = dict(emulated.cases(profile, 0))["ordinary"]
    arrives = emulated_backward.arriving(case, profile, 0)
    bounds = bounds_of(case, arrives, profile)
    truth = bounds.truth
    zeros = max(ratios([None if x is None else 0.0 * x for x in truth], bounds, profile)[:3])
    wrong = truth.bias.copy()
    A = weights(case)
    D = np.sum(arrives[0] * (A @ case.v), axis=-1, keepdims=True) + np.sum(A * arrives[2], axis=-1, keepdims=True)
    wrong[..., :8] += (A * D)[..., :8]
    dQ = case.scale * wrong @ case.k
    return zeros, np.max(error_ratio(dQ, truth.query, bounds.query))


def weights(case):
    e = np.exp(case.scale * case.q @ np.swapaxes(case.k, -1, -2))
    return e / e.sum(-1, keepdims=True)
