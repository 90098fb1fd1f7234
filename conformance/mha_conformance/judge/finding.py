"""What a rule found, and what no rule can measure."""

from dataclasses import dataclass

import numpy as np

from mha_conformance.judge.reply import Reply
from mha_conformance.judge.truth import Truth
from mha_conformance.judge.verdict import Worst


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found: whether it holds, how near the bound, and the words of the diagnosis."""

    holds: bool
    reason: str = ""
    ratio: float | None = None
    worst: Worst | None = None
    pattern: str = ""
    hypothesis: str = ""


def malformed(reply: Reply, truth: Truth) -> Finding | None:
    """What was asked for and did not come back as floating numbers of the right shape."""
    for name, expected in truth.expected.items():
        got = reply.array(name)
        if got is None:
            return Finding(False, f"no {name} came back, though it was asked for", np.inf)
        shape, wanted, kind = tuple(np.shape(got)), tuple(np.shape(expected)), np.asarray(got).dtype
        if shape != wanted:
            return Finding(False, f"{name} has shape {shape}, expected {wanted}", np.inf)
        if kind.kind != "f":
            return Finding(False, f"{name} holds {kind}, expected floating numbers", np.inf)
    return None
