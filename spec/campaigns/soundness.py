"""The soundness table of chapter 4: every profile, every kernel, every way of rounding, many seeds.

    python spec/campaigns/soundness.py --seeds 12

prints it as Markdown. A ratio is |error| / bound: legal arithmetic must stay below 1. The last two columns are the other
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

from mha_spec.numerics import CONSTANTS_VERSION, PROFILES, TYPES, attention_bound, constants_hash, error_ratio

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


def row(profile, seeds):
    by_mode = {"nearest": 0.0, "truncate": 0.0, "random": 0.0}
    lse = weights = 0.0
    runs, worst = 0, ""
    for seed in range(seeds):
        for name, case in emulated.cases(profile, seed):
            bounds = attention_bound(case.q, case.k, case.v, profile, **case.options)
            for machine, kernel in product(emulated.MACHINES, emulated.KERNELS):
                if profile.io == "float64" and machine.mode != "nearest":
                    continue
                in_output, in_lse, in_weights = ratios(case, bounds, profile, machine, kernel)
                if in_output > max(by_mode.values()):
                    worst = name
                by_mode[machine.mode] = max(by_mode[machine.mode], in_output)
                lse, weights, runs = max(lse, in_lse), max(weights, in_weights), runs + 1
    zeros, scaled = power(profile, 0)
    return runs, by_mode, lse, weights, worst, zeros, scaled


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    seeds = parser.parse_args().seeds
    began = time.perf_counter()
    columns = ("profile", "runs", "nearest", "truncated", "random", "lse", "weights", "worst output", "all zeros", "scale seen")
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    sound = True
    for name, profile in PROFILES.items():
        runs, by_mode, lse, weights, worst, zeros, scaled = row(profile, seeds)
        sound &= max(*by_mode.values(), lse, weights) < 1.0
        modes = " | ".join("–" if name == "P64" and mode != "nearest" else f"{r:.3f}" for mode, r in by_mode.items())
        print(f"| {name} | {runs} | {modes} | {lse:.3f} | {weights:.3f} | {worst} | {zeros:.2g} | {scaled:g} |", flush=True)
    print(f"\nSeeds 0 to {seeds - 1}; constants {CONSTANTS_VERSION}, SHA-256 {constants_hash()[:16]}.")
    print(f"{'Every bound held.' if sound else 'A BOUND WAS EXCEEDED.'} {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
