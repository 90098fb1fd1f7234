"""What a page says of itself to browsers and screen readers.

A page whose name ends in ``.zh-CN`` names its language, by which glyphs and a voice are chosen; its lines are joined as Chinese is
written, where the end of a line of the source is no space between two characters. The captions of the navigation are headings
and have a level.
"""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

CHINESE = ".zh-CN"
_WIDE = r"[\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef]"
_BREAK = re.compile(rf"(?<={_WIDE})\n|\n(?={_WIDE})")


class JoinedLines(SphinxTransform):
    default_priority = 300

    def apply(self, **kwargs: Any) -> None:
        if self.env.docname.endswith(CHINESE):
            for text in list(self.document.findall(lambda node: isinstance(node, nodes.Text) and "\n" in node)):
                if not isinstance(text.parent, nodes.literal_block):
                    text.parent.replace(text, nodes.Text(_joined(text)))


def _joined(text: nodes.Text) -> str:
    """A line may end where a name in backticks or a formula begins: then its neighbour there is the end of that."""
    siblings, at = text.parent.children, text.parent.index(text)
    left = siblings[at - 1].astext()[-1:] if at else ""
    right = siblings[at + 1].astext()[:1] if at + 1 < len(siblings) else ""
    joined = _BREAK.sub("", f"{left}{text}{right}")
    return joined[len(left) : len(joined) - len(right)]


def _context(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    if pagename.endswith(CHINESE):
        context["language"] = "zh-CN"
    if "furo_navigation_tree" in context:
        context["furo_navigation_tree"] = context["furo_navigation_tree"].replace(
            'role="heading"', 'role="heading" aria-level="2"'
        )


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(JoinedLines)
    app.connect("html-page-context", _context, priority=900)  # after the theme
    return {"parallel_read_safe": True, "parallel_write_safe": True}
