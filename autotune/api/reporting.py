"""⑪ The report of a search, from the files that it left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.calls import checked
from autotune.records import read_log
from autotune.reporting.comparison import compared
from autotune.reporting.figures import SearchFigures, figures_of
from autotune.reporting.report import SearchReport
from autotune.units import format_shapes

if TYPE_CHECKING:
    from autotune.network.bench.profile import NetworkProfile

_PROFILED_S = 1.0


@checked
def report(
    log: str | Path, artifact: str | Path | None = None, against: str | Path | None = None
) -> SearchReport:
    """Figures of the search in `log`: its page is `report(…).html()`.

    `artifact`: a network that was compiled from it, which is timed here, task by task. `against`:
    an earlier log, to be compared with. Raises LogMismatch for logs without figures or without a
    task in common, ArtifactError for an artifact that cannot run here.
    """
    figures = search_figures(log)
    other = None if against is None else search_figures(against)
    comparison = None if other is None else compared(figures, other)
    profiles = {} if artifact is None else _profiles(Path(artifact), Path(log))
    return SearchReport(figures, profiles, other, comparison)


def search_figures(log: str | Path) -> SearchFigures:
    """Figures of one log. Raises LogMismatch where it has none."""
    return figures_of(read_log(Path(log)), Path(log).name)


def _profiles(artifact: Path, log: Path) -> dict[str, NetworkProfile]:
    from autotune.api.compile.benching import tuned_alone
    from autotune.measure.timing.noise import read_usage
    from autotune.network.bench.profile import profile_tasks
    from autotune.network.runtime.loading import load

    return {
        format_shapes({end.name: end.shape for end in model.input_info}): profile_tasks(
            model, tuned_alone(model, log), min_s=_PROFILED_S, usage=read_usage
        )
        for model in load(artifact).variants
    }
