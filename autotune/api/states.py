"""⑪ States of a fixed shape: inputs that an output takes the place of in the next call."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.errors import UsageError
from autotune.graph.network import Network
from autotune.graph.state import StateInfo
from autotune.names import unknown_name


def replaced_state(network: Network, pairs: Mapping[str, str]) -> StateInfo:
    """The state of a model: inputs that outputs replace. Raises UsageError."""
    inputs, outputs = ({p.name: p for p in ports} for ports in (network.inputs, network.outputs))
    for name, result in pairs.items():
        for one, known, what in ((name, inputs, "input"), (result, outputs, "output")):
            if one not in known:
                raise unknown_name(what, one, known)
        old, new = inputs[name], outputs[result]
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise UsageError(
                f"'{result}' {new.dtype}{list(new.shape)} does not take the place of '{name}' "
                f"{old.dtype}{list(old.shape)}",
                "give a `capacity` where a state grows, and shapes that stay (`dims`)",
            )
    return StateInfo(replaced=dict(pairs))
