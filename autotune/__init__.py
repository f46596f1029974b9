"""autotune: tune an ONNX model for this CPU and compile it from what was found.

    import autotune

    outputs = autotune.load("model.atn").run({"input": array})

and, without the command line, from model to artifact:

    network = autotune.build_network("model.onnx")
    target = autotune.host_target()
    best = autotune.best_for(autotune.read_log("model.jsonl"), target.key, n_threads=2)
    steps = {key: record.steps for key, record in best.items()}
    network = autotune.chosen(network, {key: r.result.latency_s for key, r in best.items()})
    autotune.compile_network(network, steps, target, n_threads=2).save("model.atn")

Nothing is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.graph.network import build_network as build_network
    from autotune.graph.network import chosen as chosen
    from autotune.network.compiler import compile_network as compile_network
    from autotune.network.runtime import load as load
    from autotune.records import best_for as best_for
    from autotune.records import read_log as read_log
    from autotune.search.policy import default_steps as default_steps
    from autotune.target import host_target as host_target

__version__ = "0.1.0"

_LAZY = {
    "best_for": "autotune.records",
    "build_network": "autotune.graph.network",
    "chosen": "autotune.graph.network",
    "compile_network": "autotune.network.compiler",
    "default_steps": "autotune.search.policy",
    "host_target": "autotune.target",
    "load": "autotune.network.runtime",
    "read_log": "autotune.records",
}
__all__ = [
    "__version__",
    "best_for",
    "build_network",
    "chosen",
    "compile_network",
    "default_steps",
    "host_target",
    "load",
    "read_log",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'autotune' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)
