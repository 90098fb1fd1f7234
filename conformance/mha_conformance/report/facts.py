"""What a report says of one case, as labels and words in the order in which an engineer reads them."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

_KNOWN = (
    "case", "clause", "status", "request", "reason", "ratio", "worst", "pattern", "kernel", "profiles", "nearest", "dtype", "group",
    "level", "size",
)  # fmt: skip
_KNOWN_OF_WORST = ("array", "index", "got", "expected", "bound", "ratio")
LABELS = (
    "finding", "worst element", "got", "expected", "difference", "allowed", "error / bound", "where", "kernel", "profiles kept",
    "profiles kept, grade RN", "asked", "dtype", "group", "level", "size",
)  # fmt: skip
ABOUT = "asked"
"""From this label on, facts are of the case, not of the implementation, and mostly the same in every report."""
_MORE_DIGITS = 17  # a float64 and its neighbour differ


def facts(case: Mapping[str, Any]) -> dict[str, str]:
    """Label to words, without what is empty. A field that is not known here keeps its own name."""
    found = {
        "finding": words(case.get("reason")),
        **_worst(case.get("worst"), case.get("status") == "PASS"),
        "error / bound": number(measured(case)),
        "where": words(case.get("pattern")),
        "kernel": words(case.get("kernel")),
        "profiles kept": words(case.get("profiles")),
        "profiles kept, grade RN": words(case.get("nearest")),
        "asked": words(case.get("request")),
        **{name: words(case.get(name)) for name in ("dtype", "group", "level")},
        "size": f"{words(case['size'])} numbers" if case.get("size") else "",
        **{name.replace("_", " "): words(value) for name, value in case.items() if name not in _KNOWN},
    }
    return {label: said for label, said in found.items() if said}


def _worst(worst: Any, passed: bool) -> dict[str, str]:
    if not isinstance(worst, Mapping):
        return {"worst element": words(worst)}
    digits = 9 if passed else _MORE_DIGITS
    got: Any = worst.get("got")
    expected: Any = worst.get("expected")
    found = {
        "worst element": f"{words(worst.get('array'))}[{words(worst.get('index'))}]",
        "got": number(got, digits),
        "expected": number(expected, digits),
    }
    if _is_number(got) and _is_number(expected):
        found["difference"] = number(abs(got - expected))
    bound = worst.get("bound")
    more = {f"worst element, {name}": words(value) for name, value in worst.items() if name not in _KNOWN_OF_WORST}
    return {**found, "allowed": "0: it must be exact" if bound == 0 else number(bound), **more}


def measured(case: Mapping[str, Any]) -> Any:
    """error / bound where numbers were compared. A refusal or a crash has none, though 0 or infinity may stand for it."""
    ratio = case.get("ratio")
    return None if case.get("worst") is None and ratio in (0, "inf") else ratio


def number(value: Any, digits: int = 3) -> str:
    """A number of the report, which may be one of its words for what JSON cannot say; "" where there is none."""
    return f"{value:.{digits}g}" if _is_number(value) else words(value)


def fraction(ratio: Any) -> float | None:
    """error / bound cut to 0..1; what is no number counts as outside the bound. None where nothing was measured."""
    if ratio is None:
        return None
    return min(1.0, max(0.0, float(ratio))) if _is_number(ratio) and math.isfinite(ratio) else 1.0


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1023)


def words(value: Any) -> str:
    """Any value of JSON in words; "" for nothing at all."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(words(item) for item in value)
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as rows: ("libraries", "numpy 2.4.6, torch 2.13.0"), ("settings, torch, devices", "cpu")."""
    for name, inner in value.items():
        label = f"{above}, {name}" if above else name.replace("_", " ")
        if isinstance(inner, Mapping) and all(isinstance(said, str | None) for said in inner.values()):
            yield label, ", ".join(f"{key} {said or 'none'}" for key, said in inner.items())
        elif isinstance(inner, Mapping):
            yield from flat(inner, label)
        elif said := words(inner):
            yield label, said
