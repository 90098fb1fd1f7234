"""What must be true of the finished pages: each clause has its anchor, twice, and no page needs a network."""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from mha_spec.clauses import load

_LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*\bhref=\"(?:https?:)?//")


def faults(folder: Path) -> list[str]:
    """What is wrong with the pages of a folder, in words."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(folder.rglob("*.html"))}
    found = [
        f"{page.name} has no anchor {clause.id}"
        for clause in load().clauses
        for page in (folder / "spec" / f"{Path(clause.file).stem}.html", folder / "spec" / "clauses.html")
        if f'id="{clause.id}"' not in pages.get(page, "")
    ]
    for page, text in pages.items():
        if loaded := _LOADED.search(text):
            found.append(f"{page.name} loads from the network: {loaded[0]}")
    return found


def _check(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.name == "html" and (found := faults(Path(app.outdir))):
        raise ExtensionError("; ".join(found))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
