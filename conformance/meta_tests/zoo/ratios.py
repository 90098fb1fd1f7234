"""How near its bounds a kernel came."""

from collections.abc import Iterable

from mha_conformance.judge.verdict import Verdict

DTYPES = ("float64", "float32", "float16", "bfloat16")


def worst(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """The largest error / bound by dtype."""
    found = dict.fromkeys(DTYPES, 0.0)
    for verdict in verdicts:
        found[verdict.dtype] = max(found[verdict.dtype], verdict.ratio or 0.0)
    return found
