"""The truth of a request, from the equations in float64 on the host, and the bound around it.

Both depend on the request, the profile and the constants alone, so they are computed once: they live in a content-addressed
cache whose key is the case, the profile, and a hash of the specification's code, the catalogue's and the constants (MHA-CONF-11).
"""

import hashlib
import os
import pickle
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mha_conformance.cases.calls import call_of, factors_of
from mha_conformance.cases.case import Case, Request
from mha_conformance.judge.sequences import statistic_truth, varlen_truth
from mha_conformance.judge.training import expected_gradients, expected_layer_gradients
from mha_core import Call, Projections
from mha_spec import equations
from mha_spec.numerics import Bounds, attention_bound, constants_hash, layer_bound, merge_bound, profile_of
from mha_spec.numerics_random import Sigma, attention_sigma
from mha_spec.profiles import Grade


class Truth(NamedTuple):
    """Expected arrays by name, and the bound of each for one profile."""

    expected: dict[str, Any]
    bounds: dict[str, Any]


def truth(request: Request, profile: str) -> Truth:
    """Expected values and bounds of what the request asks for."""
    with np.errstate(all="ignore"):
        if request.target == "merge":
            return _merge(request, profile)
        if request.target == "varlen":
            return Truth(*varlen_truth(request, lambda one: _attention(one, profile)))
        if request.target == "statistics":
            return Truth(*statistic_truth(request, profile, lambda one: _attention(one, profile)))
        if request.target == "vjp":
            return Truth(*expected_gradients(request, profile))
        if request.target == "layer vjp":
            return Truth(*expected_layer_gradients(request, profile))
        return _layer(request, profile) if request.target == "layer" else _attention(request, profile)


def _attention(request: Request, profile: str) -> Truth:
    call = call_of(request, request.operands)
    expected = equations.attention(call)
    bounds = attention_bound(call.query, call.key, call.value, profile_of(profile), **_numbers(call))
    return _asked(call, expected, bounds)


def _layer(request: Request, profile: str) -> Truth:
    p = Projections(**request.projections)
    query, key, value = request.operands
    q = equations.project_heads(query, p.w_q, p.b_q)
    k = equations.project_heads(key, p.w_k, p.b_k)
    v = equations.project_heads(value, p.w_v, p.b_v)
    call = call_of(request, (q, k, v))
    heads = equations.attention(call)
    expected = heads._replace(output=equations.output_projection(heads.output, p.w_o, p.b_o))
    bounds = layer_bound(query, key, value, p, profile_of(profile), **_numbers(call))
    return _asked(call, expected, bounds)


def _numbers(call: Call) -> dict[str, Any]:
    visible = np.broadcast_to(equations.visible(call), (*call.query.shape[:-1], call.key.shape[-2]))
    return {
        "scale": call.scale, "softcap": call.softcap, "bias": call.bias, "visible": visible, "sink": call.sink_logits,
        "factors": factors_of(call),
    }  # fmt: skip


def _asked(call: Call, expected: Any, bounds: Bounds) -> Truth:
    names = ["output", *(["weights"] if call.weights else []), *(["lse"] if call.lse else [])]
    found, room = ({n: getattr(given, n) for n in names} for given in (expected, bounds))
    if any(np.isinf(x).any() for x in (call.query, call.key, call.value)) or np.any(np.asarray(call.bias, float) == np.inf):
        # What sees an infinity may be any number, NaN too (MHA-MASK-24): the bound is infinite there, and NaN bars nothing.
        found = {n: np.where(np.isinf(room[n]), np.nan, found[n]) for n in names}
    return Truth(found, room)


def _merge(request: Request, profile: str) -> Truth:
    parts = list(zip(request.operands[::2], request.operands[1::2], strict=True))
    bounds = merge_bound(parts, None, profile_of(profile))
    lses = np.stack([lse for _, lse in parts])
    top = lses.max(axis=0)
    shift = np.where(top == -np.inf, 0.0, top)
    share = np.exp(lses - shift)
    total = share.sum(axis=0)
    mixed = sum(w[..., None] * o for w, (o, _) in zip(share, parts, strict=True))
    output = mixed / np.where(total == 0, 1.0, total)[..., None]
    lse = np.where(total == 0, -np.inf, shift + np.log(np.where(total == 0, 1.0, total)))
    return Truth({"output": output, "lse": lse}, {"output": bounds.output, "lse": bounds.lse})


@lru_cache(maxsize=4096)
def truths(case: Case, profile: str) -> list[Truth]:
    """The truth of every request of a case, from the cache where it is there."""
    if not case.lasting:
        return [truth(request, profile) for request in case.make()]
    return _kept(f"{case.id} {profile}", lambda: [truth(request, profile) for request in case.make()])  # type: ignore[no-any-return]


@lru_cache(maxsize=4096)
def sigmas(case: Case, profile: str, grade: Grade) -> list[Sigma]:
    """What is probable of every request of a case, which is one of attention (MHA-NUM-19)."""

    def sigma(request: Request) -> Sigma:
        call = call_of(request, request.operands)
        numbers = _numbers(call)
        assert numbers.pop("factors") is None, "nothing is said of what is probable under dropout"
        return attention_sigma(call.query, call.key, call.value, profile_of(profile), grade, **numbers)

    return _kept(f"{case.id} {profile} {grade}", lambda: [sigma(request) for request in case.make()])  # type: ignore[no-any-return]


def _kept(name: str, compute: Callable[[], Any]) -> Any:
    """What ``compute`` gives, from the cache where it is there."""
    place = _cache() / f"{hashlib.sha256(f'{name} {_content()}'.encode()).hexdigest()}.pickle"
    if place.exists():
        return pickle.loads(place.read_bytes())  # our own file, under the user's cache
    found = compute()
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = place.with_suffix(f".{os.getpid()}")
    scratch.write_bytes(pickle.dumps(found))
    scratch.replace(place)
    return found


def _cache() -> Path:
    home = os.environ.get("MHA_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "mha-core")
    return Path(home).expanduser() / "truth"


@lru_cache(maxsize=1)
def _content() -> str:
    """A hash of everything that a truth depends on: the code of the specification and of the catalogue, and the constants."""
    import mha_conformance.cases
    import mha_spec

    found = hashlib.sha256(constants_hash().encode())
    for package in (mha_spec, mha_conformance.cases):
        for file in sorted(Path(str(package.__file__)).parent.glob("*.py")):
            found.update(file.read_bytes())
    for file in (Path(__file__), *(Path(__file__).with_name(f"{name}.py") for name in ("training", "sequences"))):
        found.update(file.read_bytes())
    return found.hexdigest()
