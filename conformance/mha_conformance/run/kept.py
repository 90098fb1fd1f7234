"""What a case keeps alive until it ends: the arrays that it gave, and the results that came, with what stood in them then."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mha_conformance.run.prepared import Native


class Kept:
    """``arrays`` are kept so that none is built where another one was; results, so that a later call can be seen to change them."""

    def __init__(self) -> None:
        self.arrays: list[Native] = []
        self._results: list[dict[str, tuple[Any, Any]]] = []

    def begin(self) -> None:
        """A call comes."""
        self._results.append({})

    def brought_back(self, results: Mapping[str, Any], host: Callable[[Any], Any]) -> list[Any]:
        """Copies on the host of the results of the latest call, in their order; None for what did not come."""
        copies = {name: None if x is None else np.array(host(x)) for name, x in results.items()}
        self._results[-1] = {name: (x, copies[name]) for name, x in results.items() if x is not None}
        return list(copies.values())

    def changed(self, call: int, host: Callable[[Any], Any]) -> tuple[str, ...]:
        """The results of a call that hold other bits now than when they came (MHA-EXEC-3)."""
        return tuple(name for name, (x, copy) in self._results[call].items() if np.asarray(host(x)).tobytes() != copy.tobytes())
