"""``mha bench``: who is how fast, and in how much memory. A ratio is printed only where the machine was quiet enough for it."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import typer
from rich.progress import Progress, TaskID, TextColumn

from mha_conformance.bench import forms, options
from mha_conformance.bench.competitor import Competitor
from mha_conformance.bench.contest import contest
from mha_conformance.bench.peers import DEFAULT, DEFAULT_LAYERS, LAYERS, PEERS, named
from mha_conformance.bench.plot import plot
from mha_conformance.bench.record import Contest, Measurement, as_json
from mha_conformance.bench.workload import DTYPES, Heads, Layer, Workload
from mha_conformance.cli.codes import Code
from mha_conformance.cli.outputs import can_be_written
from mha_conformance.cli.terminal import as_json as print_json
from mha_conformance.cli.terminal import console, could_not_run, say, table, versions
from mha_core import available

MIB = 2**20

Team: TypeAlias = tuple[Competitor, ...]
Pairs: TypeAlias = tuple[tuple[str, str], ...]


class Job(NamedTuple):
    """What is measured, who takes part by default, and which sizes."""

    default: tuple[str, ...]
    lengths: str
    batch: int
    most_names: int | None = None


HEADS = Job(DEFAULT, "512,1024", 1)
JOBS = {
    "--seed-article": Job((), "512", 8, most_names=0),
    "--layer": Job(DEFAULT_LAYERS, "512", 8),
    "--options": Job(DEFAULT[:1], "1024", 1, most_names=1),
}
"""The other jobs, by the option that asks for them."""


def bench(
    names: Sequence[str],
    asked: dict[str, bool],
    lengths: str | None,
    batch: int | None,
    heads: int,
    d: int,
    causal: bool,
    dtype: str,
    rounds: int,
    seconds: float,
    svg: Path | None,
    json: bool,
) -> None:
    """``asked`` says which of the other jobs is wanted; lengths, batch and names have defaults for each."""
    flags = [flag for flag, wanted in asked.items() if wanted]
    flag, job = (flags[0], JOBS[flags[0]]) if flags else ("", HEADS)
    _check(names, flags, job, causal, dtype)
    batch = job.batch if batch is None else batch
    if min(heads, d, rounds, batch) < 1 or seconds < 0:
        could_not_run(
            f"given --batch {batch} --heads {heads} --d {d} --rounds {rounds} --seconds {seconds}; "
            "expected at least 1 of each, and seconds of at least 0"
        )
    if svg is not None:
        can_be_written([svg])
    tokens = _lengths(lengths or job.lengths)
    layer = flag in ("--seed-article", "--layer")
    workloads = [Layer(batch, heads, n, d, dtype) if layer else Heads(batch, heads, n, d, causal, dtype) for n in tokens]
    teams, pairs = _teams(flag, workloads, tuple(_named(name) for name in dict.fromkeys(names or job.default)))
    contests = _run(workloads, teams, pairs, rounds, seconds)
    code = exit_code(contests)
    if json:
        print_json({**versions(), **as_json(contests, code)})
    else:
        _print(contests, teams, forms.ARTICLE if flag == "--seed-article" else None)
    if svg is not None:
        svg.write_text(plot(contests), encoding="utf-8")
    raise typer.Exit(code)


def _teams(flag: str, workloads: Sequence[Workload], named: Team) -> tuple[list[Team], Pairs]:
    """Who takes part for each workload, and whose figures are divided by whose."""
    if flag == "--seed-article":
        return [forms.FORMS for _ in workloads], forms.PAIRS
    if flag == "--options":
        teams = [options.competitors(named[0].name, workload) for workload in workloads if isinstance(workload, Heads)]
        return teams, tuple((other.name, options.PLAIN) for other in teams[0][1:])
    return [named for _ in workloads], tuple((other.name, named[0].name) for other in named[1:])


def _check(names: Sequence[str], flags: Sequence[str], job: Job, causal: bool, dtype: str) -> None:
    if len(flags) > 1:
        could_not_run(f"given {' and '.join(flags)}; expected one of them, each is a job of its own")
    if "--seed-article" in flags and (names or causal):
        could_not_run("--seed-article compares the two forms of a layer; it takes no names and no --causal")
    if job.most_names is not None and len(names) > job.most_names:
        could_not_run(f"given {len(names)} names; {flags[0]} takes at most {job.most_names}")
    if flags and causal:
        could_not_run(f"{flags[0]} takes no --causal")
    if dtype not in DTYPES:
        could_not_run(f"given --dtype {dtype}; expected one of {', '.join(DTYPES)}, for which there is a GEMM to compare with")
    for name in names:
        if (name in PEERS and "--layer" in flags) or (name in LAYERS and "--layer" not in flags):
            could_not_run(
                f"{name} is {'no' if name in PEERS else 'a'} layer; --layer compares layers, without it heads are compared"
            )


def _lengths(given: str) -> list[int]:
    try:
        found = [int(part) for part in given.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        could_not_run(f"given --lengths {given!r}; expected numbers of at least 1, such as 512,1024")
    return found


def _named(name: str) -> Competitor:
    known = [status.name for status in available()]
    if name not in (*PEERS, *LAYERS, *known):
        could_not_run(f"nobody is called {name!r}; known are {', '.join((*known, *PEERS, *LAYERS))}")
    return named(name)


def _run(
    workloads: Sequence[Workload],
    teams: Sequence[Team],
    pairs: Pairs,
    rounds: int,
    seconds: float,
) -> list[Contest]:
    columns, quiet = TextColumn("{task.description}"), not sys.stderr.isatty()
    with Progress(columns, console=console(sys.stderr), transient=True, disable=quiet) as shown:
        bar = shown.add_task("", total=None)
        found = []
        for workload, team in zip(workloads, teams, strict=True):
            tell = partial(_tell, shown, bar, workload.label)
            found.append(contest(workload, team, pairs, rounds=rounds, seconds=seconds, progress=tell))
        return found


def _tell(shown: Progress, bar: TaskID, label: str, doing: str) -> None:
    shown.update(bar, description=f"{label}: {doing}")


def exit_code(contests: Sequence[Contest]) -> Code:
    """1 where somebody is wrong; otherwise 2 where what was asked could not be told, for noise or because somebody failed; else 0.

    A peer that is not installed is no failure, as long as there is something left to compare with.
    """
    if any(m.status == "wrong" for c in contests for m in c.measurements):
        return Code.FAILS
    return Code.HOLDS if all(_told(c) for c in contests) else Code.NOT_RUN


def _told(found: Contest) -> bool:
    states = {m.status for m in found.measurements}
    return not found.noise and "failed" not in states and "timed" in states and (bool(found.ratios) or not found.pairs)


def _print(contests: Sequence[Contest], teams: Sequence[Team], article: dict[str, float] | None) -> None:
    for found, team in zip(contests, teams, strict=True):
        say(f"{found.workload}, {found.flops / 1e9:.3f} GFLOP (MHA-COST-2: visible)", "bold")
        shares = {c.name: c.workload.visible_share for c in team if c.workload is not None}
        _times(found, shares)
        for m in found.measurements:
            if m.status != "timed":
                say(f"{m.name}: {m.status}, {m.reason}", "red" if m.status == "wrong" else "yellow")
        _ratios(found, article)
        for reason in found.noise:
            say(f"no ratio of times: {reason}", "yellow")
        say("")
    _machine(contests)


def _times(found: Contest, visible: dict[str, float]) -> None:
    """In noise the rounds stand side by side, because a median would hide it.

    Shares of GEMM and of the bare loop are those of what one workload computes, so where each competitor has an option of its own
    the share of ``visible`` pairs stands in their place.
    """
    timed = [m for m in found.measurements if m.status == "timed" and m.seconds]
    if not timed:
        return
    loop = any(g.loop for g in found.gemm)
    if found.noise:
        columns = ["", *(f"round {at + 1}, ms" for at in range(len(found.gemm)))]
    else:
        columns = ["", "ms", "spread", *(["visible"] if visible else ["of GEMM", *(["of bare loop"] if loop else [])])]
    rows = [(*_figures(found, m, visible, loop), _mebibytes(m), f"{max(m.error):.1e}") for m in timed]
    if found.noise:
        rows.append(("GEMM, GFLOP/s", *(f"{g.all / 1e9:.1f}" for g in found.gemm), "", ""))
    table((*columns, "extra MiB", "error/bound"), rows)


def _figures(found: Contest, m: Measurement, visible: dict[str, float], loop: bool) -> Sequence[str]:
    if found.noise:
        return (m.name, *map(_ms, m.seconds))
    shares = [visible[m.name]] if visible else [found.share(m), *([found.loop_share(m)] if loop else [])]
    return (m.name, _ms(m.median), f"{m.spread:.0%}", *map(_percent, shares))


def _ratios(found: Contest, article: dict[str, float] | None) -> None:
    for ratio in found.ratios:
        parts = [] if ratio.time is None else [f"{ratio.time:.2f} times the time"]
        parts += [] if ratio.memory is None else [f"{ratio.memory:.2f} times the extra memory"]
        if parts:
            say(f"{ratio.of} / {ratio.to}: {', '.join(parts)}")
    if article is not None:
        said = f"{article['time']:.1f} times the time, {article['memory']:.1f} times the memory"
        say(f"the article's own figures, loop / merged: {said}", "dim")


def _machine(contests: Sequence[Contest]) -> None:
    """Each setting of libraries that took part, once."""
    for line in dict.fromkeys(_setting(m) for c in contests for m in c.measurements if m.settings):
        say(line, "dim")


def _setting(m: Measurement) -> str:
    found, libraries = m.settings or {}, m.libraries or {}
    torch = f"; torch {libraries['torch']}, {found['torch']['threads']} threads" if "torch" in found else ""
    return f"numpy {libraries.get('numpy', '?')}, {'; '.join(found['blas']) or 'a BLAS that is not known'}{torch}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _mebibytes(m: Measurement) -> str:
    return "not measured" if m.peak_bytes is None else f"{m.peak_bytes / MIB:.1f}"
