"""Who takes part in a contest, and how a backend of the registry does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mha_conformance.bench.workload import Heads, Layer
from mha_core import BackendUnavailable, Projections, load
from mha_core.backend import STRICTEST

Call: TypeAlias = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Competitor:
    """A way to compute a workload.

    ``make`` is called in the competitor's own process and imports its library there; it makes the operands and gives a call
    without arguments, whose result NumPy can read and which has finished when it returns. ``make`` travels by name, so it is a
    function of a module, or a ``functools.partial`` of one. ``needs`` are the modules without which it is left out.
    ``workload`` is what it computes if that is not what the contest is about: the same call with an option, say.
    """

    name: str
    make: Callable[[Any], Call]
    needs: tuple[str, ...] = ()
    workload: Any = None

    def profile(self, dtype: str) -> str:
        """The numeric profile that it is judged by: the strictest of its type."""
        return STRICTEST[dtype]


def backend(name: str, workload: Heads | Layer) -> Call:
    """A backend by its name in the registry, on heads or as a layer. Raises ``BackendUnavailable`` where it cannot run here."""
    api = load(name)
    if not api.backend.devices():
        raise BackendUnavailable(name, "it finds no device", "run it where there is one")

    def own(x: Any) -> Any:
        return api.backend.from_host(x, x.dtype.name) if isinstance(x, np.ndarray) else x

    if isinstance(workload, Layer):
        x, projections = workload.operands()
        x, projections = own(x), Projections(*map(own, projections))
        return lambda: api.multi_head_attention(x, x, x, projections)
    arrays = [own(x) for x in workload.operands()]
    options = {option: own(x) for option, x in workload.options().items()}
    if options.keys() & {"return_weights", "return_lse"}:
        return lambda: api.attention(*arrays, **options).output
    return lambda: api.attention(*arrays, **options)
