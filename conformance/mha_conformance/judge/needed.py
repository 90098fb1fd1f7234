"""A clause is not the first to blame where its failure does without what the clause is about (MHA-CONF-18)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from mha_conformance.cases import Request, catalogue
from mha_conformance.cases.calls import some_row_is_empty
from mha_conformance.judge.verdict import Verdict

ASKED_BY: Mapping[str, str] = {
    "mask": "mask", "bias": "bias", "causal": "is_causal", "offset": "query_offset", "window": "window", "lengths": "key_lengths",
    "segments": "query_segments", "scale": "scale", "softcap": "softcap", "sink": "sink_logits", "weights": "return_weights",
    "lse": "return_lse", "dropout": "dropout",
}  # fmt: skip
"""Features, and the option with which a call asks for each."""
EMPTY = "row that sees nothing"


def needed(blame: Iterable[Verdict], smallest: Mapping[str, tuple[Request, ...]]) -> list[Verdict]:
    """The blame, with those at the end whose smallest failing call has lost what every case of the clause has.

    ``smallest`` holds that call by the case from which it was made; a verdict without one stays where it is.
    """
    found = []
    for verdict in blame:
        lost = sorted(about(verdict.clause) - _has(smallest[verdict.case])) if verdict.case in smallest else []
        reason = f"{verdict.reason}; it fails without any {' or '.join(lost)} too" if lost else verdict.reason
        found.append((bool(lost), replace(verdict, reason=reason)))
    return [verdict for _, verdict in sorted(found, key=lambda pair: pair[0])]


@lru_cache
def about(clause: str) -> frozenset[str]:
    """What every case of a clause has, of the options of a call and of rows that see nothing."""
    cases = [case for case in catalogue() if case.clause == clause]
    common = frozenset.intersection(*(case.features for case in cases)) & ASKED_BY.keys() if cases else frozenset()
    empty = all(EMPTY in _has(case.make()) for case in cases if case.level != "full")
    return common | {EMPTY} if cases and empty else common


def _has(requests: Iterable[Request]) -> frozenset[str]:
    requests = [request for request in requests if request.target == "attention"]
    given: set[Any] = set().union(*({*request.arrays, *request.options} for request in requests))
    found = {feature for feature, option in ASKED_BY.items() if option in given}
    return frozenset(found | ({EMPTY} if some_row_is_empty(requests) else set()))
