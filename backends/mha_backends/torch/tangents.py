"""How fast the results move when the operands do, by torch's own forward mode."""

import importlib
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mha_core import AttentionResult, Call, Tangents


def attend_jvp(
    attend: Callable[[Call], AttentionResult], call: Call, tangents: Tangents
) -> tuple[AttentionResult, AttentionResult]:
    """The results of ``attend`` and their derivative along the tangents, MHA-GRAD-21; both are constants to autograd."""
    fixed = {name: x.detach() for name in Tangents._fields if (x := getattr(call, name)) is not None}
    # An operand that stays moves by 0, which is NaN in a row of NaN.
    moving = {
        name: torch.zeros_like(x) if (dx := getattr(tangents, name)) is None else dx.detach() for name, x in fixed.items()
    }
    names = [name for name, asked in (("output", True), ("weights", call.weights), ("lse", call.lse)) if asked]

    def results(operands: dict[str, Any]) -> list[Tensor]:
        found = attend(replace(call, **operands))
        return [getattr(found, name) for name in names]

    with torch.no_grad():
        _load_forward_mode()
        found, rates, *_ = torch.func.jvp(results, (fixed,), (moving,))
        result, rate = (dict(zip(names, x, strict=True)) for x in (found, rates))
        if call.lse:  # an empty row without a sink has the lse -inf and keeps it; torch says 0/0
            rate["lse"] = torch.where(result["lse"] == -torch.inf, 0.0, rate["lse"])
    return AttentionResult(**result), AttentionResult(**rate)


@cache
def _load_forward_mode() -> None:
    """torch loads a part of its forward mode when it is first used, and warns of its own ``torch.jit.script`` then."""
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")
