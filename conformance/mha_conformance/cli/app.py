"""The commands of ``mha``. Each ends in an exit code of ``mha_conformance.cli.codes``."""

from pathlib import Path
from typing import Annotated

import typer

from mha_conformance.cases.case import LEVELS
from mha_conformance.cli import bench as bench_command
from mha_conformance.cli import conform as conform_command
from mha_conformance.cli import diff as diff_command
from mha_conformance.cli import examples as examples_command
from mha_conformance.cli import gpu_check as gpu_check_command
from mha_conformance.cli import listings, terminal
from mha_conformance.cli import trace as trace_command
from mha_conformance.cli.outputs import Outputs
from mha_conformance.cli.vectors import vectors
from mha_conformance.cli.weights import weights
from mha_conformance.run.conform import Selection
from mha_conformance.run.implementation import Target

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Multi-Head Attention: its clauses, its backends, and whether they agree. "
    "Exit codes: 0 all holds, 1 something does not, 2 could not run, 3 a defect of the suite.",
)

app.add_typer(vectors, name="vectors")
app.add_typer(weights, name="weights")

Json = Annotated[bool, typer.Option("--json", help="For a program: JSON on standard output.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write one HTML page that needs nothing else.")]
OptionalId = Annotated[str | None, typer.Argument(metavar="[ID]", help="A clause such as MHA-MASK-2.")]


def _version(wanted: bool) -> None:
    if wanted:
        now = terminal.versions()
        terminal.say(f"MHA specification {now['spec_version']}, mha-core {now['package_version']}")
        raise typer.Exit


@app.callback()
def options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    """Options that come before a command."""


@app.command()
def backends(json: Json = False) -> None:
    """List the backends that are installed, usable or not, and why not."""
    listings.backends(json)


@app.command()
def clauses(clause: OptionalId = None, json: Json = False) -> None:
    """List the clauses of an area, or all; or print one with its reason, its foundations and its examples."""
    listings.clauses(clause, json)


@app.command()
def cite(clause: OptionalId = None) -> None:
    """Print how to cite the specification, or one clause of it."""
    listings.cite(clause)


@app.command()
def examples(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A backend of `mha backends`.")],
    clause: Annotated[list[str] | None, typer.Option("--clause", metavar="ID", help="Only this clause; repeatable.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of arrays that name none; default float64 where claimed.")] = None,
    json: Json = False,
) -> None:
    """Run the examples of the specification on a backend, each in the words of the text."""
    examples_command.examples(name, clause or [], dtype, json)


def _target(name: str, arrays: str, device: str | None, layout: str, claims: Path | None) -> Target:
    if layout not in ("bhnd", "bnhd"):
        terminal.could_not_run(f"given --layout {layout}; the layouts are bhnd and bnhd")
    if claims is not None and not claims.is_file():
        terminal.could_not_run(f"no claims file at {claims}")
    return Target(name, arrays, device, layout, None if claims is None else str(claims))


def _selection(level: str, clause: list[str] | None, case: list[str] | None, first: bool) -> Selection:
    if level not in LEVELS:
        terminal.could_not_run(f"given --level {level}; the levels are {', '.join(LEVELS)}")
    return Selection(level, tuple(clause or ()), tuple(case or ()), first)


@app.command()
def conform(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A backend of `mha backends`, or module:callable.")],
    level: Annotated[str, typer.Option(help="smoke (seconds), core (a minute or two) or full.")] = "core",
    clause: Annotated[list[str] | None, typer.Option("--clause", metavar="ID", help="Only this clause; repeatable.")] = None,
    case: Annotated[list[str] | None, typer.Option("--case", metavar="ID", help="Only this case; repeatable.")] = None,
    first: Annotated[bool, typer.Option("--first", help="Stop at the first failure.")] = False,
    arrays: Annotated[str, typer.Option(help="For a callable: numpy, torch, jax, cupy or array_api_strict.")] = "numpy",
    device: Annotated[
        str | None, typer.Option(help="For a callable: a device of that library; for cupy in a checkout: emulator.")
    ] = None,
    layout: Annotated[str, typer.Option(help="For a callable: bhnd or bnhd.")] = "bhnd",
    claims: Annotated[Path | None, typer.Option(help="A TOML file of what the implementation claims.")] = None,
    workers: Annotated[int, typer.Option("-n", help="Processes at once.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds for one case.")] = 60.0,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report; - for standard output.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    html: Html = None,
    issue: Annotated[
        Path | None, typer.Option("--issue", metavar="FILE", help="Write what is blamed as Markdown, ready for an issue.")
    ] = None,
) -> None:
    """Judge an implementation by the specification: which clause it breaks, where, and how to see it again."""
    target = _target(name, arrays, device, layout, claims)
    chosen = _selection(level, clause, case, first)
    conform_command.conform(target, chosen, workers, timeout, Outputs(json, junit, html, issue))


Arrays = Annotated[str, typer.Option(help="For a callable: numpy, torch, jax, cupy or array_api_strict.")]
Layout = Annotated[str, typer.Option(help="For a callable: bhnd or bnhd.")]
ClaimsFile = Annotated[Path | None, typer.Option(help="A TOML file of what the implementation claims.")]


@app.command()
def diff(
    one: Annotated[str, typer.Argument(metavar="A", help="A backend of `mha backends`, or module:callable.")],
    other: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    level: Annotated[str, typer.Option(help="smoke (seconds), core (a minute or two) or full.")] = "core",
    clause: Annotated[list[str] | None, typer.Option("--clause", metavar="ID", help="Only this clause; repeatable.")] = None,
    case: Annotated[list[str] | None, typer.Option("--case", metavar="ID", help="Only this case; repeatable.")] = None,
    arrays_a: Arrays = "numpy",
    arrays_b: Arrays = "numpy",
    layout_a: Layout = "bhnd",
    layout_b: Layout = "bhnd",
    claims_a: ClaimsFile = None,
    claims_b: ClaimsFile = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one case.")] = 60.0,
) -> None:
    """Find where two implementations part, the smallest call that shows it, and the clause that separates them."""
    one_target = _target(one, arrays_a, None, layout_a, claims_a)
    other_target = _target(other, arrays_b, None, layout_b, claims_b)
    diff_command.diff(one_target, other_target, _selection(level, clause, case, first=False), timeout)


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(metavar="A.json B.json", help="Files that --json wrote.")],
    html: Html = None,
) -> None:
    """Compare reports: the cases on which they differ, and their verdicts; or see them side by side in one page."""
    conform_command.compare(files, html)


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Backends, torch-sdpa, onnxruntime, openvino, jax, ...; ratios are to the first."
        ),
    ] = None,
    seed_article: Annotated[
        bool, typer.Option("--seed-article", help="Instead: a layer as a loop over heads against the merged form (MHA-COST-5).")
    ] = False,
    layer: Annotated[bool, typer.Option("--layer", help="Instead: layers with their projections, and torch-mha.")] = False,
    options: Annotated[bool, typer.Option("--options", help="Instead: what each option of one backend costs.")] = False,
    lengths: Annotated[str | None, typer.Option(help="Tokens, such as 512,1024.")] = None,
    batch: Annotated[int | None, typer.Option(help="Default 1; 8 for layers.")] = None,
    heads: Annotated[int, typer.Option(help="Number of heads.")] = 8,
    d: Annotated[int, typer.Option("--d", help="Channels of a head.")] = 64,
    causal: Annotated[bool, typer.Option("--causal", help="Each query sees the keys up to its own position.")] = False,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    rounds: Annotated[int, typer.Option(help="In each, GEMM and every competitor take a turn.")] = 7,
    seconds: Annotated[float, typer.Option(help="How long a turn lasts at least.")] = 0.2,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw speed and memory against length.")] = None,
    json: Json = False,
) -> None:
    """Measure attention beside its peers, each in a process of its own: time, share of this machine's GEMM rate, memory.

    Whoever is wrong is not timed. Where the machine was too noisy there are times, no ratio, and exit code 2.
    """
    asked = {"--seed-article": seed_article, "--layer": layer, "--options": options}
    bench_command.bench(names or [], asked, lengths, batch, heads, d, causal, dtype, rounds, seconds, svg, json)


@app.command("gpu-check")
def gpu_check(
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where JSON, a table and a picture are written; default gpu-check.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Run nothing; say for each part what would be done.")] = False,
) -> None:
    """Check and measure the CuPy backend on this machine's GPU, in under eight minutes and without a network.

    Its instructions against golden data, the suite, compute-sanitizer, then speed beside torch's kernels. A part that crashes
    costs that part alone, and what was not run is never shown as a result.
    """
    gpu_check_command.gpu_check(out, dry_run)


@app.command()
def trace(
    sentence: Annotated[str | None, typer.Argument(metavar="[SENTENCE]", help="Any sentence, in quotes.")] = None,
    npz: Annotated[Path | None, typer.Option(help="Arrays of a model instead: q, k and v of (h, n, d_k), and tokens.")] = None,
    projections: Annotated[
        Path | None, typer.Option(help="An .npz file of w_q, w_k, w_v (h, d_model, d_k) and w_o (h, d_v, d_out).")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="How many heads; default 8.")] = None,
    d_model: Annotated[int | None, typer.Option(help="The width of a token; default 64.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of embeddings and projections; default 0.")] = None,
    positions: Annotated[bool, typer.Option("--positions/--no-positions", help="Add the paper's positions.")] = True,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the heat maps as one picture.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all of it as one page.")] = None,
    json: Json = False,
) -> None:
    """Show the six steps of multi-head attention on a sentence, with shapes and clauses, and what each head reads."""
    options = {"heads": heads, "d_model": d_model, "seed": seed, "positions": positions}
    trace_command.trace(sentence, npz, projections, options, svg, html, json)
