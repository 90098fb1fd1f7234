"""The soundness table of chapter 5: every profile, every backward kernel, every way of rounding, many seeds.

    python spec/campaigns/soundness_backward.py --seeds 12

prints it as Markdown. A ratio is |error| / bound: legal arithmetic must stay below 1. The last columns are the other side, on ordinary
data: the ratio of gradients of zeros, and of a query's gradient for which D was left out in the first 8 of 24 keys.
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
from backward_ratios import NAMES, bounds_of, power, ratios

from mha_spec.numerics import CONSTANTS_VERSION, PROFILES, constants_hash


def row(profile, seeds):
    worst, runs, where = np.zeros(len(NAMES)), 0, ""
    for seed in range(seeds):
        for name, case in emulated.cases(profile, seed):
            arrives = emulated_backward.arriving(case, profile, seed)
            bounds = bounds_of(case, arrives, profile)
            for machine, kernel in product(emulated.MACHINES, emulated_backward.KERNELS):
                if profile.io == "float64" and machine.mode != "nearest":
                    continue
                found = np.asarray(
                    ratios(emulated_backward.gradients(case, arrives, profile, machine, kernel), bounds, profile)
                )
                if found.max() > worst.max():
                    where = f"{name}, {kernel}, {machine.mode}"
                worst, runs = np.maximum(worst, found), runs + 1
    return runs, worst, where


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    seeds = parser.parse_args().seeds
    began = time.perf_counter()
    columns = ("profile", "runs", "dQ", "dK", "dV", "db", "ds", "nearest to the bound", "all zeros", "D left out")
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    sound = True
    for name, profile in PROFILES.items():
        if "float8" in profile.io:
            continue
        runs, worst, where = row(profile, seeds)
        sound &= worst.max() < 1.0
        zeros, left_out = power(profile)
        print(
            f"| {name} | {runs} | {' | '.join(f'{r:.3f}' for r in worst)} | {where} | {zeros:.2g} | {left_out:.2g} |",
            flush=True,
        )
    print(f"\nSeeds 0 to {seeds - 1}; constants {CONSTANTS_VERSION}, SHA-256 {constants_hash()[:16]}.")
    print(f"{'Every bound held.' if sound else 'A BOUND WAS EXCEEDED.'} {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
