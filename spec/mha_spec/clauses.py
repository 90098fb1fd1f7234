"""Reads the specification out of its text: clauses, what each builds on, and the examples that run.

A clause is a paragraph that opens with ``**MHA-MASK-2** (MUST)``; it ends at the next clause or heading. Its reason follows
``*Why:*``, its foundations ``*Needs:*``, its examples are fences that open with "```python example MHA-MASK-2".

``python -m mha_spec.clauses`` prints the snapshot that is committed as ``spec/clauses.txt``.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mha_spec.plain import plain

LEVELS = ("MUST", "SHOULD", "MAY", "SUITE", "INFO", "WITHDRAWN")
TEXT = Path(__file__).parent / "text"

_OPENING = re.compile(rf"\*\*(MHA-[A-Z]+-\d+)\*\* \(({'|'.join(LEVELS)})(?:, class ([A-Za-z-]+))?\) ?(.*)")
_FENCE = re.compile(r"```python example (MHA-[A-Z]+-\d+)\s*")
_ID = re.compile(r"MHA-[A-Z]+-\d+")
_LABEL = re.compile(r"\*(Why|Needs):\*\s?(.*)")
_SENTENCE = re.compile(r"(.+?[.!?])(?=\s+[A-Z`*$(]|\s*$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """A fence of the text. ``line`` is the line of ``file`` on which ``code`` begins."""

    clause: str
    code: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Clause:
    """One numbered rule. ``sentence`` is its first sentence, which reports quote; ``needs`` are the ids it builds on."""

    id: str
    level: str
    strictness: str | None
    sentence: str
    text: str
    why: str
    needs: tuple[str, ...]
    chapter: str
    file: str
    line: int
    examples: tuple[Example, ...]

    @property
    def area(self) -> str:
        return self.id.split("-")[1]

    @property
    def plain(self) -> str:
        """The sentence for a terminal: its formulas in letters and signs, its code without marks."""
        return plain(self.sentence)


@dataclass(frozen=True, slots=True)
class Clauses:
    """All clauses in the order of the text."""

    clauses: tuple[Clause, ...]

    @property
    def examples(self) -> tuple[Example, ...]:
        return tuple(example for clause in self.clauses for example in clause.examples)

    def __getitem__(self, clause_id: str) -> Clause:
        for clause in self.clauses:
            if clause.id == clause_id:
                return clause
        raise KeyError(f"no clause {clause_id}; `mha clauses` lists them")

    def snapshot(self) -> str:
        """One line per clause: id, level, and class where it has one. A diff of it is a change of the specification."""
        return "".join(f"{c.id} {c.level}{f' {c.strictness}' if c.strictness else ''}\n" for c in self.clauses)


@lru_cache(maxsize=1)
def load() -> Clauses:
    """The clauses of the installed text."""
    return Clauses(tuple(clause for file in sorted(TEXT.glob("*.md")) for clause in read(file)))


def read(file: Path) -> list[Clause]:
    """The clauses of one chapter. Raises ``ValueError`` with file and line for an example outside its clause or an open fence."""
    lines = file.read_text(encoding="utf-8").splitlines()
    chapter = next((line.lstrip("# ") for line in lines if line.startswith("# ")), file.stem)
    found: list[Clause] = []
    block: list[str] = []
    examples: list[Example] = []
    opened: tuple[int, re.Match[str]] | None = None

    def close() -> None:
        if opened is not None:
            found.append(_clause(opened[1], block, examples, chapter, file, opened[0]))

    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("```"):
            end = next((i for i in range(at + 1, len(lines)) if lines[i].startswith("```")), None)
            if end is None:
                raise ValueError(f"{file}:{at + 1}: a fence that is never closed")
            if fence := _FENCE.fullmatch(line):
                if opened is None or fence[1] != opened[1][1]:
                    raise ValueError(f"{file}:{at + 1}: an example of {fence[1]} stands outside that clause")
                examples.append(Example(fence[1], "\n".join(lines[at + 1 : end]) + "\n", str(file), at + 2))
            at = end + 1
            continue
        opening = _OPENING.fullmatch(line)
        if opening or line.startswith("#"):
            close()
            opened, block, examples = ((at + 1, opening) if opening else None), [], []
        elif opened is not None:
            block.append(line)
        at += 1
    close()
    return found


def _clause(opening: re.Match[str], block: list[str], examples: list[Example], chapter: str, file: Path, line: int) -> Clause:
    parts: dict[str, list[str]] = {"text": [opening[4]], "Why": [], "Needs": []}
    current = "text"
    for row in block:
        if label := _LABEL.fullmatch(row):
            current = label[1]
            parts[current].append(label[2])
        else:
            parts[current].append(row)
    text, why, needs = ("\n".join(parts[name]).strip() for name in ("text", "Why", "Needs"))
    first = _SENTENCE.match(" ".join(text.split()))
    return Clause(
        id=opening[1], level=opening[2], strictness=opening[3], sentence=first[1] if first else text, text=text, why=why,
        needs=tuple(_ID.findall(needs)), chapter=chapter, file=str(file), line=line, examples=tuple(examples),
    )  # fmt: skip


if __name__ == "__main__":
    print(load().snapshot(), end="")
