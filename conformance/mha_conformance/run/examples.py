"""Runs the examples of the specification on a backend.

An example is Python; ``namespace`` holds every name that it may use. A failure is reported with the file and line of the
text, because the text is what disagrees with the backend.
"""

import importlib
import math
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np

from mha_core import Dropout, KVCache, Projections, Tangents, Unsupported, alibi_slopes, window_tokens
from mha_spec.call import dtype_name
from mha_spec.clauses import Example

UNITS = {"float64": 1024 * 2.0**-53, "float32": 1024 * 2.0**-24, "float16": 8 * 2.0**-11, "bfloat16": 8 * 2.0**-8}
"""The tolerance of an example per max(1, |expected|), by dtype: MHA-CONF-2 derives it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an example did on a backend: ``PASS``, ``FAIL`` or ``NOT_SUPPORTED``, and where in the text it stopped."""

    example: Example
    status: Literal["PASS", "FAIL", "NOT_SUPPORTED"]
    message: str = ""
    line: int | None = None


def run(example: Example, api: Any, dtype: str | None = None) -> Outcome:
    """Run one example on ``api`` (of ``load`` or ``bind``), with ``dtype`` for arrays that name none."""
    source = "\n" * (example.line - 1) + example.code
    try:
        exec(compile(source, example.file, "exec"), namespace(api, dtype))
    except Unsupported as error:  # of what the door found unclaimed; a backend that refuses what it claims fails
        return Outcome(example, "NOT_SUPPORTED" if error.unclaimed else "FAIL", str(error), _line(error, example))
    except Exception as error:  # whatever goes wrong, the example has failed and the run goes on
        words = str(error) or "the assertion does not hold"
        return Outcome(example, "FAIL", f"{type(error).__name__}: {words}", _line(error, example))
    return Outcome(example, "PASS")


def _line(error: BaseException, example: Example) -> int | None:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == example.file]
    return lines[-1] if lines else None


def namespace(api: Any, dtype: str | None = None) -> dict[str, Any]:
    """The names of an example: the functions of ``api``, arrays of its library, comparisons, and the numbers of a pencil."""
    backend = api.backend
    default = dtype or ("float64" if "float64" in backend.claims.dtypes else backend.claims.dtypes[0])

    def array(nested: Any, dtype: str | None = None) -> Any:
        values = np.asarray(nested)
        kind = {"b": "bool", "i": "int64"}.get(values.dtype.kind, default)
        return backend.from_host(values, dtype or kind)

    def widened(x: Any) -> np.ndarray[Any, Any]:
        values = np.asarray(x)
        return values.astype(np.float32) if values.dtype.name == "bfloat16" else values

    def host(x: Any) -> np.ndarray[Any, Any]:
        return (
            np.asarray(backend.to_host(x)) if hasattr(x, "dtype") and not isinstance(x, np.ndarray | np.generic) else widened(x)
        )

    def close(got: Any, want: Any) -> None:
        values, expected = host(got), host(want)
        if expected.shape not in ((), values.shape):
            raise AssertionError(f"shape {values.shape}, expected {expected.shape}")
        expected = np.broadcast_to(expected.astype(np.float64), values.shape)
        room = UNITS[dtype_name(got)] * np.maximum(1.0, np.abs(expected))
        with np.errstate(invalid="ignore"):
            near = np.abs(values.astype(np.float64) - expected) <= room
        good = np.where(np.isfinite(expected), near, values == expected) | (np.isnan(values) & np.isnan(expected))
        if not good.all():
            raise AssertionError(f"got {values.tolist()}, expected {expected.tolist()}")

    def same(got: Any, want: Any) -> None:
        values, expected = host(got), host(want)
        if hasattr(want, "dtype"):
            equal = values.shape == expected.shape and values.dtype == expected.dtype and values.tobytes() == expected.tobytes()
        else:
            equal = values.shape == expected.shape and np.array_equal(values, expected, equal_nan=values.dtype.kind == "f")
        if not equal:
            raise AssertionError(f"got {values.tolist()}, expected exactly {expected.tolist()}")

    return {
        "attention": api.attention,
        "attention_vjp": api.attention_vjp,
        "attention_jvp": api.attention_jvp,
        "Tangents": Tangents,
        "multi_head_attention": api.multi_head_attention,
        "multi_head_attention_vjp": api.multi_head_attention_vjp,
        "merge_partials": api.merge_partials,
        "attention_varlen": api.attention_varlen,
        "attention_statistics": api.attention_statistics,
        "project_keys_values": api.project_keys_values,
        "multi_head_attention_over": api.multi_head_attention_over,
        "KVCache": KVCache,
        "Dropout": Dropout,
        "Projections": Projections,
        "window_tokens": window_tokens,
        "alibi_slopes": alibi_slopes,
        "array": array,
        "close": close,
        "same": same,
        "refused": refused,
        "host": host,
        "dtype": dtype_name,
        "spec": _Spec(),
        "log": math.log,
        "exp": math.exp,
        "sqrt": math.sqrt,
        "tanh": math.tanh,
        "inf": math.inf,
        "nan": math.nan,
        "pi": math.pi,
    }


@contextmanager
def refused(clause: str) -> Iterator[None]:
    """The block must be refused, and for this clause."""
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        blamed = getattr(error, "clause", None)
        if blamed != clause:
            raise AssertionError(f"refused for {blamed}, expected {clause}: {error}") from error
    else:
        raise AssertionError(f"accepted; {clause} refuses it")


class _Spec:
    """``spec.cost``, ``spec.numerics``, ...: the modules of the specification by name."""

    def __getattr__(self, name: str) -> ModuleType:
        return importlib.import_module(f"mha_spec.{name}")
