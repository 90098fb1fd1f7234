"""The catalogue: every case of the suite, in the order of its chapters."""

from functools import lru_cache

from mha_conformance.cases import attention, auxiliary, crossed, decoding, exactness, execution, heads, large, layer, visible
from mha_conformance.cases.case import Case, Level, Request

__all__ = ["Case", "Level", "Request", "catalogue"]


@lru_cache(maxsize=1)
def catalogue() -> tuple[Case, ...]:
    """All cases; ids are unique."""
    parts = (execution, attention, visible, heads, auxiliary, layer, crossed, exactness, large, decoding)
    found = tuple(case for part in parts for case in part.cases())
    twice = {case.id for case in found if sum(other.id == case.id for other in found) > 1}
    if twice:
        raise ValueError(f"case ids that occur twice: {sorted(twice)}")
    return found
