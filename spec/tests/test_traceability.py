"""One clause, one name, everywhere: the text is complete, and what cites it cites what is there."""

import ast
import inspect
import re
import shutil
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from mha_backends.reference import attention
from mha_spec.clauses import TEXT, load, read

ROOT = Path(__file__).parents[2]
ROOMS = ("spec", "mha_core", "backends", "conformance")
ID = re.compile(r"\bMHA-[A-Z]+-[1-9]\d*\b")  # number 0 belongs to no clause, so a test may cite it as unknown
CLAUSES = load().clauses
IDS = [clause.id for clause in CLAUSES]


def _files(*suffixes: str) -> list[Path]:
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml")]
    for room in ROOMS:
        found += [path for path in sorted((ROOT / room).rglob("*")) if path.suffix in suffixes]
    return found


def test_every_must_has_an_example():
    assert CLAUSES, "no clause was read"
    bare = [clause.id for clause in CLAUSES if clause.level == "MUST" and not clause.examples]
    assert not bare


def test_every_clause_has_a_sentence_and_says_what_it_needs():
    """`*Needs:* none` is written out, so that an empty list is a decision and not a typing error."""
    for clause in CLAUSES:
        assert re.fullmatch(r"[A-Z`$].*[.!?]", clause.sentence, re.DOTALL), f"{clause.id}: {clause.sentence!r}"
    bound = [clause for clause in CLAUSES if clause.level == "MUST"]
    openings = "\n".join(file.read_text(encoding="utf-8") for file in sorted(TEXT.glob("*.md")))
    assert len(re.findall(r"^\*Needs:\* (?:none|MHA-)", openings, re.MULTILINE)) >= len(bound)


def test_ids_are_unique():
    assert sorted(IDS) == sorted(set(IDS))


def test_needs_exist():
    unknown = {f"{clause.id} needs {need}" for clause in CLAUSES for need in clause.needs if need not in IDS}
    assert not unknown


def test_needs_have_no_cycle():
    graph = {clause.id: set(clause.needs) for clause in CLAUSES}
    assert len(tuple(TopologicalSorter(graph).static_order())) >= len(IDS)


def _fences() -> list[tuple[str, str]]:
    """Place and info string of every fence of the text that looks like Python, counted here by lines alone."""
    return [
        (f"{file.name}:{number}", opened[2].strip())
        for file in sorted(TEXT.glob("*.md"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if (opened := re.match(r"\s*(`{3,}|~{3,})(\s*(?:py|\{|.*\bexample\b).*)", line, re.IGNORECASE))
    ]


def test_every_python_fence_of_the_text_is_an_example_that_is_collected():
    """A misspelt info string would otherwise be an example that never runs. Only the signature of chapter 2 is none."""
    collected = [f"{Path(example.file).name}:{example.line - 1}" for example in load().examples]
    others = [(place, info) for place, info in _fences() if place not in collected]
    assert [(place.partition(":")[0], info) for place, info in others] == [("2-contract.md", "python")]
    assert len(_fences()) == len(collected) + 1


def test_the_signature_in_the_text_is_that_of_attention():
    fence = re.search(r"^```python\n(.*?)^```", (TEXT / "2-contract.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    printed = ast.parse(f"def {fence[1].strip()}: pass").body[0].args
    written = [
        *(a.arg for a in printed.args),
        *(f"{a.arg}={ast.unparse(d)}" for a, d in zip(printed.kwonlyargs, printed.kw_defaults, strict=True)),
    ]
    parameters = inspect.signature(attention).parameters.values()
    assert written == [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]


def test_every_clause_opening_of_the_text_is_collected():
    """A clause with a misspelt level would otherwise be prose."""
    opened = [
        match[1]
        for file in sorted(TEXT.glob("*.md"))
        for match in re.finditer(r"^\W*(MHA-[A-Z]+-\d+)\W*\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert sorted(opened) == sorted(IDS)


def test_ids_cited_anywhere_exist():
    strangers = {
        f"{path.relative_to(ROOT)}: {cited}"
        for path in _files(".py", ".md", ".cu", ".cuh", ".toml")
        for cited in ID.findall(path.read_text(encoding="utf-8"))
        if cited not in IDS
    }
    assert not strangers


def test_the_snapshot_is_current():
    """A diff of this file is a change of the specification, so it is made on purpose."""
    committed = (ROOT / "spec" / "clauses.txt").read_text(encoding="utf-8")
    assert committed == load().snapshot(), "run: python -m mha_spec.clauses > spec/clauses.txt"


def test_an_example_outside_its_clause_is_an_error(tmp_path):
    chapter = tmp_path / "9-wrong.md"
    shutil.copy(TEXT / "2-contract.md", chapter)
    with chapter.open("a", encoding="utf-8") as file:
        file.write("\n# Elsewhere\n\n```python example " + IDS[0] + "\npass\n```\n")
    with pytest.raises(ValueError, match="stands outside"):
        read(chapter)


def test_a_fence_that_is_never_closed_is_an_error(tmp_path):
    chapter = tmp_path / "9-open.md"
    chapter.write_text("# Open\n\n```python\n1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"9-open\.md:3: a fence that is never closed"):
        read(chapter)
