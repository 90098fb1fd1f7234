"""Cases of EXEC: types, memory, strides, threads, batch mates, empty axes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from mha_conformance.cases.build import BASE, case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.features import describing
from mha_conformance.cases.options import OPTIONS, features, request

ONE_SIZE: Mapping[str, Any] = {"batch": (1,), "h": 1, "n": 6, "m": 6}
LAYOUTS = ("transposed", "heads inside positions", "padded", "every second", "reversed", "broadcast", "read-only", "value only")
DTYPES = ("float32", "float64", "float16", "bfloat16")
ITEMWISE = ("query_offset", "key_lengths", "query_segments", "key_segments")
"""Arrays whose first axis is that of the batch."""


def cases() -> Iterator[Case]:
    yield from facts()
    yield from layouts()
    yield from repeats()
    yield from batches()
    yield from empty_axes()


def plain(seed: int = 600, dtype: str = "float32", **sizes: Any) -> Request:
    return Request(operands(seed, dtype, **{**BASE, **sizes}), dtype)


def facts() -> Iterator[Case]:
    for dtype in DTYPES:
        yield case(
            "MHA-EXEC-1", "library, device, dtype and shape", lambda dtype=dtype: plain(dtype=dtype), rule="facts", group="contract",
            dtype=dtype, level="smoke" if dtype == "float32" else "core",
        )  # fmt: skip
    for clause, name in (
        ("MHA-EXEC-2", "inputs are not modified"),
        ("MHA-EXEC-3", "results share no memory"),
        ("MHA-EXEC-6", "global state"),
    ):
        yield case(clause, name, plain, rule="facts", group="contract", level="smoke")
        yield case(clause, f"{name}, one key", lambda: plain(n=1, m=1), rule="facts", group="contract")


def layouts() -> Iterator[Case]:
    for layout in LAYOUTS:
        for name, sizes in (("odd", {}), ("aligned", {"n": 64, "m": 64, "d": 8})):

            def viewed(layout: str = layout, sizes: Any = sizes) -> Request:
                request = replace(plain(610, **sizes), layout=layout)
                if layout == "broadcast":  # one batch item that stands for all
                    query, *others = request.operands
                    request = replace(request, operands=(query, *(np.repeat(x[:1], x.shape[0], axis=0) for x in others)))
                return request

            yield case(
                "MHA-EXEC-4", f"{layout}, {name} sizes", viewed,
                level="smoke" if (layout, name) == ("transposed", "odd") else "core",
            )  # fmt: skip


def repeats() -> Iterator[Case]:
    """EXEC-7 and 8: at once, and once more."""

    def threads() -> tuple[Request, ...]:
        return tuple(plain(630 + at, **{**ONE_SIZE, "n": 48, "m": 48}) for at in range(6))

    yield case("MHA-EXEC-7", "six calls at once", threads, level="smoke")
    yield case(
        "MHA-EXEC-8",
        "the same bits again",
        lambda: (plain(640, **{**ONE_SIZE, "n": 65, "m": 65}),) * 5,
        rule="same bits",
        group="determinism",
        level="smoke",
    )

    def crowd() -> tuple[Request, ...]:
        return tuple(plain(900 + at, batch=(1,), h=1, n=128, m=512, d=2) for at in range(24))

    yield case("MHA-EXEC-7", "two dozen larger calls at once", crowd)

    def throng() -> tuple[Request, ...]:
        return tuple(plain(900 + at, batch=(2,), h=2, n=128, m=512, d=16) for at in range(64))

    yield case("MHA-EXEC-7", "64 large calls at once", throng, level="full")
    yield from invariant()


def invariant() -> Iterator[Case]:
    """EXEC-8, class batch-invariant: a batch item has the bits that it has alone, in one tile and in several, with every option."""

    def items(whole: Request) -> tuple[Request, ...]:
        return whole, *(one_item(whole, at) for at in range(whole.operands[0].shape[0]))

    for dtype, (n, m, d) in (*product(("float32",), ((1, 300, 16), (67, 35, 8))), *product(DTYPES, ((5, 131, 4),))):
        yield case(
            "MHA-EXEC-8", f"items alone and together, n = {n}, m = {m}",
            lambda dtype=dtype, n=n, m=m, d=d: items(plain(642, dtype, batch=(3,), h=2, n=n, m=m, d=d)), rule="same items",
            group="determinism", dtype=dtype,
        )  # fmt: skip
    for name in OPTIONS:
        yield case(
            "MHA-EXEC-8", f"items alone and together, {name}",
            lambda name=name: items(request((name,), batch=(3,), h=2, n=5, m=131, seed=143)), rule="same items", group="determinism",
            features=features(name), beside=describing(features(name)),
        )  # fmt: skip


def one_item(whole: Request, at: int) -> Request:
    """The request of one item of its single batch axis."""
    items, rank = whole.operands[0].shape[0], whole.operands[0].ndim
    each = {name: (x.ndim == rank and x.shape[0] == items) or name in ITEMWISE for name, x in whole.arrays.items()}
    arrays = {name: x[at : at + 1] if each[name] else x for name, x in whole.arrays.items()}
    return replace(whole, operands=tuple(x[at : at + 1] for x in whole.operands), arrays=arrays)


def batches() -> Iterator[Case]:
    def unlike() -> Request:
        query, key, value = operands(650, "float32", batch=(3,), h=1, n=6, m=6)
        size = np.asarray([1.0, 8.0, 0.125]).reshape(3, 1, 1, 1)
        return Request((query * size, key, value / size), "float32")

    yield case("MHA-EXEC-12", "batch items of unlike sizes", unlike, level="smoke")
    for batch in ((), (1,), (2, 3), (1, 2, 2)):
        yield case("MHA-EXEC-12", f"batch axes {batch}", lambda batch=batch: plain(651, **{**ONE_SIZE, "batch": batch}))


def empty_axes() -> Iterator[Case]:
    sizes: dict[str, dict[str, Any]] = {"n": {"n": 0}, "batch": {"batch": (0,)}, "d": {"d": 0}, "heads": {"h": 0}}
    for name, empty in sizes.items():
        yield case(
            "MHA-EXEC-11", f"no {name}", lambda empty=empty: plain(660, **empty), level="smoke" if name == "n" else "core"
        )
    yield case(
        "MHA-ATTN-4",
        "no channels, mean of the values",
        lambda: plain(661, **ONE_SIZE, d=0, d_v=3),
        features=("d_v",),
        level="smoke",
        beside=("MHA-ATTN-7",),
    )
    yield case("MHA-EXEC-11", "no value channels", lambda: plain(662, d_v=0), features=("d_v",), beside=("MHA-ATTN-7",))
