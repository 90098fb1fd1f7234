"""Cases of MASK: hidden data beside weights and lse, under a bias, and beyond the first tile.

What a row gives beside its output is as blind as the output is; and a poison in the second tile meets code that one in the first
does not.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.calls import visible_pairs
from mha_conformance.cases.case import Case, Level, Request
from mha_conformance.cases.features import describing
from mha_conformance.cases.hidden import clean, poisoned
from mha_conformance.cases.hiders import ALIGNED, HIDERS, Hider
from mha_conformance.cases.inputs import choices

BOTH = {"return_weights": True, "return_lse": True}
NAMED = ("weights", "lse")
MANY = 131
"""Keys: two whole tiles of 64 and a rest."""


def near(used: Iterable[str]) -> frozenset[str]:
    """What describes the features; where the results alone are wrong beside the output, nothing that is hidden is to blame."""
    return describing(used) | {"MHA-AUX-3"}


def finer(name: str) -> Level:
    """Bands that begin elsewhere are asked at level full; ``hidden`` has each of them at level core, without the results."""
    return "full" if name in ALIGNED else "core"


def cases() -> Iterator[Case]:
    yield from with_results()
    yield from under_a_bias()
    yield from over_tiles()


def with_results() -> Iterator[Case]:
    """MASK-18 and 19 with the weights and the lse, in every way of hiding."""
    for name, hider in {**HIDERS, **ALIGNED}.items():
        used, level = (*hider.features, *NAMED), finer(name)

        def asked(poison: float, hider: Hider = hider) -> Request:
            plain = clean(hider)
            return poisoned(replace(plain, options={**plain.options, **BOTH}), poison)

        yield case(
            "MHA-MASK-18", f"2^60 hidden by {name}, with weights and lse", lambda asked=asked: asked(2.0**60), features=used,
            group="poison", level=level, beside=near(used),
        )  # fmt: skip
        yield case(
            "MHA-MASK-18", f"-200 hidden by {name}, with weights and lse", lambda asked=asked: asked(-200.0), features=used,
            group="poison", level=level, beside=near(used),
        )  # fmt: skip

        def strict(hider: Hider = hider) -> tuple[Request, ...]:
            plain = clean(hider)
            plain = replace(plain, options={**plain.options, **BOTH})
            query, key, value = plain.operands
            key, value = key.copy(), value.copy()
            key[..., hider.m - 1, :] = value[..., hider.m - 1, :] = np.nan
            return plain, replace(plain, operands=(query, key, value))

        yield case(
            "MHA-MASK-19", f"the last key is NaN, {name}, with weights and lse", strict, features=used, group="strict",
            rule="hidden bits", level=level, beside=near(used),
        )  # fmt: skip


def under_a_bias() -> Iterator[Case]:
    """MASK-18 and 19: the bias of a hidden pair may be anything, huge, infinite or NaN."""
    for name, hider in {**HIDERS, **ALIGNED}.items():
        if "bias" in hider.features:
            continue
        used, level = (*hider.features, "bias", *NAMED), finer(name)
        for what, poison in (("2^100", 2.0**100), ("infinite", np.inf), ("NaN", np.nan)):

            def biased(hider: Hider = hider, poison: float = poison) -> Request:
                plain = clean(hider)
                bias = np.where(visible_pairs(plain)[:, :1], 0.25, poison)
                return replace(plain, arrays={**plain.arrays, "bias": bias}, options={**plain.options, **BOTH})

            finite = bool(np.isfinite(poison))
            yield case(
                "MHA-MASK-18" if finite else "MHA-MASK-19", f"the hidden bias is {what}, {name}, with weights and lse", biased,
                features=used, group="poison" if finite else "strict", level=level, beside=near(used) | {"MHA-MASK-14"},
            )  # fmt: skip


def over_tiles() -> Iterator[Case]:
    """MASK-18 and 19 in a middle tile and in the last one."""
    for name, hider in many_keys().items():
        used = (*hider.features, *NAMED)
        levels: dict[str, Level] = {"2^60": "core", "NaN": "core", "infinite": "full"}
        for what, poison in (("2^60", 2.0**60), ("NaN", np.nan), ("infinite", np.inf)):

            def asked(poison: float = poison, hider: Hider = hider) -> tuple[Request, ...]:
                plain = Request(operands(270, "float32", batch=(2,), h=1, n=5, m=MANY, d=4), "float32", arrays=hider.arrays)
                plain = replace(plain, options={**hider.options, **BOTH})
                spoiled = poisoned(plain, poison)
                return (spoiled,) if poison == 2.0**60 else (plain, spoiled)

            finite = bool(np.isfinite(poison))
            yield case(
                "MHA-MASK-18" if finite else "MHA-MASK-19", f"{what} in many keys hidden by {name}, with weights and lse", asked,
                features=used, group="poison" if finite else "strict", rule="bound" if finite else "hidden bits", level=levels[what],
                beside=near(used),
            )  # fmt: skip
    for j in (2, 70, 130):

        def some_rows(j: int = j) -> tuple[Request, ...]:
            mask = choices(271, (5, MANY), 0.5) | (np.arange(MANY) == 5)
            mask[:, j] = [True, False, True, False, False]
            plain = Request(operands(272, "float32", batch=(1,), h=2, n=5, m=MANY, d=4), "float32", arrays={"mask": mask})
            query, key, value = plain.operands
            key, value = key.copy(), value.copy()
            key[..., j, :] = value[..., j, :] = np.nan
            return plain, replace(plain, operands=(query, key, value))

        yield case(
            "MHA-MASK-19", f"key {j} of {MANY} is NaN, hidden from some rows", some_rows, features=("mask",), group="strict",
            rule="hidden bits",
        )  # fmt: skip


def many_keys() -> Mapping[str, Hider]:
    """The ways to hide, for 5 queries of two items and many keys: each leaves keys unseen in a middle tile and in the last one."""
    seen = (np.arange(MANY) < 70) | ((np.arange(MANY) >= 100) & (np.arange(MANY) < MANY - 2))
    some = (choices(273, (5, MANY), 0.7) | (np.arange(MANY) == 101)) & seen
    ids = np.where(seen, np.arange(MANY) % 2, 9)
    return {
        "mask": Hider(("mask",), {"mask": some}, {}, MANY),
        "bias": Hider(("bias",), {"bias": np.where(some, 0.25, -np.inf)}, {}, MANY),
        "causal": Hider(("causal", "offset"), {"query_offset": np.asarray([60, 122])}, {"is_causal": True}, MANY),
        "window": Hider(("window", "offset"), {"query_offset": np.asarray([60, 100])}, {"window": (20, 3)}, MANY),
        "lengths": Hider(("lengths",), {"key_lengths": np.asarray([129, 66])}, {}, MANY),
        "segments": Hider(
            ("segments",),
            {"query_segments": np.asarray([[0, 1, 0, 1, 1]] * 2), "key_segments": np.stack([ids, ids[::-1]])},
            {},
            MANY,
        ),
    }
