"""Cases of MASK: NaN goes where it is seen, and nowhere else."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.codes import coded
from mha_conformance.cases.hiders import HIDERS


def cases() -> Iterator[Case]:
    n, m = 5, 7
    for name, (features, arrays, options) in HIDERS.items():
        for where in ("query", "key", "value"):

            def spoiled(where: str = where, arrays: Any = arrays, options: Any = options) -> Request:
                parts = dict(
                    zip(("query", "key", "value"), operands(260, "float32", batch=(2,), h=2, n=n, m=m, d=4), strict=True)
                )
                parts[where][0, 1, 2, 1] = np.nan
                return Request(tuple(parts.values()), "float32", arrays=arrays, options=options)

            yield case(
                "MHA-MASK-21" if where == "value" else "MHA-MASK-20", f"NaN in a {where}, {name}", spoiled, features=features,
                group="strict" if where != "query" else "semantics", level="smoke" if name == "mask" else "core",
            )  # fmt: skip

    def sink() -> Request:
        mask = np.ones((n, m), dtype=bool)
        mask[2] = False
        return Request(coded(n, m, h=2), "float32", arrays={"mask": mask, "sink_logits": np.asarray([np.nan, 0.0])})

    yield case("MHA-MASK-22", "a NaN sink", sink, features=("mask", "sink"), group="strict", level="smoke")
