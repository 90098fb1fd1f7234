"""Reads ``.npz`` files: projections that were trained, or queries, keys and values of a model.

Nothing in a file is run: pickled objects are refused. A name that would be ignored is refused too.
"""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from mha_core import Projections
from mha_spec.contract import check_float
from mha_spec.contract_layer import check_layer


class CannotTrace(ValueError):
    """What was asked for cannot be shown; the message says why and what to do."""


def projections(file: Path) -> Projections:
    """The projections of a file, in float64. Raises ``CannotTrace`` and ``Violation``."""
    found = _arrays(file, needed=("w_q", "w_k", "w_v", "w_o"), optional=("b_q", "b_k", "b_v", "b_o"))
    wide = Projections(**_widened(found))
    x = np.zeros((1, wide.w_q.shape[1] if wide.w_q.ndim == 3 else 0))
    check_layer(x, x, x, wide)
    if wide.w_q.shape[0] == 0:
        raise CannotTrace(f"{file}: given w_q {wide.w_q.shape}; expected at least one head")
    return wide


def heads(file: Path) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """q, k and v of a file, in float64, and its tokens by name. Raises ``CannotTrace`` and ``Violation``."""
    found = _arrays(file, needed=("q", "k", "v"), optional=("tokens", "key_tokens"))
    tokens = [name for name in ("tokens", "key_tokens") if name in found]
    labels: dict[str, tuple[str, ...]] = {name: _labels(file, name, found.pop(name)) for name in tokens}
    for name, x in found.items():
        if x.ndim != 3:
            way_out = f"add a head axis: {name}[None]" if x.ndim == 2 else f"save one item of the batch: {name}[0]"
            raise CannotTrace(f"{file}: given {name} {x.shape}; expected rank 3, (heads, tokens, channels); {way_out}")
    return _widened(found), labels


def _arrays(file: Path, needed: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Any]:
    expected = f"an .npz file with {', '.join(needed)} and, if there are any, {', '.join(optional)}"
    if not file.is_file():
        raise CannotTrace(f"no file at {file}; expected {expected}")
    try:
        with file.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise CannotTrace(f"{file} holds one array; expected {expected}; write it with numpy.savez")
            _check_names(file, set(archive.files), needed, optional, expected)
            return {name: archive[name] for name in archive.files}
    except CannotTrace:
        raise
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise CannotTrace(f"{file} cannot be read ({type(error).__name__}: {error}); expected {expected}") from error


def _check_names(file: Path, names: set[str], needed: tuple[str, ...], optional: tuple[str, ...], expected: str) -> None:
    missing, unknown = [name for name in needed if name not in names], sorted(names - {*needed, *optional})
    wrong = [f"{', '.join(found)} {what}" for found, what in ((missing, "missing"), (unknown, "unknown")) if found]
    if wrong:
        raise CannotTrace(f"{file}: {' and '.join(wrong)}; expected {expected}")


def _labels(file: Path, name: str, x: Any) -> tuple[str, ...]:
    if x.ndim != 1 or x.dtype.kind != "U":
        raise CannotTrace(f"{file}: given {name} of {x.dtype} {x.shape}; expected one row of strings: numpy.array(['a', 'b'])")
    return tuple(x.tolist())


def _widened(arrays: dict[str, Any]) -> dict[str, Any]:
    """float64, which holds every number of the narrower types. One floating type for all (MHA-VAL-2)."""
    check_float(**arrays)
    return {name: x.astype(np.float64) for name, x in arrays.items()}
