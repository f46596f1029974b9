"""⑩ One file for several CPUs: a manifest of each over the same code and constants.

    separated_cpus({…, cpus: [{target, …}, {target, …}]})  ─►  [{target, …}, {target, …}]
    for_this_cpu(artifact)  ─►  the first of them that runs here

The more demanding code comes first, so that a CPU gets the most that it has. Nothing but the
features of a CPU decides; libraries of C take the first one that fits as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.errors import ArtifactError, UsageError
from autotune.network.artifact.artifact import CPUS, Artifact, require_features
from autotune.network.artifact.container import Json, require
from autotune.target import Target, demands, missing_features, runs_here

MOST_CPUS = 16


def in_order(targets: Sequence[Target]) -> list[Target]:
    """The more demanding first, each once. Raises UsageError for too many."""
    found = {target.key: target for target in targets}
    if len(found) > MOST_CPUS:
        raise UsageError(f"one file is for {MOST_CPUS} CPUs at most", "compile several files")
    return sorted(found.values(), key=lambda target: -len(demands(target)))


def for_this_cpu(artifact: Artifact, what: str) -> Artifact:
    """The code of `artifact` that is for this CPU. Raises ArtifactError where none is."""
    several = artifact.by_cpu
    if len(several) == 1:
        require_features(artifact.target, what)
        return artifact
    found = next((one for one in several if runs_here(one.target)), None)
    if found is not None:
        return found
    names, least = cpus_text(several), several[-1].target
    lacks = ", ".join(missing_features(least))
    raise ArtifactError(
        f"{what} is compiled for {names}; this CPU has not the features of one of them: of those "
        f"of {least.cpu} it lacks {lacks}",
        "compile the model with `target` for this CPU as well",
    )


def cpus_text(several: Sequence[Artifact]) -> str:
    """`znver4, x86-64-v4 and x86-64-v3`."""
    *names, last = (one.target.cpu for one in several)
    return f"{', '.join(names)} and {last}" if names else last


def joined_cpus(several: Sequence[Artifact]) -> Artifact:
    """One artifact of the same model for several CPUs, over the same code and constants."""
    first, *others = several
    return replace(first, cpus=tuple(others)) if others else first


def separated_cpus(manifest: Json) -> list[Json]:
    """A manifest for each CPU. Raises Damaged."""
    if CPUS not in manifest:
        return [manifest]
    own = manifest[CPUS]
    is_list = isinstance(own, list) and 1 < len(own) <= MOST_CPUS
    require(is_list and all(isinstance(one, dict) for one in own), "its CPUs cannot be")
    shared = {name: value for name, value in manifest.items() if name != CPUS}
    require(not any(shared.keys() & one.keys() for one in own), "its CPUs cannot be")
    return [{**shared, **one} for one in own]
