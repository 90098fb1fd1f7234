"""What each example of the text did on each of our backends, found by running it now."""

from dataclasses import dataclass
from functools import cache

from sphinx.errors import ExtensionError

from mha_conformance.run.examples import run
from mha_core import Api, available, load
from mha_spec.clauses import Example
from mha_spec.clauses import load as load_clauses

OURS = ("reference", "numpy", "torch", "cupy")


@dataclass(frozen=True, slots=True)
class Ran:
    """The backends that agree with an example, and those that do not claim what it asks."""

    agree: tuple[str, ...]
    unclaimed: tuple[str, ...]


@cache
def not_run() -> dict[str, str]:
    """The backends that cannot compute here, and why. No device is a reason, too."""
    states = {status.name: status for status in available()}
    missing = {name: "it is not installed" for name in OURS if name not in states}
    return missing | {
        name: states[name].reason or "it finds no device" for name in OURS if name in states and states[name].state != "ready"
    }


@cache
def all_examples() -> dict[tuple[str, int], Ran]:
    """By clause and line. Raises ``ExtensionError`` with the place in the text where an example fails."""
    apis = {name: load(name) for name in OURS if name not in not_run()}
    return {(example.clause, example.line): _on_each(example, apis) for example in load_clauses().examples}


def _on_each(example: Example, apis: dict[str, Api]) -> Ran:
    outcomes = {name: run(example, api) for name, api in apis.items()}
    for name, outcome in outcomes.items():
        if outcome.status == "FAIL":
            place = f"{example.file}:{outcome.line or example.line}"
            raise ExtensionError(f"{place}: an example of {example.clause} fails on {name}: {outcome.message}")
    return Ran(
        tuple(name for name, outcome in outcomes.items() if outcome.status == "PASS"),
        tuple(name for name, outcome in outcomes.items() if outcome.status == "NOT_SUPPORTED"),
    )
