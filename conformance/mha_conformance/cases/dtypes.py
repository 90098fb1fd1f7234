"""Cases of every option in the dtypes that its own cases leave out."""

from collections.abc import Iterator
from itertools import product

from mha_conformance.cases.build import ONE, case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.options import CLAUSE, NARROW, OPTIONS, features, request


def cases() -> Iterator[Case]:
    for dtype, name in product(NARROW, OPTIONS):
        yield case(
            CLAUSE[name], f"{name} in this dtype", lambda dtype=dtype, name=name: request((name,), dtype, n=5, m=9, d=8),
            features=features(name), dtype=dtype, beside=("MHA-NUM-2",) if dtype == "float64" else (),
        )  # fmt: skip
    for dtype in NARROW:
        yield case(
            "MHA-HEAD-2", "2 of 6 heads in this dtype",
            lambda dtype=dtype: Request(operands(1150, dtype, h=6, h_kv=2), dtype), features=("grouped",), dtype=dtype,
        )  # fmt: skip
        for feature, clause in (("weights", "MHA-AUX-1"), ("lse", "MHA-AUX-4" if dtype == "float64" else "MHA-AUX-5")):

            def asked(dtype: str = dtype, feature: str = feature) -> Request:
                return Request(operands(1151, dtype, **ONE), dtype, options={f"return_{feature}": True})

            yield case(clause, f"{feature} in this dtype", asked, features=(feature,), dtype=dtype)
