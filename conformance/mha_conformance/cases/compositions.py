"""Cases of MASK: every pair of ways to hide, and all together."""

from collections.abc import Iterable, Iterator
from itertools import combinations

from mha_conformance.cases.build import case
from mha_conformance.cases.case import Case, Level, Request
from mha_conformance.cases.codes import coded
from mha_conformance.cases.hiders import ALIGNED, HIDERS, Hider, together

BY_ARRAYS = ("mask", "bias", "lengths", "segments")


def cases() -> Iterator[Case]:
    for pair in combinations(HIDERS, 2):
        level: Level = "smoke" if pair in (("mask", "bias"), ("mask", "lengths")) else "core"
        yield composed(pair, (HIDERS[name] for name in pair), level)
    yield composed(tuple(HIDERS), HIDERS.values())
    for band, hider in ALIGNED.items():
        for other in BY_ARRAYS:
            yield composed((other, band), (HIDERS[other], hider), emptied=True)
    for begins in ("bottom-right", "n = m"):
        bands = (ALIGNED[f"causal, {begins}"], ALIGNED[f"window, {begins}"])
        yield composed((f"causal and window, {begins}",), bands)
        yield composed(
            (*BY_ARRAYS, f"causal and window, {begins}"), (*(HIDERS[name] for name in BY_ARRAYS), *bands), emptied=True
        )


def composed(names: tuple[str, ...], hiders: Iterable[Hider], level: Level = "core", emptied: bool = False) -> Case:
    """A case of several ways to hide at once, where some rows may come out ``emptied``."""
    hider = together(hiders)
    also_by_mask = len(names) > 2 or names == ("mask", "bias") or (names[0] == "mask" and names[1].startswith("causal"))

    def make() -> Request:
        return Request(coded(5, hider.m, spread=1.0, items=2, h=2), "float32", arrays=hider.arrays, options=hider.options)

    return case(
        "MHA-MASK-14" if also_by_mask else "MHA-MASK-1", " and ".join(names), make, features=hider.features, level=level,
        beside=("MHA-MASK-15", "MHA-MASK-16") if emptied else (),
    )  # fmt: skip
