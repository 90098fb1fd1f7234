"""Cases of EXEC: array options in other layouts, unmodified, and in a history where only they change."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.cases.build import case
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.options import CLAUSE, features, request


def cases() -> Iterator[Case]:
    for name in ("mask", "bias"):
        for layout in ("transposed", "padded", "every second", "reversed", "broadcast", "read-only"):
            yield case(
                "MHA-EXEC-4", f"{name} {layout}", lambda name=name, layout=layout: memory_request(name, layout), features=(name,),
            )  # fmt: skip
    for name in ("mask", "bias", "lengths", "segments", "sink", "causal"):

        def small(name: str = name, seed: int = 0) -> Request:
            return request((name,), n=2, m=4, d=2, seed=seed)

        yield case("MHA-EXEC-2", f"{name} is not modified", small, features=features(name), rule="facts", group="contract")

        def history(name: str = name) -> tuple[Request, ...]:
            first = request((name,), n=5, m=9, seed=100)
            other = replace(first, arrays={key: changed(key, x) for key, x in first.arrays.items()})
            return first, other, first

        yield case(CLAUSE[name], f"another {name} in between", history, features=features(name))


def memory_request(name: str, layout: str) -> Request:
    """A request whose operands are contiguous, and its mask or bias in ``layout``."""
    asked = request((name,), batch=(2,), h=3, n=5, m=9, seed=90)
    if layout == "broadcast":
        return replace(asked, arrays={name: np.repeat(asked.arrays[name][:1], 5, axis=0)}, layout=f"options {layout}")
    return replace(asked, layout=f"options {layout}")


def changed(name: str, x: Any) -> Any:
    """Other values of an option, of the same shape and dtype, that still leave every row a key."""
    if name == "mask":
        return x[:, ::-1] | (np.arange(x.shape[-1]) < 1)
    return {"key_lengths": x - 3, "query_offset": x + 2, "key_segments": x[..., ::-1]}.get(
        name, x / 2 if x.dtype.kind == "f" else x
    )
