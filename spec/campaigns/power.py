"""Power: what each tier, and each of the usual rules, says of a kernel with one fault.

    python spec/campaigns/power.py

writes ``results/power.json``, one matrix for each profile: causal attention, 2 heads, 64 queries, 256 keys, 64 channels.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import chance
import emulated
import record

from mha_conformance.cases.calls import call_of, visible_pairs
from mha_conformance.cases.case import Case, Request
from mha_conformance.judge.rules import within_bound
from mha_conformance.judge.statistical import probable, searched, statistical
from mha_conformance.judge.truth import truths
from mha_conformance.run.perform import Reply
from mha_spec.numerics import PROFILES

DEPENDS = (*chance.DEPENDS, "spec/campaigns/power.py")
SETTINGS = (("PB16", 1.0), ("PB16", 2.0**-7), ("P16", 1.0), ("P32", 1.0), ("PE4M3", 1.0))
MACHINE = emulated.Machine(order=16)
N, M, D = 64, 256, 64


def posed(p, size):
    to, r = MACHINE.to, np.random.default_rng(7)
    q, k, v = (to(r.standard_normal(shape), p.io) for shape in ((1, 2, N, D), (1, 2, M, D), (1, 2, M, D)))
    options = {"is_causal": True, "query_offset": M - N}
    request = Request((q, k, to(v * size, p.io)), "bfloat16" if "float8" in p.io else p.io, options=options)
    name = f"campaign/power/{p.name}/{size}"
    return Case(name, "MHA-NUM-6", "numerics", "core", frozenset(), request.dtype, "bound", lambda: (request,))


def faults(case, p):
    """Name -> output (2 n d) of a kernel with that fault; the first is legal."""
    (request,) = case.make()
    call, see = call_of(request, request.operands), visible_pairs(request)[0]
    q, k, v = (x[0] for x in (call.query, call.key, call.value))
    at = np.arange(M)

    def run(scale=1.0, visible=see, profile=p, machine=MACHINE):
        inputs = emulated.Case(q, k, v, call.scale * scale, visible=visible)
        return emulated.attention(inputs, profile, machine, "eager")[0]

    legal = run()
    A = np.exp(np.where(see, call.scale * (q @ k.mT), -np.inf))
    A /= A.sum(-1, keepdims=True)
    yield "none: a legal kernel", legal
    yield "none: the output is cut off", MACHINE_OUT.to(run(profile=replace(p, output="float32")), p.output)
    yield "scale 1 / sqrt(d + 1)", run(np.sqrt(D / (D + 1)))
    yield "scale times 1.001", run(1.001)
    yield "scale times 1.0003", run(1.0003)
    yield "log2(e) = 1.4427", run(1.4427 * np.log(2.0))
    yield "last key lost", run(visible=see & (at < M - 1))
    yield "causal, one key too many", run(visible=at <= np.arange(N)[:, None] + M - N + 1)
    if p.io != p.softmax:
        yield "scores stored in the input's type", run(profile=replace(p, scores="bfloat16" if "float8" in p.io else p.io))
    yield "weights stored in the next coarser type", run(profile=replace(p, weights=COARSER[p.weights]))
    yield "heads exchanged", legal[::-1]
    x = legal.copy()
    x.flat[np.argsort(np.abs(x).ravel())[x.size // 2]] *= 1.05
    yield "one element 5 % too large", x
    x = legal.copy()
    x[0, -1, -8:] = 0.0
    yield "the last 8 elements are 0", x
    x = legal.copy()
    x[:, -4:] = MACHINE.to(np.concatenate([A[:, -4:, :64] * 1.02, A[:, -4:, 64:]], axis=-1) @ v, p.output)
    yield "one tile 2 % too large", x
    yield "all zeros", 0.0 * legal


MACHINE_OUT = emulated.Machine("truncate")
COARSER = {
    "float32": "tf32", "float16": "bfloat16", "bfloat16": "float8_e4m3fn", "float8_e4m3fn": "float8_e5m2",
}  # fmt: skip


def usual(got, truth, other, dtype):
    """The rules of other test suites, each with its published constants: True where it rejects."""
    error, size = np.abs(got - truth), np.abs(truth)
    half = dtype != "float32"

    def far(absolute, relative):
        return bool(np.any(error > absolute + relative * size))

    close = {"float32": (1e-5, 1.3e-6), "float16": (1e-5, 1e-3), "bfloat16": (1e-5, 1.6e-2)}[dtype]
    constants = (
        far(1e-2, 1e-2) if half else far(1e-4, 1e-4),  # KernelBench
        bool(np.any((error > 1e-2) & (error > 1e-2 * size))),  # FlashInfer-Bench
        far(2e-2, 2e-2),  # cuDNN's front end
        far(1.5e-2, 1.5e-2) if half else far(1e-3, 1e-3),  # TransformerEngine
    )
    return {
        "assert_close": far(*close),
        "ONNX": far(1e-7, 1e-3),
        "four constants": any(constants),
        "twice another run": bool(error.max() > 2.0 * np.abs(other - truth).max() + 1e-5),
        "mean square": bool(np.sum(error**2) > 5e-4 * np.sum(truth**2)),
    }


def matrix(name, size):
    p = PROFILES[name]
    case = posed(p, size)
    (truth,) = truths(case, name)
    exact = truth.expected["output"][0]
    rows, other = [], None
    for fault, got in faults(case, p):
        other = (
            got if other is None else other
        )  # what is compared with is the legal kernel: the best that such a rule can hope for
        replies = [Reply("ok", got[None])]
        hard = within_bound(case, replies, name)
        filtered = searched(case, replies, name, "RN")
        rows.append(
            {
                "fault": fault,
                **usual(got, exact, other, p.output),
                "HARD": round(hard.ratio, 3),
                "PROB": round(probable(case, replies, name, "RN").ratio, 3),
                "STAT RN": round(statistical(case, replies, name, "RN").ratio, 3),
                "STAT ANY": round(statistical(case, replies, name, "ANY").ratio, 3),
                "filter": round(filtered.ratio, 3),
                "named": filtered.hypothesis,
            }
        )  # fmt: skip
    return {"profile": name, "values": size, "rows": rows}


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    began, found = time.perf_counter(), []
    with np.errstate(all="ignore"):
        for name, size in SETTINGS:
            found.append(matrix(name, size))
            for row in found[-1]["rows"]:
                print(name, size, row, flush=True)
    record.write("power", record.code(DEPENDS), matrices=found)
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
