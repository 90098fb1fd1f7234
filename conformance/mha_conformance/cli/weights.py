"""``mha weights``: the matrices of one layer, from one file and format into another (MHA-PROJ-19)."""

import zipfile
import zlib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from mha_conformance.cli.terminal import could_not_run, say, table
from mha_core.weights import FORMATS, Format, under
from mha_spec.call import dtype_name
from mha_spec.violation import Violation

SUFFIXES = (".safetensors", ".npz")
Arrays = dict[str, np.ndarray[Any, Any]]


weights = typer.Typer(no_args_is_help=True, help="Carry a layer's matrices from one framework's format into another's.")


@weights.command()
def formats() -> None:
    """List the formats, and what has to be said beside their arrays."""
    rows = [
        (form.name, ", ".join(f"--{need.replace('_', '-')}" for need in form.needs) or "-", form.holds)
        for form in FORMATS.values()
    ]
    table(("format", "needs", "holds"), rows)


@weights.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A .safetensors or .npz file with the layer.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write, .safetensors or .npz.")],
    read_as: Annotated[str, typer.Option("--from", metavar="FORMAT", help="A format of `mha weights formats`.")],
    write_as: Annotated[str, typer.Option("--to", metavar="FORMAT", help="Another one.")],
    heads: Annotated[int | None, typer.Option(help="How many query heads; where the format asks for it.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="How many key heads; where the format asks for it.")] = None,
    prefix: Annotated[str, typer.Option(help="What the layer's names begin with, as in encoder.layer.0.attention.")] = "",
    to_prefix: Annotated[str, typer.Option(help="What the names that are written begin with.")] = "",
    leave_out: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="An array under the prefix that is no part of the layer; repeatable."),
    ] = None,
) -> None:
    """Convert one layer. A name that is missing or left over, and a shape that does not fit, are refused."""
    reading, writing = _format(read_as), _format(write_as)
    needs = (("heads", heads), ("kv_heads", kv_heads))
    for file in (source, target):
        if file.suffix not in SUFFIXES:
            could_not_run(f"given {file.name}; expected a file that ends in {' or '.join(SUFFIXES)}")
    if target.exists():
        could_not_run(f"{target} is there already; name another file, or remove it first")
    if not target.absolute().parent.is_dir():
        could_not_run(f"no folder {target.parent} to write {target.name} in")
    try:
        arrays = under(_read(source, prefix), prefix, leave_out or ())
        projections = reading.read(arrays, **{name: n for name, n in needs if n is not None})
        written = {to_prefix + name: np.ascontiguousarray(x) for name, x in writing.write(projections).items()}
    except Violation as error:
        could_not_run(f"{source.name}: {error}")
    _write(target, written)
    table(("array", "dtype", "shape"), [(name, dtype_name(x), str(tuple(x.shape))) for name, x in written.items()])
    say(f"written: {target}", "dim")


def _format(name: str) -> Format:
    if name not in FORMATS:
        could_not_run(f"no format {name!r}; `mha weights formats` lists them: {', '.join(FORMATS)}")
    return FORMATS[name]


def _read(file: Path, prefix: str) -> Arrays:
    """The arrays whose names begin with the prefix, so that one layer of a large checkpoint costs one layer."""
    if not file.is_file():
        could_not_run(f"no file at {file}")
    try:
        return _safetensors(file, prefix) if file.suffix == ".safetensors" else _npz(file, prefix)
    except Violation:
        raise
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        could_not_run(f"{file} cannot be read ({type(error).__name__}: {error})")


def _safetensors(file: Path, prefix: str) -> Arrays:
    _need_safetensors()
    import ml_dtypes  # noqa: F401  # NumPy has no bfloat16 of its own
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as archive:
            return {name: archive.get_tensor(name) for name in _wanted(list(archive.keys()), prefix)}
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _npz(file: Path, prefix: str) -> Arrays:
    archive = np.load(file, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("it holds one array; write it with numpy.savez")
    with archive:
        return {name: archive[name] for name in _wanted(archive.files, prefix)}


def _wanted(names: list[str], prefix: str) -> list[str]:
    """Refuses a prefix that nothing begins with before anything is read (MHA-PROJ-19)."""
    return [prefix + name for name in under(dict.fromkeys(names), prefix)]


def _write(file: Path, arrays: Arrays) -> None:
    """safetensors writes the memory as it lies, and so must be given contiguous arrays; an .npz file has no bfloat16."""
    try:
        if file.suffix == ".safetensors":
            _need_safetensors()
            from safetensors.numpy import save_file

            save_file(arrays, file)
        elif kinds := {dtype_name(x) for x in arrays.values()} - {"float16", "float32", "float64"}:
            could_not_run(f"an .npz file cannot hold {', '.join(kinds)}; write a .safetensors file")
        else:
            with file.open("wb") as stream:
                np.savez(stream, **arrays)  # type: ignore[arg-type]  # of which the stubs take one for allow_pickle
    except OSError as error:
        could_not_run(f"{file} cannot be written: {error}")


def _need_safetensors() -> None:
    try:
        import safetensors  # noqa: F401
    except ImportError:
        could_not_run("safetensors is not installed; do: pip install 'mha-core[weights]', or use .npz files")
