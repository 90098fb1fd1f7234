"""The suite on the emulated CuPy backend: the half-type cases that go to fused kernels, faults of these blamed on their clauses."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from cupy_machine import TYPES, Machine, fake

from mha_conformance.cases import catalogue
from mha_conformance.judge.blame import blamed
from mha_conformance.judge.judge import judge
from mha_conformance.run.implementation import Implementation
from mha_conformance.run.perform import Asked, perform
from mha_core import BackendUnavailable
from mha_spec import numerics
from mha_spec.clauses import load

LEVEL = "core"
HALVES = ("float16", "bfloat16")


@pytest.fixture(scope="module")
def verdicts(backend_package):
    """A function from an edit of the source to the verdicts of the cases of these dtypes that need no cuBLAS.

    ``kernels`` says how the name of the forward's kernel begins; ``target`` is "attention" or "vjp".
    """

    def all_of(
        old="", new="", kinds=("float16",), kernels="fused: float16, d_k 16", cases=catalogue, target="attention", without=()
    ):
        machine, seen = Machine(edit=lambda source: edited(source, old, new, seen)), []
        machine.cuda = replace(machine.cuda, cublas=no_cublas)
        api = machine.api()
        claims = api.backend.claims
        implementation = Implementation(
            name="cupy",
            attention=api.attention,
            vjp=api.attention_vjp,
            claims=claims,
            convert=lambda x, name: fake(x),
            explain=api.explain,
            doors=True,
        )
        found = []
        for case in cases():
            requests = case.make()
            if (
                case.dtype not in kinds
                or not case.wanted_at(LEVEL)
                or {request.target for request in requests} != {target}
                or any((request.arrays.keys() | request.options.keys()) & set(without) for request in requests)
            ):
                continue
            replies = perform(implementation, Asked.by(case))
            if all(reply.kernel.startswith(kernels) or (target == "vjp" and reply.status != "not run") for reply in replies):
                found.append(judge(case, replies, claims))
        assert not old or any(seen), "the kernels have changed: plant this fault anew"
        return found

    return all_of


def no_cublas():
    raise BackendUnavailable("cupy", "cuBLAS is not emulated", "run on a GPU")


def edited(source, old, new, seen):
    """The source with a fault in it; one text, so that a change of the kernel cannot make the fault disappear unseen."""
    if not old or old not in source:
        return source
    seen.append(source.count(old))
    assert seen[-1] == 1
    return source.replace(old, new)


def test_every_case_that_reaches_the_fused_kernel_passes(verdicts):
    found = verdicts(kinds=HALVES, kernels="fused")
    assert len(found) >= 50
    assert {v.case: v.reason for v in found if v.status != "PASS"} == {}
    measured = [v for v in found if v.group == "numerics" and v.clause != "MHA-NUM-20"]  # which decides in grade RN alone
    assert measured
    assert all(("P16" if v.dtype == "float16" else "PB16") in v.profiles for v in measured)


def in_half(kind):
    """The attention cases of float32 with every number rounded to a half type, and without the weights, which the kernel has not.

    What is finite stays finite: an infinity instead of a large number would be another question (MHA-MASK-24).
    """
    most = numerics.TYPES[kind].largest

    def rounded(x):
        if x.dtype.kind != "f":
            return x
        with np.errstate(all="ignore"):
            return np.where(np.isfinite(x), np.clip(x, -most, most), x).astype(TYPES[kind]).astype(x.dtype)

    def asked(request):
        arrays = {name: x if name in request.dtypes else rounded(x) for name, x in request.arrays.items()}
        options = {name: value for name, value in request.options.items() if name != "return_weights"}
        return replace(request, dtype=kind, operands=tuple(map(rounded, request.operands)), arrays=arrays, options=options)

    def loses_its_point(case):
        """A refusal of what the half-type call no longer asks: weights, or an operand in another dtype, which is now its own."""
        asks = case.make() if case.rule == "refused" else ()
        return any("return_weights" in request.options or kind in request.dtypes.values() for request in asks)

    for case in catalogue():
        if case.dtype == "float32" and not loses_its_point(case):
            requests = tuple(map(asked, case.make()))
            yield replace(case, dtype=kind, make=lambda requests=requests: requests, lasting=False)


@pytest.mark.parametrize("kind", HALVES)
def test_the_cases_of_single_precision_hold_in_half_types_too(verdicts, kind):
    """Most cases of meaning are posed in float32: they say as much of a half type. Hidden bits (MHA-MASK-19) are among them."""
    found = verdicts(kinds=(kind,), kernels="fused", cases=lambda: in_half(kind))
    assert len(found) > 600
    assert {v.case: v.reason for v in found if v.status != "PASS"} == {}
    assert sum(v.group == "strict" for v in found) >= 50


@pytest.mark.parametrize("kind", HALVES)
def test_the_gradients_of_every_case_are_right(verdicts, kind):
    """P16 and PB16. A gradient that arrives at the weights needs cuBLAS, and is not run here."""
    own = verdicts(kinds=(kind,), target="vjp")
    assert len(own) >= 12
    found = own + verdicts(kinds=(kind,), target="vjp", cases=lambda: in_half(kind))
    assert len(found) >= 140
    assert {v.case: v.reason for v in found if v.status != "PASS"} == {}
    assert sum(v.group == "strict" for v in found) >= 30


FAULTS = {
    "MHA-MASK-2": ("!p.mask[", "p.mask["),
    "MHA-MASK-8": ("position = offset + i;", "position = offset - i;"),
    "MHA-MASK-10": ("row.high = position + p.right + 1;", "row.high = position + p.right + (p.right ? 2 : 1);"),
    "MHA-MASK-12": ("length < p.m ? length :", "length + 1 < p.m ? length + 1 :"),
    "MHA-MASK-13": ("p.key_segments_type) != row.segment", "p.key_segments_type) < row.segment"),
    "MHA-ATTN-3": ("bounded((real)p.scale *", "bounded((real)fabs(p.scale) *"),
    "MHA-ATTN-6": ("O[c], weights, b[0], b[1]", "O[c], weights, b[1], b[0]"),
    "MHA-ATTN-10": ("const real t = tanh(s / cap);", "const real t = tanh(s / cap) / cap;"),
    "MHA-ATTN-11": ("s += bias_of", "s -= bias_of"),
    "MHA-ATTN-12": ("if (sink != hidden) total +=", "if (sink == hidden) total +="),
    "MHA-HEAD-2": ("row.h / (p.heads / p.kv_heads)", "row.h % p.kv_heads"),
    "MHA-AUX-5": ("(logf(total)", "(log2f(total)"),
}


@pytest.mark.parametrize(("clause", "fault"), FAULTS.items(), ids=FAULTS.keys())
def test_a_fault_of_the_kernel_is_blamed_on_its_clause(verdicts, clause, fault):
    assert [v.clause for v in blamed(verdicts(*fault), load())][:1] == [clause]


BACKWARD_FAULTS = {
    "MHA-GRAD-4": ("(dV, S, dO_i", "(dV, dP, dO_i"),
    "MHA-GRAD-5": ("(dQ, dP, K_j)", "(dQ, S, K_j)"),
    "MHA-GRAD-6": ("(dK, dP, Q_i", "(dK, S, Q_i"),
    "MHA-GRAD-7": ("= D - grad_lse_of(p, row);", "= D;"),
    "MHA-GRAD-9": ("slope = 1 - t * t;", "slope = 1 - t;"),
    "MHA-GRAD-10": ("h < (p.dbias_h ? head + 1 : p.heads)", "h < head + 1"),
    "MHA-GRAD-11": ("* -rest[r]", "* rest[r]"),
    "MHA-GRAD-12": ("steps = group * tiles_of_queries", "steps = tiles_of_queries"),
    "MHA-GRAD-18": ("dK, r, (float)p.scale", "dK, r, (float)fabs(p.scale)"),
}


@pytest.mark.parametrize(("clause", "fault"), BACKWARD_FAULTS.items(), ids=BACKWARD_FAULTS.keys())
def test_a_fault_of_the_backward_is_blamed_on_its_clause(verdicts, clause, fault):
    """Cases by position are left out: they would be one more variant to compile for each fault."""
    by_position = ("is_causal", "window", "key_lengths")
    found = verdicts(*fault, target="vjp", cases=lambda: in_half("float16"), without=by_position)
    assert [v.clause for v in blamed(found, load())][:1] == [clause]


def mha(*arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200", "NO_COLOR": "1"}
    command = [sys.executable, "-c", "import sys; from mha_conformance.cli.entry import main; sys.exit(main())", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_the_command_counts_what_is_not_run():
    done = mha("conform", "cupy", "--device", "emulator", "--clause", "MHA-MASK-8", "--case", "MHA-MASK-8/causal in this dtype/float16",
               "--case", "MHA-MASK-8/causal in this dtype/float64")  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "not judged: 1 cases, CuPy is there and cuBLAS is not (cuBLAS is not emulated)" in done.stdout
    assert "on an emulator" in done.stdout and "not run: 1 claimed cases" in done.stdout


def test_the_emulator_is_a_device_of_cupy_alone():
    done = mha("conform", "numpy", "--device", "emulator", "--case", "MHA-MASK-8/causal in this dtype/float16")
    assert done.returncode == 2
    assert "a backend takes those it finds" in done.stdout + done.stderr
