"""Learning: what one head cannot learn however wide it is, and what several heads of the same total width learn.

    pip install -e '.[campaigns]'
    python spec/campaigns/learning.py

trains one layer of width 32 with 1, 2, 4, 8 heads, and writes ``results/learning.json`` and ``results/learning.svg``. Two tasks: to read
the contents of 2 or of 4 related tokens, where MHA-HEAD-12 proves a least error for fewer heads than relations; and scikit-learn's
handwritten digits, where nothing is proved. The gradients are those of the NumPy backend; each relation is also trained with torch,
from the same start on the same data, and must end at the same error.
"""

import argparse
import sys
import time

import learning_plot
import numpy as np
import record
from learning_models import Batch, created, cross_entropy, predicted, squares, trained
from learning_tasks import CONTENT, TOKENS, WIDTH, digits, floor, floor_of_a_sample, relations
from threadpoolctl import threadpool_limits

DEPENDS = tuple(f"spec/campaigns/{name}.py" for name in ("learning", "learning_models", "learning_tasks", "learning_plot"))
ASKED, HEADS, DIGIT_HEADS = (2, 4), (1, 2, 4, 8), (1, 2, 4, 8, 16)
STEPS, BATCH, RATE, SEEDS, TESTED = 300, 128, 0.03, 5, 2**14
LIBRARIES_AGREE = 1e-9
"""The most by which the errors of the two libraries may differ: both compute in float64, in different orders."""


def read_relations(asked: int, heads: int, seed: int, library: str = "numpy", steps: int = STEPS) -> float:
    """The mean square error per number of a trained layer, on ``TESTED`` samples that it has not seen; the numbers have variance 1."""

    def batches(step: int) -> Batch:
        return relations(np.random.default_rng((seed, step)), BATCH, asked)

    start = created(np.random.default_rng(seed), TOKENS, WIDTH, asked * CONTENT, heads, positions=False)
    layer = trained(start, batches, squares, steps, RATE, library)
    test = relations(np.random.default_rng(2**32), TESTED, asked)
    return squares(predicted(layer, test.tokens), test.targets)[0]


def read_digits(heads: int, seed: int, steps: int = STEPS) -> float:
    """The share of 500 digits, not seen in training, that a trained layer with a softmax on top names right."""
    known, test = digits()

    def batches(step: int) -> Batch:
        at = np.random.default_rng((seed, step)).integers(0, len(known.targets), BATCH)
        return Batch(known.tokens[at], known.targets[at])

    start = created(np.random.default_rng(seed), known.tokens.shape[1], WIDTH, 10, heads, positions=True)
    layer = trained(start, batches, cross_entropy, steps, RATE)
    return float(np.mean(predicted(layer, test.tokens).argmax(-1) == test.targets))


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    import sklearn
    import torch

    torch.set_num_threads(1)
    began, found = time.perf_counter(), []
    with threadpool_limits(1):  # products this small are faster in one thread
        for asked in ASKED:
            for heads in HEADS:
                errors = [read_relations(asked, heads, seed) for seed in range(SEEDS)]
                theirs = read_relations(asked, heads, 0, "torch")
                proved = {"floor": floor(asked, heads), "least": floor_of_a_sample(asked, heads, TESTED)}
                found.append({"asked": asked, "heads": heads, **proved, "errors": errors, "torch": theirs})
                print(found[-1], flush=True)
        images = []
        for heads in DIGIT_HEADS:
            images.append({"heads": heads, "right": [read_digits(heads, seed) for seed in range(SEEDS)]})
            print(images[-1], flush=True)
    held = all(min(r["errors"]) >= r["least"] and abs(r["torch"] - r["errors"][0]) <= LIBRARIES_AGREE for r in found)
    versions = {"numpy": np.__version__, "torch": torch.__version__, "scikit-learn": sklearn.__version__}
    record.write(
        "learning",
        record.code(DEPENDS),
        held=held,
        steps=STEPS,
        seeds=SEEDS,
        tested=TESTED,
        libraries=versions,
        relations=found,
        digits=images,
    )
    learning_plot.write(record.read("learning"), record.RESULTS / "learning.svg")
    print(f"{'As proved.' if held else 'NOT AS PROVED.'} {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
