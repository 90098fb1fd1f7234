"""Which tests every mutant has to face: at most 20 seconds together on a quiet machine, the quickest killers first.

A mutant of the judge faces the tests of the judge, one of the bounds those of the bounds, and both face the saboteurs.
"""

from pathlib import Path

BEST = {
    "numerics_backward": "spec/tests/test_numerics_backward_twin.py",
    "numerics_random": "spec/tests/test_sigma_twin.py",
    "numerics_filter": "spec/tests/test_sigma_twin.py",
    "numerics_steps": "spec/tests/test_numerics_steps.py",
    "numerics": "spec/tests/test_numerics_twin.py",
    "profiles": "spec/tests/test_numerics_steps.py",
    "hypothesis": "conformance/tests/test_hypothesis.py",
    "rules": "conformance/tests/test_judge_rules.py",
}
"""The tests that know a module best, by the beginning of its name; the first that fits. They come first, alone."""
BOUNDS = (
    "spec/tests/test_numerics_twin.py", "spec/tests/test_sigma_twin.py", "spec/tests/test_numerics_backward_twin.py",
    "spec/tests/test_numerics_steps.py", "spec/tests/test_numerics_random.py", "spec/tests/test_numerics.py",
    "spec/tests/test_numerics_backward.py",
)  # fmt: skip
JUDGE = ("conformance/tests/test_judge.py", "conformance/tests/test_judge_rules.py", "conformance/tests/test_hypothesis.py")
BOTH = ("conformance/meta_tests/test_near_the_bound.py",)
SETS = ("conformance/meta_tests/test_designated_sets.py",)
FILES = (*BOUNDS, *JUDGE, *BOTH, *SETS)
LEFT_OUT = ("legal_arithmetic", "legal_gradients", "merging_computed", "the_layer_stays", "cancels_the_score",
            "honest_attention_keeps", "scale_of_1_001", "one_wrong_element")  # fmt: skip
"""Campaigns in emulated arithmetic, and large sets: what they find in seconds, a twin of the formulas finds at once."""
PYTEST = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "--override-ini=addopts=--strict-markers", "--tb=line",
          "-k", " and ".join(f"not {name}" for name in LEFT_OUT))  # fmt: skip
COMMAND = ("python", "-m", "pytest", "-n", "0", *PYTEST, *FILES)
"""All of them: without a mutant they hold."""
SECONDS = 240
"""A mutant that has not been caught by then has made something endless: that counts as caught, and is named."""


def stages(changed: Path) -> list[tuple[str, ...]]:
    """Tests by process for a mutant of this module: the best ones alone, for the sake of speed, then the rest."""
    best = [test for begin, test in BEST.items() if changed.stem.startswith(begin)][:1]
    rest = (*BOUNDS, *BOTH) if changed.parts[0] == "spec" else (*JUDGE, *BOTH, *SETS)
    return [tests for tests in (tuple(best), tuple(test for test in rest if test not in best)) if tests]
