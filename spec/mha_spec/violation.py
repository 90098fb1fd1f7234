"""The refusal, and the words for what was given."""

from typing import Any

from mha_spec.call import dtype_name

_NOT_PLAIN = ("MaskedArray", "matrix")
_LIBRARY = {"jaxlib": "jax"}


class Violation(ValueError):
    """A call that the specification refuses (MHA-VAL-22).

    ``clause`` is the id of the rule, ``given`` what came, ``expected`` what the rule wants, ``do`` the way out.
    """

    def __init__(self, clause: str, given: str, expected: str, do: str) -> None:
        super().__init__(f"{clause}: given {given}; expected {expected}; {do}")
        self.clause, self.given, self.expected, self.do = clause, given, expected, do

    def __reduce__(self) -> tuple[type["Violation"], tuple[str, str, str, str]]:
        return type(self), (self.clause, self.given, self.expected, self.do)


def library_of(array: Any) -> str:
    """The root module of an array's class: ``"numpy"``, ``"torch"``, ``"cupy"``, ..."""
    root = type(array).__module__.partition(".")[0]
    return _LIBRARY.get(root, root)


def describe(array: Any) -> str:
    """An array in the words of an error message: library, dtype and shape."""
    if not is_array(array):
        return type(array).__name__
    return f"{library_of(array)} {dtype_name(array)} {tuple(array.shape)}"


def is_array(x: Any) -> bool:
    """A plain array: no masked array or matrix, whose arithmetic is another, and no nested tensor, which has no shape."""
    plain = type(x).__name__ not in _NOT_PLAIN and not getattr(x, "is_nested", False)
    return plain and hasattr(x, "shape") and hasattr(x, "dtype")


def shown(x: Any) -> str:
    """A Python value in an error message, cut where it would drown the message."""
    try:
        text = repr(x)
    except ValueError:  # an integer of more digits than Python prints
        text = "a number of too many digits to print"
    return text if len(text) <= 60 else f"{text[:57]}..."
