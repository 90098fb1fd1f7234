"""What one request gave."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Reply:
    """What one request gave: arrays on the host, or an error; and the facts that are no numbers."""

    status: Literal["ok", "refused", "unsupported", "inexpressible", "no room", "not run"]
    output: Any = None
    weights: Any = None
    lse: Any = None
    error: str = ""
    clause: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Any] = field(default_factory=dict)
    """By the name of the operand, followed by " gradient"."""
    kernel: str = ""
    """Which kernel answered, in the implementation's own words; empty where it does not say."""

    def array(self, name: str) -> Any:
        """A result or a gradient by its name; None where there is none."""
        return getattr(self, name) if name in ("output", "weights", "lse") else self.gradients.get(name)

    touched: tuple[str, ...] = ()
    """The arrays around which something was written."""
    changed: tuple[str, ...] = ()
    """The results that a later call of the case changed."""

    @classmethod
    def of(cls, arrays: dict[str, Any]) -> "Reply":
        """The reply that consists of these arrays."""
        results = {name: x for name, x in arrays.items() if name in ("output", "weights", "lse")}
        return cls("ok", **results, gradients={name: x for name, x in arrays.items() if name not in results})
