"""Which function of ``mha_spec.equations`` computes which clause: the ids that its docstring and comments name."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mha_spec.equations

_ID = re.compile(r"MHA-[A-Z]+-\d+")


@dataclass(frozen=True, slots=True)
class Equation:
    """A function and its source. ``clauses`` are the ids it names, the one that it is the equation of first."""

    name: str
    source: str
    clauses: tuple[str, ...]


@cache
def equations() -> tuple[Equation, ...]:
    text = Path(mha_spec.equations.__file__).read_text(encoding="utf-8")
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    sources = [(node.name, ast.get_source_segment(text, node) or "") for node in functions]
    return tuple(Equation(name, source, tuple(dict.fromkeys(_ID.findall(source)))) for name, source in sources)


def of(clause: str) -> tuple[tuple[Equation, ...], tuple[Equation, ...]]:
    """The functions that are shown at this clause, and those that are shown at another clause and serve it too."""
    shown = tuple(e for e in equations() if e.clauses[:1] == (clause,))
    return shown, tuple(e for e in equations() if clause in e.clauses[1:])
