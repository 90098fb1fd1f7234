"""Which clause of the text describes which feature."""

from collections.abc import Iterable, Mapping

DESCRIBED_BY: Mapping[str, frozenset[str]] = {
    "mask": frozenset({"MHA-MASK-2"}),
    "bias": frozenset({"MHA-ATTN-11", "MHA-MASK-5"}),
    "causal": frozenset({"MHA-MASK-7"}),
    "offset": frozenset({"MHA-MASK-8"}),
    "window": frozenset({"MHA-MASK-10"}),
    "lengths": frozenset({"MHA-MASK-12"}),
    "segments": frozenset({"MHA-MASK-13"}),
    "grouped": frozenset({"MHA-HEAD-2"}),
    "d_v": frozenset({"MHA-ATTN-7"}),
    "scale": frozenset({"MHA-ATTN-3"}),
    "softcap": frozenset({"MHA-ATTN-10"}),
    "sink": frozenset({"MHA-ATTN-12"}),
    "dropout": frozenset({"MHA-DROP-1"}),
    "weights": frozenset({"MHA-AUX-1"}),
    "lse": frozenset({"MHA-AUX-4"}),
    "layer": frozenset({"MHA-PROJ-1"}),
    "vjp": frozenset({"MHA-GRAD-1"}),
}
"""One of these clauses is enough to know what the feature means."""

DTYPE_BY: Mapping[str, str] = {
    "float64": "MHA-NUM-2", "float32": "MHA-NUM-11", "float16": "MHA-NUM-3", "bfloat16": "MHA-NUM-3",
}  # fmt: skip
"""The clause that says how exactly a dtype is computed."""


def describing(features: Iterable[str]) -> frozenset[str]:
    """The clauses that describe the features: what a case has ``beside`` its clause when it happens to use them."""
    return frozenset().union(*(DESCRIBED_BY[feature] for feature in features))
