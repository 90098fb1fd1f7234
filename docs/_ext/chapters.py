"""The chapters as pages: each clause a block with its permanent anchor, its equation, and its examples with who agrees.

The text itself stands in ``mha_spec/text`` and is rendered as it is; ``docs/spec/3-equations.md`` includes that file and says
nothing. The anchor of a clause is its id, upper case, and never changes.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equations
import ran
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform

from mha_spec.clauses import TEXT, Clause, Example, load

_LEVEL = re.compile(r"^ \((?:[A-Z]+)(?:, class [A-Za-z-]+)?\) ?")
_LABELS = {"Why:": "why", "Needs:": "needs"}


def chapter_clauses(docname: str) -> tuple[Clause, ...]:
    """The clauses of the chapter that a page shows, in order; none for other pages."""
    file = f"{docname.removeprefix('spec/')}.md"
    return tuple(c for c in load().clauses if docname.startswith("spec/") and Path(c.file).name == file)


class Chapter(SphinxTransform):
    """Gathers what belongs to a clause, from its opening to the next clause or heading."""

    default_priority = 210

    def apply(self, **kwargs: Any) -> None:
        expected = chapter_clauses(self.env.docname)
        if not expected:
            return
        found: list[nodes.container] = []
        for section in list(self.document.findall(nodes.section)):
            depth = len(list(_ancestors(section, nodes.section))) + 1
            found += _gather(section, depth, {c.id: c for c in expected})
        self.env.note_reread()  # the examples may run otherwise next time, though the text is the same
        shown, wanted = [block["ids"][0] for block in found], [c.id for c in expected]
        if shown != wanted:
            raise ExtensionError(f"{self.env.docname}: the page shows {shown}, its chapter has {wanted}")
        for block, clause in zip(found, expected, strict=True):
            _finish(block, clause)


def _ancestors(node: nodes.Node, kind: type[nodes.Element]) -> Iterator[nodes.Node]:
    while (node := node.parent) is not None:
        if isinstance(node, kind):
            yield node


def _gather(section: nodes.section, depth: int, known: dict[str, Clause]) -> list[nodes.container]:
    found: list[nodes.container] = []
    children: list[nodes.Node] = []
    block: nodes.container | None = None
    for child in section.children:
        clause = _opened(child, known)
        if clause is not None:
            block = nodes.container(classes=["clause", f"level-{clause.level.lower()}"], ids=[clause.id])
            block += _name(clause, depth)
            found.append(block)
            children.append(block)
        elif isinstance(child, nodes.section):
            block = None
        if block is None:
            children.append(child)
        else:
            block += child
    section.children = []
    section.extend(children)
    return found


def _opened(node: nodes.Node, known: dict[str, Clause]) -> Clause | None:
    """The clause that this paragraph opens. Its name and level are taken off; ``_name`` puts them above it."""
    if not isinstance(node, nodes.paragraph):
        return None
    parts = [child for child in node.children if child.astext()]  # the parser puts an empty text first
    if len(parts) < 2 or not isinstance(parts[0], nodes.strong) or not _LEVEL.match(parts[1].astext()):
        return None
    clause = known.get(parts[0].astext())
    if clause is not None:
        node.children = []
        node.extend([nodes.Text(_LEVEL.sub("", parts[1].astext())), *parts[2:]])
    return clause


def _name(clause: Clause, depth: int) -> nodes.rubric:
    """``MHA-MASK-2  MUST``, a heading that is a link to itself."""
    level = clause.level if clause.strictness is None else f"{clause.level}, class {clause.strictness}"
    name = nodes.rubric(classes=["clause-name"])
    name["heading-level"] = depth + 1
    name += nodes.reference(
        clause.id, clause.id, refuri=f"#{clause.id}", internal=True, reftitle="a permanent link to this clause"
    )
    name += nodes.Text(" ")
    name += nodes.inline(level, level, classes=["level"])
    return name


def _finish(block: nodes.container, clause: Clause) -> None:
    for paragraph in [child for child in block.children if isinstance(child, nodes.paragraph)]:
        paragraph.replace_self(_parted(paragraph))
    shown, elsewhere = equations.of(clause.id)
    fences = [node for node in block.children if isinstance(node, nodes.literal_block)]
    at = block.index(fences[0]) if fences else len(block)
    block.insert(at, [_source(e) for e in shown] + ([_also(elsewhere)] if elsewhere else []))
    examples = list(clause.examples)
    for fence in fences:
        if examples and fence.astext().rstrip() == examples[0].code.rstrip():
            fence.replace_self(_example(fence, examples.pop(0)))
    if examples:
        raise ExtensionError(f"{examples[0].file}:{examples[0].line}: an example of {clause.id} is not on its page")


def _parted(paragraph: nodes.paragraph) -> list[nodes.paragraph]:
    """The text, the reason and the needs of a clause are lines of one paragraph: each gets its own."""
    parts = [nodes.paragraph()]
    for child in paragraph.children:
        label = _LABELS.get(child.astext()) if isinstance(child, nodes.emphasis) else None
        if label:
            parts.append(nodes.paragraph(classes=[f"clause-{label}"]))
        parts[-1] += child
    return [part for part in parts if part.astext().strip()]


def _source(equation: equations.Equation) -> nodes.container:
    code = nodes.literal_block(equation.source, equation.source, language="python")
    return nodes.container("", _sentence("Computed by ", [equation], ":"), code, classes=["equation"])


def _also(found: tuple[equations.Equation, ...]) -> nodes.paragraph:
    return _sentence("Served by ", list(found), f" (shown at {', '.join(e.clauses[0] for e in found)}).")


def _sentence(before: str, found: list[equations.Equation], after: str) -> nodes.paragraph:
    paragraph = nodes.paragraph(classes=["computed-by"])
    paragraph += nodes.Text(before)
    for at, equation in enumerate(found):
        paragraph += nodes.Text(", " if at else "")
        paragraph += _function(equation.name)
    paragraph += nodes.Text(after)
    return paragraph


def _function(name: str) -> addnodes.pending_xref:
    target = f"mha_spec.equations.{name}"
    literal = nodes.literal(name, name, classes=["xref", "py", "py-func"])
    return addnodes.pending_xref(
        "", literal, refdomain="py", reftype="func", reftarget=target, refexplicit=True, refwarn=True,
    )  # fmt: skip


def _example(fence: nodes.literal_block, example: Example) -> nodes.container:
    result = ran.all_examples()[example.clause, example.line]
    said = nodes.paragraph(classes=["ran-on"])
    for words, names in (
        ("Holds on ", result.agree),
        (" Not claimed by ", result.unclaimed),
        (" Not run on ", tuple(ran.not_run())),
    ):
        if names:
            said += nodes.Text(words)
            said += [part for name in names for part in (_backend(name), nodes.Text(", "))][:-1]
            said += nodes.Text(".")
    return nodes.container("", fence.deepcopy(), said, classes=["example"])


def _backend(name: str) -> addnodes.pending_xref:
    return addnodes.pending_xref(
        "", nodes.inline(name, name), refdomain="std", reftype="doc", reftarget=f"/backends/{name}", refexplicit=True, refwarn=True,
    )  # fmt: skip


def _every_chapter_has_a_page(app: Sphinx) -> None:
    pages = {path.stem for path in (Path(app.srcdir) / "spec").glob("[0-9]-*.md")}
    if missing := {path.stem for path in TEXT.glob("*.md")} ^ pages:
        raise ExtensionError(f"chapters and pages of docs/spec differ: {', '.join(sorted(missing))}")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(Chapter)
    app.connect("builder-inited", _every_chapter_has_a_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
