"""⑪ What a compilation gives: an artifact, and the report of its check."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.brief import brief
from autotune.calls import checked
from autotune.files import replacing
from autotune.network.artifact.artifact import Artifact
from autotune.network.check.accuracy import Report
from autotune.network.runtime.arguments import Inputs
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.runtime import Model

_BLOCK = 1 << 20


@brief
@dataclass(frozen=True, slots=True)
class Compiled:
    """An artifact, and the report of its check; None where it was not checked.

    `kept_at`: the file of the cache folder that it was read from, compiled and checked before.
    """

    artifact: Artifact
    report: Report | None
    kept_at: Path | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it was compiled and checked before, and found in the cache folder."""
        return self.kept_at is not None

    @property
    def error(self) -> float | None:
        """The largest of the check; None where it was not checked."""
        return self.report.error if self.report else None

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the artifact to a file, as `Artifact.save`; returns its path."""
        if self.kept_at is not None:
            with suppress(FileNotFoundError):  # it leaves the cache at any time
                with open(self.kept_at, "rb") as source, replacing(Path(path)) as file:
                    shutil.copyfileobj(source, file, _BLOCK)
                return Path(path)
        self.artifact.save(Path(path))
        return Path(path)

    @checked
    def model(self, threads: int | None = None) -> Model:
        """The network ready to run, as `load` gives it of a file."""
        return model_of(self.artifact, threads)

    @checked
    def run(self, inputs: Inputs) -> dict[str, Any]:
        """Outputs of one inference by name; for many take a `model` once."""
        return self.model().run(inputs)


def with_facts(artifact: Artifact, **known: Any) -> Artifact:
    """`artifact`, each of its variants, and those for other CPUs, with these fields."""
    others = tuple(replace(other, **known) for other in artifact.others)
    cpus = tuple(with_facts(one, **known) for one in artifact.cpus)
    return replace(artifact, **known, others=others, cpus=cpus)
