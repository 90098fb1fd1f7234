"""Runs the mutants in a copy of the repository, so that nobody edits what is being mutated; it goes on where it was stopped."""

import os
import re
import shutil
import subprocess
import sys
import time
from typing import Any

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome, WorkItem, WorkResult

from mutation.mutants import MODULES, ROOT, SAMPLE, Mutant, module_hash, sample
from mutation.selection import COMMAND, FILES, SECONDS

WORK = ROOT / "build/mutation"
COPY, SESSION, CONFIG = WORK / "copy", WORK / "session.sqlite", WORK / "session.toml"
ROOMS = ("spec", ".", "backends", "conformance", "spec/tests", "conformance/meta_tests")


def run(recorded: dict[str, Any], size: int = SAMPLE) -> dict[str, Any]:
    """What became of each mutant of the sample. Those of a module that has not changed since ``recorded`` keep their outcome."""
    seconds = prepared()
    with use_db(str(SESSION), WorkDB.Mode.open) as db:
        kept = chosen(db, recorded, size)
    told("cosmic-ray", "exec", str(CONFIG), str(SESSION))
    with use_db(str(SESSION), WorkDB.Mode.open) as db:
        rows = [*kept, *outcomes(db)]
    rows.sort(key=lambda row: (MODULES.index(row["module"]), row["line"], row["operator"], row["occurrence"]))
    return {"selection": seconds, "modules": {module: module_hash(module) for module in MODULES}, "rows": rows}


def prepared() -> int:
    """A copy and a session over it: those of an earlier run, if it had this code and these tests. How long these take without a mutant."""
    same = all(
        (COPY / name).exists() and (COPY / name).read_bytes() == (ROOT / name).read_bytes() for name in (*MODULES, *FILES)
    )
    if not same:
        shutil.rmtree(WORK, ignore_errors=True)
        for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True, text=True).stdout.split(
            "\n"
        ):
            if (ROOT / name).is_file():
                (COPY / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, COPY / name)
    started = time.monotonic()
    told(*COMMAND, str(ROOT))
    seconds = round(time.monotonic() - started)
    if not CONFIG.exists():
        words, scratch = " ".join((*COMMAND, str(ROOT))), WORK / "scratch.toml"
        scratch.write_text(
            f"[cosmic-ray]\nmodule-path = {list(MODULES)}\ntimeout = {SECONDS}\nexcluded-modules = []\n"
            f'test-command = "{words}"\n\n[cosmic-ray.distributor]\nname = "local"\n',
            encoding="utf-8",
        )
        told("cosmic-ray", "init", "--force", str(scratch), str(SESSION))
        scratch.rename(CONFIG)
    return seconds


def told(*command: str) -> None:
    """Run in the copy, where ``import`` finds the copy; an error of it is an error here."""
    paths = os.pathsep.join(str(COPY / room) for room in ROOMS)
    environment = {**os.environ, "PYTHONPATH": paths, "MHA_CACHE": str(WORK / "cache")}
    subprocess.run(command, cwd=COPY, env=environment, check=True, stdout=sys.stderr)


def chosen(db: WorkDB, recorded: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """The rows that are known already. Every other item of the session that is not of the sample is marked as skipped."""
    same = {module for module, code in recorded.get("modules", {}).items() if module in MODULES and code == module_hash(module)}
    known = {_key(row): row for row in recorded.get("rows", ()) if row["module"] in same}
    lots = {(m.module, m.operator, m.occurrence) for m in sample(map(_mutant, db.work_items), size)}
    for item in list(db.pending_work_items):
        key = _mutant(item)[:3]
        if key not in lots or key in known:
            db.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    return [row for key, row in known.items() if key in lots]


def outcomes(db: WorkDB) -> list[dict[str, Any]]:
    """A row for each mutant that was run: what was changed, and which test fell first."""
    items = {item.job_id: item for item in db.work_items}
    rows = []
    for job, result in db.completed_work_items:
        if result.worker_outcome != WorkerOutcome.SKIPPED:
            mutant = _mutant(items[job.job_id] if isinstance(job, WorkItem) else items[job])
            before, after = (
                " ".join(re.findall(rf"^{sign}(?!\{sign}{{2}} )\s*(.*)$", result.diff or "", re.M)) for sign in "-+"
            )
            output = result.output or ""
            outcome = (
                "timeout" if output == "timeout" else str(result.test_outcome.value if result.test_outcome else "no outcome")
            )
            by = next(iter(re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.M)), "")
            rows.append(
                {**dict(zip(("module", "operator", "occurrence", "line"), mutant, strict=False)),
                 "before": before, "after": after, "outcome": outcome, "by": by}
            )  # fmt: skip
    return rows


def _mutant(item: WorkItem) -> Mutant:
    (one,) = item.mutations
    return Mutant(one.module_path.as_posix(), one.operator_name.removeprefix("core/"), one.occurrence, *one.start_pos)


def _key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["module"], row["operator"], row["occurrence"]
