"""The manifest: what a directory of vectors holds, as plain values, by the schema in ``mha_spec/vectors``.

A description is made from the catalogue alone, here for writing and again for checking, so that a directory is never believed.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import mha_spec
from mha_conformance.cases import Case, Request
from mha_conformance.judge.truth import Truth, truths
from mha_conformance.run.environment import package_version
from mha_conformance.run.implementation import OPERANDS
from mha_conformance.run.prepared import dtypes
from mha_conformance.vectors.arrays import STORED, encoded, plain
from mha_conformance.vectors.coverage import folder
from mha_spec.clauses import load
from mha_spec.numerics import PROFILES, constants_hash

FORMAT = 1
KIND = "test vectors of Multi-Head Attention"
GUIDE = Path(mha_spec.__file__).parent / "vectors"
SMALL = 64
"""A case whose arrays have at most so many elements is also written out in the manifest."""


def head(profile: str, level: str) -> dict[str, Any]:
    """What must agree before anything else is looked at."""
    return {
        "format": FORMAT, "kind": KIND, "spec_version": mha_spec.SPEC_VERSION, "suite_version": package_version(),
        "constants": constants_hash(), "profile": profile, "dtype": PROFILES[profile].io, "level": level,
    }  # fmt: skip


def inputs(request: Request) -> dict[str, tuple[Any, str]]:
    """Every array of a request by name, with its dtype."""
    kinds = dtypes(request)
    if request.target == "merge":
        names = [f"{name}_{at // 2}" for at, name in enumerate(("output", "lse") * (len(request.operands) // 2))]
        return {name: (x, kinds[f"part {at}"]) for at, (name, x) in enumerate(zip(names, request.operands, strict=True))}
    found = {name: (x, request.dtype) for name, x in zip(OPERANDS, request.operands, strict=True)}
    found |= {name: (x, request.dtype) for name, x in request.projections.items()}
    return found | {name: (x, kinds[name]) for name, x in request.arrays.items()}


def output_dtype(name: str, profile: str) -> str:
    """The lse has a dtype of its own (MHA-AUX-5)."""
    return PROFILES[profile].lse if name == "lse" else PROFILES[profile].output


def vector(case: Case, profile: str, answers: bool = True) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(the manifest's entry for a case, the bytes of its files by path); without ``answers`` no expected results and bounds."""
    requests, known = case.make(), truths(case, profile)
    arrays = [inputs(request) for request in requests]
    sizes = [np.size(x) for found in arrays for x, _ in found.values()]
    sizes += [np.size(x) for one in known for x in one.expected.values()]
    small = max(sizes, default=0) <= SMALL
    calls: list[dict[str, Any]] = []
    files: dict[str, bytes] = {}
    for at, (request, found, one) in enumerate(zip(requests, arrays, known, strict=True)):
        call, written = _call(f"{folder(case.id)}/{at}", request, found, one, profile, small, answers)
        calls.append(call)
        files |= written
    entry = {
        "id": case.id, "clause": case.clause, "sentence": load()[case.clause].plain, "group": case.group, "level": case.level,
        "features": sorted(case.features), "rule": case.rule, "calls": calls,
    }  # fmt: skip
    return entry, files


def _call(
    place: str, request: Request, found: Mapping[str, tuple[Any, str]], one: Truth, profile: str, small: bool, answers: bool
) -> tuple[dict[str, Any], dict[str, bytes]]:
    files: dict[str, bytes] = {}
    given = {}
    for name, (values, dtype) in found.items():
        path = f"{place}/{name}.npy"
        files[path] = encoded(values, dtype)
        given[name] = {
            **_array(path, dtype, np.shape(values)), "sha256": hashlib.sha256(files[path]).hexdigest(),
            **({"values": plain(values, dtype)} if small else {}),
        }  # fmt: skip
    wanted = {}
    for name, expected in one.expected.items():
        wanted[name] = _array(f"{place}/{name}.npy", output_dtype(name, profile), np.shape(expected))
        if not answers:
            continue
        for kind, values in (("expected", expected), ("bound", np.broadcast_to(one.bounds[name], np.shape(expected)))):
            path = f"{place}/{kind}.{name}.npy"
            files[path] = encoded(values, "float64")
            wanted[name][kind] = {"file": path, **({"values": plain(values, "float64")} if small else {})}
    options = {name: _option(value) for name, value in request.options.items()}
    return {"folder": place, "target": request.target, "inputs": given, "options": options, "outputs": wanted}, files


def _array(path: str, dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"file": path, "dtype": dtype, "stored": STORED[dtype], "shape": list(shape)}


def _option(value: Any) -> Any:
    """Exact, and readable: a float in hexadecimal and in decimal; a window as a pair with null for an open side."""
    if isinstance(value, float):
        return {"hex": value.hex(), "decimal": value}
    return list(value) if isinstance(value, tuple) else value


def without_answers(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry less its expected results and bounds, whose last bits depend on the machine that computed them."""
    calls = []
    for call in entry["calls"]:
        outputs = {
            name: {key: x for key, x in one.items() if key not in ("expected", "bound")}
            for name, one in call["outputs"].items()
        }
        calls.append({**call, "outputs": outputs})
    return {**entry, "calls": calls}
