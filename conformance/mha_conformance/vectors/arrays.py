"""Arrays as .npy files, version 1.0: written so that any language can read them, and read without trusting them.

``np.save`` of bfloat16 loads as raw bytes, and NumPy has no 8-bit floats. So these are stored as the unsigned integers that have
their bits, and the dtype is named beside the file. Nothing here unpickles.
"""

import io
import stat
import warnings
from pathlib import Path
from typing import Any

import numpy as np

STORED = {
    "bool": "bool", "int64": "int64", "float64": "float64", "float32": "float32", "float16": "float16",
    "bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8",
}  # fmt: skip
"""What a file of each dtype holds."""

ROOM = 4096
"""The longest header that is read, in bytes; those that are written have 128."""


class Unreadable(Exception):
    """An output file that is not the array that it should be; the message says how."""


def native(dtype: str) -> Any:
    """NumPy's dtype of that name; those that NumPy lacks come from ml_dtypes."""
    if STORED[dtype] == dtype:
        return np.dtype(dtype)
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, dtype))


def encoded(values: Any, dtype: str) -> bytes:
    """The bytes of a .npy file that holds ``values`` rounded to ``dtype``, little-endian and in C order."""
    with np.errstate(all="ignore"):
        exact = np.array(values, dtype=native(dtype), order="C")
    stored = np.dtype(STORED[dtype]).newbyteorder("<")
    file = io.BytesIO()
    np.lib.format.write_array(file, exact.view(STORED[dtype]).astype(stored), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def decoded(path: Path, dtype: str, shape: tuple[int, ...]) -> Any:
    """The array of that dtype and shape in a file; what NumPy lacks is widened to float32. Raises ``Unreadable``."""
    about, name = path.lstat(), f"{path.parent.name}/{path.name}"
    if not stat.S_ISREG(about.st_mode):
        raise Unreadable(f"{name} is no plain file; links are not followed")
    stored = np.dtype(STORED[dtype]).newbyteorder("<")
    need = int(np.prod(shape, dtype=object)) * stored.itemsize
    if about.st_size > need + ROOM:
        raise Unreadable(
            f"{name} has {about.st_size} bytes; {stored.name} {shape} and its header need no more than {need + ROOM}"
        )
    file = io.BytesIO(path.read_bytes())
    found_shape, fortran, found = _header(file, name)
    if found.hasobject:
        raise Unreadable(f"{name} holds pickled Python objects, which are never loaded")
    if found != stored:
        raise Unreadable(f"{name} holds {found.str!r}, expected {stored.str!r}{_pattern(dtype)}")
    if found_shape != shape:
        raise Unreadable(f"{name} has shape {found_shape}, expected {shape}")
    data = file.read()
    if len(data) != need:
        word = "is truncated" if len(data) < need else "goes on after its array"
        raise Unreadable(f"{name} {word}: {len(data)} bytes of data where {stored.name} {shape} has {need}")
    values = np.frombuffer(data, stored).reshape(shape, order="F" if fortran else "C")
    values = np.array(values, dtype=STORED[dtype], order="C").view(native(dtype))
    return values if STORED[dtype] == dtype else values.astype(np.float32)


def _header(file: io.BytesIO, name: str) -> tuple[tuple[int, ...], bool, Any]:
    """(shape, Fortran order, dtype) as the file says."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            version = np.lib.format.read_magic(file)
            if version not in readers:
                raise Unreadable(f"{name} is .npy of version {version}; versions 1.0 and 2.0 are read")
            return readers[version](file, max_header_size=ROOM)
    except Unreadable:
        raise
    except Exception as error:  # the parser meets any bytes at all, and fails in many ways
        raise Unreadable(
            f"{name} is no .npy file: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error


def _pattern(dtype: str) -> str:
    return "" if STORED[dtype] == dtype else f", the bit patterns of {dtype}"


def plain(values: Any, dtype: str) -> list[Any]:
    """The values in C order as JSON holds them: hexadecimal floats, which are exact, integers, or booleans."""
    flat = np.asarray(values).reshape(-1)
    if dtype in ("bool", "int64"):
        return flat.tolist()
    return [float(x).hex() for x in flat]
