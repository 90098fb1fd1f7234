"""The precision that torch is set to: read and reported, never changed."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

COMPUTE = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
"""The type in which scores, softmax and sums are computed (MHA-NUM-3)."""


def no_autocast(like: Tensor) -> AbstractContextManager[Any]:
    """Autocast would turn float32 scores into bfloat16; the caller's dtype is the caller's choice."""
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


_SWITCHES = (
    "backends.cuda.matmul.fp32_precision",
    "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.fp32_precision",
)


def precision_report() -> dict[str, Any]:
    """What torch's global switches allow inside a float32 or half product (MHA-NUM-11). Nothing is set.

    "highest" or "ieee" keeps the profile P32. TF32 or bfloat16 inside a float32 product is another profile, and a reduced-precision
    reduction accumulates halves in halves. A switch that this torch does not have, or cannot read, is None.
    """
    report: dict[str, Any] = {"float32_matmul_precision": torch.get_float32_matmul_precision()}
    for path in _SWITCHES:
        report[path] = _read(path)
    report["deterministic_algorithms"] = torch.are_deterministic_algorithms_enabled()
    return report


def _read(path: str) -> Any:
    value: Any = torch
    try:
        for name in path.split("."):
            value = getattr(value, name)
    except (AttributeError, RuntimeError):  # RuntimeError: the old and the new switch of one thing disagree
        return None
    return value
