"""A page whose name ends in ``.zh-CN`` says so to browsers and screen readers, which choose glyphs and a voice by it.

Its lines are joined as Chinese is written: the end of a line of the source is no space between two characters.
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
        if not self.env.docname.endswith(CHINESE):
            return
        for paragraph in list(self.document.findall(nodes.paragraph)):
            texts = list(paragraph.findall(nodes.Text))
            for at, text in enumerate(texts):
                following = texts[at + 1] if at + 1 < len(texts) else ""
                joined = _BREAK.sub("", f"{texts[at - 1][-1:] if at else ''}{text}{following[:1]}" if text == "\n" else text)
                if text == "\n":
                    joined = "" if "\n" not in joined else "\n"
                text.parent.replace(text, nodes.Text(joined))


def _language(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    if pagename.endswith(CHINESE):
        context["language"] = "zh-CN"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(JoinedLines)
    app.connect("html-page-context", _language)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
