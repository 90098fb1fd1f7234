"""Cases of HEAD: heads do not mix, grouped heads read the right keys, per-head options reach their head."""

from collections.abc import Iterator

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.codes import codes
from mha_conformance.cases.inputs import choices, eighths, fractions

GROUPS = {"2 of 4": (4, 2), "2 of 6": (6, 2), "3 of 6": (6, 3), "2 of 24": (24, 2), "4 of 4": (4, 4), "3 of 9": (9, 3)}


def cases() -> Iterator[Case]:
    for h in (1, 2, 3, 7):

        def separate(h: int = h) -> Request:
            query, key, _ = operands(300, "float32", h=h, n=5, m=5, d=4)
            return Request((query, key, codes((2, h, 5, 4))), "float32")

        yield case("MHA-HEAD-1", f"{h} heads", separate, level="smoke" if h == 3 else "core")

    def square() -> Request:
        query, key, _ = operands(305, "float32", batch=(4,), h=4, n=4, m=4, d=4)
        return Request((query, key, codes((4, 4, 4, 4))), "float32")

    yield case("MHA-HEAD-1", "every size equal", square)
    for name, (h, h_kv) in GROUPS.items():
        for n in (5, 1):

            def grouped(h: int = h, h_kv: int = h_kv, n: int = n) -> Request:
                query, key, _ = operands(310, "float32", h=h, h_kv=h_kv, n=n, m=6, d=4)
                return Request((query, key, codes((2, h_kv, 6, 4))), "float32")

            yield case(
                "MHA-HEAD-2", f"{name} heads, n = {n}", grouped, features=() if h == h_kv else ("grouped",),
                level="smoke" if (name, n) == ("2 of 6", 5) else "core",
            )  # fmt: skip
    for h in (2, 5):

        def multi_query(h: int = h) -> Request:
            return Request(operands(320, "float32", h=h, h_kv=1, n=5, m=6, d=4), "float32")

        yield case(
            "MHA-HEAD-3", f"one key head for {h}", multi_query, features=("grouped",), level="smoke" if h == 5 else "core"
        )
    for h, h_kv in ((3, 3), (4, 2)):
        grouped_feature = ("grouped",) if h != h_kv else ()
        arrays = {
            "mask": choices(330, (1, h, 5, 7), 0.6) | np.eye(5, 7, dtype=bool),
            "bias": fractions(331, (2, h, 1, 7), "float32"),
            "sink_logits": eighths(332, (h,)),
        }
        for name, values in arrays.items():

            def per_head(h: int = h, h_kv: int = h_kv, name: str = name, values: object = values) -> Request:
                return Request(operands(333, "float32", h=h, h_kv=h_kv), "float32", arrays={name: values})

            feature = "sink" if name == "sink_logits" else name
            yield case(
                "MHA-HEAD-4", f"{name} per head, {h_kv} of {h}", per_head, features=(feature, *grouped_feature),
                level="smoke" if h == 3 else "core",
            )  # fmt: skip
