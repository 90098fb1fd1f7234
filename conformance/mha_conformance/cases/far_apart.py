"""Cases of EXEC-4: few values whose places differ by more than 32 bits; an index, a stride or a product of the two that is too
narrow shows. Nothing lies between them, so they take hardly any memory."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.inputs import fractions


def cases() -> Iterator[Case]:
    for name, sizes in {
        "two items": {"batch": (2,), "h": 1}, "two heads": {"batch": (), "h": 2}, "two heads of two items": {"batch": (2,), "h": 2},
    }.items():  # fmt: skip
        for dtype in ("float32", "bfloat16"):

            def items(sizes: Mapping[str, Any] = sizes, dtype: str = dtype) -> Request:
                return Request(operands(970, dtype, **sizes, n=5, m=7, d=8), dtype, layout="items far apart")

            yield case("MHA-EXEC-4", f"{name} more than 2^31 elements apart", items, level="full", dtype=dtype)

    def rows() -> Request:
        return Request(operands(975, "float32", batch=(1,), h=1, n=3, m=4, d=8), "float32", layout="rows far apart")

    yield case("MHA-EXEC-4", "rows more than 2^31 elements apart", rows, level="full")
    for name in ("mask", "bias"):

        def option(name: str = name) -> Request:
            seen = np.asarray([[True, False, True, True], [False, True, True, False], [True, True, True, False]])
            array = seen if name == "mask" else fractions(977, (3, 4), "float32")
            parts = operands(976, "float32", batch=(1,), h=1, n=3, m=4, d=8)
            return Request(parts, "float32", arrays={name: array}, layout="options rows far apart")

        yield case("MHA-EXEC-4", f"rows of a {name} more than 2^31 elements apart", option, features=(name,), level="full")
