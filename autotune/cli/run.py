"""⑪ `autotune run`: one inference on arrays from files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from autotune.cli.console import columns, debug_option, put, say, say_note
from autotune.cli.models import say_random_weights
from autotune.cli.options import COUNT, FILE, NamedFile
from autotune.errors import OutputError, UsageError

if TYPE_CHECKING:
    from autotune.network.artifact import Endpoint
    from autotune.network.runtime import Model

Arrays = dict[str, NDArray[Any]]


@click.command("run")
@click.argument("artifact", metavar="OUT", type=FILE)
@click.option(
    "--input",
    "files",
    type=NamedFile(),
    multiple=True,
    help="name=x.npy, x.npy where there is one input, or an .npz with all. Repeatable.",
)
@click.option("-o", "--output", type=FILE, help="Write the outputs to this .npz file.")
@click.option("--threads", type=COUNT, help="Threads to run on.  [as compiled]")
@debug_option
def command(
    artifact: Path, files: tuple[tuple[str, Path], ...], output: Path | None, threads: int | None
) -> None:
    """Run OUT, a file that `autotune compile` wrote.

    Without --input, runs on random numbers. Without -o, prints what the outputs look like.
    """
    from autotune.network.runtime import load

    model = load(artifact, threads)
    if model.artifact.random_weights:
        say_random_weights(model.artifact.name)
    outputs = model.run(_inputs(model, files))
    if output is not None:
        write_npz(output, outputs)
        put(str(output))
        return
    put(
        columns(
            ("output", "shape", "dtype", "min", "mean", "max"), list(map(_row, outputs.items()))
        )
    )


def _inputs(model: Model, files: tuple[tuple[str, Path], ...]) -> Arrays:
    if files:
        return read_inputs(model.input_info, files)
    from autotune.network.runtime import random_inputs

    say_note("no --input: running on random numbers")
    return random_inputs(model.input_info)


def read_inputs(
    ports: tuple[Endpoint, ...], files: tuple[tuple[str, Path], ...], option: str = "--input"
) -> Arrays:
    """Arrays from files by name, cast to no other dtype: `runtime.require_inputs` checks them."""
    arrays: Arrays = {}
    names = [end.name for end in ports]
    for name, path in files:
        loaded = read_array(path)
        if isinstance(loaded, dict):
            arrays |= loaded
        elif name or len(names) == 1:
            arrays[name or names[0]] = loaded
        else:
            raise UsageError(
                f"which input is {path}?",
                f"write {option} NAME={path}; inputs: {', '.join(names)}",
            )
    return {name: as_bfloat16(array, ports, name) for name, array in arrays.items()}


def as_bfloat16(array: NDArray[Any], ports: tuple[Endpoint, ...], name: str) -> NDArray[Any]:
    """`array`, whose dtype a file has lost if it is bfloat16: it says two bytes of anything."""
    is_lost = array.dtype == np.dtype("V2")
    port = next((p for p in ports if p.name == name and p.dtype == "bfloat16"), None)
    return array.view(port.numpy_dtype) if port and is_lost else array


def read_array(path: Path) -> NDArray[Any] | Arrays:
    """The array of an .npy file, or the arrays of an .npz file by name."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}", "check the path") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(
            f"{path} is no NumPy array: {error}", "write it with numpy.save"
        ) from error


def write_npz(path: Path, arrays: Arrays) -> None:
    """Write arrays by name. Raises UsageError or OutputError where that is impossible."""
    try:
        with open(path, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except PermissionError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "choose another file") from error
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror}", "choose another file"
        ) from error
    say(f"{len(arrays)} outputs")


def _row(item: tuple[str, NDArray[Any]]) -> tuple[str, ...]:
    name, array = item
    shape = "x".join(map(str, array.shape)) or "scalar"
    wide = array if array.dtype.itemsize > 2 else array.astype(np.float32)
    numbers = (wide.min(), wide.mean(), wide.max()) if array.size else ()
    return name, shape, str(array.dtype), *(f"{float(x):.6g}" for x in numbers or ("nan",) * 3)
