"""⑪ A copy of a model's files, for a session that reads them again after they may have changed.

copy_of(Path("model.onnx")) ─► its path; the files go with the object
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

from autotune.api.sources import model_files
from autotune.errors import OutputError


class ModelCopy:
    """Copies of a model and of the files with its external data, at the same places beside it."""

    def __init__(self, model: Path) -> None:
        folder = Path(tempfile.mkdtemp(prefix="autotune-"))
        weakref.finalize(self, _remove, folder, os.getpid())
        self.path = folder / model.name
        for file in model_files(model):
            target = folder / file.relative_to(model.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # the parent of a forked child still reads them
        shutil.rmtree(folder, ignore_errors=True)


def copy_of(model: Path | bytes) -> ModelCopy | None:
    """A copy, None of bytes. Raises OutputError where there is no room for it."""
    if not isinstance(model, Path):
        return None
    try:
        return ModelCopy(model)
    except OSError as error:
        raise OutputError(
            f"a session of open dimensions keeps a copy of its model: {error}",
            f"make room in {tempfile.gettempdir()}, or name the dimensions: dims={{…}}",
        ) from error
