"""One part, in a process of its own: ``python -m mha_conformance.gpu.child PART FILE``. Each row is written as soon as it is found."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from mha_conformance.gpu.rows import Row


def write(rows: Iterator[Row], file: Path) -> None:
    """One row a line, so that a crash keeps what was found before."""
    with file.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(asdict(row)) + "\n")
            out.flush()


def read(file: Path) -> list[Row]:
    """What was written; a last line that was cut off is none."""
    if not file.exists():
        return []
    return [
        Row(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")
    ]


if __name__ == "__main__":
    from mha_conformance.gpu.parts import named

    write(named(sys.argv[1]).run(), Path(sys.argv[2]))
