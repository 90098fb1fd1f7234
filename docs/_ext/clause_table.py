"""``{clauses}``: every clause in one table, each row with the anchor that never changes, even if a clause changes its chapter."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from mha_spec.clauses import load


class ClauseTable(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        rows = []
        for clause in load().clauses:
            inline, _ = self.state.inline_text(clause.sentence, self.lineno)
            level = clause.level if clause.strictness is None else f"{clause.level}, class {clause.strictness}"
            rows.append(([nodes.Text(clause.id)], [nodes.Text(level)], inline, clause.id))
        whole = table(("clause", "level", "what it says"), rows)
        whole["classes"].append("all-clauses")
        return [whole]


def table(heads: tuple[str, ...], rows: list[Any]) -> nodes.table:
    """Rows of cells, each a list of inline nodes; a string at the end of a row is its anchor."""
    group = nodes.tgroup(cols=len(heads))
    group += [nodes.colspec(colwidth=1) for _ in heads]
    group += nodes.thead("", _row([[nodes.Text(head)] for head in heads]))
    body = nodes.tbody()
    for cells in rows:
        anchor = [cells[-1]] if isinstance(cells[-1], str) else []
        row = _row(cells[: len(heads)])
        row["ids"] = anchor
        body += row
    group += body
    return nodes.table("", group, classes=["colwidths-auto"])


def _row(cells: Any) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("clauses", ClauseTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
