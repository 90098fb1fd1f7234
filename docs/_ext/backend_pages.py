"""``{backend} numpy``: what a backend says of itself, in its package's docstring and in its claims, read while the site is built."""

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import ran
from clause_table import table
from docstrings import docstring, parsed
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import mha_backends
from mha_core import FEATURES, Claims, load


class BackendPage(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        return [*parsed(self, docstring(_module(name))), *_state(name), _claims(claims_of(name))]


def _module(name: str) -> Path:
    folder = Path(mha_backends.__file__).parent
    return folder / name / "__init__.py" if (folder / name).is_dir() else folder / f"{name}.py"


@cache
def claims_of(name: str) -> Claims:
    """What the backend claims; for CuPy also where it is not installed."""
    return _claims_without_cupy() if name == "cupy" and find_spec("cupy") is None else load(name).backend.claims


def _claims_without_cupy() -> Claims:
    """The package is imported on an empty module in CuPy's place, which making the value never looks into, and is then forgotten:
    nothing else may find a CuPy here."""
    sys.modules["cupy"] = ModuleType("cupy")
    try:
        claims: Claims = import_module("mha_backends.cupy.backend").create().claims
    finally:
        for module in [m for m in sys.modules if m == "cupy" or m.startswith("mha_backends.cupy")]:
            del sys.modules[module]
    return claims


def _state(name: str) -> list[nodes.Node]:
    if why := ran.not_run().get(name):
        return [nodes.paragraph("", "", nodes.Text("Where this page was made it was not run: "), nodes.literal(why, why))]
    results = ran.all_examples().values()
    holding = sum(name in result.agree for result in results)
    rest = "" if holding == len(results) else "; the others ask for what it does not claim"
    said = f"Where this page was made, {holding} of the {len(results)} examples of the text hold on it{rest}."
    return [nodes.paragraph(said, said)]


def _claims(claims: Claims) -> nodes.table:
    unclaimed = [feature for feature in FEATURES if feature not in claims.features]
    rows = [
        ("arrays", claims.arrays or "any one array-API library"),
        ("dtypes and their profiles (MHA-NUM-5)", ", ".join(f"{dtype}: {claims.profiles[dtype]}" for dtype in claims.dtypes)),
        ("features", ", ".join(feature for feature in FEATURES if feature in claims.features)),
        ("not claimed", ", ".join(unclaimed) or "nothing"),
        ("class strict (MHA-MASK-19)", "claimed" if claims.strict else "not claimed"),
        ("determinism (MHA-EXEC-8)", claims.determinism),
    ]
    return table(("claim", "value"), [([nodes.Text(left)], [nodes.Text(right)]) for left, right in rows])


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("backend", BackendPage)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
