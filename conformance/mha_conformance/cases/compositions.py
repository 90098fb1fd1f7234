"""Cases of MASK: every pair of ways to hide, and all together."""

from collections.abc import Iterator
from typing import Any

from mha_conformance.cases.build import case
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.codes import coded
from mha_conformance.cases.hiders import HIDERS


def cases() -> Iterator[Case]:
    names = list(HIDERS)
    for at, first in enumerate(names):
        for second in names[at + 1 :]:
            yield composed(
                "MHA-MASK-14" if {first, second} in ({"mask", "bias"}, {"mask", "causal"}) else "MHA-MASK-1", (first, second)
            )
    yield composed("MHA-MASK-14", tuple(names), level="core")


def composed(clause: str, names: tuple[str, ...], level: Any = None) -> Case:
    features = tuple(dict.fromkeys(feature for name in names for feature in HIDERS[name][0]))

    def make() -> Request:
        arrays: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name in names:
            arrays |= HIDERS[name][1]
            options |= HIDERS[name][2]
        return Request(coded(5, 7, spread=1.0, items=2, h=2), "float32", arrays=arrays, options=options)

    return case(
        clause,
        " and ".join(names),
        make,
        features=features,
        level=level or ("smoke" if names in (("mask", "bias"), ("mask", "lengths")) else "core"),
    )
