"""⑪ `--check-input`: files and folders of the user's as inferences, looked at before the work.

    x.npz          one inference with all inputs      x.npy    the only input; or name=x.npy
    folder         one inference for each .npz or .npy file in it, in the order of their names

An array with one dimension more in front, or with a multiple of the batch, is several inferences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from autotune.cli.arrays import read_inputs
from autotune.errors import UsageError
from autotune.graph.network import Port
from autotune.network.artifact.artifact import Endpoint
from autotune.network.check.check_inputs import inferences
from autotune.network.runtime.arguments import require_inputs

Arrays = dict[str, NDArray[Any]]

_MOST_INFERENCES = 4096
"""In one array: what says to hold more is no input of this model."""


def given_inferences(
    inputs: Sequence[tuple[Port, ...]], files: tuple[tuple[str, Path], ...]
) -> list[Arrays]:
    """The user's own inputs for the check. `inputs`: of the model, at the shapes of every variant.

    Raises UsageError for other than arrays of NumPy, or one that does not fit the model.
    """
    known = [tuple(Endpoint(p.name, p.shape, p.dtype, 0) for p in ports) for ports in inputs]
    largest = max(known, key=lambda ports: sum(math.prod(p.shape) for p in ports))
    found: list[Arrays] = []
    for arrays in _read(largest, files):
        several = inferences(known, arrays)
        if not several:
            shapes = {name: array.shape for name, array in arrays.items()}
            fitting = (k for k in known if all(shapes.get(p.name) == p.shape for p in k))
            require_inputs(next(fitting, known[0]), arrays)
        found += several
    for arrays in found:
        fitting = (k for k in known if all(arrays[p.name].shape == p.shape for p in k))
        require_inputs(next(fitting), arrays)
    return found


def _read(ports: tuple[Endpoint, ...], files: tuple[tuple[str, Path], ...]) -> list[Arrays]:
    """The arrays of every inference; a single file belongs to all of them."""
    sources = [(name, _members(path)) for name, path in files]
    counts = {len(members) for _, members in sources if len(members) > 1}
    if len(counts) > 1:
        raise UsageError(
            f"the folders of --check-input have {' and '.join(map(str, sorted(counts)))} files",
            "give every input as many, or write them together: numpy.savez",
        )
    return [
        read_inputs(
            ports,
            tuple((name, files[n % len(files)]) for name, files in sources),
            "--check-input",
            _MOST_INFERENCES,
        )
        for n in range(max(counts, default=1))
    ]


def _members(path: Path) -> list[Path]:
    """The files of a folder, or the file itself. Raises UsageError for a folder without any."""
    if not path.is_dir():
        return [path]
    files = sorted(p for p in path.iterdir() if p.suffix in (".npz", ".npy"))
    if not files:
        raise UsageError(f"{path} has no .npz or .npy files", "write them with numpy.savez")
    return files
