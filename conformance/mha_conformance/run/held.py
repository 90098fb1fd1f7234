"""How much memory a call holds, in the process under test (MHA-COST-7)."""

from collections.abc import Callable
from typing import Any

from mha_conformance.bench.memory import rise


class Unmeasured(Exception):
    """Nobody sees how much this call holds."""


def measured(call: Callable[[], Any], operands: list[Any]) -> tuple[Any, int]:
    """The result of ``call`` and the bytes that it held at most, its result included.

    Raises ``Unmeasured`` on a device, and where the system does not tell how much a process holds.
    """
    if device := next((str(x.device) for x in operands if "cpu" not in str(getattr(x, "device", "cpu")).lower()), ""):
        raise Unmeasured(f"how much a call holds on {device} is not measured")
    result, held = rise(call)
    if held is None:
        raise Unmeasured("this system does not tell how much memory a process holds (proc(5), clear_refs)")
    return result, held
