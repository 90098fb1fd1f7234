"""What a case is: one clause, a few requests, and the rule by which the replies are judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Level: TypeAlias = Literal["smoke", "core", "full"]
Group: TypeAlias = Literal["semantics", "poison", "strict", "numerics", "contract", "determinism", "train", "decode"]
Target: TypeAlias = Literal["attention", "layer", "merge", "vjp", "layer vjp", "cache", "varlen", "statistics"]
Rule: TypeAlias = Literal[
    "bound", "agree", "as first", "same bits", "same rows", "same items", "hidden bits", "hidden gradient bits", "history", "refused",
    "facts", "gradient facts", "statistics", "probable", "filter", "memory",
]  # fmt: skip

AS_LIST = "list"
"""In place of a dtype: a Python list and no array."""
LEVELS: tuple[Level, ...] = ("smoke", "core", "full")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One call: host arrays by name, all values exact in ``dtype``, and the Python options beside them.

    ``operands`` are positional (query, key, value; for a merge output 0, lse 0, ...); ``arrays`` are array-valued options, with
    a dtype of their own in ``dtypes`` where it is not the call's, and ``keep`` the mask of the ``Dropout`` among the options;
    ``options`` are Python values. ``layout`` says where the arrays lie.
    """

    operands: tuple[Any, ...]
    dtype: str
    target: Target = "attention"
    arrays: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    projections: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "contiguous"
    plan: Mapping[str, Any] = field(default_factory=dict)
    """For the targets of chapter 7: how a sequence arrives, where those of a pack start, which statistic is read."""
    gradients: tuple[str, ...] = ()
    """Of a vjp, the gradients that are looked at; all where it is empty. What arrives stands in ``arrays`` as grad_output, ..."""
    kept: bool = False
    """Whether a vjp is given output and lse of the same implementation's forward call."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One clause under test. ``make`` builds the requests when they are needed, the same ones in every process.

    The rules: ``bound`` holds each reply to the truth within the bound; ``agree`` holds the replies to each other within it,
    ``as first`` to the truth of the first request;
    ``same bits`` and ``hidden bits`` compare with the first reply bit for bit, the latter only in rows that see none of the keys
    that differ, and ``hidden gradient bits`` likewise of gradients; ``same rows`` joins the later replies along the queries first,
    and ``same items`` along the batch;
    ``history`` wants what was right at first to stay right; ``refused`` wants an error; ``facts`` and ``gradient facts`` look at
    type, shape, memory and state, not at values; ``memory`` at how much of it was held. ``beside`` names clauses that the
    requests happen to use, though neither the clause nor its needs speak of them: where one of these is broken, the case says
    nothing of its own (MHA-CONF-4).
    """

    id: str
    clause: str
    group: Group
    level: Level
    features: frozenset[str]
    dtype: str
    rule: Rule
    make: Callable[[], tuple[Request, ...]]
    beside: frozenset[str] = frozenset()
    lasting: bool = True
    """Whether it is one of the catalogue, whose truth is worth keeping, and not made on the way."""

    def wanted_at(self, level: Level) -> bool:
        return LEVELS.index(self.level) <= LEVELS.index(level)
