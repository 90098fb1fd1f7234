"""Cases of EXEC: array options in other layouts, and unmodified."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mha_conformance.cases.build import case
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.features import describing
from mha_conformance.cases.options import features, request


def cases() -> Iterator[Case]:
    for name in ("mask", "bias"):
        for layout in ("transposed", "padded", "every second", "reversed", "broadcast", "read-only"):
            yield case(
                "MHA-EXEC-4", f"{name} {layout}", lambda name=name, layout=layout: memory_request(name, layout), features=(name,),
            )  # fmt: skip
    for name in ("lengths", "segments", "sink", "causal"):

        def spread(name: str = name) -> Request:
            return request((name,), batch=(2,), h=3, n=5, m=9, seed=91, layout="options every second")

        yield case(
            "MHA-EXEC-4", f"{name}, its array every second", spread, features=features(name), beside=describing(features(name))
        )
    for name in ("mask", "bias", "lengths", "segments", "sink", "causal"):

        def small(name: str = name, seed: int = 0) -> Request:
            return request((name,), n=2, m=4, d=2, seed=seed)

        yield case(
            "MHA-EXEC-2",
            f"{name} is not modified",
            small,
            features=features(name),
            rule="facts",
            group="contract",
            beside=describing(features(name)),
        )


def memory_request(name: str, layout: str) -> Request:
    """A request whose operands are contiguous, and its mask or bias in ``layout``."""
    asked = request((name,), batch=(2,), h=3, n=5, m=9, seed=90)
    if layout == "broadcast":
        return replace(asked, arrays={name: np.repeat(asked.arrays[name][:1], 5, axis=0)}, layout=f"options {layout}")
    return replace(asked, layout=f"options {layout}")
