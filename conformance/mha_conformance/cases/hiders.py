"""Every way to hide a key, in one table: compositions, hidden data and NaN are asked of each."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mha_conformance.cases.inputs import choices


class Hider(NamedTuple):
    """Features, array options and Python options, for 5 queries and m keys of two batch items; every row sees at least one key."""

    features: tuple[str, ...]
    arrays: Mapping[str, Any]
    options: Mapping[str, Any]
    m: int = 7


HIDERS: Mapping[str, Hider] = {
    "mask": Hider(("mask",), {"mask": (choices(240, (2, 1, 5, 7), 0.6) & (np.arange(7) != 6)) | np.eye(5, 7, dtype=bool)}, {}),
    "bias": Hider(
        ("bias",),
        {"bias": np.where((choices(241, (5, 7), 0.6) & (np.arange(7) != 5)) | np.eye(5, 7, dtype=bool), 0.25, -np.inf)},
        {},
    ),
    "causal": Hider(("causal", "offset"), {}, {"is_causal": True, "query_offset": 0}),
    "window": Hider(("window", "offset"), {}, {"window": (2, 1), "query_offset": 0}),
    "lengths": Hider(("lengths",), {"key_lengths": np.asarray([6, 4])}, {}),
    "segments": Hider(
        ("segments",),
        {"query_segments": np.asarray([[0, 0, 1, 1, 1]] * 2), "key_segments": np.asarray([[0, 0, 1, 1, 1, 2, 2]] * 2)},
        {},
    ),
}

ALIGNED: Mapping[str, Hider] = {
    "causal, bottom-right": Hider(("causal", "offset"), {}, {"is_causal": True, "query_offset": 2}),
    "window, bottom-right": Hider(("window", "offset"), {}, {"window": (1, 0), "query_offset": 2}),
    "causal, n = m": Hider(("causal",), {}, {"is_causal": True}, 5),
    "window, n = m": Hider(("window",), {}, {"window": (1, 0)}, 5),
}
"""Bands that begin elsewhere. A system whose band begins bottom-right is given none of those that begin at offset 0 (MHA-CONF-9),
and one of either kind is given those with as many queries as keys."""


def together(hiders: Iterable[Hider]) -> Hider:
    """All of them at once, over as many keys as the fewest of them; the band of the last one decides where it begins."""
    hiders = tuple(hiders)
    m = min(hider.m for hider in hiders)
    arrays = {name: x for hider in hiders for name, x in hider.arrays.items()}
    arrays = {name: x[..., :m] if name in ("mask", "bias", "key_segments") else x for name, x in arrays.items()}
    features = dict.fromkeys(feature for hider in hiders for feature in hider.features)
    options = {name: x for hider in hiders for name, x in hider.options.items()}
    return Hider(tuple(features), arrays, options, m)
