"""``mha backends``, ``mha clauses`` and ``mha cite``: what is there, and how to name it."""

from dataclasses import asdict

from mha_conformance.cli.terminal import as_json, could_not_run, say, table, versions
from mha_core import available
from mha_spec.clauses import Clause, load


def find(clause_id: str) -> Clause:
    """The clause of that id; ``mask-2`` is enough."""
    wanted = clause_id.upper()
    wanted = wanted if wanted.startswith("MHA-") else f"MHA-{wanted}"
    try:
        return load()[wanted]
    except KeyError as error:
        could_not_run(str(error.args[0]))


def backends(json: bool) -> None:
    found = available()
    if json:
        return as_json({**versions(), "backends": [asdict(status) for status in found]})
    if not found:
        could_not_run("no backend is installed, not even the reference; do: pip install mha-core")
    table(
        ("backend", "state", "devices", "from", "why not"),
        [(s.name, s.state, ", ".join(s.devices) or "-", s.distribution, s.reason or "-") for s in found],
    )
    return None


def clauses(clause_id: str | None, json: bool) -> None:
    areas = {clause.area for clause in load().clauses}
    area = (clause_id or "").upper().removeprefix("MHA-")
    if clause_id is None or area in areas:
        chosen = [c for c in load().clauses if clause_id is None or c.area == area]
    else:
        chosen = [find(clause_id)]
    if json:
        return as_json({**versions(), "clauses": [_record(clause) for clause in chosen]})
    if clause_id is None or area in areas:
        return table(("clause", "level", "sentence"), [(c.id, c.level, c.plain) for c in chosen])
    return _one(chosen[0])


def _record(clause: Clause) -> dict[str, object]:
    """A clause without the place where the text happens to be installed."""
    record = asdict(clause) | {"file": _chapter_file(clause)}
    record["examples"] = [{"line": e.line, "code": e.code} for e in clause.examples]
    return record


def _one(clause: Clause) -> None:
    level = f"{clause.level}, class {clause.strictness}" if clause.strictness else clause.level
    say(f"{clause.id} ({level})", "bold")
    say(clause.text)
    if clause.why:
        say(f"\nWhy: {clause.why}")
    say(f"\nNeeds: {', '.join(clause.needs) or 'none'}")
    for example in clause.examples:
        say(f"\nExample, {_chapter_file(clause)}:{example.line}\n", "bold")
        say("\n".join(f"    {line}".rstrip() for line in example.code.splitlines()))
    say(f"\n{clause.file}:{clause.line}", "dim")


def cite(clause_id: str | None) -> None:
    clause = find(clause_id) if clause_id else None
    now = versions()
    title = "mha-core: an executable specification of Multi-Head Attention"
    place = f"Clause {clause.id} ({clause.level}). " if clause else ""
    quote = f' "{clause.plain}"' if clause else ""
    say(f"The mha-core developers. {title}. Specification version {now['spec_version']}. {place}".rstrip() + quote)
    key = clause.id.lower() if clause else "mha-spec"
    note = f"Specification version {now['spec_version']}" + (f", clause {clause.id}" if clause else "")
    say(f"\n@misc{{{key},\n  author = {{{{The mha-core developers}}}},\n  title = {{{title}}},\n  note = {{{note}}}\n}}")


def _chapter_file(clause: Clause) -> str:
    return clause.file.replace("\\", "/").rsplit("/", 1)[-1]
