"""Cases of MASK: NaN goes where it is seen, and nowhere else."""

from collections.abc import Iterator

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.codes import coded
from mha_conformance.cases.features import describing
from mha_conformance.cases.hiders import ALIGNED, HIDERS, Hider


def cases() -> Iterator[Case]:
    n, m = 5, 7
    for name, hider in {**HIDERS, **ALIGNED}.items():
        for at, where in enumerate(("query", "key", "value")):

            def spoiled(at: int = at, hider: Hider = hider) -> Request:
                parts = operands(260, "float32", batch=(2,), h=2, n=n, m=hider.m, d=4)
                parts[at][0, 1, 2, 1] = np.nan
                return Request(parts, "float32", arrays=hider.arrays, options=hider.options)

            yield case(
                "MHA-MASK-21" if where == "value" else "MHA-MASK-20", f"NaN in a {where}, {name}", spoiled, features=hider.features,
                group="strict" if where != "query" else "semantics", level="smoke" if name == "mask" else "core",
                beside=describing(hider.features),
            )  # fmt: skip

    def sink() -> Request:
        mask = np.ones((n, m), dtype=bool)
        mask[2] = False
        return Request(coded(n, m, h=2), "float32", arrays={"mask": mask, "sink_logits": np.asarray([np.nan, 0.0])})

    yield case("MHA-MASK-22", "a NaN sink", sink, features=("mask", "sink"), group="strict", level="smoke")
