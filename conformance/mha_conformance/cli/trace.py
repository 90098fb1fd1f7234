"""``mha trace``: the six steps on a sentence or on a model's arrays, in the terminal, as pictures, or as JSON."""

from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from mha_conformance.cli.codes import Code
from mha_conformance.cli.terminal import as_json as print_json
from mha_conformance.cli.terminal import console, could_not_run, say, versions
from mha_conformance.trace import document, picture, read, words
from mha_conformance.trace.heat import HeatMaps
from mha_conformance.trace.read import CannotTrace
from mha_conformance.trace.tokens import label, split
from mha_conformance.trace.trace import Trace, of_heads, of_sentence
from mha_spec.steps_html import shape
from mha_spec.violation import Violation

WIDEST = 2048
"""The largest ``--d-model``: four seeded matrices of this side take 128 MiB."""


def trace(
    sentence: str | None, npz: Path | None, projections: Path | None, options: dict[str, Any], svg: Path | None,
    html: Path | None, json: bool,
) -> None:  # fmt: skip
    """``options`` are d_model, heads, seed, None where not given, and positions."""
    try:
        found = _made(sentence, npz, projections, options)
    except (CannotTrace, Violation) as error:
        could_not_run(str(error))
    if svg is not None:
        _write(svg, picture.svg(found))
    if html is not None:
        _write(html, picture.html(found, versions()))
    if json:
        print_json({**versions(), **document.as_json(found)})
    else:
        _print(found)
        for file in (svg, html):
            if file is not None:
                say(f"written: {label(str(file))}", "dim")
    raise typer.Exit(Code.HOLDS if found.agreement is None or found.agreement.within else Code.FAILS)


def _made(sentence: str | None, npz: Path | None, file: Path | None, options: dict[str, Any]) -> Trace:
    placed = options.pop("positions")
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if (sentence is None) == (npz is None):
        raise CannotTrace("give a sentence, or --npz FILE with q, k and v, and not both")
    if npz is not None:
        given += ["--no-positions"] * (not placed) + ["--projections"] * (file is not None)
        if given:
            raise CannotTrace(f"{', '.join(given)} would be ignored beside --npz, whose arrays are already projected")
        arrays, labels = read.heads(npz)
        return of_heads(npz.name, **arrays, labels=labels)
    tokens, seed = split(str(sentence)), options["seed"] or 0
    if file is None:
        d_model = 64 if options["d_model"] is None else options["d_model"]
        if d_model > WIDEST:
            raise CannotTrace(f"given --d-model {d_model}; expected at most {WIDEST}: a picture shows no more")
        return of_sentence(
            tokens, d_model, 8 if options["heads"] is None else options["heads"], seed, placed=placed, given=None
        )
    if ignored := [name for name in given if name != "--seed"]:
        raise CannotTrace(f"{', '.join(ignored)} would be ignored beside --projections, whose matrices have their own sizes")
    trained = read.projections(file)
    h, d_model, _ = trained.w_q.shape
    return of_sentence(tokens, d_model, h, seed, placed=placed, given=trained)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        could_not_run(f"{file} cannot be written: {error.strerror}; name a file in a folder that exists")


def _print(found: Trace) -> None:
    out = console()
    say(label(found.title), "bold")
    for note in found.notes:
        say(f"  {note}", "dim")
    say("\nThe six steps (section 3.2.2); `mha clauses ID` explains a clause", "bold")
    room = max(len(step.equation) for step in found.steps) + 2
    together = 3 + room + max(len(words.STEPS[step.name]) for step in found.steps) <= out.width
    for step in found.steps:
        does = words.STEPS[step.name]
        if together:
            say(f"{step.number}  {step.name:<15}{step.clause:<13}{shape(step)}")
            say(f"   {step.equation:<{room}}{does}", "dim")
        else:
            say(f"{step.number}  {step.name:<15}{step.clause}\n   {shape(step)}")
            say(f"   {step.equation}\n   {does}", "dim")
    single, several = words.names(found)
    maps = [
        (f"{single}, from the same channels (MHA-HEAD-6)", found.one_head, ["one head"]),
        (f"{several} (MHA-HEAD-7)", found.weights, [f"head {i}" for i in range(len(found.weights))]),
    ]
    say("\nWho reads whom: a row is a query, a column a key, a number the share in percent (MHA-ATTN-5)\n", "bold")
    for title, weights, names in maps:
        drawn = HeatMaps(weights, found.top, found.queries, found.keys, out.width, _in_colour(out))
        say(title)
        if drawn.left_out:
            say(drawn.left_out, "yellow")
        for line in drawn.lines(names):
            out.print(line, no_wrap=True, crop=False)
    say(f"Cost (MHA-COST-4): {words.cost(found)}")
    say(f"Merged against looped (MHA-PROJ-5, MHA-COST-5): {words.agreement(found)}")


def _in_colour(out: Console) -> bool:
    return out.is_terminal and out.color_system is not None and not out.no_color
