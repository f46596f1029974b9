"""① What a token, a place, and a pair of places of one row cost in a network over tokens.

operations(rows, longest, tokens) = tokens·a + rows·longest·b + rows·longest²·c + …
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.extent import Length
from autotune.graph.network import Network
from autotune.te.at_numbers import at


def work_of(network: Network, batch: str, sequence: Length, number: str) -> tuple[int, int, int]:
    """Operations of a token, of a place and of a pair of places."""
    step = max(1, sequence.most // 3)

    def operations(longest: int, tokens: int) -> int:
        return _operations(network, {batch: 1, sequence.name: longest, number: tokens})

    none, one, two = (operations(n * step, step) for n in (1, 2, 3))
    token = (operations(step, 2 * step) - none) // step
    pair = (two - 2 * one + none) // (2 * step**2)
    place = (one - none) // step - 3 * step * pair
    return max(1, token), max(0, place), max(0, pair)


def _operations(network: Network, numbers: Mapping[str, int]) -> int:
    values = {port: numbers[name] for name, port in network.lengths.items()}
    found: dict[str, int] = {}
    total = 0
    for call in network.calls:
        if call.task not in found:
            own = {own: values[value] for own, value in call.inputs.items() if value in values}
            found[call.task] = at(network.tasks[call.task], own).flops
        total += found[call.task]
    return total
