"""Soundness of what is probable: legal arithmetic on the designated sets, in both grades, against every statistic.

    python spec/campaigns/chance.py

writes ``results/chance.json``. Numbers are parts of their limits, the largest over all kernels, orders and modes of a grade.
"""

import argparse
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import emulated
import record

from mha_conformance.cases.calls import call_of, visible_pairs
from mha_conformance.cases.case import Case
from mha_conformance.cases.snapshot import fingerprint
from mha_conformance.cases.statistics import DTYPES, FILTERED, SETS, SMALL
from mha_conformance.judge.statistical import probable, searched, statistical
from mha_conformance.run.perform import Reply
from mha_spec.numerics import PROFILES

JUDGE = ("conformance/mha_conformance/judge/statistical.py", "conformance/mha_conformance/judge/hypothesis.py")
DEPENDS = (*record.BOUNDS, *record.CHANCE, *JUDGE, "spec/campaigns/chance.py")
GRADES = ("RN", "ANY")


def posed(name, p):
    """A set as a case in the input type of a profile: fp8 has no cases of its own, so bfloat16's are rounded to it."""
    dtype = p.io if p.io in DTYPES else "bfloat16"
    to = emulated.Machine().to
    made = tuple(replace(r, operands=tuple(to(x, p.io) for x in r.operands)) for r in SETS[name](dtype, SMALL))
    return Case(f"campaign/{name}/{p.name}", "MHA-NUM-19", "numerics", "core", frozenset(), dtype, "statistics", lambda: made)


def computed(case, p, machine, kernel):
    """The replies of one kernel in emulated arithmetic."""
    replies = []
    for request in case.make():
        call = call_of(request, request.operands)
        inputs = emulated.Case(call.query[0], call.key[0], call.value[0], call.scale, visible=visible_pairs(request)[0])
        replies.append(Reply("ok", emulated.attention(inputs, p, machine, kernel)[0][None]))
    return replies


def to_nearest(machine):
    return machine.mode == "nearest" and not machine.one_way


def row(p):
    """The largest part of each limit, and the set on which it was, by grade."""
    found = {f"{rule} {grade}": (0.0, "") for grade in GRADES for rule in ("mean square", "farthest", "filter")}
    runs, silent = 0, []
    for name in SETS:
        case = posed(name, p)
        for machine, kernel in product(emulated.MACHINES, emulated.KERNELS):
            if p.io == "float64" and machine.mode != "nearest":
                continue
            replies = computed(case, p, machine, kernel)
            runs += 1
            for grade in ("RN", "ANY") if to_nearest(machine) else ("ANY",):
                ratios = {
                    "mean square": statistical(case, replies, p.name, grade),
                    "farthest": probable(case, replies, p.name, grade),
                }
                if name in FILTERED:
                    ratios["filter"] = searched(case, replies, p.name, grade)
                for rule, finding in ratios.items():
                    found[f"{rule} {grade}"] = max(found[f"{rule} {grade}"], (finding.ratio, name))
                if "nothing is probable" in ratios["mean square"].reason and name not in silent:
                    silent.append(name)
    return {"profile": p.name, "runs": runs, **{k: [round(r, 3), name] for k, (r, name) in found.items()}, "not posed": silent}


def inputs():
    """What the sets hold: a change of them makes results old."""
    return [fingerprint(posed(name, PROFILES[p])) for p in ("P64", "P32", "P16", "PB16") for name in SETS]


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    began, rows = time.perf_counter(), []
    with np.errstate(all="ignore"):
        for p in PROFILES.values():
            rows.append(row(p))
            print(rows[-1], flush=True)
    sound = all(found[0] < 1 for r in rows for kind, found in r.items() if kind.endswith(GRADES))
    record.write("chance", record.code(DEPENDS, inputs()), sound=sound, rows=rows)
    print(f"{'Every limit held.' if sound else 'A LIMIT WAS EXCEEDED.'} {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
