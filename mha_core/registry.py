"""Backends by name: found through entry points, the project's own and third parties' alike."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from mha_core.backend import Backend
from mha_core.door import Api, bind
from mha_core.errors import BackendUnavailable

GROUP = "mha.backends"


@dataclass(frozen=True, slots=True)
class Status:
    """One entry point: ``ready`` with its devices, ``no device``, ``unavailable`` (a library is missing) or ``broken``."""

    name: str
    distribution: str
    state: Literal["ready", "no device", "unavailable", "broken"]
    reason: str
    devices: tuple[str, ...] = ()


def load(name: str, **settings: Any) -> Api:
    """The functions of the backend called ``name``, made with these settings.

    Without settings it gives the very objects that the backend's package exports. Raises ``LookupError`` with the known
    names, ``BackendUnavailable`` with what to install, ``TypeError`` for a setting that the backend does not have (MHA-EXEC-10).
    """
    found = _entries()
    if name not in found:
        raise LookupError(
            f"MHA-EXEC-10: given backend {name!r}; expected one of {', '.join(sorted(found)) or 'none installed'}; "
            "install the package that brings it"
        )
    return bind(_create(found[name], settings))


def available() -> tuple[Status, ...]:
    """Every backend that is installed, usable or not: a broken plug-in is reported and harms no other."""
    return tuple(_status(entry) for _, entry in sorted(_entries().items()))


def _entries() -> dict[str, EntryPoint]:
    """By name; of two with one name the project's own wins, so that a plug-in cannot take its place."""
    entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.value.startswith("mha_backends."))
    return {entry.name: entry for entry in entries}


def _create(entry: EntryPoint, settings: dict[str, Any]) -> Backend:
    try:
        backend = entry.load()(**settings)
    except BackendUnavailable:
        raise
    except ImportError as error:
        raise BackendUnavailable(entry.name, str(error), f"install what {_distribution(entry)} needs") from error
    if not isinstance(backend, Backend):
        raise TypeError(f"MHA-EXEC-10: entry point {entry.value} gave {type(backend).__name__}; expected a mha_core.Backend")
    return backend


def _status(entry: EntryPoint) -> Status:
    distribution = _distribution(entry)
    try:
        devices = _create(entry, {}).devices()
    except BackendUnavailable as error:
        return Status(entry.name, distribution, "unavailable", f"{error.reason}; {error.install}")
    except Exception as error:  # a plug-in may fail in any way; the others must still be listed
        return Status(entry.name, distribution, "broken", f"{type(error).__name__}: {error}")
    if not devices:
        return Status(entry.name, distribution, "no device", "its library is installed, but no device can be used")
    return Status(entry.name, distribution, "ready", "", devices)


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
