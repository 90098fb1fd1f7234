"""Cases of GRAD: every two options backwards, with what may come beside them.

Array offsets, grouped heads, gradients that arrive at lse and weights, and a forward that is handed back take turns, so that each
pair of options meets some of them at level core and the others at level full.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from mha_conformance.cases.case import Case, Level, Request
from mha_conformance.cases.features import describing
from mha_conformance.cases.gradients import backward, given, train
from mha_conformance.cases.gradients_hidden import hidings
from mha_conformance.cases.inputs import eighths
from mha_conformance.cases.options import HIDING, OPTIONS, features
from mha_conformance.cases.options import given as options_given

CLAUSE = {"softcap": "MHA-GRAD-9", "sink": "MHA-GRAD-11", "bias": "MHA-GRAD-10", "scale": "MHA-GRAD-18"}
"""The clause of an option's own gradient; what hides has none, and stands under GRAD-14."""
ARRIVES: tuple[tuple[str, ...], ...] = ((), ("lse",), ("weights",), ("lse", "weights"))
SIZES: Mapping[str, Any] = {"batch": (3,), "n": 5, "m": 9, "d": 6}
EMPTIED: tuple[tuple[tuple[str, ...], bool, Level], ...] = ((("lse", "weights"), False, "full"), (("lse",), True, "core"))
"""What arrives at empty rows, whether their forward is handed back, and the level."""
EITHER = "MHA-MASK-1"
"""With two ways to hide the visible set is an intersection."""


def cases() -> Iterator[Case]:
    yield from pairs()
    yield from handed_back()
    yield from positions()
    yield from empty_rows()


def crossed(names: tuple[str, ...], seed: int, **more: Any) -> Request:
    """A request for gradients with these options, some of their arrays one for each item."""
    found = backward(seed, **{**SIZES, **more})
    query, key, _ = found.operands
    *batch, h, n, _ = query.shape
    made = options_given(names, tuple(batch), h, n, key.shape[-2], "float32", seed)
    return given(found, options=made["options"], **made["arrays"])


def beside(*names: str) -> frozenset[str]:
    """What the options of a case bring with them, scores, hiding and results."""
    hides = sum(name in HIDING for name in names) > 1
    return describing(features(*(name for name in names if name in OPTIONS))).union(
        describing(name for name in names if name not in OPTIONS), (EITHER, "MHA-MASK-14") if hides else ()
    )


def pairs() -> Iterator[Case]:
    """GRAD-9 to 11, 14 and 18 for every two options."""
    for at, pair in enumerate(combinations(OPTIONS, 2)):
        clause = next((CLAUSE[name] for name in CLAUSE if name in pair), "MHA-GRAD-14")
        for turn, arrives in enumerate(ARRIVES):
            grouped, kept = (at + turn) % 2 == 1, (at + turn // 2) % 2 == 1
            level: Level = "core" if turn == (at + at // 4) % 4 else "full"
            extra = (*(("grouped",) if grouped else ()), *arrives, *(("lse",) if kept and "lse" not in arrives else ()))

            def both(
                pair: tuple[str, ...] = pair, arrives: tuple[str, ...] = arrives, grouped: bool = grouped, kept: bool = kept
            ) -> Request:
                return replace(crossed(pair, 895, h=4, h_kv=2 if grouped else 4, arrives=arrives), kept=kept)

            arriving = f", {' and '.join(arrives)} arriving" if arrives else ""
            words = f"{' and '.join(pair)}{', 2 of 4 heads' * grouped}{arriving}{', output and lse given' * kept}"
            empty = frozenset({"MHA-GRAD-13"} if set(pair) <= set(HIDING) else ())  # between them they may hide all of a row
            yield train(clause, words, both, *features(*pair), *extra, level=level, beside=beside(*pair, *extra) | empty)


def handed_back() -> Iterator[Case]:
    """GRAD-3: output and lse of the forward are given, beside each option."""
    for name in OPTIONS:

        def kept(name: str = name) -> Request:
            return replace(crossed((name,), 896, h=1, arrives=("lse", "weights")), kept=True)

        used = (*features(name), "lse", "weights")
        yield train("MHA-GRAD-3", f"output and lse beside {name}", kept, *used, beside=beside(name, "lse", "weights"))


def positions() -> Iterator[Case]:
    """GRAD-14: bands whose first query stands elsewhere in each item; the smallest calls that tell the items apart."""
    for name, band in {"causal": {"is_causal": True}, "window": {"window": (1, 0)}}.items():
        for n, m, offsets in ((2, 4, (0, 2)), (3, 5, (2, 0)), (4, 4, (1, 3))):

            def placed(band: Any = band, n: int = n, m: int = m, offsets: tuple[int, int] = offsets) -> Request:
                return given(backward(897, h=1, n=n, m=m, d=2), options=band, query_offset=np.asarray(offsets))

            used = (name, "offset")
            words = f"{name} from {offsets[0]} and {offsets[1]}, n = {n}, m = {m}"
            yield train("MHA-GRAD-14", words, placed, *used, beside=describing(used) | {"MHA-GRAD-13"})


def empty_rows() -> Iterator[Case]:
    """GRAD-13: empty rows with sinks, whatever arrives at them, and with the forward handed back."""
    for name, (shape, more, used) in hidings(empty=True).items():
        for arrives, kept, level in EMPTIED:

            def emptied(shape: Any = shape, more: Any = more, arrives: tuple[str, ...] = arrives, kept: bool = kept) -> Request:
                arrays = {at: x for at, x in more.items() if hasattr(x, "shape")}
                options = {at: x for at, x in more.items() if at not in arrays}
                found = given(backward(898, **shape, arrives=arrives), options=options, **arrays)
                return replace(given(found, sink_logits=eighths(899, (3,))), kept=kept)

            said = (*dict.fromkeys((*used, *(("offset",) if "query_offset" in more else ()))), "sink", *arrives)
            words = f"by {name} with sinks, {' and '.join(arrives)}{', output and lse given' if kept else ''}"
            yield train("MHA-GRAD-13", words, emptied, *said, level=level, beside=describing(said))
