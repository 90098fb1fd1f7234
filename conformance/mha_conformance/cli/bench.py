"""``mha bench``: who is how fast, and in how much memory. A ratio is printed only where the machine was quiet enough for it."""

import sys
from collections.abc import Sequence
from functools import partial

import typer
from rich.progress import Progress, TaskID, TextColumn

from mha_conformance.bench import forms
from mha_conformance.bench.competitor import DEFAULT, PEERS, Competitor, named
from mha_conformance.bench.contest import contest
from mha_conformance.bench.record import Contest, Measurement, as_json
from mha_conformance.bench.workload import DTYPES, Heads, Layer, Workload
from mha_conformance.cli.codes import Code
from mha_conformance.cli.terminal import as_json as print_json
from mha_conformance.cli.terminal import console, could_not_run, say, table, versions
from mha_core import available

MIB = 2**20


def bench(
    names: Sequence[str],
    seed_article: bool,
    lengths: str | None,
    batch: int | None,
    heads: int,
    d: int,
    causal: bool,
    dtype: str,
    rounds: int,
    seconds: float,
    json: bool,
) -> None:
    """``lengths`` and ``batch`` have a default for either job: 512,1024 and 1, or the article's comparison at 512 and 8."""
    if seed_article and (names or causal):
        could_not_run("--seed-article compares the two forms of a layer; it takes no names and no --causal")
    if dtype not in DTYPES:
        could_not_run(f"given --dtype {dtype}; expected one of {', '.join(DTYPES)}, for which there is a GEMM to compare with")
    if min(heads, d, rounds, 1 if batch is None else batch) < 1 or seconds < 0:
        could_not_run(
            f"given --batch {batch} --heads {heads} --d {d} --rounds {rounds} --seconds {seconds}; "
            "expected at least 1 of each, and seconds of at least 0"
        )
    tokens = _lengths(lengths or ("512" if seed_article else "512,1024"))
    workloads: list[Workload]
    competitors: tuple[Competitor, ...]
    pairs: tuple[tuple[str, str], ...]
    if seed_article:
        workloads = [Layer(8 if batch is None else batch, heads, n, d, dtype) for n in tokens]
        competitors, pairs = forms.FORMS, forms.PAIRS
    else:
        workloads = [Heads(1 if batch is None else batch, heads, n, d, causal, dtype) for n in tokens]
        competitors = tuple(_named(name) for name in dict.fromkeys(names or DEFAULT))
        pairs = tuple((other.name, competitors[0].name) for other in competitors[1:])
    contests = _run(workloads, competitors, pairs, rounds, seconds)
    code = exit_code(contests)
    if json:
        print_json({**versions(), **as_json(contests, code)})
    else:
        _print(contests, forms.ARTICLE if seed_article else None)
    raise typer.Exit(code)


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
    if name not in PEERS and name not in known:
        could_not_run(f"nobody is called {name!r}; known are {', '.join((*known, *PEERS))}")
    return named(name)


def _run(
    workloads: Sequence[Workload], competitors: Sequence[Competitor], pairs: Sequence[tuple[str, str]], rounds: int, seconds: float
) -> list[Contest]:  # fmt: skip
    columns, quiet = TextColumn("{task.description}"), not sys.stderr.isatty()
    with Progress(columns, console=console(sys.stderr), transient=True, disable=quiet) as shown:
        bar = shown.add_task("", total=None)
        found = []
        for workload in workloads:
            tell = partial(_tell, shown, bar, workload.label)
            found.append(contest(workload, competitors, pairs, rounds=rounds, seconds=seconds, progress=tell))
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


def _print(contests: Sequence[Contest], article: dict[str, float] | None) -> None:
    for found in contests:
        say(f"{found.workload}, {found.flops / 1e9:.3f} GFLOP (MHA-COST-2: visible)", "bold")
        _times(found)
        for m in found.measurements:
            if m.status != "timed":
                say(f"{m.name}: {m.status}, {m.reason}", "red" if m.status == "wrong" else "yellow")
        _ratios(found, article)
        for reason in found.noise:
            say(f"no ratio of times: {reason}", "yellow")
        say("")
    _machine(contests)


def _times(found: Contest) -> None:
    """In noise the rounds stand side by side, because a median would hide it."""
    timed = [m for m in found.measurements if m.status == "timed" and m.seconds]
    if not timed:
        return
    quiet = not found.noise
    rounds = [f"round {at + 1}" for at in range(0 if quiet else len(found.gemm))]
    columns = ("", *(("ms", "spread", "of GEMM") if quiet else (f"{name}, ms" for name in rounds)), "extra MiB", "error/bound")
    rows = [
        (
            m.name,
            *((_ms(m.median), f"{m.spread:.0%}", _percent(found.share(m))) if quiet else map(_ms, m.seconds)),
            _mebibytes(m),
            f"{max(m.error):.1e}",
        )
        for m in timed
    ]
    if not quiet:
        rows.append(("GEMM, GFLOP/s", *(f"{g.all / 1e9:.1f}" for g in found.gemm), "", ""))
    table(columns, rows)


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
