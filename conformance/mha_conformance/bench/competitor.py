"""Who takes part: the backends of the registry, and the peers that they are held against."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from mha_conformance.bench.workload import Workload
from mha_core import BackendUnavailable, load
from mha_core.backend import STRICTEST

Call: TypeAlias = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Competitor:
    """A way to compute a workload.

    ``make`` is called in the competitor's own process and imports its library there; it makes the operands and gives a call
    without arguments, whose result NumPy can read and which has finished when it returns. ``make`` travels by name, so it is a
    function of a module, or a ``functools.partial`` of one. ``needs`` are the modules without which it is left out.
    """

    name: str
    make: Callable[[Any], Call]
    needs: tuple[str, ...] = ()

    def profile(self, dtype: str) -> str:
        """The numeric profile that it is judged by: the strictest of its type."""
        return STRICTEST[dtype]


def backend(name: str, workload: Workload) -> Call:
    """Attention of a backend by its name in the registry. Raises ``BackendUnavailable`` where it cannot run here."""
    api = load(name)
    if not api.backend.devices():
        raise BackendUnavailable(name, "it finds no device", "run it where there is one")
    arrays = [api.backend.from_host(x, workload.dtype) for x in workload.operands()]
    causal = bool(getattr(workload, "causal", False))
    return lambda: api.attention(*arrays, is_causal=causal)


def naive_numpy(workload: Any) -> Call:
    """The two products and a softmax between them, each over the whole array of scores."""
    import numpy as np

    query, key, value = workload.operands()
    scale = np.asarray(workload.d**-0.5, query.dtype)
    visible = np.tri(workload.n, dtype=bool)

    def call() -> Any:
        scores = (query * scale) @ key.mT
        if workload.causal:
            scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights @ value

    return call


def torch_sdpa(workload: Any) -> Call:
    """``torch.nn.functional.scaled_dot_product_attention``, which picks its own kernel."""
    import torch

    query, key, value = (torch.from_numpy(x) for x in workload.operands())

    def call() -> Any:
        with torch.inference_mode():
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=workload.causal)

    return call


PEERS = {
    peer.name: peer
    for peer in (Competitor("torch-sdpa", torch_sdpa, ("torch",)), Competitor("naive-numpy", naive_numpy))
}  # fmt: skip
"""Attention that is not ours, by name. A new peer is a function and a line here."""

DEFAULT = ("numpy", "torch", *PEERS)


def named(name: str) -> Competitor:
    """A peer, or else a backend of the registry; whether that can run is found out in its process."""
    return PEERS.get(name) or Competitor(name, partial(backend, name))
