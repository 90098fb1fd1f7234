"""Cases of EXEC-5: no result depends on an earlier call.

Two calls A and B that differ in one thing are made at two sizes that no other case has: A, then B at the other size, then B at
the size of A, and so on. What a cache left out of its key then shows as an answer that was right at first and is wrong later, which
no fault of the option itself can look like.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Level, Request
from mha_conformance.cases.features import describing
from mha_conformance.cases.options import OPTIONS, features, request

Calls = Callable[[Mapping[str, Any]], tuple[Request, Request]]
"""Sizes to A and B of these sizes."""


def cases() -> Iterator[Case]:
    pairs: list[tuple[str, Calls, tuple[str, ...], bool]] = [
        ("A, B, A", different("qkv"), (), True),
        ("the same query and key, other values", different("v"), (), True),
        ("the same values, another query", different("q"), (), True),
    ]
    for option in OPTIONS:
        holds_arrays = bool(request((option,)).arrays)
        pairs.append((f"another {option} in between", another(option), features(option), holds_arrays))
        pairs.append((f"{option} and none in between", with_and_without(option), features(option), False))
    for at, (name, calls, used, holds_arrays) in enumerate(pairs):
        yield two(name, calls, used, 2 * at)
        if holds_arrays:
            yield two(f"{name}, in place", calls, used, 2 * at + 1, "in place")
    yield from remains()
    yield case("MHA-EXEC-3", "a result outlives the next call", outlived, rule="history")


def outlived() -> tuple[Request, ...]:
    """Calls of one shape, the first of them once more at the end: whose results lie in one place, these are all the last one."""
    first, second = (Request(operands(626 + at, "float32", batch=(1,), h=1, n=1, m=2, d=11), "float32") for at in range(2))
    return first, second, first


def two(name: str, calls: Calls, used: tuple[str, ...], at: int, layout: str = "contiguous") -> Case:
    """A case of the two calls in arrays of their own, or in memory that is written over."""
    one_size = {"batch": (5,), "h": 8, "n": 4, "m": 19 + at, "d": 8}
    other_size = {"batch": (7,), "h": 10, "n": 6, "m": 20 + at, "d": 8}

    def asked() -> tuple[Request, ...]:
        (a, b), (a_other, b_other) = calls(one_size), calls(other_size)
        return a, b_other, *(replace(again, layout=layout) for again in (b, a_other, a))

    level: Level = "smoke" if name == "A, B, A" else "core"
    return case("MHA-EXEC-5", name, asked, features=used, rule="history", level=level, beside=describing(used))


def different(which: str) -> Calls:
    """Plain calls whose query, key or values differ."""

    def calls(sizes: Mapping[str, Any]) -> tuple[Request, Request]:
        one, other = operands(620, "float32", **sizes), operands(625, "float32", **sizes)
        mixed = tuple(b if name in which else a for name, a, b in zip("qkv", one, other, strict=True))
        return Request(one, "float32"), Request(mixed, "float32")

    return calls


def another(option: str) -> Calls:
    """Calls with one option, which differs."""

    def calls(sizes: Mapping[str, Any]) -> tuple[Request, Request]:
        first = request((option,), **sizes, seed=100)
        arrays = {name: changed(name, x) for name, x in first.arrays.items()}
        numbers = {"scale": 0.5, "softcap": 0.75, "window": (3, 2)}
        return first, replace(first, arrays=arrays, options={name: numbers.get(name, x) for name, x in first.options.items()})

    return calls


def with_and_without(option: str) -> Calls:
    """Calls with one option, and without it."""

    def calls(sizes: Mapping[str, Any]) -> tuple[Request, Request]:
        plain = request((), **sizes, seed=110)
        return plain, request((option,), **sizes, seed=110)

    return calls


def changed(name: str, x: Any) -> Any:
    """Other values of an option, of the same shape and dtype, that still leave every row a key."""
    if name == "mask":
        return x[:, ::-1] | (np.arange(x.shape[-1]) < 1)
    return {"key_lengths": x - 3, "query_offset": x + 2, "key_segments": x[..., ::-1]}.get(
        name, x / 2 if x.dtype.kind == "f" else x
    )


def remains() -> Iterator[Case]:
    """A small call after a large one of zeros, and after a large one of other numbers: it must not see what these left behind."""
    for option in ("nothing", "mask", "bias", "lengths"):
        names = () if option == "nothing" else (option,)

        def asked(names: tuple[str, ...] = names) -> tuple[Request, ...]:
            small = request(names, batch=(2,), h=2, n=5, m=7, d=6, seed=120)
            large = request(names, batch=(3,), h=4, n=29, m=43, d=26, seed=121)
            query, key, value = large.operands
            quiet = replace(large, operands=(query, key * 0, value * 0))
            loud = replace(large, operands=(query, key * 0 + 1, value * 0 + 64))
            return quiet, small, loud, small

        used = features(*names)
        yield case(
            "MHA-EXEC-5",
            f"what a larger call left behind, {option}",
            asked,
            features=used,
            rule="history",
            beside=describing(used),
        )
