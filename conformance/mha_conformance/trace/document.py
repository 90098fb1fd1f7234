"""A trace as JSON: every array, and what was said about them."""

import math
from typing import Any

from mha_conformance.trace import words
from mha_conformance.trace.trace import Trace


def as_json(trace: Trace) -> dict[str, Any]:
    """The whole trace as plain values; a number that JSON does not know becomes a word, as in a report."""
    a = trace.agreement
    return {
        "title": trace.title,
        "tokens": list(trace.queries),
        "key_tokens": list(trace.keys),
        "notes": list(trace.notes),
        "sizes": trace.sizes,
        "steps": [
            {
                "number": step.number,
                "name": step.name,
                "equation": step.equation,
                "clause": step.clause,
                "meaning": words.STEPS[step.name],
                "axes": list(step.axes),
                "shape": list(step.shape),
                "array": _plain(step.array.tolist()),
            }
            for step in trace.steps
        ],
        "one_head": {"clause": "MHA-COST-4", "weights": _plain(trace.one_head.tolist())},
        "flops": {"clause": "MHA-COST-4", "heads": trace.flops[0], "one_head": trace.flops[1]},
        "merged_against_looped": None if a is None else {"clause": "MHA-PROJ-5", **_plain(a._asdict()), "within": a.within},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(x) for key, x in value.items()}
    return [_plain(x) for x in value] if isinstance(value, list) else value
