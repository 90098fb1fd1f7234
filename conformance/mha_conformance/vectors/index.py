"""``index.txt``: the calls of a directory as lines of words, for languages that have no JSON at hand."""

from collections.abc import Iterable
from typing import Any


def text(head: dict[str, Any], entries: Iterable[dict[str, Any]]) -> str:
    """A line that says what this is, then one line a call, in the order in which they are to be made."""
    title = "# {kind}, format {format}, specification {spec_version}, profile {profile}, level {level}".format_map(head)
    return "".join(f"{words}\n" for words in (title, *(line(call) for entry in entries for call in entry["calls"])))


def line(call: dict[str, Any]) -> str:
    """The folder, the target, then ``name=dtype:shape`` for a file, ``name=value`` for an option, ``want=name:shape`` for an output."""
    words = [call["folder"], call["target"]]
    words += [f"{name}={one['dtype']}:{_shape(one)}" for name, one in call["inputs"].items()]
    words += [f"{name}={_word(value)}" for name, value in call["options"].items()]
    return " ".join([*words, *(f"want={name}:{_shape(one)}" for name, one in call["outputs"].items())])


def _shape(array: dict[str, Any]) -> str:
    return ",".join(map(str, array["shape"]))


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return str(value["hex"])
    if isinstance(value, list):
        return ",".join("none" if side is None else str(side) for side in value)
    return str(int(value))
