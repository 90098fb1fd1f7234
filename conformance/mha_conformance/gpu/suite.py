"""The suite at level core on the device: ``mha conform cupy``, its report beside the result."""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mha_conformance.gpu.rows import Row
from mha_conformance.judge.verdict import FAILING

KERNELS = ("", "cutile")
ROWS = ("mha conform cupy, level core", "cases that pass", "cases that fail", "cases not run")
WORKERS = 4


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        start = "import sys; from mha_conformance.cli.entry import main; sys.exit(main())"
        command = [sys.executable, "-c", start, "conform", "cupy", "--level", "core", "-n", str(WORKERS), "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
        if not file.exists():
            yield Row(ROWS[0], "CRASHED", why=(done.stderr or done.stdout).strip()[-300:])
            return
        yield from told(json.loads(file.read_text(encoding="utf-8")), done.returncode)


def told(report: dict[str, object], code: int) -> Iterator[Row]:
    """The verdict of a report in rows. A case that was not run is no case that passed."""
    cases = report["cases"]
    assert isinstance(cases, list)
    statuses = Counter(case["status"] for case in cases)
    failing = sum(statuses[status] for status in FAILING)
    yield Row(ROWS[0], "HOLDS" if code == 0 else "FAILS", why=str(report["verdict"]))
    yield Row(ROWS[1], "MEASURED", statuses["PASS"], "cases")
    yield Row(ROWS[2], "FAILS" if failing else "HOLDS", failing, "cases")
    yield Row(ROWS[3], "MEASURED", statuses["NOT_RUN"], "cases")
