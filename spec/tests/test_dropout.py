"""The generator of dropout: its published answers, its words as random numbers, and the equations against the twin."""

import math

import array_api_strict
import numpy as np
import pytest
import torch
import twin
import twin_gradients
from random_calls import drop, request

from mha_backends import reference
from mha_core import Dropout
from mha_spec.contract import attention_call
from mha_spec.equations_dropout import drawn, factors, philox

ONES, PI = 2**32 - 1, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
ANSWERS = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI, 0x299F31D0A4093822, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
"""Counter, seed and words of philox4x32 with 10 rounds in tests/kat_vectors of DEShawResearch/random123."""
LIBRARIES = pytest.mark.parametrize(
    "library", [np.asarray, torch.asarray, array_api_strict.asarray], ids=["numpy", "torch", "array_api_strict"]
)


@LIBRARIES
@pytest.mark.parametrize(("counter", "seed", "words"), ANSWERS)
def test_the_published_answers_come_out(library, counter, seed, words):
    found = philox(tuple(library(np.asarray([c], dtype=np.int64)) for c in counter), seed)
    assert tuple(int(x[0]) for x in found) == words
    j, i, h, b = counter
    assert tuple(twin.word(seed, 4 * j + lane, i, h, b) for lane in range(4)) == words


def _kept(rate, seed, shape, **starts):
    x = np.zeros((*shape[:-1], 1))
    y = np.zeros((*shape[:-2], shape[-1], 1))
    return drawn(attention_call(x, y, y, dropout=Dropout(rate, seed, **starts)))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.875])
def test_the_words_are_independent_draws(rate):
    """2^20 pairs: the part that is kept, each lane, and neighbours along every axis, each within five standard deviations."""
    kept = _kept(rate, 2026, (4, 8, 128, 256)).astype(np.float64)
    p = 1 - math.floor(rate * 2**32) / 2**32

    def deviations(found, wanted, count, variance):
        return abs(found - wanted) / math.sqrt(variance / count)

    assert deviations(kept.mean(), p, kept.size, p * (1 - p)) < 5
    for lane in range(4):
        part = kept[..., lane::4]
        assert deviations(part.mean(), p, part.size, p * (1 - p)) < 5
    centred = kept - p
    for axis in range(4):
        for step in (1, 2, 3, 4) if axis == 3 else (1,):
            pairs = np.take(centred, range(step, kept.shape[axis]), axis) * np.take(
                centred, range(kept.shape[axis] - step), axis
            )
            assert deviations(pairs.mean(), 0.0, pairs.size, (p * (1 - p)) ** 2) < 5
    other = _kept(rate, 2027, (4, 8, 128, 256)) - p
    assert deviations((centred * other).mean(), 0.0, kept.size, (p * (1 - p)) ** 2) < 5
    high = _kept(rate, 2026 + 2**32, (4, 8, 128, 256)) - p
    assert deviations((centred * high).mean(), 0.0, kept.size, (p * (1 - p)) ** 2) < 5


def test_a_rate_below_the_last_bit_keeps_everything_and_still_scales():
    call = attention_call(*[np.zeros((1, 8, 1))] * 3, dropout=Dropout(2.0**-40, 1))
    assert (factors(call) == 1 / (1 - 2.0**-40)).all()


def test_a_rate_just_below_1_keeps_what_has_the_largest_word():
    """The threshold is 2^32 - 1, and the factor 2^53."""
    rate = 1 - 2.0**-53
    assert not _kept(rate, 1, (1, 64, 64)).any()
    call = attention_call(*[np.zeros((1, 1, 1))] * 3, dropout=Dropout(rate, keep=np.ones((1, 1), dtype=np.bool_)))
    assert (factors(call) == 2.0**53).all()


def test_numbers_of_any_real_type_are_taken_and_become_pythons():
    call = attention_call(
        *[np.zeros((1, 1, 1))] * 3, dropout=Dropout(np.float32(0.25), np.uint64(2**64 - 1), key_start=np.int8(3))
    )
    assert call.dropout == Dropout(0.25, 2**64 - 1, key_start=3)
    assert [type(x) for x in call.dropout if x is not None] == [float, int, int, int, int, int]


def test_rate_0_with_a_seed_is_no_request_and_with_keep_it_is_one():
    x = np.zeros((1, 1, 1))
    assert attention_call(x, x, x, dropout=Dropout(0, 7)).dropout is None
    assert attention_call(x, x, x, dropout=Dropout(0, keep=np.ones((1, 1), dtype=np.bool_))).dropout.keep.shape == (1, 1, 1)


@LIBRARIES
def test_the_equations_agree_with_the_twin(library):
    for seed in range(300 if library is np.asarray else 40):
        rng = np.random.default_rng(seed)
        query, key, value, options = request(rng)
        dropout = drop(rng, query, key)
        wanted = twin.attention(query, key, value, numbers=twin.Floats, dropout=dropout, **options)
        options = {name: library(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        dropout = dropout._replace(keep=None if dropout.keep is None else library(dropout.keep))
        arrays = map(library, (query, key, value))
        got = reference.attention(*arrays, return_weights=True, return_lse=True, dropout=dropout, **options)
        for name, a, b in zip(got._fields, got, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=2e-13, atol=2e-13, err_msg=f"seed {seed}: {name}")


def test_the_gradients_agree_with_the_twin():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        query, key, value, options = request(rng, most=4)
        dropout = drop(rng, query, key)
        shape = (*query.shape[:-1], value.shape[-1])
        arrives = {"grad_lse": rng.normal(size=shape[:-1]), "grad_weights": rng.normal(size=(*shape[:-1], key.shape[-2]))}
        grad = rng.normal(size=shape)
        got = reference.attention_vjp(query, key, value, grad, dropout=dropout, **arrives, **options)
        wanted = twin_gradients.attention_vjp(query, key, value, grad, dropout=dropout, **arrives, **options)
        for name, a, b in zip(got._fields, got, wanted, strict=True):
            if b is not None:
                np.testing.assert_allclose(
                    a, b, rtol=1e-9, atol=1e-9 * max(1.0, np.abs(b).max(initial=0)), err_msg=f"{seed} {name}"
                )


def test_the_derivative_forwards_is_that_backwards():
    """<dO, J t> = <J^T dO, t>."""
    from mha_core import Tangents

    rng = np.random.default_rng(3)
    q, k, v = rng.normal(size=(2, 4, 5, 3)), rng.normal(size=(2, 2, 7, 3)), rng.normal(size=(2, 2, 7, 2))
    moving = [rng.normal(size=x.shape) for x in (q, k, v)]
    dO = rng.normal(size=(2, 4, 5, 2))
    for dropout in (Dropout(0.4, 9), Dropout(0.4, keep=rng.random((5, 7)) < 0.5), Dropout(1.0, 9)):
        _, rate = reference.attention_jvp(q, k, v, Tangents(*moving), dropout=dropout)
        found = reference.attention_vjp(q, k, v, dO, dropout=dropout)
        backwards = sum(float((a * b).sum()) for a, b in zip(found[:3], moving, strict=True))
        assert math.isclose(float((rate.output * dO).sum()), backwards, rel_tol=1e-12, abs_tol=1e-12)
