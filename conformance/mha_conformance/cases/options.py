"""Every option by its name, in requests of any size: what the cases that cross axes are made of."""

from typing import Any

import numpy as np

from mha_conformance.cases.build import operands
from mha_conformance.cases.case import Request
from mha_conformance.cases.inputs import choices, eighths, fractions

NARROW = ("float64", "float16", "bfloat16")


OPTIONS = ("mask", "bias", "causal", "window", "lengths", "segments", "scale", "softcap", "sink")


HIDING, SCORING = OPTIONS[:6], ("bias", "scale", "softcap", "sink")


CLAUSE = {
    "mask": "MHA-MASK-2", "bias": "MHA-ATTN-11", "causal": "MHA-MASK-8", "window": "MHA-MASK-10", "lengths": "MHA-MASK-12",
    "segments": "MHA-MASK-13", "scale": "MHA-ATTN-3", "softcap": "MHA-ATTN-10", "sink": "MHA-ATTN-12",
}  # fmt: skip
"""The clause that an option is tested for where it stands alone."""


def features(*names: str) -> tuple[str, ...]:
    """The features of options by name; a band with n != m needs an offset."""
    return tuple(dict.fromkeys((*names, *(("offset",) if {"causal", "window"} & set(names) else ()))))


def given(names: tuple[str, ...], batch: tuple[int, ...], h: int, n: int, m: int, dtype: str, seed: int = 0) -> dict[str, Any]:
    """``arrays`` and ``options`` of a request that uses the options called ``names``; every row sees its first keys."""
    items = np.arange(int(np.prod(batch))).reshape(batch)
    first = np.arange(m) < 1
    parts: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "mask": ({"mask": choices(1000 + seed, (n, m), 0.6) | first}, {}),
        "bias": ({"bias": 2 * fractions(1001 + seed, (n, m), dtype)}, {}),
        "causal": ({"query_offset": items % 2 + m // 3}, {"is_causal": True}),
        "window": ({"query_offset": items % 2 + m // 3}, {"window": (n + m, 1)}),
        "lengths": ({"key_lengths": m - 2 - items % 2}, {}),
        "segments": (
            {
                "query_segments": np.broadcast_to(np.arange(n) % 2, (*batch, n)) + items[..., None],
                "key_segments": np.broadcast_to(np.arange(m) % 2, (*batch, m)) + items[..., None],
            },
            {},
        ),
        "scale": ({}, {"scale": -0.75}),
        "softcap": ({}, {"softcap": 1.5}),
        "sink": ({"sink_logits": 1.0 + eighths(1002 + seed, (h,), 8)}, {}),
    }  # fmt: skip
    arrays: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name in names:
        arrays |= parts[name][0]
        options |= parts[name][1]
    if "segments" in names:  # parity and the first key meet in the first two keys
        arrays |= {"mask": arrays["mask"] | (np.arange(m) < 2)} if "mask" in names else {}
    return {"arrays": arrays, "options": options}


def request(
    names: tuple[str, ...], dtype: str = "float32", *, batch: tuple[int, ...] = (1,), h: int = 1, n: int = 4, m: int = 6, d: int = 4,
    h_kv: int | None = None, seed: int = 0, layout: str = "contiguous",
) -> Request:  # fmt: skip
    """One request with the options called ``names``, its scores of ordinary size."""
    parts = operands(1010 + seed, dtype, batch=batch, h=h, n=n, m=m, d=d, h_kv=h_kv)
    return Request(parts, dtype, **given(names, batch, h, n, m, dtype, seed), layout=layout)
