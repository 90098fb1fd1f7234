"""Docstrings as they are written, plain English with names in backticks, made safe for Sphinx's markup.

A shape such as ``(*b h n d_k)`` is no emphasis and ``d_`` no reference: what is markup by accident is escaped. Names in single or
double backticks become code, roles such as ``:math:`` stay, lines that stand further in become a block, and a directive stays
a directive.
"""

import ast
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]

_CODE = re.compile(r":[a-z]+:`[^`]+`|```[^`\n]*|``.+?``|`[^`\n]+`", re.DOTALL)
_MARKUP = re.compile(r"([\\*|`]|_(?=\W|$))")


def as_rst(lines: list[str]) -> list[str]:
    """The lines of one docstring, dedented, as lines of reStructuredText."""
    result: list[str] = []
    prose: list[str] = []
    at = 0

    def flush() -> None:
        result.extend(_escaped("\n".join(prose)).split("\n"))
        prose.clear()

    while at < len(lines):
        line = lines[at]
        if line.startswith(("    ", ".. ")):
            flush()
            end = at + 1
            while end < len(lines) and (lines[end].startswith("   ") or not lines[end].strip()):
                end += 1
            block = lines[at:end]
            if line.startswith(".. "):
                result.extend([block[0], *_escaped("\n".join(block[1:])).split("\n"), ""])
            else:
                result.extend(["", "::", "", *block, ""])
            at = end
            continue
        if line.startswith("- ") and prose and prose[-1].strip() and not prose[-1].startswith(("- ", "  ")):
            prose.append("")
        prose.append(line)
        at += 1
    flush()
    return result


def _escaped(text: str) -> str:
    parts = []
    at = 0
    for match in _CODE.finditer(text):
        parts.append(_MARKUP.sub(r"\\\1", text[at : match.start()]))
        parts.append(_code(match[0]))
        at = match.end()
    return "".join([*parts, _MARKUP.sub(r"\\\1", text[at:])])


def _code(quoted: str) -> str:
    if quoted.startswith(":"):  # a role, such as :math:
        return f"{quoted}\\ "
    if quoted.startswith("```"):
        return f"``{quoted[3:]}``" if quoted[3:].strip() else r"\`\`\`"
    inner = re.sub(r"\s+", " ", quoted.strip("`"))
    return f"``{inner}``\\ "


def docstring(file: Path) -> str:
    """That of a module, read without importing it: the library it needs may not be there."""
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


class Docstring(SphinxDirective):
    """``{docstring} spec/campaigns/soundness.py``: what a program of the repository says it does."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        file = ROOT / self.arguments[0]
        if not file.is_file() or not docstring(file):
            raise self.error(f"no docstring in {self.arguments[0]}")
        self.env.note_dependency(str(file))
        return parsed(self, docstring(file))


def parsed(directive: SphinxDirective, text: str) -> list[nodes.Node]:
    """A docstring as nodes, whatever the page around it is written in."""
    return directive.parse_text_to_nodes("\n".join(["```{eval-rst}", *as_rst(text.splitlines()), "```"]))


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """What Python itself writes for the field of a named tuple says nothing."""
    lines[:] = [] if lines and lines[0].startswith("Alias for field number") else as_rst(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("docstring", Docstring)
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
