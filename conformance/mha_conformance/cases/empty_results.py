"""Cases of what stands beside an axis that is empty: no keys, no channels, no queries, with weights, lse and sinks."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.features import describing
from mha_conformance.cases.options import OPTIONS, features, request

BOTH = {"return_weights": True, "return_lse": True}
NAMED = ("weights", "lse")
CHANGES_THE_SUM = ("nothing", "mask", "bias", "sink")
"""The options that are left to say something where every score is 0; the others are asked at level full."""


def cases() -> Iterator[Case]:
    yield from no_keys()
    yield from no_channels()
    yield from nothing_to_answer()


def no_keys() -> Iterator[Case]:
    """MASK-16 and 17: without keys every row is empty, and a sink is all that its lse knows."""
    for dtype in ("float32", "float64", "bfloat16"):

        def nothing(sinks: bool, dtype: str = dtype) -> Request:
            arrays = {"sink_logits": np.asarray([0.5, -1.0])} if sinks else {}
            return Request(operands(670, dtype, batch=(2,), h=2, n=3, m=0, d=2), dtype, arrays=arrays, options=BOTH)

        yield case(
            "MHA-MASK-16", "no keys, with weights and lse", lambda nothing=nothing: nothing(False), features=NAMED, dtype=dtype,
            beside=describing(NAMED) | {"MHA-AUX-3"},
        )  # fmt: skip
        yield case(
            "MHA-MASK-17", "no keys, with sinks, weights and lse", lambda nothing=nothing: nothing(True), features=("sink", *NAMED),
            dtype=dtype, beside=describing(NAMED) | {"MHA-AUX-3"},
        )  # fmt: skip

    def plain() -> Request:
        arrays = {"sink_logits": np.asarray([0.5, -1.0])}
        return Request(operands(671, "float32", batch=(2,), h=2, n=3, m=0, d=2), "float32", arrays=arrays)

    yield case("MHA-MASK-17", "no keys, with sinks", plain, features=("sink",))
    for name in OPTIONS:

        def option(name: str = name) -> Request:
            found = request((name,), batch=(2,), h=2, n=5, m=4, d=2, seed=133)
            query, key, value = found.operands
            arrays = {at: x[..., :0] if at in ("mask", "bias", "key_segments") else x for at, x in found.arrays.items()}
            parts = (query, key[..., :0, :], value[..., :0, :])
            return replace(found, operands=parts, arrays=arrays, options={**found.options, **BOTH})

        used = (*features(name), *NAMED)
        yield case(
            "MHA-AUX-3",
            f"no keys, {name} with weights and lse",
            option,
            features=used,
            beside=("MHA-MASK-16",),
            level="core" if name in CHANGES_THE_SUM else "full",
        )


def no_channels() -> Iterator[Case]:
    """AUX-3: without channels of values, weights and lse are what they would be beside them; without channels of keys, scores are 0."""
    for name in ("nothing", *OPTIONS):
        names = () if name == "nothing" else (name,)
        used = features(*names)

        def no_values(names: tuple[str, ...] = names) -> Request:
            found = request(names, batch=(2,), h=2, n=3, m=5, d=2, seed=134)
            query, key, value = found.operands
            return replace(found, operands=(query, key, value[..., :0]), options={**found.options, **BOTH})

        yield case(
            "MHA-AUX-3", f"no value channels, {name} with weights and lse", no_values, features=(*used, *NAMED, "d_v"),
            beside=describing(("d_v",)),
        )  # fmt: skip

        def no_scores(names: tuple[str, ...] = names) -> Request:
            found = request(names, batch=(2,), h=2, n=3, m=5, d=2, seed=135)
            query, key, value = found.operands
            return replace(found, operands=(query[..., :0], key[..., :0], value), options={**found.options, **BOTH})

        yield case(
            "MHA-AUX-3", f"no channels of keys, {name} with weights and lse", no_scores, features=(*used, *NAMED, "d_v"),
            level="core" if name in CHANGES_THE_SUM else "full", beside=describing(("d_v",)),
        )  # fmt: skip


def nothing_to_answer() -> Iterator[Case]:
    """EXEC-11: no queries and no batch items, with weights and lse; the shapes are what is left to say."""
    none: Mapping[str, Mapping[str, Any]] = {"queries": {"n": 0}, "batch items": {"batch": (0,)}, "heads": {"h": 0}}
    for name, empty in none.items():

        def asked(empty: Mapping[str, Any] = empty) -> Request:
            sizes: dict[str, Any] = {"batch": (2,), "h": 2, "n": 3, "m": 4, "d": 2, **empty}
            return Request(operands(672, "float32", **sizes), "float32", options=BOTH)

        yield case("MHA-EXEC-11", f"no {name}, with weights and lse", asked, features=NAMED, beside=describing(NAMED))
