"""The catalogue: what it asks, of which clause, with which inputs; and that the inputs can tell arithmetics apart."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mha_conformance.cases import catalogue
from mha_conformance.cases.calls import call_of
from mha_conformance.cases.drawn import BESIDE
from mha_conformance.cases.features import DESCRIBED_BY, DTYPE_BY, describing
from mha_conformance.cases.inputs import BITS
from mha_conformance.cases.known import UNKNOWN
from mha_conformance.cases.snapshot import fingerprint, snapshot
from mha_conformance.judge.blame import foundations
from mha_conformance.judge.judge import STRICTEST_FIRST
from mha_conformance.judge.truth import truth
from mha_conformance.run.arrays import numpy_dtype
from mha_conformance.run.fit import misaligned
from mha_spec.clauses import load
from mha_spec.numerics import PROFILES, TYPES, error_ratio

SNAPSHOT = Path(__file__).parents[1] / "cases.txt"
REFRESH = f"{sys.executable} -m mha_conformance.cases.snapshot > conformance/cases.txt"

WITHOUT_A_CASE = {
    "MHA-EXEC-9": "what is not claimed is not asked; claimed and refused is FAIL in every case (MHA-CONF-9)",
    "MHA-EXEC-10": "binds load(); mha_core/tests/test_registry.py",
    "MHA-MASK-23": "binds a function of core, no attention; its example runs",
    "MHA-BIAS-1": "binds a function of core, no attention; its example runs",
    "MHA-PROJ-6": "binds from_merged and merged, which are core's; mha_core/tests/test_projections.py",
    "MHA-PROJ-10": "binds a function of core for constructors; mha_core/tests/test_refusals.py",
    "MHA-PROJ-19": "binds the converters of core; mha_core/tests/test_weights.py",
    "MHA-GRAD-21": "no bound is derived for it; its example runs, and backends/tests/test_tangents.py holds it to the gradients",
    "MHA-COST-1": "binds the counts of mha_spec.cost; spec/tests/test_cost.py",
    "MHA-COST-2": "binds who publishes a figure; its example runs",
    "MHA-COST-3": "binds the counts of mha_spec.cost; spec/tests/test_cost.py",
    "MHA-NUM-4": "binds the bounds, which are mha_spec.numerics'; spec/tests/test_numerics.py",
    "MHA-NUM-5": "every case that is judged by a bound holds the implementation to the profile that it declares",
    "MHA-NUM-12": "says again together what cases of EXEC-1, MASK-15, MASK-19 and AUX-8 ask exactly",
    "MHA-CONF-12": "binds reports and citations; conformance/tests/test_report.py",
    "MHA-CACHE-10": "binds the arguments of a cache, which is core's; mha_core/tests/test_cache.py",
    "MHA-CACHE-11": "binds the memory of a cache, which is core's; mha_core/tests/test_cache.py",
    "MHA-CACHE-12": "binds two functions of core; mha_core/tests/test_cache.py",
    "MHA-STAT-5": "binds memory, which no reply shows; backends/tests/test_sequences.py",
}
"""MUST clauses that have no cases, each with the reason."""

OPTION = {
    "is_causal": "causal", "query_offset": "offset", "key_lengths": "lengths", "query_segments": "segments",
    "key_segments": "segments", "sink_logits": "sink", "return_weights": "weights", "return_lse": "lse",
    "grad_output": "vjp", "grad_lse": "lse", "grad_weights": "weights",
}  # fmt: skip


def used_by(case):
    """The features that the requests of a case use."""
    used = set()
    for request in case.make():
        used |= {OPTION.get(name, name) for name in (*request.arrays, *request.options) if name != "keep"}
        used -= {"dropout"} if isinstance(request.options.get("dropout"), float) else set()  # a number is no dropout
        used |= {"lse"} if request.kept else set()
        if request.target == "merge":
            used.add("lse")
            continue
        used |= {"statistics": {"weights"}, "cache": {"offset"}}.get(request.target, set())
        used |= {OPTION.get(name, name) for name in request.plan if name in OPTION}
        if any(isinstance(step, tuple) and isinstance(step[0], int) for step in request.plan.get("steps", ())):
            used.add("lengths")
        if request.target in ("layer", "layer vjp"):
            used.add("layer")
            w = request.projections
            heads, widths = (w["w_q"].shape[0], w["w_k"].shape[0]), (w["w_q"].shape[-1], w["w_v"].shape[-1])
        else:
            query, key, value = (np.swapaxes(x, 0, 1) if request.target == "varlen" else x for x in request.operands)
            if query.ndim < 3:
                continue  # matrices, which are refused
            heads, widths = (query.shape[-3], key.shape[-3]), (query.shape[-1], value.shape[-1])
        used |= {name for name, (a, b) in (("grouped", heads), ("d_v", widths)) if a != b}
    return used


def test_the_committed_list_is_this_catalogue():
    """Ids, levels, groups, and a hash of every input: the same in this process as where the file was written."""
    assert SNAPSHOT.read_text(encoding="utf-8") == snapshot(), f"if the change is meant: {REFRESH}"


def test_another_process_builds_the_same_inputs(tmp_path):
    told = subprocess.run(
        [sys.executable, "-m", "mha_conformance.cases.snapshot"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONHASHSEED": "12345"}, check=True,
    )  # fmt: skip
    assert told.stdout == snapshot()


def test_a_changed_bit_changes_the_fingerprint():
    case = next(case for case in catalogue() if case.clause == "MHA-NUM-6")
    request = case.make()[0]
    query = request.operands[0].copy()
    query.flat[0] = np.nextafter(query.flat[0], 9)
    moved = replace(request, operands=(query, *request.operands[1:]))
    assert fingerprint(replace(case, make=lambda: (request,))) == fingerprint(case)
    assert fingerprint(replace(case, make=lambda: (moved,))) != fingerprint(case)
    assert fingerprint(replace(case, make=lambda: (replace(request, layout="reversed"),))) != fingerprint(case)


def test_ids_are_unique_and_say_what_they_are():
    ids = [case.id for case in catalogue()]
    assert len(ids) == len(set(ids))
    for case in catalogue():
        assert case.id.startswith(f"{case.clause}/")
        assert case.id.endswith(f"/{case.dtype}")
        assert not set("'[]") & set(case.id), "ids are quoted in commands, and pytest reads brackets as parameters"


def test_every_clause_of_a_case_stands_in_the_text_and_binds_implementations():
    levels = {clause.id: clause.level for clause in load().clauses}
    assert {case.clause for case in catalogue()} <= set(levels)
    assert {levels[case.clause] for case in catalogue()} == {"MUST"}


def test_every_must_has_a_case_or_a_reason():
    asked = {case.clause for case in catalogue()}
    assert {clause.id for clause in load().clauses if clause.level == "MUST"} - asked == set(WITHOUT_A_CASE)


def test_smoke_has_a_case_of_every_clause_that_has_any():
    """But of MHA-COST-7: what a call holds shows at lengths that are for level full."""
    asked = {case.clause for case in catalogue()}
    assert {case.clause for case in catalogue() if case.level == "smoke"} == asked - {"MHA-COST-7"}


@pytest.mark.parametrize("case", catalogue(), ids=lambda case: case.id)
def test_a_case_declares_the_features_that_it_uses(case):
    used = used_by(case)
    if case.rule == "refused":  # what is wrong with the call may be the very absence of an option
        assert used <= case.features | {"d_v", "grouped", UNKNOWN}
    else:
        assert used == case.features


def test_a_case_uses_only_what_its_clause_and_its_needs_describe_or_it_names():
    """MHA-CONF-4; and it names only what it uses: rows that come out empty, and constraints that meet, are no features."""
    below = foundations(load())
    for case in catalogue():
        described = {case.clause} | below[case.clause]
        described |= case.beside.union(*(below[clause] for clause in case.beside))
        if case.rule != "refused":
            strange = {feature for feature in case.features if not DESCRIBED_BY[feature] & described}
            assert not strange, case.id
        drawn = BESIDE if "/drawn " in case.id else set()
        if case.rule != "refused":
            assert (
                case.beside
                <= describing(case.features)
                | {DTYPE_BY[case.dtype], "MHA-MASK-1", "MHA-MASK-14", "MHA-MASK-15", "MHA-MASK-16"}
                | ({"MHA-AUX-5"} if "lse" in case.features else set())
                | ({"MHA-AUX-3"} if case.features >= {"weights", "lse"} else set())
                | ({"MHA-NUM-6", "MHA-CACHE-1"} if "dropout" in case.features else set())
                | ({"MHA-EXEC-12"} if "two batch axes" in case.id else set())
                | (BACKWARDS if "vjp" in case.features else set())
                | drawn
            ), case.id


@pytest.mark.parametrize("case", catalogue(), ids=lambda case: case.id)
def test_every_operand_is_exact_in_its_dtype(case):
    for request in case.make():
        with np.errstate(all="ignore"):
            for at, values in enumerate(request.operands):
                kind = "float32" if request.target == "merge" and at % 2 and request.dtype != "float64" else request.dtype
                np.testing.assert_array_equal(values.astype(numpy_dtype(kind)).astype(float), values)
            for name in ("bias", "sink_logits"):
                if name in request.arrays and request.arrays[name].dtype.kind == "f":
                    values = request.arrays[name]
                    kind = numpy_dtype(request.dtypes.get(name, request.dtype))
                    np.testing.assert_array_equal(values.astype(kind).astype(float), values)


BACKWARDS = {"MHA-GRAD-7", "MHA-GRAD-8", "MHA-GRAD-13", "MHA-GRAD-14"}
"""What arrives beside the gradient of the output, and what is hidden."""
NEXT_COARSER = {"float64": 24, "float32": 11, "float16": 8, "bfloat16": 4}
"""The significand bits of the next coarser multiplicand: float32, TF32, bfloat16, and the finer of the two fp8."""

PROFILE = {dtype: next(name for name in STRICTEST_FIRST if PROFILES[name].io == dtype) for dtype in BITS}


def rounded(x, bits):
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.round(np.ldexp(fraction, bits)), exponent - bits)


def coarse(call, score_bits, value_bits):
    """Attention in float64 whose products read operands of so many bits; None reads them whole."""

    def read(x, bits):
        return x if bits is None else rounded(x, bits)

    query, key, value = call.query, call.key, call.value
    s = call.scale * (read(query, score_bits) @ read(key, score_bits).mT)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return read(p, value_bits) @ read(value, value_bits) / p.sum(axis=-1, keepdims=True)


def ratio(request, score_bits=None, value_bits=None):
    profile = PROFILE[request.dtype]
    known = truth(request, profile)
    got = coarse(call_of(request, request.operands), score_bits, value_bits)
    largest = TYPES[PROFILES[profile].output].largest
    return float(error_ratio(got, known.expected["output"], known.bounds["output"], largest).max())


@pytest.mark.parametrize("dtype", sorted(BITS))
@pytest.mark.parametrize("where", ["QK", "PV"])
def test_the_next_coarser_multiplicand_is_detected(dtype, where):
    """In QK^T and in PV by themselves; the exact computation stands beside them, far inside the bound."""
    bits = NEXT_COARSER[dtype]
    found = {}
    for case in catalogue():
        if case.level == "full" or case.clause not in ("MHA-NUM-2", "MHA-NUM-3", "MHA-NUM-6", "MHA-NUM-11"):
            continue
        request = case.make()[0]
        if case.dtype != dtype or request.operands[1].shape[-2] < 2 or request.options:
            continue
        assert ratio(request) < 0.05
        found[case.id] = ratio(request, **{"score_bits" if where == "QK" else "value_bits": bits})
    own = {"float64": "MHA-NUM-2", "float32": "MHA-NUM-11"}.get(dtype, "MHA-NUM-3")
    assert found[f"{own}/few keys/{dtype}"] > 1.5
    shown = [name for name, worst in found.items() if worst > 1]
    assert len(shown) >= len(found) - 1, found
    assert max(found.values()) > 2


@pytest.mark.parametrize("dtype", sorted(BITS))
def test_coarse_inputs_would_hide_it(dtype):
    """The guard can fail: with inputs of few bits the coarser product is the same, and nothing shows in QK^T."""
    from mha_conformance.cases.build import operands
    from mha_conformance.cases.case import Request

    request = Request(operands(1, dtype, coarse=True), dtype)
    short = Request(tuple(rounded(x, 4) for x in request.operands), dtype)
    assert ratio(short, score_bits=NEXT_COARSER[dtype]) < 1


def test_the_inputs_of_numerics_fill_the_significand():
    for case in catalogue():
        if case.group != "numerics" or case.clause == "MHA-NUM-23":  # a subnormal number has no full significand
            continue
        full = BITS[case.dtype]
        for values in case.make()[0].operands:
            fraction, _ = np.frexp(values[values != 0])
            scaled = np.ldexp(fraction, full)
            assert (scaled == np.round(scaled)).all()
            if values.size >= 16:
                assert (scaled % 2 == 1).mean() > 0.2, case.id


def test_sizes_stay_small_below_full():
    """Core is for every day: no case below full holds more than a quarter of a million scores."""
    for case in catalogue():
        if case.level != "full":
            for request in case.make():
                if request.target == "attention":
                    query, key, _ = request.operands
                    assert math.prod(query.shape[:-1]) * key.shape[-2] <= 2**18, case.id


def test_no_other_case_has_the_sizes_of_a_history():
    """Else what an earlier case left behind could be found at the first call already."""

    def sizes(case):
        return {tuple(x.shape[-2:] for x in request.operands[:2]) for request in case.make()}

    histories = [case for case in catalogue() if case.rule == "history" and "left behind" not in case.id]
    others = {shapes for case in catalogue() if case.rule != "history" for shapes in sizes(case)}
    seen = [shapes for case in histories for shapes in sizes(case)]
    assert seen and not set(seen) & others
    assert len(seen) == len(set(seen)), "two histories of the same sizes"


@pytest.mark.parametrize("begins", ["top-left", "bottom-right"])
@pytest.mark.parametrize("band", ["causal", "window"])
def test_a_band_of_a_fixed_alignment_is_asked_for_everything(begins, band):
    """MHA-CONF-9 and MHA-CONF-13: a system that is bottom-right by nature gets as much as one that is top-left."""
    asked = {
        case.clause for case in catalogue() if band in case.features and not misaligned(case, begins) and case.wanted_at("core")
    }
    assert {f"MHA-MASK-{n}" for n in (1, 14, 16, 17, 18, 19, 20, 21)} <= asked


def test_pairwise_covers_every_pair_with_few_rows():
    from itertools import combinations, product

    from mha_conformance.cases.pairs import pairwise

    axes = {"a": (1, 2, 3), "b": "xyz", "c": (True, False), "d": (0, 1, 2, 3, 4)}
    rows = pairwise(axes)
    for one, other in combinations(axes, 2):
        assert {(row[one], row[other]) for row in rows} == set(product(axes[one], axes[other]))
    assert len(rows) <= 20 < 90
    assert rows == pairwise(axes)


def test_full_holds_what_core_does_not():
    """Long rows, every length around a tile, wide heads, and pairs of options in every dtype."""
    full = [case for case in catalogue() if case.level == "full"]
    sizes = {request.operands[1].shape[-2] for case in full for request in case.make()}
    assert {size + off for size in (32, 64, 128, 256, 512) for off in (-1, 0, 1)} | {2048} <= sizes
    assert max(request.operands[0].shape[-1] for case in full for request in case.make()) >= 256
    assert {case.dtype for case in full} == set(BITS)
    assert {feature for case in full for feature in case.features} >= set(DESCRIBED_BY) - {"layer"}
