"""Every way to hide a key, in one table: compositions, hidden data and NaN are asked of each."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mha_conformance.cases.inputs import choices

HIDERS: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any], Mapping[str, Any]]] = {
    "mask": (("mask",), {"mask": (choices(240, (2, 1, 5, 7), 0.6) & (np.arange(7) != 6)) | np.eye(5, 7, dtype=bool)}, {}),
    "bias": (
        ("bias",),
        {"bias": np.where((choices(241, (5, 7), 0.6) & (np.arange(7) != 5)) | np.eye(5, 7, dtype=bool), 0.25, -np.inf)},
        {},
    ),
    "causal": (("causal", "offset"), {}, {"is_causal": True, "query_offset": 0}),
    "window": (("window", "offset"), {}, {"window": (2, 1), "query_offset": 0}),
    "lengths": (("lengths",), {"key_lengths": np.asarray([6, 4])}, {}),
    "segments": (
        ("segments",),
        {"query_segments": np.asarray([[0, 0, 1, 1, 1]] * 2), "key_segments": np.asarray([[0, 0, 1, 1, 1, 2, 2]] * 2)},
        {},
    ),
}
"""Every way to hide a key: features, array options, Python options, for n = 5 and m = 7; every row sees at least one key."""
