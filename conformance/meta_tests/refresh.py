"""Writes what the meta-tests found into ``results``, with a hash of the code that it speaks of.

    python conformance/meta_tests/refresh.py kill-table     every saboteur at level core
    python conformance/meta_tests/refresh.py zoo            every honest kernel at level full
    python conformance/meta_tests/refresh.py mutation       300 faults in the bounds and the judge (extra ``mutation``)

Each writes one JSON file and one of Markdown, and ends with 1 where the result is not as it should be. The first two use all
cores. The last takes the better part of an hour on one, goes on where it was stopped, and runs again only what lived, and
what is in modules that have changed; ``--anew`` runs all of it.
``test_recorded.py`` holds the committed files to the code.
"""

import argparse
import datetime
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import kill_table
from honest import failures, judged
from mutation import table
from mutation.mutants import MODULES
from zoo.kernels import ZOO
from zoo.ratios import DTYPES, worst

from mha_conformance.cases import catalogue
from mha_spec.clauses import load

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
JUDGING = (
    "spec/mha_spec/*.py", "mha_core/*.py", "backends/mha_backends/reference.py", "conformance/cases.txt",
    "conformance/mha_conformance/judge/*.py", "conformance/meta_tests/honest.py",
    *(f"conformance/mha_conformance/run/{name}.py" for name in ("perform", "arrays", "guards", "held", "kept", "prepared", "facts")),
)  # fmt: skip
"""What a verdict of the meta-tests depends on, beside the subjects themselves."""
SUBJECTS = {"kill-table": "conformance/meta_tests/saboteurs/*.py", "zoo": "conformance/meta_tests/zoo/*.py"}
STALE = "out of date; run: python conformance/meta_tests/refresh.py "


def code_hash(name: str) -> str:
    """The code that the result called ``name`` speaks of: subjects, judge, truth, cases and their rules, and the needs of clauses.

    Of the mutants it is the modules that were mutated.
    """
    found = hashlib.sha256()
    for pattern in MODULES if name == "mutation" else (*JUDGING, SUBJECTS[name]):
        for file in sorted(ROOT.glob(pattern)):
            found.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    if name == "mutation":
        return found.hexdigest()
    for case in catalogue():
        found.update(f"{case.id} {case.rule} {case.level} {sorted(case.features)}\n".encode())
    for clause in load().clauses:
        found.update(f"{clause.id} {clause.level} {clause.needs}\n".encode())
    return found.hexdigest()


def read(name: str) -> dict[str, Any]:
    """The committed result."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def record_kill_table(jobs: int) -> bool:
    started = time.monotonic()
    rows = sorted(spread(kill, range(len(kill_table.SABOTEURS)), jobs))
    write("kill-table", {"rows": [row._asdict() for row in rows]}, "The kill table", kill_table.as_markdown(rows), started)
    return all(row.right for row in rows)


def kill(at: int) -> kill_table.Row:
    return kill_table.row(kill_table.SABOTEURS[at])


def record_zoo(jobs: int) -> bool:
    started = time.monotonic()
    found = dict(spread(tour, range(len(ZOO)), jobs))
    kernels = {kernel.__name__: found[kernel.__name__] for kernel in ZOO}
    head = [f"| kernel | cases | accused | {' | '.join(DTYPES)} |", f"|---|---|---|{'---|' * len(DTYPES)}"]
    body = []
    for name, told in kernels.items():
        ratios = " | ".join(f"{told['ratios'][dtype]:.3f}" for dtype in DTYPES)
        body.append(f"| {name} | {told['judged']} | {len(told['accused'])} | {ratios} |")
    words = [
        "Honest kernels at level full: cases judged, accusations, and the worst error / bound in each dtype.",
        "",
        *head,
        *body,
    ]
    write("zoo", {"level": "full", "kernels": kernels}, "The zoo", words, started)
    return not any(told["accused"] for told in kernels.values())


def tour(at: int) -> tuple[str, dict[str, Any]]:
    verdicts = judged(ZOO[at](), "full")
    ratios = {dtype: round(ratio, 4) for dtype, ratio in worst(verdicts).items()}
    return ZOO[at].__name__, {"judged": len(verdicts), "accused": failures(verdicts), "ratios": ratios}


def record_mutation(anew: bool) -> bool:
    from mutation.campaign import run

    started = time.monotonic()
    before = RESULTS / "mutation.json"
    found = run({} if anew or not before.exists() else read("mutation"))
    write("mutation", found, "Mutants", table.as_markdown(found), started)
    return all(row["reason"] for row in table.survivors(found["rows"]))


def spread(work: Callable[[int], Any], indices: Iterable[int], jobs: int) -> Iterator[Any]:
    """The results of ``work`` in the order of ``indices``, each printed by its number as it comes."""
    indices = list(indices)
    with ProcessPoolExecutor(jobs) as pool:
        for done, result in enumerate(pool.map(work, indices), start=1):
            print(f"\r{done} of {len(indices)}", end="", file=sys.stderr, flush=True)
            yield result
    print(file=sys.stderr)


def write(name: str, found: dict[str, Any], title: str, lines: list[str], started: float) -> None:
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    seconds = round(time.monotonic() - started)
    RESULTS.mkdir(exist_ok=True)
    document = {"date": today, "seconds": seconds, "code": code_hash(name), **found}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    words = [f"# {title}", "", f"Recorded on {today} by `python conformance/meta_tests/refresh.py {name}`.", "", *lines]
    (RESULTS / f"{name}.md").write_text("\n".join(words) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=(*SUBJECTS, "mutation"))
    parser.add_argument("--jobs", type=int, default=2, help="processes at once, of saboteurs and kernels; default: 2")
    parser.add_argument("--anew", action="store_true", help="all mutants, also of modules that have not changed")
    asked = parser.parse_args()
    if asked.name == "mutation":
        return 0 if record_mutation(asked.anew) else 1
    return 0 if {"kill-table": record_kill_table, "zoo": record_zoo}[asked.name](asked.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
