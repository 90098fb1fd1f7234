"""Runs the mutants in a copy of the repository, so that nobody edits what is being mutated; it goes on where it was stopped."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkItem

from mutation.mutants import MODULES, ROOT, SAMPLE, Mutant, module_hash, sample
from mutation.selection import COMMAND, FILES

WORK = ROOT / "build/mutation"
COPY, SESSION, CONFIG, KEPT = WORK / "copy", WORK / "session.sqlite", WORK / "session.toml", WORK / "kept.json"
ROOMS = ("spec", ".", "backends", "conformance", "spec/tests", "conformance/meta_tests")
Rows = list[dict[str, Any]]


def run(recorded: dict[str, Any], size: int = SAMPLE) -> dict[str, Any]:
    """What became of each mutant of the sample. Those that were killed keep their outcome where their module has not changed since."""
    if not _as_it_is():
        _copied()
    started = time.monotonic()
    _there(*COMMAND)
    seconds = round(time.monotonic() - started)
    if not KEPT.exists():
        _chosen(recorded, size)
    _there(sys.executable, "-m", "mutation.worker", str(SESSION))
    rows: Rows = [*json.loads(KEPT.read_text(encoding="utf-8")), *_outcomes()]
    rows.sort(key=lambda row: (MODULES.index(row["module"]), row["line"], row["operator"], row["occurrence"]))
    return {"selection": seconds, "modules": {module: module_hash(module) for module in MODULES}, "rows": rows}


def _as_it_is() -> bool:
    """Whether the copy has this code and these tests."""
    return all(
        (COPY / name).exists() and (COPY / name).read_bytes() == (ROOT / name).read_bytes() for name in (*MODULES, *FILES)
    )


def _copied() -> None:
    shutil.rmtree(WORK, ignore_errors=True)
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True, text=True).stdout.splitlines()
    for name in filter(lambda name: (ROOT / name).is_file(), tracked):
        (COPY / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, COPY / name)


def _there(*command: str) -> None:
    """Run in the copy, where ``import`` finds the copy. An error of it is an error here."""
    paths = os.pathsep.join(str(COPY / room) for room in ROOMS)
    environment = {**os.environ, "PYTHONPATH": paths, "MHA_CACHE": str(WORK / "cache")}
    subprocess.run(command, cwd=COPY, env=environment, check=True, stdout=sys.stderr)


def _chosen(recorded: dict[str, Any], size: int) -> None:
    """A session of the sample without what is known already, which is kept beside it."""
    CONFIG.write_text(
        f"[cosmic-ray]\nmodule-path = {list(MODULES)}\ntimeout = 0\nexcluded-modules = []\ntest-command = ''\n\n"
        "[cosmic-ray.distributor]\nname = 'local'\n",
        encoding="utf-8",
    )
    _there("cosmic-ray", "init", "--force", str(CONFIG), str(SESSION))
    same = {module for module, code in recorded.get("modules", {}).items() if module in MODULES and code == module_hash(module)}
    known = {
        (row["module"], row["operator"], row["occurrence"]): row
        for row in recorded.get("rows", ())
        if row["module"] in same and row["outcome"] != "survived"  # what lived faces the tests again: they may have learned
    }
    with use_db(str(SESSION), WorkDB.Mode.open) as db:
        items = {_mutant(item): item for item in db.work_items}
        lots = sample(items, size)
        db.clear()
        db.add_work_items([items[mutant] for mutant in lots if mutant[:3] not in known])
    KEPT.write_text(json.dumps([known[mutant[:3]] for mutant in lots if mutant[:3] in known]), encoding="utf-8")


def _outcomes() -> Rows:
    """A row for each mutant that was run: what was changed, and which test fell first."""
    rows = []
    with use_db(str(SESSION), WorkDB.Mode.open) as db:
        mutants = {item.job_id: _mutant(item) for item in db.work_items}
        for job, result in db.results:
            output, diff = result.output or "", result.diff or ""
            before, after = (" ".join(re.findall(rf"^\{sign}(?!\{sign}{{2}} )\s*(.*)$", diff, re.M)) for sign in "-+")
            outcome = "timeout" if output == "timeout" else result.test_outcome.value if result.test_outcome else "no outcome"
            by = next(iter(re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.M)), "")
            named = dict(zip(("module", "operator", "occurrence", "line"), mutants[job], strict=False))
            rows.append({**named, "before": before, "after": after, "outcome": outcome, "by": by})
    return rows


def _mutant(item: WorkItem) -> Mutant:
    (one,) = item.mutations
    return Mutant(Path(one.module_path).as_posix(), one.operator_name.removeprefix("core/"), one.occurrence, *one.start_pos)
