"""Every mention of a clause, in prose, in docstrings, in code and in what a command printed, leads to the clause.

A mention of a clause that does not exist is a warning, and so fails the build.
"""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.builders import Builder
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

from mha_spec.clauses import load

_ID = re.compile(r"MHA-[A-Z]+-\d+")
_NO_LINK = (nodes.reference, nodes.title, nodes.rubric, nodes.literal_block, nodes.comment, nodes.raw)
_PAGES = {clause.id: f"spec/{Path(clause.file).stem}" for clause in load().clauses}
_log = logging.getLogger(__name__)


def uri(builder: Builder, docname: str, clause: str) -> str:
    return f"{builder.get_relative_uri(docname, _PAGES[clause])}#{clause}"


class ClauseLinks(SphinxPostTransform):
    default_priority = 900

    def run(self, **kwargs: Any) -> None:
        for text in list(self.document.findall(nodes.Text)):
            if _ID.search(text) and not _inside(text):
                text.parent.replace(text, self._linked(text))

    def _linked(self, text: nodes.Text) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        at = 0
        for match in _ID.finditer(text):
            if match[0] not in _PAGES:
                _log.warning("no clause %s", match[0], location=text.parent)
                continue
            found.append(nodes.Text(text[at : match.start()]))
            target = uri(self.env._app.builder, self.env.docname, match[0])
            found.append(nodes.reference(match[0], match[0], refuri=target, internal=True, classes=["clause-link"]))
            at = match.end()
        return [*found, nodes.Text(text[at:])]


def _inside(node: nodes.Node) -> bool:
    while (node := node.parent) is not None:
        if isinstance(node, _NO_LINK):
            return True
    return False


def visit_literal_block(self: HTML5Translator, node: nodes.literal_block) -> None:
    """As Sphinx does it, then the ids in the finished HTML, since highlighting takes plain text."""
    try:
        HTML5Translator.visit_literal_block(self, node)
    except nodes.SkipNode:
        self.body[-1] = _ID.sub(lambda match: _anchor(self, match[0]), self.body[-1])
        raise


def depart_literal_block(self: HTML5Translator, node: nodes.literal_block) -> None:
    HTML5Translator.depart_literal_block(self, node)


def _anchor(translator: HTML5Translator, clause: str) -> str:
    if clause not in _PAGES:
        return clause
    return f'<a class="clause-link" href="{uri(translator.builder, translator.builder.current_docname, clause)}">{clause}</a>'


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_post_transform(ClauseLinks)
    app.add_node(nodes.literal_block, override=True, html=(visit_literal_block, depart_literal_block))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
