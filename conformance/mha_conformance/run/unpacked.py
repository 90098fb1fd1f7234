"""What a call of attention gave, whatever form it came in."""

from typing import Any


def unpacked(result: Any) -> tuple[Any, Any, Any]:
    """(output, weights, lse) of what came back: an array, a result with these names, or a tuple in this order."""
    if hasattr(result, "output"):
        return result.output, getattr(result, "weights", None), getattr(result, "lse", None)
    if isinstance(result, tuple):
        return (*result, None, None, None)[:3]
    return result, None, None
