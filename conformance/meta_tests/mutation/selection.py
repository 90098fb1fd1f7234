"""Which tests every mutant has to face: at most 20 seconds together on a quiet machine, the quickest killers first.

    python -m mutation.selection ROOT

runs them from the root of a copy of ROOT, those of the room first in which the copy differs, and stops at the first that fails.
"""

import os
import subprocess
import sys
from pathlib import Path

from mutation.mutants import MODULES

BOUNDS = (
    "spec/tests/test_numerics_twin.py", "spec/tests/test_sigma_twin.py", "spec/tests/test_numerics_backward_twin.py",
    "spec/tests/test_numerics_steps.py", "spec/tests/test_numerics.py", "spec/tests/test_numerics_random.py",
    "spec/tests/test_numerics_backward.py", "-k", "not inside and not roundings and not keeps and not with_room",
)  # fmt: skip
"""Without the campaigns of emulated arithmetic: what these find in minutes, a twin of the formulas finds at once."""
JUDGE = (
    "conformance/tests/test_judge_rules.py", "conformance/tests/test_judge.py", "conformance/tests/test_hypothesis.py",
    "conformance/meta_tests/test_near_the_bound.py", "conformance/meta_tests/test_designated_sets.py",
    "-k", "not honest_attention_keeps and not scale_of_1_001 and not one_wrong_element",
)  # fmt: skip
FILES = tuple(word for word in (*BOUNDS, *JUDGE) if word.endswith(".py"))
COMMAND = ("python", "-m", "mutation.selection")
SECONDS = 180
"""A mutant that has not been caught by then has made something endless: that counts as caught, and is named."""
PYTEST = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "--override-ini=addopts=--strict-markers", "--tb=line")


FIRST = {
    "numerics_backward": "spec/tests/test_numerics_backward_twin.py",
    "numerics_random": "spec/tests/test_sigma_twin.py",
    "numerics_filter": "spec/tests/test_numerics_random.py",
    "numerics_steps": "spec/tests/test_numerics_steps.py",
    "numerics": "spec/tests/test_numerics_twin.py",
    "profiles": "spec/tests/test_numerics_steps.py",
    "hypothesis": "conformance/tests/test_hypothesis.py",
    "rules": "conformance/tests/test_judge_rules.py",
    "judge": "conformance/tests/test_judge.py",
    "statistical": "conformance/tests/test_judge.py",
}
"""The tests that know a module best, by the beginning of its name; the first that fits."""


def main(root: Path) -> int:
    changed = next((Path(name) for name in MODULES if Path(name).read_bytes() != (root / name).read_bytes()), Path(MODULES[0]))
    stages = [BOUNDS, JUDGE] if changed.parts[0] == "spec" else [JUDGE, BOUNDS]
    if best := [test for begin, test in FIRST.items() if changed.stem.startswith(begin)][:1]:
        stages = [tuple(best), *(tuple(word for word in stage if word not in best) for stage in stages)]
    for stage in stages:
        quick = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        if code := subprocess.run([sys.executable, "-m", "pytest", *PYTEST, *stage], env=quick, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
