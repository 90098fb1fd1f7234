"""Which layer computes a call. A pure function of the device, the dtype, sizes and which options there are; never of contents."""

from math import prod
from typing import Literal, NamedTuple, TypeAlias

from mha_spec.call import Call, Sizes

Form: TypeAlias = Literal["FULL", "BY_POSITION", "BY_PAIR"]

WIDTHS = (16, 32, 64, 96, 128, 192, 256)
"""Channels for which a fused kernel is compiled; a call gets the least that hold its own, and the rest are 0."""

QUERIES = 64
"""Queries of a tile."""

TENSOR_CORES = 80
"""The compute capability, times 10, from which on the instructions of ``primitives.cu`` exist."""

MOST_BLOCKS = MOST_KEYS = 2**31 - 1
"""A grid has no more blocks; and a kernel counts keys in an int, up to the end of the tile after the last."""


class Fused(NamedTuple):
    """``kernels/fused.cu``, compiled for this element type, these widths and this form."""

    element: str
    d_k: int
    d_v: int
    form: Form

    @property
    def keys(self) -> int:
        """Keys of a tile: as many as registers and shared memory hold."""
        return 64 if self.d_k + self.d_v <= 256 else 32

    def __str__(self) -> str:
        form = self.form.lower().replace("_", " ")
        return f"fused: {self.element}, d_k {self.d_k}, d_v {self.d_v}, {form}, tiles of {QUERIES} queries and {self.keys} keys"


class FusedBackward(NamedTuple):
    """``kernels/backward.cu`` and what stands behind it, compiled for this element type, these widths and this form."""

    element: str
    d_k: int
    d_v: int
    form: Form

    @property
    def held(self) -> int:
        """Rows that a block holds: queries for dQ, keys for dK and dV."""
        return 64 if self.d_k + self.d_v <= 256 else 32

    @property
    def passing(self) -> int:
        """Rows that pass by at a time: as many as registers hold, which looking at single pairs needs as well."""
        return 32 if self.d_k + self.d_v <= (192 if self.form == "BY_PAIR" else 256) else 16

    @property
    def slices(self) -> int:
        """Blocks that share the channels of dK and dV of one tile of keys, where registers cannot hold all of them."""
        return 2 if self.d_k + self.d_v > 256 and min(self.d_k, self.d_v) >= 32 else 1

    def __str__(self) -> str:
        form = self.form.lower().replace("_", " ")
        tiles = f"{self.held} rows held, {self.passing} passing by"
        return f"fused backward: {self.element}, d_k {self.d_k}, d_v {self.d_v}, {form}, {tiles}"


class Unfused(NamedTuple):
    """Products by cuBLAS and our kernels between them, and why."""

    why: str

    def __str__(self) -> str:
        return f"unfused: cuBLAS and softmax_rows, because {self.why}"


Layer: TypeAlias = Fused | FusedBackward | Unfused


def choose(capability: int, dtype: str, sizes: Sizes, options: frozenset[str]) -> Layer:
    """The layer for a device of this compute capability (90 is 9.0) and a call with these ``options`` (``options_of``).

    With ``"vjp"`` among them it is the layer of the gradients.
    """
    batch, h, _, n, m, d_k, d_v = sizes
    if dtype not in ("float16", "bfloat16"):
        return Unfused(f"{dtype} is no half type")
    if capability < TENSOR_CORES:
        return Unfused(
            f"compute capability {capability // 10}.{capability % 10} is below {TENSOR_CORES // 10}.{TENSOR_CORES % 10}"
        )
    if "weights" in options:
        return Unfused("the weights are asked for")
    if "grad_weights" in options:
        return Unfused("a gradient of the weights arrives")
    if max(d_k, d_v) > WIDTHS[-1]:
        return Unfused(f"{'d_k' if d_k > WIDTHS[-1] else 'd_v'} = {max(d_k, d_v)} is above {WIDTHS[-1]}")
    k, v = (next(width for width in WIDTHS if width >= d) for d in (d_k, d_v))
    heads = prod(batch) * h
    if "vjp" not in options:
        if heads * -(-n // QUERIES) > MOST_BLOCKS or m > MOST_KEYS - 2 * QUERIES:
            return Unfused("a grid has at most 2^31 - 1 blocks, and the kernel counts keys in an int")
        return Fused(dtype, k, v, _form(options))
    backward = FusedBackward(dtype, k, v, _form(options))
    blocks = heads * max(-(-n // backward.held), backward.slices * -(-m // backward.held))
    if blocks > MOST_BLOCKS or max(n, m) > MOST_KEYS - 2 * QUERIES:
        return Unfused("a grid has at most 2^31 - 1 blocks, and the kernels count queries and keys in an int")
    return backward


def _form(options: frozenset[str]) -> Form:
    """FULL has no step that hiding needs, BY_POSITION none that looks at single pairs."""
    if options & {"mask", "bias", "segments", "softcap", "dropout"}:
        return "BY_PAIR"
    return "BY_POSITION" if options & {"band", "lengths"} else "FULL"


def options_of(call: Call) -> frozenset[str]:
    """Which options a call has, by name; what ``choose`` may know of them."""
    given = {
        "mask": call.mask, "bias": call.bias, "band": call.band, "lengths": call.key_lengths, "segments": call.query_segments,
        "softcap": call.softcap, "dropout": call.dropout, "sink": call.sink_logits, "weights": call.weights or None,
        "lse": call.lse or None,
    }  # fmt: skip
    return frozenset(name for name, value in given.items() if value is not None)
