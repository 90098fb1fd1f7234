"""Formulas as MathML, made while the site is built: no script, no font, no network, and a screen reader can read them."""

import re
from html import escape
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

_BAR = "<mo>&#x0007C;</mo>"
_UPRIGHT = re.compile(r'<mrow>((?:<mi mathvariant="normal">\w</mi>){2,})</mrow>')
_FUNCTION = re.compile(r"(<mi>(?:exp|log|tanh)</mi>)(?!<mo)")


def mathml(latex: str, display: str) -> str:
    """LaTeX -> a MathML element that keeps its source as ``alttext``.

    The converter leaves three things to be said: which side of a pair a bar is, that the letters of a name are one word, and the
    space between a function and what it is taken of.
    """
    found = convert(latex, display=display)
    for side in re.findall(r"(?<!\\left)(?<!\\right)\\([lr])vert\b", latex):
        form = "prefix" if side == "l" else "postfix"
        found = found.replace(_BAR, f'<mo stretchy="false" fence="true" form="{form}">|</mo>', 1)
    found = _UPRIGHT.sub(lambda name: f"<mi>{re.sub('<[^>]*>', '', name[1])}</mi>", found)
    found = _FUNCTION.sub(r'\1<mspace width="0.17em"/>', found)
    return found.replace("<math ", f'<math alttext="{escape(latex.strip())}" ', 1)


def visit_inline(self: Any, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="formula">{mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
