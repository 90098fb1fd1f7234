"""The vocabulary of the catalogue: operands of many shapes, and cases with names."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mha_conformance.cases.case import Case, Group, Level, Request, Rule
from mha_conformance.cases.inputs import eighths, fractions

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "distinct": {"batch": (2,), "h": 3, "n": 5, "m": 7, "d": 4},
    "equal": {"batch": (4,), "h": 4, "n": 4, "m": 4, "d": 4},
    "one-query": {"batch": (3,), "h": 2, "n": 1, "m": 33, "d": 8},
    "one-key": {"batch": (), "h": 2, "n": 3, "m": 1, "d": 3},
    "long": {"batch": (1, 2), "h": 1, "n": 17, "m": 129, "d": 16},
    "aligned": {"batch": (2,), "h": 2, "n": 64, "m": 64, "d": 64},
    "tail": {"batch": (1,), "h": 3, "n": 65, "m": 63, "d": 40},
}
"""n against m, lengths around tiles, ranks of batch; all distinct and all equal, because either hides what the other shows."""

ONE: Mapping[str, Any] = {"batch": (1,), "h": 1, "n": 6, "m": 6, "d": 4}
"""One head of one item, as many queries as keys: what ATTN speaks of, before heads, batches and lengths differ."""

BASE: Mapping[str, Any] = SHAPES["distinct"]


def operands(
    seed: int, dtype: str, *, batch: tuple[int, ...] = (2,), h: int = 3, n: int = 5, m: int = 7, d: int = 4,
    h_kv: int | None = None, d_v: int | None = None, spread: float = 2.0, coarse: bool = False,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """(query, key, value) with every bit of ``dtype``'s significand in use; coarse ones are multiples of 1/8."""
    h_kv = h if h_kv is None else h_kv
    shapes = ((*batch, h, n, d), (*batch, h_kv, m, d), (*batch, h_kv, m, d if d_v is None else d_v))
    if coarse:
        return tuple(eighths(seed + at, shape) for at, shape in enumerate(shapes))  # type: ignore[return-value]
    return tuple(fractions(seed + at, shape, dtype, spread) for at, shape in enumerate(shapes))  # type: ignore[return-value]


def case(
    clause: str,
    name: str,
    make: Callable[..., Request | tuple[Request, ...]],
    *,
    features: tuple[str, ...] = (),
    group: Group = "semantics",
    level: Level = "core",
    dtype: str = "float32",
    rule: Rule = "bound",
    beside: Iterable[str] = (),
) -> Case:
    """A case called ``clause/name/dtype``; a single request is a tuple of one."""

    def requests() -> tuple[Request, ...]:
        made = make()
        return made if isinstance(made, tuple) else (made,)

    return Case(f"{clause}/{name}/{dtype}", clause, group, level, frozenset(features), dtype, rule, requests, frozenset(beside))


def over_shapes(seed: int, dtype: str, **fixed: Any) -> Iterator[tuple[str, Callable[..., tuple[Any, Any, Any]]]]:
    """(name, maker of operands) for every shape of ``SHAPES``."""
    for at, (name, shape) in enumerate(SHAPES.items()):
        yield name, lambda at=at, shape=shape: operands(seed + 10 * at, dtype, **{**shape, **fixed})
