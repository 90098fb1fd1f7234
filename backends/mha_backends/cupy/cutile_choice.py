"""Which calls the cuTile kernels compute where they are asked for: ``load("cupy", kernel="cutile")``. Pure, as ``choose`` is."""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from mha_backends.cupy.choose import options_of
from mha_spec.call import Call, Sizes, dtype_name

CAPABILITIES = (90, 100, 103)
"""The compute capabilities, times 10, for which the kernels compile without spilling registers; elsewhere tiles that pay do not."""

WIDTHS = (64, 128)
"""Channels for which they are compiled: powers of two; a call gets the least that hold its own, and the rest are 0."""

TAKEN = frozenset({"causal", "lse"})

HINTS = {"occupancy": 1, "num_worker_warps": 8}
"""For the kernels with matrix products: one block on a multiprocessor, and eight warps for what is no product."""

LARGEST_SCALE = 2.0**40
"""float16 products are below 2^32 times the channels: up to this scale no score of theirs leaves float32."""

MOST_ELEMENTS = 2**31 - 1
"""cuda-tile counts shapes, strides and offsets of an array in 32 bits."""

MOST_ROWS = 2**30
"""Queries or keys: their positions fit 32 bits."""


class Tile(NamedTuple):
    """Queries and keys of a tile."""

    queries: int
    keys: int


class Tiled(NamedTuple):
    """``cutile_kernels``, compiled for this element type and this width; ``causal`` is no constant of theirs."""

    element: str
    width: int
    causal: bool

    @property
    def bounded(self) -> bool:
        """Whether scores may leave float32, and must be held back."""
        return self.element != "float16"

    @property
    def tiles(self) -> dict[str, Tile]:
        """For each kernel the tile with which it compiles without spilling."""
        keys = Tile(64, 128) if self.width == 64 else Tile(128, 64)
        return {"forward": Tile(128, 64), "deltas": Tile(64, 64), "keys": keys, "queries": Tile(128, 64)}

    def __str__(self) -> str:
        (queries, keys), form = self.tiles["forward"], "causal" if self.causal else "full"
        return f"cutile: {self.element}, d {self.width}, {form}, tiles of {queries} queries and {keys} keys"


def chosen(call: Call) -> Tiled | str:
    """``choose_tiled`` for a call, by the device of its query."""
    capability, options = int(call.query.device.compute_capability), tiled_options_of(call)
    return choose_tiled(capability, dtype_name(call.query), call.sizes, options, call.scale)


def explain(others: Callable[[Call], str], call: Call) -> str:
    """Which kernel runs where cuTile is asked for; where it is not one of these, what the ``others`` say, and why not."""
    tiled = chosen(call)
    return f"{others(call)}; not cutile, because {tiled}" if isinstance(tiled, str) else str(tiled)


def choose_tiled(capability: int, dtype: str, sizes: Sizes, options: frozenset[str], scale: float) -> Tiled | str:
    """The kernels for a call with these ``options`` (``tiled_options_of``); or why the other layers get it."""
    batch, h, h_kv, n, m, d_k, d_v = sizes
    if capability not in CAPABILITIES:
        known = ", ".join(f"{c // 10}.{c % 10}" for c in CAPABILITIES)
        return f"compute capability {capability // 10}.{capability % 10} is none of {known}"
    if dtype not in ("float16", "bfloat16"):
        return f"{dtype} is no half type"
    if others := sorted(options - TAKEN):
        return f"it does not take {', '.join(others)}"
    if max(d_k, d_v) > WIDTHS[-1]:
        return f"{'d_k' if d_k > WIDTHS[-1] else 'd_v'} = {max(d_k, d_v)} is above {WIDTHS[-1]}"
    if 0 in (*batch, h, n, m, d_k, d_v):
        return "an axis is empty"
    if prod(batch) * max(h * n, h_kv * m) * max(d_k, d_v) > MOST_ELEMENTS:
        return "an array has 2^31 elements or more"
    if max(n, m) > MOST_ROWS:
        return "there are more than 2^30 queries or keys"
    if abs(scale) > LARGEST_SCALE:
        return f"the scale {scale} is above 2^40"
    return Tiled(dtype, next(width for width in WIDTHS if width >= max(d_k, d_v)), "causal" in options)


def tiled_options_of(call: Call) -> frozenset[str]:
    """As ``options_of``, where a band is causal or a window, and an offset one number or one per batch item."""
    options = options_of(call)
    if call.dropout is not None:
        options |= {"dropout"}
    if call.band is not None:
        options = options - {"band"} | {"causal" if call.band == (None, 0) else "window"}
        if not isinstance(call.query_offset, int):
            options |= {"an offset per batch item"}
    return options
