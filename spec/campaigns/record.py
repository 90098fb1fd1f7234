"""What a campaign leaves behind: a dated JSON file with its constants and a hash of the code that it speaks of."""

import datetime
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from mha_spec.numerics import CONSTANTS_VERSION, constants_hash

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results")
BOUNDS = ("spec/mha_spec/numerics.py", "spec/mha_spec/numerics_steps.py", "spec/mha_spec/profiles.py", "spec/tests/emulated.py")
BACKWARD = (
    *BOUNDS, "spec/mha_spec/numerics_backward.py", "spec/mha_spec/numerics_backward_exact.py",
    "spec/mha_spec/numerics_backward_steps.py", "spec/tests/emulated_backward.py", "spec/tests/backward_ratios.py",
)  # fmt: skip
CHANCE = ("spec/mha_spec/numerics_random.py", "spec/mha_spec/numerics_filter.py")
"""The code of the tiers; the constants have a hash of their own."""


def code(files: Iterable[str], inputs: Iterable[str] = (), constants: bool = True) -> str:
    """A hash of files under the root, of words that stand for inputs that other files make, and of the constants where they matter."""
    found = hashlib.sha256(constants_hash().encode() if constants else b"")
    for file in files:
        found.update((ROOT / file).read_bytes())
    for word in inputs:
        found.update(word.encode())
    return found.hexdigest()[:16]


def write(name: str, code: str, **facts: object) -> None:
    """``results/NAME.json``."""
    RESULTS.mkdir(exist_ok=True)
    about = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "constants": CONSTANTS_VERSION,
        "constants_sha256": constants_hash(),
        "code": code,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps({**about, **facts}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(name: str) -> dict[str, object]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
