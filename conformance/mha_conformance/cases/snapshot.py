"""The catalogue in one line a case, committed as ``conformance/cases.txt``: a diff of it is a change of what is asked.

``python -m mha_conformance.cases.snapshot > conformance/cases.txt`` refreshes it. A line holds the level, the group, a hash of the
inputs and the id. The same hash in every process, on every machine, is what makes two reports comparable.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha_conformance.cases import catalogue
from mha_conformance.cases.case import Case


def snapshot() -> str:
    """One line per case, in the order of the catalogue."""
    return "".join(f"{case.level:5}  {case.group:11}  {fingerprint(case)}  {case.id}\n" for case in catalogue())


def fingerprint(case: Case) -> str:
    """Eight hexadecimal digits that stand for every request of a case: values, shapes, options and layouts."""
    found = hashlib.sha256()
    for request in case.make():
        found.update(f"{request.dtype} {request.target} {request.layout} {sorted(request.dtypes.items())}".encode())
        found.update(repr(sorted(request.options.items())).encode())
        found.update(repr(sorted(request.plan.items())).encode() if request.plan else b"")
        if request.target in ("vjp", "layer vjp"):
            found.update(f"{request.gradients} {request.kept}".encode())
        for name, array in (*enumerate(request.operands), *_sorted(request.arrays), *_sorted(request.projections)):
            found.update(f"{name} {array.shape} {array.dtype.kind}".encode())
            found.update(_bytes(array))
    return found.hexdigest()[:8]


def _sorted(arrays: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(arrays.items())


def _bytes(array: Any) -> bytes:
    """The values, not how this machine happens to hold them; every NaN is one."""
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.nan, array).astype("<f8")
    return np.ascontiguousarray(array.astype("<i8") if array.dtype.kind in "bi" else array).tobytes()


if __name__ == "__main__":
    print(snapshot(), end="")
