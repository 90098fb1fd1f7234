"""Soundness of the bounds of gradients: every profile, every backward kernel, every way of rounding, many seeds.

    python spec/campaigns/soundness_backward.py --seeds 12

writes ``results/soundness_backward.json``. A ratio is |error| / bound: legal arithmetic must stay below 1. Beside it stands the other
side, on ordinary data: the ratio of gradients of zeros, and of a query's gradient for which D was left out in the first 8 of 24 keys.
"""

import argparse
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import emulated
import emulated_backward
import record
from backward_ratios import NAMES, bounds_of, power, ratios

from mha_spec.numerics import PROFILES

DEPENDS = (*record.BACKWARD, "spec/campaigns/soundness_backward.py")


def row(name, profile, seeds):
    """One row of the table."""
    worst, runs, where = np.zeros(len(NAMES)), 0, ""
    for seed in range(seeds):
        for inputs, case in emulated.cases(profile, seed):
            arrives = emulated_backward.arriving(case, profile, seed)
            bounds = bounds_of(case, arrives, profile)
            for machine, kernel in product(emulated.MACHINES, emulated_backward.KERNELS):
                if profile.io == "float64" and machine.mode != "nearest":
                    continue
                found = np.asarray(
                    ratios(emulated_backward.gradients(case, arrives, profile, machine, kernel), bounds, profile)
                )
                if found.max() > worst.max():
                    where = f"{inputs}, {kernel}, {machine.mode}"
                worst, runs = np.maximum(worst, found), runs + 1
    zeros, left_out = (float(f"{ratio:.2g}") for ratio in power(profile))
    by_name = {operand: round(float(ratio), 3) for operand, ratio in zip(NAMES, worst, strict=True)}
    return {"profile": name, "runs": runs, **by_name, "worst": where, "zeros": zeros, "left out": left_out}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    seeds = parser.parse_args().seeds
    began, rows = time.perf_counter(), []
    for name, profile in PROFILES.items():
        if "float8" not in profile.io:
            rows.append(row(name, profile, seeds))
            print(rows[-1], flush=True)
    sound = all(r[operand] < 1 for r in rows for operand in NAMES)
    record.write("soundness_backward", record.code(DEPENDS), seeds=seeds, sound=sound, rows=rows)
    print(f"{'Every bound held.' if sound else 'A BOUND WAS EXCEEDED.'} {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
