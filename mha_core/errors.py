"""What can go wrong beside a broken rule: a legal request that a backend does not claim, a backend that is not there."""

from mha_spec.contract import Violation
from mha_spec.contract_layer import SmallHeadWarning

__all__ = ["BackendUnavailable", "SmallHeadWarning", "Unsupported", "Violation"]


class Unsupported(NotImplementedError):
    """A legal request that this backend does not claim (MHA-EXEC-9).

    ``unclaimed`` names the features or the dtype that the door found missing from its claims. It is empty where the backend
    itself refuses what it claims, which is a failure (MHA-CONF-9).
    """

    clause = "MHA-EXEC-9"

    def __init__(self, backend: str, given: str, expected: str, unclaimed: tuple[str, ...] = ()) -> None:
        super().__init__(f"{self.clause}: backend {backend!r} was given {given}; it claims {expected}; choose another backend")
        self.backend, self.given, self.expected, self.unclaimed = backend, given, expected, unclaimed

    def __reduce__(self) -> tuple[type["Unsupported"], tuple[str, str, str, tuple[str, ...]]]:
        return type(self), (self.backend, self.given, self.expected, self.unclaimed)


class BackendUnavailable(ImportError):
    """A backend whose library or device is missing (MHA-EXEC-10). ``install`` is what to do about it."""

    def __init__(self, backend: str, reason: str, install: str) -> None:
        super().__init__(f"MHA-EXEC-10: backend {backend!r} is not available: {reason}; {install}")
        self.backend, self.reason, self.install = backend, reason, install

    def __reduce__(self) -> tuple[type["BackendUnavailable"], tuple[str, str, str]]:
        return type(self), (self.backend, self.reason, self.install)
