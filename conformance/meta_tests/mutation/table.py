"""What became of the mutants, and why some of them may live: ``explained.tsv`` gives a reason for each that no test can tell apart."""

import csv
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

REASONS = Path(__file__).with_name("explained.tsv")


class Reason(NamedTuple):
    """Why a survivor changes nothing that can be seen, or nothing that is promised."""

    module: str
    before: str
    after: str
    reason: str


def reasons() -> list[Reason]:
    with REASONS.open(encoding="utf-8", newline="") as file:
        return [Reason(*row) for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row]


def explained() -> dict[tuple[str, str, str], str]:
    return {tuple(reason[:3]): reason.reason for reason in reasons()}  # type: ignore[misc]


def survivors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that lived, each with its reason, which is empty where nobody has given one."""
    known = explained()
    return [
        {**row, "reason": known.get((row["module"], row["before"], row["after"]), "")}
        for row in rows
        if row["outcome"] not in ("killed", "timeout")
    ]


def as_markdown(found: dict[str, Any]) -> list[str]:
    """A line for each module, then the survivors, then which tests killed how many."""
    rows: list[dict[str, Any]] = found["rows"]
    outcomes = Counter((row["module"], row["outcome"]) for row in rows)
    total = Counter(row["outcome"] for row in rows)
    lines = [
        f"{len(rows)} mutants of the bounds and of the judge: {total['killed']} killed, {total['timeout']} stopped after a time limit, "
        f"{total['survived']} alive. Without a mutant the tests of the selection took {found['selection']} seconds.",
        "",
        "| module | mutants | killed | timeout | alive |",
        "|---|---|---|---|---|",
    ]
    for module in dict.fromkeys(row["module"] for row in rows):
        counts = [outcomes[module, outcome] for outcome in ("killed", "timeout", "survived")]
        lines.append(f"| {module} | {sum(counts)} | {' | '.join(map(str, counts))} |")
    lines += ["", "## Alive", "", "| where | from | to | why no test can tell |", "|---|---|---|---|"]
    for row in survivors(rows):
        name = f"{Path(row['module']).name}:{row['line']}"
        lines.append(f"| {name} | {_code(row['before'])} | {_code(row['after'])} | {row['reason'] or 'NOT EXPLAINED'} |")
    lines += ["", "## Killed by", "", "| test | mutants |", "|---|---|"]
    killers = Counter(row["by"].partition("[")[0] for row in rows if row["outcome"] == "killed")
    lines += [f"| {test or 'an error on import'} | {count} |" for test, count in killers.most_common()]
    return lines


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"
