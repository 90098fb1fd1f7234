"""Whether the machine was quiet enough for a ratio to mean anything, judged by the GEMM rates of the rounds alone."""

from collections.abc import Sequence
from statistics import median

from mha_conformance.bench.gemm import Gemm

SPREAD = 0.15
SCALING = 1.6


def reasons(rates: Sequence[Gemm]) -> tuple[str, ...]:
    """Why no ratio may be printed; empty where one may.

    The fastest and the slowest round may differ by 15 % of the fastest, and two threads must give 1.6 times the rate of one:
    a machine that gives its second core to somebody else favours whoever uses one thread.
    """
    if not rates:
        return ("no round was finished",)
    found = []
    fastest, slowest = max(r.all for r in rates), min(r.all for r in rates)
    if slowest < (1 - SPREAD) * fastest:
        between = f"from {_giga(slowest)} to {_giga(fastest)}"
        found.append(f"GEMM rates of the rounds differ by {1 - slowest / fastest:.0%}, {between}; {SPREAD:.0%} is the most")
    if any(r.two for r in rates) and (scaling := median(r.two / r.one for r in rates if r.two)) < SCALING:
        found.append(f"two threads give {scaling:.2f} times the GEMM rate of one; {SCALING} is the least")
    return tuple(found)


def _giga(rate: float) -> str:
    return f"{rate / 1e9:.1f} GFLOP/s"
