"""⑩ Check of a network with lengths: at the least, at the most and between, each beside the oracle.

    check_any(model, network, original) ─► Report: of one size, or of several together

An oracle runs the file at shapes of that very size. Working memory is filled with NaN before, so
that what a kernel reads behind a length shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.graph.network import Network
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.numbers import numbers_of
from autotune.network.check.accuracy import Report, joint_report
from autotune.network.check.check import check_model
from autotune.network.check.experience import Experience
from autotune.network.check.oracles import Original
from autotune.network.runtime.runtime import Model

Array = NDArray[Any]
Numbers = Mapping[str, int]

_BETWEEN = 3
"""Sizes that are checked between the least and the most, drawn evenly in their logarithm: what is
left of the last tile tells more than how many tiles there are."""
_EVERY_KIND = 2
"""Place of the first of them."""


def check_any(
    model: Model,
    network: Network,
    original: Original,
    given: Sequence[Mapping[str, Array]] = (),
    seed: int = 0,
    experience: Experience | None = None,
) -> Report:
    """`check_model`, at several sizes where there are lengths, and at those of `given` inputs.

    Every kind of inputs is tried at one of the sizes between, one at others: an oracle takes
    longest at the most. Raises WrongNumbers.
    """
    if not model.lengths:
        return check_model(model, network, original, given, seed, experience)
    experience = experience or Experience()
    by_size = _by_size(model.artifact, given)
    reports = []
    sizes = list(_sizes(model.artifact.possible, by_size, seed))
    for n, numbers in enumerate(sizes):
        if model.is_ragged:  # all places, those of masks with holes as well
            numbers = {name: k for name, k in numbers.items() if name in model.lengths}
        one = model.sized(numbers)
        shapes = {end.name: end.shape for end in one.input_info}
        own = by_size.get(_key(numbers), ())
        one.spoil()
        of_size = original.at(shapes)
        kinds = None if n == min(_EVERY_KIND, len(sizes) - 1) else 1
        reports.append(check_model(one, network, of_size, own, seed, experience, kinds))
    return joint_report(reports)


def fits(artifact: Artifact, given: Mapping[str, Array]) -> bool:
    """Whether inputs have shapes that an artifact is for."""
    if not all(end.name in given for end in artifact.own_inputs):
        return False
    try:
        numbers_of(artifact.own_inputs, {name: array.shape for name, array in given.items()})
    except UsageError:
        return False
    return True


def _by_size(
    artifact: Artifact, given: Sequence[Mapping[str, Array]]
) -> dict[object, list[Mapping[str, Array]]]:
    found: dict[object, list[Mapping[str, Array]]] = {}
    for arrays in given:
        shapes = {name: array.shape for name, array in arrays.items()}
        found.setdefault(_key(numbers_of(artifact.own_inputs, shapes)), []).append(arrays)
    return found


def _sizes(
    possible: Mapping[str, range], asked: Mapping[Any, object], seed: int
) -> Iterator[Numbers]:
    """The most, then the least, then some between, and those of a user's inputs; each once.

    Of several lengths each but the longest is at its most beside the least of the others as well:
    the numbers that a network is made of may all have lengths in one order.
    """
    mosts, leasts = ({name: n[at] for name, n in possible.items()} for at in (-1, 0))
    crossed = [leasts | {name: mosts[name]} for name in sorted(mosts, key=mosts.__getitem__)[:-1]]
    rng = np.random.default_rng([seed, *mosts.values()])
    drawn = [
        {name: _between(rng, n[0], n[-1]) for name, n in possible.items()} for _ in range(_BETWEEN)
    ]
    for key in dict.fromkeys(map(_key, (mosts, leasts, *crossed, *drawn, *map(dict, asked)))):
        yield dict(key)


def _between(rng: np.random.Generator, least: int, most: int) -> int:
    """A number from `least` to `most`, both positive."""
    return min(most, int(least * ((most + 1) / least) ** rng.random()))


def _key(numbers: Numbers) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(numbers.items()))
