"""What is true of a call beside its numbers: types, memory, and the state of the process (MHA-EXEC-1, 2, 3, 6, MHA-AUX-5, 11)."""

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mha_conformance.cases.case import Target
from mha_spec.call import dtype_name
from mha_spec.contract import library_of


class Witness:
    """Sees the arrays and the process before a call, and says afterwards what became of them."""

    def __init__(self, host: Callable[[Any], Any], target: Target, operands: list[Any], options: dict[str, Any]) -> None:
        self._host, self._operands = host, operands
        self._given = dict(zip(("query", "key", "value"), operands, strict=False))
        self._given |= {name: x for name, x in options.items() if hasattr(x, "shape")}
        if getattr(options.get("dropout"), "keep", None) is not None:
            self._given["keep"] = options["dropout"].keep
        if target == "layer vjp":
            self._given |= {name: x for name, x in operands[-1]._asdict().items() if x is not None}
        self._before = {name: host(x).tobytes() for name, x in self._given.items()}
        self._state = _global_state()

    def of_results(self, result: Any, output: Any, weights: Any, lse: Any) -> dict[str, Any]:
        first = self._operands[0] if self._operands else None
        return {
            "library": library_of(output) if hasattr(output, "dtype") else type(output).__name__,
            "asked library": "" if first is None else library_of(first),
            "dtype": _dtype(output) or type(output).__name__,
            "device": first is None or _device(output) == _device(first),
            "modified": self._modified(),
            "shared": sorted(name for name, x in self._given.items() if _shared(output, x)),
            "state": _global_state() == self._state,
            "lse dtype": _dtype(lse),
            "weights dtype": _dtype(weights),
            "form": _form(result),
        }

    def of_gradients(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """By the name of the operand; ``found`` holds None where no gradient came back. Pairs are (what it is, what it should be)."""
        there = {name: x for name, x in found.items() if x is not None}
        return {
            "dtypes": {name: (dtype_name(x), dtype_name(self._given[name])) for name, x in there.items()},
            "libraries": {name: (library_of(x), library_of(self._given[name])) for name, x in there.items()},
            "devices": {name: (_device(x), _device(self._given[name])) for name, x in there.items()},
            "absent": sorted(name for name in found if (name in self._given) != (name in there)),
            "modified": self._modified(),
        }

    def _modified(self) -> list[str]:
        return sorted(name for name, x in self._given.items() if self._host(x).tobytes() != self._before[name])


def _device(x: Any) -> str:
    return str(getattr(x, "device", None))


def _dtype(x: Any) -> str | None:
    return dtype_name(x) if hasattr(x, "dtype") else None


def _form(result: Any) -> Any:
    """ "array", or the names of a named tuple's fields that are not None; of anything else its type (MHA-AUX-11)."""
    if hasattr(result, "dtype"):
        return "array"
    fields = getattr(result, "_fields", None)
    return type(result).__name__ if fields is None else tuple(name for name in fields if getattr(result, name) is not None)


def _shared(output: Any, x: Any) -> bool:
    try:
        return bool(np.shares_memory(np.asarray(output), np.asarray(x)))
    except Exception:  # arrays that NumPy cannot look into are told apart by their addresses
        return hasattr(output, "data_ptr") and output.data_ptr() == x.data_ptr()


def _global_state() -> Any:
    """What a call must leave as it is: random generators and error modes."""
    torch = sys.modules.get("torch")
    drawn = None if torch is None else torch.random.get_rng_state().numpy().tobytes()
    _, key, position, *rest = np.random.get_state()  # the key alone changes with every 624th number
    return random.getstate(), np.asarray(key).tobytes(), position, rest, tuple(sorted(np.geterr().items())), drawn
