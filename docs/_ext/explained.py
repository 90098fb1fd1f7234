"""``{explained}``: what ``explain`` of the backend cupy answers to six typical requests on a device of 9.0, asked while the site is built.

The package is imported on an empty module in CuPy's place, and the arrays are NumPy's with the name of CuPy: a choice looks at
types and shapes alone.
"""

import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from clause_table import table
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from mha_core import bind


class Imagined(np.ndarray):
    """An array of "cupy" on a device that is not here."""

    @property
    def device(self) -> Any:
        return SimpleNamespace(compute_capability="90")


Imagined.__module__ = "cupy"

REQUESTS = (
    ("explain(q, k, v)", "half types, nothing hidden"),
    ("explain(q, k, v, is_causal=True)", "training a language model"),
    ("explain(q[:, :, :1], k, v, is_causal=True, query_offset=2047)", "decoding one token"),
    ("explain(q, k, v, mask=mask)", "padding given as a mask"),
    ("explain(q, k, v, return_weights=True)", "looking at the weights"),
    ("explain(single, single, single)", "float32"),
)
"""Each is evaluated as it stands."""


def answers() -> list[tuple[str, str, str, str]]:
    """(request, what for, answer, answer with kernel="cutile") of ``REQUESTS``."""
    held = {name: module for name, module in sys.modules.items() if _of_cupy(name)}
    try:
        for name in held:
            del sys.modules[name]
        sys.modules["cupy"] = ModuleType("cupy")
        backend = import_module("mha_backends.cupy.backend").create()
        explained = bind(backend).explain
        choice = import_module("mha_backends.cupy.cutile_choice")
        tiled = bind(
            import_module("dataclasses").replace(backend, explain=lambda call: choice.explain(backend.explain, call))
        ).explain
        q = np.zeros((4, 8, 2048, 64), "float16").view(Imagined)
        names = {"q": q, "k": q, "v": q, "single": q.astype("float32"), "mask": np.ones((2048, 2048), bool).view(Imagined)}
        return [
            (request, purpose, *(str(eval(request, names | {"explain": function})) for function in (explained, tiled)))
            for request, purpose in REQUESTS
        ]
    finally:
        for name in [name for name in sys.modules if _of_cupy(name)]:
            del sys.modules[name]
        sys.modules.update(held)


def _of_cupy(name: str) -> bool:
    return name == "cupy" or name.startswith("mha_backends.cupy")


class Explained(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        rows = [
            (
                [nodes.literal(request, request)],
                [nodes.Text(purpose)],
                [nodes.Text(answer)],
                [nodes.Text(_short(tiled, answer))],
            )
            for request, purpose, answer, tiled in answers()
        ]
        return [table(("request", "for", "answer", 'with kernel="cutile"'), rows)]


def _short(tiled: str, answer: str) -> str:
    """The same answer is not said twice."""
    return "the same" + tiled.removeprefix(answer) if tiled.startswith(answer) else tiled


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("explained", Explained)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
