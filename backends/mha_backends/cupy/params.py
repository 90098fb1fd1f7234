"""The parameters of a launch as the kernels read them: ``struct Params`` of ``kernels/call.cu``, and ``struct Linear``."""

from typing import Any

import numpy as np

from mha_spec.call import Array, dtype_name

FLOATS = {"float16": 1, "bfloat16": 2, "float32": 3, "float64": 4}
EXPONENT = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F80_0000, "float64": 0x7FF0_0000_0000_0000}
"""The exponent bits of each type: where all are set, the number is NaN or an infinity."""

_POINTERS_OUT = (
    "scores shares divisors notes weights lse acc output clean tainted dscores products rests sink_terms dqueries dkeys dvalues"
)
_READ = {
    "queries": "b h i c", "keys": "b h j c", "values": "b h j c", "mask": "b h i j", "bias": "b h i j", "outputs": "b h i c",
    "lses": "b h i", "grads": "b h i c", "grad_lses": "b h i",
    "grad_weights": "b h i j", "dbias": "b h i j", "keep": "b h i j", "sinks": "h",
    "offsets": "b", "lengths": "b", "query_segments": "b i", "key_segments": "b j",
}  # fmt: skip
"""The arrays that a kernel reads, and the axes for which it is given a stride."""

_TYPES = ("bias", "sinks", "offsets", "lengths", "query_segments", "key_segments")
_SIZES = "exponent batch heads kv_heads n m d_k d_v first rows whole_rows"
_DROPOUT = "seed_low seed_high threshold batch_start head_start query_start key_start"

_fields = [(name, "<u8") for name in _POINTERS_OUT.split()]
for _array, _axes in _READ.items():
    _fields += [(_array, "<u8")] + [(f"{_array}_{axis}", "<i8") for axis in _axes.split()]
_fields += [(name, "<i8") for name in ("element", *(f"{_array}_type" for _array in _TYPES), *_SIZES.split(), *_DROPOUT.split())]
_fields += [(name, "<i8") for name in ("left", "right", "offset", "length")]
_fields += [(name, "<f8") for name in ("scale", "softcap", "factor", "spread")]

PARAMS = np.dtype(_fields)
"""``struct Params``, field by field: every one is eight bytes, so there is no padding to agree on."""

LINEAR = np.dtype(
    [("acc", "<u8"), ("bias", "<u8"), ("bias_j", "<i8"), ("output", "<u8")]
    + [(name, "<i8") for name in ("element", "size", "columns")]
)
"""``struct Linear``."""


def real_of(x: Array) -> str:
    """The type of sums and scores: float64 for float64, float32 for all others (MHA-NUM-2, MHA-NUM-3)."""
    return "float64" if dtype_name(x) == "float64" else "float32"


def pack(layout: np.dtype[Any], **fields: Any) -> Any:
    """A structure for a kernel: a NumPy array of one element, which CuPy passes by value. Absent fields are 0."""
    params = np.zeros(1, layout)
    for name, value in fields.items():
        params[name] = value
    return params


def pointer(array: Array | None) -> int:
    return 0 if array is None else int(array.data.ptr)


def reading(name: str, array: Array | None, strides: tuple[int, ...] = ()) -> dict[str, int]:
    """The fields that describe an array to read: pointer, strides in bytes, type. None is the null pointer."""
    if array is None:
        return {}
    fields = {name: pointer(array)} | {
        f"{name}_{axis}": stride for axis, stride in zip(_READ[name].split(), strides, strict=True)
    }
    if name in _TYPES:
        fields[f"{name}_type"] = _type_code(array)
    return fields


def _type_code(array: Array) -> int:
    """1 to 4 for a float; for an integer its size in bytes, negative where it is unsigned."""
    name = dtype_name(array)
    if name in FLOATS:
        return FLOATS[name]
    size = int(array.dtype.itemsize)
    return -size if name.startswith("u") else size
