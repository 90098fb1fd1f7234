"""Cases of VAL: what the door refuses, and what it must not refuse."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from mha_conformance.cases.build import BASE, case, operands
from mha_conformance.cases.case import AS_LIST, Case, Request
from mha_conformance.cases.inputs import choices, fractions
from mha_conformance.cases.layer import projections
from mha_core import Dropout

Wrong: TypeAlias = dict[str, tuple[str, tuple[str, ...], Request]]
"""Name to the clause that refuses, the features that are spoken of, and the request."""
ENDS = np.asarray([-(2**63), 2**63 - 1])
"""The least and the greatest integer of 64 bits."""


def cases() -> Iterator[Case]:
    for name, (clause, features, request) in (wrong_calls() | wrong_layers() | wrong_parts()).items():
        yield case(
            clause, name, lambda request=request: request, features=features, rule="refused", group="contract", level="smoke",
            beside=("MHA-VAL-5", "MHA-VAL-8", "MHA-VAL-16") if clause == "MHA-VAL-22" else (),
        )  # fmt: skip
    yield from contents()


def wrong_calls() -> Wrong:
    query, key, value = operands(670, "float32", **BASE)
    n, m = BASE["n"], BASE["m"]
    whole = choices(671, (n, m), 0.5).astype(float)

    def asked(**given: Any) -> Request:
        return Request((query, key, value), "float32", **given)

    integers = dict.fromkeys(("query", "key", "value"), "int64")
    return {
        "a list for the values": ("MHA-VAL-1", (), asked(dtypes={"value": AS_LIST})),
        "a list for the mask": ("MHA-VAL-1", ("mask",), asked(arrays={"mask": whole > 0}, dtypes={"mask": AS_LIST})),
        "a query of float64": ("MHA-VAL-2", (), asked(dtypes={"query": "float64"})),
        "values of float16": ("MHA-VAL-2", (), asked(dtypes={"value": "float16"})),
        "integers": ("MHA-VAL-2", (), asked(dtypes=integers)),
        "matrices": ("MHA-VAL-3", (), Request((query[0, 0], key[0, 0], value[0, 0]), "float32")),
        "a query without batch": ("MHA-VAL-3", (), Request((query[0], key, value), "float32")),
        "two widths": ("MHA-VAL-5", (), Request((query[..., :2], key, value), "float32")),
        "two lengths": ("MHA-VAL-6", (), Request((query, key, value[..., :5, :]), "float32")),
        "two batches": ("MHA-VAL-4", (), Request((query[:1], key, value), "float32")),
        "heads without a ratio": ("MHA-VAL-7", ("grouped",), Request((query, key[:, :2], value[:, :2]), "float32")),
        "a mask of floats": ("MHA-VAL-8", ("mask",), asked(arrays={"mask": whole}, dtypes={"mask": "float32"})),
        "a mask of integers": ("MHA-VAL-8", ("mask",), asked(arrays={"mask": whole}, dtypes={"mask": "int64"})),
        "a mask that is too short": ("MHA-VAL-9", ("mask",), asked(arrays={"mask": whole[:, :6] > 0})),
        "a mask that is too long": ("MHA-VAL-9", ("mask",), asked(arrays={"mask": np.ones((n, m + 1), dtype=bool)})),
        "a mask of rank 3": ("MHA-VAL-9", ("mask",), asked(arrays={"mask": np.ones((2, n, m), dtype=bool)})),
        "a boolean bias": ("MHA-VAL-10", ("bias",), asked(arrays={"bias": whole > 0})),
        "causal without an offset": ("MHA-VAL-11", ("causal", "offset"), asked(options={"is_causal": True})),
        "an offset that would be ignored": ("MHA-VAL-12", ("offset", "causal"), asked(options={"query_offset": 0})),
        "lengths per head": ("MHA-VAL-13", ("lengths",), asked(arrays={"key_lengths": np.full((2, 3), 7)})),
        "a window of -1": ("MHA-VAL-14", ("window", "offset"), asked(options={"window": (-1, -1), "query_offset": 0})),
        "one segment array": ("MHA-VAL-15", ("segments",), asked(arrays={"key_segments": np.zeros((2, m), int)})),
        "a scale of NaN": ("MHA-VAL-16", ("scale",), asked(options={"scale": float("nan")})),
        "a softcap of 0": ("MHA-VAL-17", ("softcap",), asked(options={"softcap": 0.0})),
        "too few sinks": ("MHA-VAL-18", ("sink",), asked(arrays={"sink_logits": np.zeros(2)})),
        "a rate of dropout": ("MHA-VAL-19", (), asked(options={"dropout": 0.1})),
        "a rate of dropout of 0": ("MHA-VAL-19", (), asked(options={"dropout": 0.0})),
        "a rate of dropout above 1": ("MHA-VAL-23", ("dropout",), asked(options={"dropout": Dropout(1.5, 7)})),
        "a rate of dropout and nothing more": ("MHA-VAL-23", ("dropout",), asked(options={"dropout": Dropout(0.5)})),
        "a seed of dropout of 65 bits": ("MHA-VAL-23", ("dropout",), asked(options={"dropout": Dropout(0.5, 2**64)})),
        "a start of dropout beyond the counter": (
            "MHA-VAL-23", ("dropout",), asked(options={"dropout": Dropout(0.5, 7, query_start=2**32)})
        ),
        "a mask of dropout of integers": (
            "MHA-VAL-24", ("dropout",),
            asked(arrays={"keep": whole}, dtypes={"keep": "int64"}, options={"dropout": Dropout(0.5)}),
        ),
        "a mask of dropout that is too short": (
            "MHA-VAL-24", ("dropout",), asked(arrays={"keep": whole[:, :6] > 0}, options={"dropout": Dropout(0.5)})
        ),
        "causal = 1": ("MHA-VAL-20", ("causal", "offset"), asked(options={"is_causal": 1, "query_offset": 0})),
        "weights = yes": ("MHA-VAL-20", ("weights",), asked(options={"return_weights": "yes"})),
        "what a refusal of a number says": ("MHA-VAL-22", ("scale",), asked(options={"scale": float("nan")})),
        "what a refusal of a shape says": ("MHA-VAL-22", (), Request((query[..., :2], key, value), "float32")),
        "what a refusal of a dtype says": (
            "MHA-VAL-22", ("mask",), asked(arrays={"mask": whole}, dtypes={"mask": "float32"})
        ),
    }  # fmt: skip


def wrong_layers() -> Wrong:
    x = fractions(680, (2, 5, 12), "float32", 1.0)
    right = projections(681)

    def asked(**wrong: Any) -> Request:
        return Request((x,) * 3, "float32", target="layer", projections={**right, **wrong})

    return {
        "a query projection of too few channels": ("MHA-PROJ-2", ("layer",), asked(w_q=right["w_q"][:, :11])),
        "a key projection that is wider": ("MHA-PROJ-2", ("layer",), asked(w_k=np.repeat(right["w_k"], 2, axis=-1))),
        "an output projection for other heads": ("MHA-PROJ-2", ("layer",), asked(w_o=right["w_o"][:2])),
        "a query bias for all heads": ("MHA-PROJ-2", ("layer",), asked(b_q=right["w_q"][0, 0])),
    }


def wrong_parts() -> Wrong:
    output, lse = fractions(690, (2, 3, 5, 4), "float32"), fractions(691, (1, 2, 3, 5), "float32")[0]

    def merge(*parts: Any, **given: Any) -> Request:
        return Request(parts, "float32", target="merge", **given)

    return {
        "no parts": ("MHA-AUX-12", ("lse",), merge()),
        "outputs of two shapes": ("MHA-AUX-12", ("lse",), merge(output, lse, output[:1], lse)),
        "an lse that would be broadcast": ("MHA-AUX-12", ("lse",), merge(output, lse, output, lse[:1])),
        "an lse in float16": ("MHA-AUX-12", ("lse",), merge(output, lse, dtypes={"part 1": "float16"})),
    }


def contents() -> Iterator[Case]:
    """VAL-21: every integer has its meaning, up to the last one."""
    query, key, value = operands(675, "float32", batch=(2,), h=1, n=5, m=7)
    ids = np.asarray([-(2**63), 2**63 - 1, 0, -1, 2**32, 2**53, 2**53 + 1])
    reached: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
        "lengths at the ends": (("lengths",), {"key_lengths": ENDS}, {}),
        "one length far beyond": (("lengths",), {}, {"key_lengths": 10**30}),
        "offsets at the ends": (("causal", "offset"), {"query_offset": ENDS}, {"is_causal": True}),
        "segments at the ends": (
            ("segments",),
            {"query_segments": np.broadcast_to(ids[:5], (2, 5)), "key_segments": np.broadcast_to(ids, (2, 7))},
            {},
        ),
    }
    for name, (features, arrays, options) in reached.items():

        def asked(arrays: Any = arrays, options: Any = options) -> Request:
            return Request((query, key, value), "float32", arrays=arrays, options=options)

        yield case("MHA-VAL-21", name, asked, features=features, level="smoke", beside=("MHA-MASK-16",))
