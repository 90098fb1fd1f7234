"""Which mutants there are: small changes of the bounds and of the judge, as cosmic-ray makes them, and a sample of them.

Left out are changes that die before anything is computed: an operator that no float takes, identity in place of equality, the star
of an argument, and whatever stands in an annotation.
"""

import ast
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
BOUNDS = ("numerics", "numerics_steps", "numerics_random", "numerics_filter", "profiles", "numerics_backward",
          "numerics_backward_exact", "numerics_backward_layer", "numerics_backward_steps")  # fmt: skip
JUDGE = ("judge", "rules", "truth", "statistical", "hypothesis", "finding", "reply", "blame", "training")
MODULES = (
    *(f"spec/mha_spec/{name}.py" for name in BOUNDS),
    *(f"conformance/mha_conformance/judge/{name}.py" for name in JUDGE),
)
"""What is mutated: the bounds, and what holds replies to them."""

SAMPLE = 300
SEED = "1"

ARITHMETIC, SETS = "(Add|Sub|Mul|Div|FloorDiv|Mod|Pow)", "(BitOr|BitAnd|BitXor)"
LEFT_OUT = re.compile(
    rf"(ReplaceBinaryOperator_(?!{ARITHMETIC}_{ARITHMETIC}$|{SETS}_{SETS}$).*|ReplaceComparisonOperator_(?!Is).*_Is(Not)?)$"
)


class Mutant(NamedTuple):
    """One change: the module, the operator of cosmic-ray, which of its places in the module, and where that place begins."""

    module: str
    operator: str
    occurrence: int
    line: int
    column: int

    @property
    def lot(self) -> str:
        """Its place in the draw, which no other module can move."""
        return hashlib.sha256(f"{SEED} {self.module} {self.operator} {self.occurrence}".encode()).hexdigest()


def sample(mutants: Iterable[Mutant], size: int = SAMPLE) -> list[Mutant]:
    """The same ``size`` of them every time."""
    return sorted(filter(_counts, mutants), key=lambda mutant: mutant.lot)[:size]


def module_hash(module: str) -> str:
    return hashlib.sha256((ROOT / module).read_bytes()).hexdigest()[:16]


def _counts(mutant: Mutant) -> bool:
    if LEFT_OUT.match(mutant.operator):
        return False
    if re.match(r"ReplaceBinaryOperator_(Mul|Pow)_", mutant.operator):
        line = (ROOT / mutant.module).read_text(encoding="utf-8").splitlines()[mutant.line - 1]
        if _STAR.search(line[: mutant.column]) and not line[mutant.column :].lstrip("*").startswith(" "):
            return False
    place = (mutant.line, mutant.column)
    return not any(begin <= place < end for begin, end in _annotations(mutant.module))


_STAR = re.compile(r"(^|[\s(\[{,])$")
"""What stands before the star of an argument, and, of a product or power, only where a space follows."""


@cache
def _annotations(module: str) -> list[Any]:
    """Where annotations begin and end."""
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.AnnAssign):
            found.append(node.annotation)
            if isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias" and node.value is not None:
                found.append(node.value)
        elif isinstance(node, ast.arg) and node.annotation is not None:
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            found.append(node.returns)
    return [((x.lineno, x.col_offset), (x.end_lineno, x.end_col_offset)) for x in found]
