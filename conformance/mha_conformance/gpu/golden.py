"""The instructions of ``primitives.cu`` on a device against what they should give, bit for bit.

``golden.json`` is what the emulator gives (`python conformance/emulator/golden.py` writes it, a test holds it to that). The numbers
are such that no legal rounding can differ: products of small whole numbers are exact in any order. Only 2^x has some room.
"""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

KERNEL = "check_primitives"
SHARED = 1536


class Primitive(NamedTuple):
    """Words that each lane writes, and by how many units in the last place they may be off."""

    name: str
    words: int
    ulps: int = 0


PRIMITIVES = (
    Primitive("copy_16, the first group", 4),
    Primitive("copy_16, the second group", 4),
    Primitive("copy_16 of 0 to 16 bytes", 4),
    Primitive("load_matrices", 4),
    Primitive("load_transposed", 4),
    Primitive("multiply_add of float16", 4),
    Primitive("multiply_add of bfloat16", 4),
    Primitive("pair_of float16", 1),
    Primitive("pair_of bfloat16", 1),
    Primitive("power_of_two", 1, ulps=2),
    Primitive("exchanged", 5),
    Primitive("from_lane", 1),
)
WORDS = sum(primitive.words for primitive in PRIMITIVES)


def inputs() -> Any:
    """What the kernel is given: 320 words, by a formula."""
    at = np.arange(256)
    whole = ((at * 37 + at // 16 * 11) % 31 - 15).astype(np.float32)  # -15 to 15: their products and sums are exact
    half = whole.astype(np.float16).view(np.uint32)
    brain = (whole.view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)
    floats = np.linspace(-20, 15, 64, dtype=np.float32)
    floats[:8] = [0.0, -0.0, 65519.0, 65520.0, 1 + 2.0**-11, 2.0**-25, -np.inf, 127.0]
    return np.concatenate([half, brain, floats.view(np.uint32)])


def golden() -> Any:
    """(WORDS, 32)."""
    held = json.loads(files(__package__).joinpath("golden.json").read_text(encoding="utf-8"))
    return np.concatenate([_read(held[primitive.name]) for primitive in PRIMITIVES])


def as_text(words: Any) -> dict[str, list[str]]:
    """``golden.json``: for each primitive its words, each as 32 numbers in hexadecimal."""
    ends = np.cumsum([primitive.words for primitive in PRIMITIVES])
    parts = np.split(words, ends[:-1])
    return {
        p.name: [" ".join(f"{word:08x}" for word in row) for row in part] for p, part in zip(PRIMITIVES, parts, strict=True)
    }


def _read(rows: list[str]) -> Any:
    return np.array([[int(word, 16) for word in row.split()] for row in rows], np.uint32)


def compared(got: Any, want: Any) -> Iterator[tuple[str, str]]:
    """(primitive, "" or what is wrong with it) of ``got`` (WORDS, 32)."""
    first = 0
    for primitive in PRIMITIVES:
        a, b = (x[first : first + primitive.words] for x in (got, want))
        first += primitive.words
        off = a != b
        if primitive.ulps:  # the bits of floats of one sign count their units in the last place
            off &= np.abs(a.astype(np.int64) - b.astype(np.int64)) > primitive.ulps
        if not off.any():
            yield primitive.name, ""
            continue
        word, lane = np.argwhere(off)[0]
        yield (
            primitive.name,
            f"{int(off.sum())} of {off.size} words, first word {word} of lane {lane}: {a[word, lane]:08x} for {b[word, lane]:08x}",
        )
