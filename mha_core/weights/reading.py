"""The arrays of one layer by name: each is asked for with its shape, and what nobody asked for is refused (MHA-PROJ-19)."""

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import NoReturn

import array_api_compat

from mha_core.projections import Projections
from mha_spec.call import Array
from mha_spec.contract import check_float, check_library
from mha_spec.contract_layer import check_projections
from mha_spec.violation import Violation, describe, is_array, shown

CLAUSE = "MHA-PROJ-19"


class Reader:
    """``form`` names the format in errors. Ask for every array, then call ``done``."""

    def __init__(self, form: str, arrays: Mapping[str, Array]) -> None:
        self.form = form
        self._arrays = dict(arrays)
        self._asked: dict[str, Array] = {}

    def has(self, name: str) -> bool:
        return name in self._arrays

    def array(self, name: str, *shape: int | None) -> Array:
        """The array of that name; None stands for an axis of any size."""
        if name not in self._arrays:
            raise Violation(
                CLAUSE, f"no {name!r}, but {_names(self._arrays)}", f"{self.form}: {name!r} of shape {_shape(shape)}",
                "give the arrays of one layer under the names of the format; `under` takes a prefix off",
            )  # fmt: skip
        x = self._arrays[name]
        if (
            not is_array(x)
            or len(x.shape) != len(shape)
            or any(b not in (None, a) for a, b in zip(x.shape, shape, strict=True))
        ):
            raise Violation(
                CLAUSE, f"{name!r}: {describe(x)}", f"{self.form}: shape {_shape(shape)}",
                "check the format and the numbers of heads: nothing is cut, padded or transposed to fit",
            )  # fmt: skip
        self._asked[name] = x
        return x

    def bias(self, name: str, *shape: int | None) -> Array | None:
        """The array of that name, or None where the layer has no such bias."""
        return self.array(name, *shape) if self.has(name) else None

    def done(self) -> None:
        """Refuses what was not asked for, and arrays of several libraries or dtypes (MHA-VAL-1, MHA-VAL-2)."""
        if unknown := [name for name in self._arrays if name not in self._asked]:
            raise Violation(
                CLAUSE, f"{_names(unknown)} beside {_names(self._asked)}", f"{self.form}, which has no place for it",
                "leave it out yourself if the layer computes the same without it, or take another format",
            )  # fmt: skip
        check_library(self._asked)
        check_float(**self._asked)


def under(arrays: Mapping[str, Array], prefix: str, leave_out: Iterable[str] = ()) -> dict[str, Array]:
    """The arrays whose names begin with ``prefix``, without it, and without those that ``leave_out`` names in full.

    A prefix that nothing begins with, and a name to leave out that is not there, are refused (MHA-PROJ-19).
    """
    found = {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}
    if not found:
        raise Violation(CLAUSE, f"no name that begins with {prefix!r}, but {_names(arrays)}", "the prefix of one layer",
                        "write the prefix with its last dot, as in 'encoder.layer.0.attention.'")  # fmt: skip
    for name in leave_out:
        if name not in found:
            raise Violation(CLAUSE, f"{name!r} to leave out of {_names(found)}", "a name that is there",
                            "write it in full, without the prefix")  # fmt: skip
        del found[name]
    return found


def head_counts(form: str, heads: int, kv_heads: int) -> tuple[int, int]:
    """h and h_kv, positive integers of which the second divides the first."""
    for name, x in (("heads", heads), ("kv_heads", kv_heads)):
        if isinstance(x, bool) or not isinstance(x, Integral) or x < 1:
            cannot(form, f"{name}={shown(x)}", "a positive integer", "say how many heads the layer was built with")
    if heads % kv_heads:
        cannot(form, f"heads={heads} and kv_heads={kv_heads}", "heads a multiple of kv_heads",
               "say how many heads the layer was built with")  # fmt: skip
    return int(heads), int(kv_heads)


def share(form: str, name: str, width: int, heads: int) -> int:
    """The width of one head; a width that the heads do not divide is refused."""
    if width % heads:
        cannot(form, f"{name!r} with {width} channels for {heads} heads", "a width that the heads divide",
               "say how many heads the layer was built with")  # fmt: skip
    return width // heads


def cannot(form: str, given: str, expected: str, do: str) -> NoReturn:
    raise Violation(CLAUSE, given, f"{form}: {expected}", do)


def holds(
    form: str,
    projections: Projections,
    *,
    grouped: bool = True,
    one_input: bool = False,
    one_memory: bool = False,
    one_width: bool = False,
) -> None:
    """Refuses a layer that a format has no place for.

    ``grouped=False``: one key head per query head. ``one_input``: query, key and value of one width; ``one_memory``: key and
    value of one. ``one_width``: d_k = d_v.

    Raises ``Violation`` (MHA-PROJ-2 where the arrays do not fit together, MHA-PROJ-19 where the format cannot hold them).
    """
    check_projections(projections)
    (h, d_model, d_k), (h_kv, d_in_k, _) = projections.w_q.shape, projections.w_k.shape
    d_in_v, d_v = projections.w_v.shape[1:]
    do = "choose a format that can hold it, such as 'projections'"
    if not grouped and h != h_kv:
        cannot(form, f"{h} query heads and {h_kv} key heads", "one key head for each query head", do)
    if one_input and not d_model == d_in_k == d_in_v:
        cannot(form, f"inputs of {d_model}, {d_in_k} and {d_in_v} channels", "one width for query, key and value", do)
    if one_memory and d_in_k != d_in_v:
        cannot(form, f"keys of {d_in_k} and values of {d_in_v} channels", "one width for both", do)
    if one_width and d_k != d_v:
        cannot(form, f"d_k = {d_k} and d_v = {d_v}", "one width for all heads", do)


def all_or_none(form: str, projections: Projections, names: Iterable[str]) -> bool:
    """Whether the layer has these biases; a format that keeps them together refuses some without the others."""
    names = tuple(names)
    there = [name for name in names if getattr(projections, name) is not None]
    if there and len(there) != len(names):
        cannot(form, f"biases {_names(there)} alone", f"all of {_names(names)}, or none", "give the others as zeros")
    return bool(there)


def transposed(w: Array) -> Array:
    """(a, b) -> (b, a), a view: a linear layer of torch holds (out, in)."""
    return array_api_compat.array_namespace(w).matrix_transpose(w)


def _names(names: Iterable[str]) -> str:
    listed = [repr(name) for name in names]
    return ", ".join(listed[:12]) + (f" and {len(listed) - 12} more" if len(listed) > 12 else "") or "nothing"


def _shape(shape: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ("," if len(shape) == 1 else "") + ")"
