"""The equations against the independent twin, and every literal of the text recomputed by it."""

from dataclasses import replace
from pathlib import Path

import array_api_strict
import numpy as np
import pytest
import torch
import twin
import twin_gradients
from random_calls import request

from mha_backends import reference
from mha_conformance.run.examples import run
from mha_core import AttentionResult, bind, merge_partials
from mha_spec.clauses import load
from mha_spec.contract import attention_call
from mha_spec.contract_layer import check_layer, check_parts

SETS = 1000
CLOSE = {"rtol": 2e-13, "atol": 2e-13}


def _answer(output, weights, lse, query, options):
    kind = query.dtype
    wide = np.float64 if kind == np.float64 else np.float32
    if not (options.get("return_weights") or options.get("return_lse")):
        return output.astype(kind)
    return AttentionResult(
        output.astype(kind),
        weights.astype(kind) if options.get("return_weights") else None,
        lse.astype(wide) if options.get("return_lse") else None,
    )


def _attention(query, key, value, **options):
    attention_call(query, key, value, library="numpy", **options)
    return _answer(*twin.attention(query, key, value, **options), query, options)


def _layer(query, key, value, projections, **options):
    check_layer(query, key, value, projections, "numpy")
    return _answer(*twin.layer(query, key, value, projections, **options), query, options)


def _merge(parts):
    check_parts(parts)
    output, lse = twin.merge(parts)
    return output.astype(parts[0][0].dtype), lse.astype(parts[0][1].dtype)


def _attention_vjp(query, key, value, grad_output, *, output=None, lse=None, **options):
    reference.attention_vjp(query, key, value, grad_output, output=output, lse=lse, **options)  # refuses what is refused
    found = twin_gradients.attention_vjp(query, key, value, grad_output, **options)
    operands = (query, key, value, options.get("bias"), options.get("sink_logits"))
    return found._make(None if x is None else x.astype(given.dtype) for x, given in zip(found, operands, strict=True))


TWIN = replace(
    bind(reference.create()), name="twin", attention=_attention, multi_head_attention=_layer, merge_partials=_merge,
    attention_vjp=_attention_vjp, multi_head_attention_vjp=twin_gradients.layer_vjp,
)  # fmt: skip


@pytest.mark.parametrize("example", load().examples, ids=lambda e: f"{e.clause}:{Path(e.file).stem}:{e.line}")
def test_the_twin_finds_every_literal_of_the_text(example):
    outcome = run(example, TWIN)
    assert outcome.status == "PASS", f"{example.file}:{outcome.line}: {outcome.message}"


def _both(seed, numbers):
    rng = np.random.default_rng(seed)
    query, key, value, options = request(rng)
    wanted = twin.attention(query, key, value, numbers=numbers, **options)
    return query, key, value, options, wanted


@pytest.mark.parametrize("block", range(10))
def test_the_equations_agree_with_the_twin_on_random_option_sets(block):
    for seed in range(block * SETS // 10, (block + 1) * SETS // 10):
        query, key, value, options, wanted = _both(seed, twin.Exact if seed % 10 == 0 else twin.Floats)
        got = reference.attention(query, key, value, return_weights=True, return_lse=True, **options)
        for name, a, b in zip(got._fields, got, wanted, strict=True):
            np.testing.assert_allclose(a, b, **CLOSE, err_msg=f"seed {seed}: {name}")


@pytest.mark.parametrize("library", [torch.asarray, array_api_strict.asarray], ids=["torch", "array_api_strict"])
def test_the_equations_run_unchanged_on_other_libraries(library):
    for seed in range(60):
        query, key, value, options, wanted = _both(seed, twin.Floats)
        options = {name: library(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        got = reference.attention(*map(library, (query, key, value)), return_weights=True, return_lse=True, **options)
        for name, a, b in zip(got._fields, got, wanted, strict=True):
            assert type(a) is type(library(query))
            np.testing.assert_allclose(np.asarray(a), b, **CLOSE, err_msg=f"seed {seed}: {name}")


def test_the_twin_agrees_on_layers():
    rng = np.random.default_rng(5)
    for grouped in (1, 2):
        x, y = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 4, 6))
        shapes = ((4, 5, 3), (4 // grouped, 6, 3), (4 // grouped, 6, 2), (4, 2, 7))
        weights = [rng.normal(size=shape) for shape in shapes]
        biases = [rng.normal(size=(*shape[:1], shape[-1])) for shape in shapes[:3]] + [rng.normal(size=7)]
        projections = reference.Projections(*weights, *biases)
        got = reference.multi_head_attention(x, y, y, projections, softcap=2.0)
        looped = reference.layer_in_a_loop(x, y, y, projections, softcap=2.0)
        wanted, _, _ = twin.layer(x, y, y, projections, softcap=2.0)
        np.testing.assert_allclose(got, wanted, **CLOSE)
        np.testing.assert_allclose(looped, wanted, **CLOSE)


def test_the_twin_agrees_on_merging():
    rng = np.random.default_rng(6)
    parts = [(rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3)) * 9) for _ in range(3)]
    parts[1][1][0, 0] = -np.inf
    for got, wanted in zip(merge_partials(parts), twin.merge(parts), strict=True):
        np.testing.assert_allclose(got, wanted, **CLOSE)
