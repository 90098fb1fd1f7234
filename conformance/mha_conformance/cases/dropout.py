"""Cases of DROP: the published words of the generator, what moves an index and what does not, both ends of the rate, and backwards.

Keys whose values are codes tell which pairs were dropped; random values tell by what the others were multiplied.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.cases.build import BASE, case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.decoding import pack
from mha_conformance.cases.features import describing
from mha_conformance.cases.gradients import backward, train
from mha_conformance.cases.inputs import choices, fractions
from mha_conformance.cases.layer import projections
from mha_conformance.cases.options import NARROW, OPTIONS, features, given
from mha_core import Dropout

ONES = 2**32 - 1
ANSWERS = {
    "zeros": (0, (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": (2**64 - 1, (ONES,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "pi": (
        0x299F31D0A4093822, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)
    ),
}  # fmt: skip
"""Seed, counter and words of philox4x32 with 10 rounds, from tests/kat_vectors of DEShawResearch/random123."""
SEED = 0x1234_5678_9ABC_DEF0


def dropped(drop: Dropout, seed: int, dtype: str = "float32", keep: Any = None, **shape: Any) -> Request:
    """A request with dropout; ``keep`` is its mask."""
    arrays = {} if keep is None else {"keep": keep}
    return Request(operands(seed, dtype, **{**BASE, **shape}), dtype, arrays=arrays, options={"dropout": drop})


def cases() -> Iterator[Case]:
    yield from masks()
    yield from words()
    yield from starts()
    yield from indices()
    yield from ends()
    yield from results()
    yield from hidden()
    yield from backwards()
    yield from elsewhere()


def masks() -> Iterator[Case]:
    """DROP-1 and 2: the factor, and the mask that is given."""
    keep = choices(3000, (5, 7), 0.5)
    for rate in (0.5, 0.25, 0.9):
        yield case(
            "MHA-DROP-1", f"a mask and the rate {rate}", lambda rate=rate: dropped(Dropout(rate), 3001, keep=keep),
            features=("dropout",), level="smoke" if rate == 0.5 else "core",
        )  # fmt: skip
    for name, all_of_it in (("everything", True), ("nothing", False)):
        yield case(
            "MHA-DROP-1", f"{name} kept", lambda x=all_of_it: dropped(Dropout(0.375), 3002, keep=np.full((5, 7), x)),
            features=("dropout",),
        )  # fmt: skip
    for dtype in NARROW:
        yield case(
            "MHA-NUM-24", "a mask in this dtype", lambda dtype=dtype: dropped(Dropout(0.3), 3003, dtype, keep), features=("dropout",),
            dtype=dtype,
        )  # fmt: skip
    for rate in (0.1, 0.5, 0.96875):
        yield case(
            "MHA-NUM-24", f"many keys, rate {rate}",
            lambda rate=rate: dropped(Dropout(rate), 3004, keep=choices(3005, (9, 300), 1 - rate), n=9, m=300),
            features=("dropout",), level="smoke" if rate == 0.5 else "core",
        )  # fmt: skip
    shapes = {
        "of every pair": (2, 3, 5, 7), "per head": (1, 3, 1, 1), "per item": (2, 1, 1, 1), "per query": (5, 1), "per key": (1, 7),
        "per head and key": (1, 3, 1, 7),
    }  # fmt: skip
    for at, (name, shape) in enumerate(shapes.items()):
        yield case(
            "MHA-DROP-2", f"a mask {name}", lambda shape=shape, at=at: dropped(Dropout(0.5), 3010, keep=choices(3011 + at, shape, 0.5)),
            features=("dropout",), level="smoke" if name == "of every pair" else "core",
        )  # fmt: skip


def words() -> Iterator[Case]:
    """DROP-3: each word of the published answers, between the rate that just keeps it and the one that drops it; and other seeds."""
    for name, (seed, (j, i, h, b), found) in ANSWERS.items():

        def answers(seed: int = seed, at: Any = (j, i, h, b), found: Any = found) -> tuple[Request, ...]:
            j, i, h, b = at
            query, key = np.zeros((1, 1, 1)), np.zeros((1, 4, 1))
            value = np.eye(4)[None]
            where = {"key_start": 4 * j, "query_start": i, "head_start": h, "batch_start": b}
            rates = [rate for word in found for rate in (word / 2**32, (word + 1) / 2**32)]
            return tuple(
                Request((query, key, value), "float32", options={"dropout": Dropout(rate, seed, **where)}) for rate in rates
            )

        yield case(
            "MHA-DROP-3", f"known answers, {name}", answers, features=("dropout", "d_v"), level="smoke", beside=("MHA-ATTN-7",)
        )
    for name, seed in {"0": 0, "1": 1, "2^32": 2**32, "2^63": 2**63, "2^64 - 1": 2**64 - 1}.items():
        yield case(
            "MHA-DROP-3", f"seed {name}", lambda seed=seed: dropped(Dropout(0.5, seed), 3020, n=9, m=11), features=("dropout",)
        )
    for rate in (2.0**-33, 0.1, 0.9, 1 - 2.0**-31):
        yield case(
            "MHA-DROP-3",
            f"rate {rate!r}",
            lambda rate=rate: dropped(Dropout(rate, SEED), 3021, n=6, m=40),
            features=("dropout",),
        )
    for n, m in ((1, 1), (1, 2), (3, 3), (2, 5), (7, 130), (65, 63), (130, 66)):
        yield case(
            "MHA-DROP-3", f"{n} queries, {m} keys", lambda n=n, m=m: dropped(Dropout(0.4, SEED), 3022, n=n, m=m), features=("dropout",),
            level="smoke" if (n, m) == (65, 63) else "core", beside=("MHA-NUM-6",) if m > 60 else (),
        )  # fmt: skip
    yield case(
        "MHA-DROP-3", "515 queries, 1030 keys", lambda: dropped(Dropout(0.2, SEED), 3023, n=515, m=1030, d=64), features=("dropout",),
        level="full",
    )  # fmt: skip


def starts() -> Iterator[Case]:
    """DROP-4: each start by itself, far out, and the parts of one call."""
    ends = {"batch_start": 2**32 - 2, "head_start": 2**32 - 3, "query_start": 2**32 - 5, "key_start": 2**34 - 7}
    for name, end in ends.items():
        for start in (1, 2, 3, 4, 2**31 + 1, end):
            yield case(
                "MHA-DROP-4", f"{name} {start}", lambda name=name, start=start: dropped(Dropout(0.5, SEED, **{name: start}), 3030),
                features=("dropout",), level="smoke" if start == 3 else "core",
            )  # fmt: skip

    def parts() -> tuple[Request, ...]:
        query, key, value = operands(3031, "float32", batch=(2,), h=4, n=6, m=10)
        found = []
        for b, h, i, j in ((0, 0, 0, 0), (1, 2, 3, 5), (0, 2, 4, 9), (1, 0, 1, 2)):
            drop = Dropout(0.5, 7, batch_start=b, head_start=h, query_start=i, key_start=j)
            there = (slice(b, b + 1), slice(h, h + 2))
            cut = (query[*there, i : i + 2], key[*there, j : j + 3], value[*there, j : j + 3])
            found.append(Request(cut, "float32", options={"dropout": drop}))
        return tuple(found)

    yield case("MHA-DROP-4", "parts of one call", parts, features=("dropout",))

    def chunks() -> tuple[Request, ...]:
        query, key, value = operands(3032, "float32", batch=(2,), h=2, n=9, m=9)
        found = []
        for start, stop in ((0, 4), (4, 5), (5, 9)):
            options = {"is_causal": True, "query_offset": start, "dropout": Dropout(0.5, 7, query_start=start)}
            found.append(
                Request((query[..., start:stop, :], key[..., :stop, :], value[..., :stop, :]), "float32", options=options)
            )
        return tuple(found)

    yield case(
        "MHA-DROP-5", "chunks of a causal sequence", chunks, features=("dropout", "causal", "offset"),
        beside=describing(("causal", "offset")) | {"MHA-CACHE-1"},
    )  # fmt: skip


def indices() -> Iterator[Case]:
    """DROP-5: what counts, and what does not."""
    for batch in ((), (3,), (2, 3), (3, 1, 2)):
        yield case(
            "MHA-DROP-5", f"batch axes {batch}", lambda batch=batch: dropped(Dropout(0.5, SEED), 3040, batch=batch),
            features=("dropout",), level="smoke" if batch == (2, 3) else "core",
        )  # fmt: skip
    for h, h_kv in ((4, 2), (6, 2), (3, 1)):
        yield case(
            "MHA-DROP-5", f"{h_kv} of {h} heads", lambda h=h, h_kv=h_kv: dropped(Dropout(0.5, SEED), 3041, h=h, h_kv=h_kv),
            features=("dropout", "grouped"), level="smoke" if h == 4 else "core",
        )  # fmt: skip
    for at, name in enumerate(OPTIONS):

        def beside(name: str = name, at: int = at) -> Request:
            request = dropped(Dropout(0.5, SEED + at), 3050 + at, n=5, m=9, h=4)
            more = given((name,), (2,), 4, 5, 9, "float32", 90 + at)
            return replace(request, arrays=more["arrays"], options={**request.options, **more["options"]})

        yield case(
            "MHA-DROP-5", f"with {name}", beside, features=("dropout", *features(name)), beside=describing(features(name)),
            level="smoke" if name == "causal" else "core",
        )  # fmt: skip


def ends() -> Iterator[Case]:
    """DROP-6: rate 0 and rate 1."""
    keep = choices(3060, (5, 7), 0.5)
    yield case("MHA-DROP-6", "rate 1", lambda: dropped(Dropout(1.0, SEED), 3061), features=("dropout",), level="smoke")
    yield case("MHA-DROP-6", "rate 1 and a mask", lambda: dropped(Dropout(1.0), 3062, keep=keep), features=("dropout",))
    yield case("MHA-DROP-6", "rate 0", lambda: dropped(Dropout(0.0, SEED), 3063), features=("dropout",), level="smoke")
    yield case("MHA-DROP-6", "rate 0 and a mask", lambda: dropped(Dropout(0.0), 3064, keep=keep), features=("dropout",))

    def bits() -> tuple[Request, ...]:
        request = dropped(Dropout(0.0, SEED), 3065, n=65, m=63)
        return replace(request, options={}), request

    yield case("MHA-DROP-6", "the bits of rate 0", bits, features=("dropout",), rule="same bits", group="determinism")
    for rate in (0.0, 0.5):

        def state(rate: float = rate) -> Request:
            return dropped(Dropout(rate, SEED), 3066)

        yield case(
            "MHA-DROP-9", f"the generators after rate {rate}", state, features=("dropout",), rule="facts",
            level="smoke" if rate else "core",
        )  # fmt: skip


def results() -> Iterator[Case]:
    """DROP-7: what is returned beside the output."""
    for name, drop in {"a seed": Dropout(0.5, SEED), "rate 1": Dropout(1.0, SEED)}.items():

        def both(drop: Dropout = drop) -> Request:
            request = dropped(drop, 3070, h=4, n=6, m=9)
            return replace(request, options={**request.options, "return_weights": True, "return_lse": True})

        yield case(
            "MHA-DROP-7", f"weights and lse, {name}", both, features=("dropout", "weights", "lse"),
            level="smoke" if name == "a seed" else "core",
        )  # fmt: skip

    def lse_of_parts() -> tuple[Request, ...]:
        query, key, value = operands(3071, "float32", n=5, m=11)
        found = []
        for start, stop in ((0, 3), (3, 4), (4, 11)):
            options = {"dropout": Dropout(0.5, SEED, key_start=start), "return_lse": True}
            found.append(Request((query, key[..., start:stop, :], value[..., start:stop, :]), "float32", options=options))
        return tuple(found)

    yield case("MHA-DROP-7", "parts of a key axis", lse_of_parts, features=("dropout", "lse"))


def hidden() -> Iterator[Case]:
    """DROP-8: NaN, hidden keys, empty rows."""
    mask = choices(3080, (5, 7), 0.6)
    mask[:, 0], mask[3] = True, False
    for name, rate in {"half": 0.5, "all": 1.0}.items():
        for at, where in ((0, "query"), (2, "value")):

            def spoiled(at: int = at, rate: float = rate) -> Request:
                request = dropped(Dropout(rate, SEED), 3081)
                request.operands[at][0, 1, 2, 1] = np.nan
                return replace(request, arrays={"mask": mask})

            yield case(
                "MHA-DROP-8", f"NaN in a {where}, {name} dropped", spoiled, features=("dropout", "mask"),
                beside=describing(("mask",)), level="smoke" if (name, where) == ("half", "value") else "core",
                group="strict" if where == "value" else "semantics",
            )  # fmt: skip

    def named() -> Request:
        request = dropped(Dropout(0.5), 3082, keep=np.arange(7)[None] != 2)
        request.operands[2][:, :, 2, 1] = np.nan
        return request

    yield case("MHA-DROP-8", "NaN in a value that all drop", named, features=("dropout",), level="smoke")

    def empty() -> Request:
        request = dropped(Dropout(0.5, SEED), 3083)
        return replace(
            request,
            arrays={"mask": mask, "sink_logits": fractions(3084, (3,), "float32")},
            options={**request.options, "return_lse": True},
        )

    yield case(
        "MHA-DROP-8", "an empty row with a sink", empty, features=("dropout", "mask", "sink", "lse"),
        beside=describing(("mask", "sink", "lse")),
    )  # fmt: skip


def backwards() -> Iterator[Case]:
    """GRAD-22: the mask of the forward, and what passes it."""

    def training(drop: Dropout, seed: int, keep: Any = None, **more: Any) -> Request:
        request = backward(seed, **more)
        arrays = {} if keep is None else {"keep": keep}
        return replace(request, arrays={**request.arrays, **arrays}, options={"dropout": drop})

    drops = {
        "a seed": Dropout(0.5, SEED),
        "starts": Dropout(0.25, SEED, key_start=3, query_start=2, head_start=1, batch_start=5),
    }
    for name, drop in drops.items():
        yield train(
            "MHA-GRAD-22", name, lambda drop=drop: training(drop, 3100, n=6, m=9), "dropout",
            level="smoke" if name == "a seed" else "core",
        )  # fmt: skip
    keep = choices(3101, (2, 3, 5, 7), 0.5)
    yield train("MHA-GRAD-22", "a mask", lambda: training(Dropout(0.75), 3102, keep), "dropout")
    yield train("MHA-GRAD-22", "rate 1", lambda: training(Dropout(1.0, 1), 3103), "dropout")
    yield train("MHA-GRAD-22", "rate 0", lambda: training(Dropout(0.0, 1), 3104), "dropout")
    yield train(
        "MHA-GRAD-22", "2 of 4 heads", lambda: training(Dropout(0.5, SEED), 3105, h=4, h_kv=2), "dropout", "grouped",
        beside=describing(("grouped",)),
    )  # fmt: skip
    yield train("MHA-GRAD-22", "65 queries, 63 keys", lambda: training(Dropout(0.5, SEED), 3106, n=65, m=63), "dropout")
    for what in ("lse", "weights"):
        yield train(
            "MHA-GRAD-22", f"a gradient of the {what}", lambda what=what: training(Dropout(0.5, SEED), 3107, arrives=(what,)),
            "dropout", what,
        )  # fmt: skip

    def causal() -> Request:
        request = training(Dropout(0.5, SEED), 3108)
        return replace(request, options={**request.options, "is_causal": True, "query_offset": 2})

    yield train("MHA-GRAD-22", "causal", causal, "dropout", "causal", "offset")
    yield train(
        "MHA-GRAD-22",
        "with what the forward gave",
        lambda: replace(training(Dropout(0.5, SEED), 3109), kept=True),
        "dropout",
        "lse",
    )


def elsewhere() -> Iterator[Case]:
    """The layer, and packs."""
    for h_kv in (4, 2):

        def layered(h_kv: int = h_kv) -> Request:
            x = fractions(3110, (2, 6, 12), "float32", 1.0)
            return Request(
                (x,) * 3,
                "float32",
                target="layer",
                projections=projections(3111, h=4, h_kv=h_kv),
                options={"dropout": Dropout(0.5, SEED)},
            )

        grouped = ("grouped",) if h_kv < 4 else ()
        yield case(
            "MHA-PROJ-12",
            f"dropout, {h_kv} of 4 heads",
            layered,
            features=("layer", "dropout", *grouped),
            beside=describing(("dropout",)),
        )
    lengths = ((3, 5), (2, 3), (2, 3), (4, 4))
    for name, drop in {
        "four sequences": Dropout(0.5, SEED),
        "a pack that begins later": Dropout(0.5, SEED, batch_start=7),
    }.items():
        yield case(
            "MHA-VARLEN-6", name, lambda drop=drop: pack(3120, lengths, dropout=drop), features=("dropout",), group="decode",
            level="smoke" if name == "four sequences" else "core",
        )  # fmt: skip
