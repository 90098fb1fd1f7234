"""Soundness of the bounds: every profile, every kernel, every way of rounding, many seeds.

    python spec/campaigns/soundness.py --seeds 12

writes ``results/soundness.json``. A ratio is |error| / bound: legal arithmetic must stay below 1. Beside it stands the other
side, on ordinary data: the ratio of an all-zero output, and the smallest relative error of the scale that exceeds a bound.
"""

import argparse
import sys
import time
from itertools import product
from math import inf
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import emulated
import record

from mha_spec.numerics import PROFILES, TYPES, attention_bound, error_ratio

DEPENDS = (*record.BOUNDS, "spec/campaigns/soundness.py")
SCALES = (1e-12, 1e-4, 1e-3, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def ratios(case, bounds, profile, machine, kernel):
    """The largest error / bound of output, lse and weights of one run."""
    output, lse, weights = emulated.attention(case, profile, machine, kernel)
    largest = TYPES[profile.output].largest
    top = [
        np.max(error_ratio(output, bounds.truth.output, bounds.output, largest), initial=0.0),
        np.max(error_ratio(lse, bounds.truth.lse, bounds.lse), initial=0.0),
    ]
    return *top, 0.0 if weights is None else np.max(error_ratio(weights, bounds.truth.weights, bounds.weights), initial=0.0)


def power(profile, seed):
    """On ordinary data: error / bound of an all-zero output, and the smallest error of the scale in ``SCALES`` that is seen."""
    q, k, v = (emulated.Machine().to(x, profile.io) for x in np.random.default_rng(seed).standard_normal((3, 2, 32, 16)))
    right = attention_bound(q, k, v, profile, scale=0.25)
    seen = inf
    for error in SCALES:
        wrong = attention_bound(q, k, v, profile, scale=0.25 * (1.0 + error)).truth.output
        if np.max(error_ratio(wrong, right.truth.output, right.output)) > 1.0:
            seen = error
            break
    return np.max(error_ratio(0.0 * q, right.truth.output, right.output)), seen


def row(name, profile, seeds):
    """One row of the table; a mode in which the profile was not run has no ratio."""
    by_mode = {"nearest": 0.0, "truncate": 0.0, "random": 0.0}
    lse = weights = 0.0
    runs, worst = 0, ""
    for seed in range(seeds):
        for inputs, case in emulated.cases(profile, seed):
            bounds = attention_bound(case.q, case.k, case.v, profile, **case.options)
            for machine, kernel in product(emulated.MACHINES, emulated.KERNELS):
                if profile.io == "float64" and machine.mode != "nearest":
                    continue
                in_output, in_lse, in_weights = ratios(case, bounds, profile, machine, kernel)
                if in_output > max(by_mode.values()):
                    worst = inputs
                by_mode[machine.mode] = max(by_mode[machine.mode], in_output)
                lse, weights, runs = max(lse, in_lse), max(weights, in_weights), runs + 1
    zeros, scaled = power(profile, 0)
    ran = {mode: None if profile.io == "float64" and mode != "nearest" else round(float(r), 3) for mode, r in by_mode.items()}
    return {
        "profile": name, "runs": runs, **ran, "lse": round(float(lse), 3), "weights": round(float(weights), 3), "worst": worst,
        "zeros": float(f"{zeros:.2g}"), "scale": scaled,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    seeds = parser.parse_args().seeds
    began, rows = time.perf_counter(), []
    for name, profile in PROFILES.items():
        rows.append(row(name, profile, seeds))
        print(rows[-1], flush=True)
    sound = all(r[x] is None or r[x] < 1 for r in rows for x in ("nearest", "truncate", "random", "lse", "weights"))
    record.write("soundness", record.code(DEPENDS), seeds=seeds, sound=sound, rows=rows)
    print(f"{'Every bound held.' if sound else 'A BOUND WAS EXCEEDED.'} {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
