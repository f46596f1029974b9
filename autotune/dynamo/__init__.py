"""⑪ A backend of `torch.compile`: graphs of PyTorch's as compiled networks, for inference.

    compiled = torch.compile(model, backend="autotune")
    with torch.inference_mode():
        y = compiled(x)

    compiling    FX graph of dynamo ─► functional FX graph ─► GraphRegion
    exporting    functional FX graph ─► ONNX
    region       compiled networks of a graph, one for every state of its parameters
    partition    regions and the operators between them, which run in PyTorch

PyTorch is imported when the backend is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from autotune.errors import MissingDependency

HINT = "pip install 'autotune-compiler[torch]'"


def backend(
    graph: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend `"autotune"` of `torch.compile`: a function that computes `graph`.

    `options`: `threads` (by default those of the log, else PyTorch's), `log`, `dims`, `precision`,
    `max_error`, `operators`, `cache`, `cache_bytes`, `most_shapes`, `most_bytes`, `memory`, as of
    `InferenceSession`. Raises UsageError for others, MissingDependency without PyTorch or
    onnxscript.
    """
    for name in ("torch", "onnxscript"):
        if find_spec(name) is None:
            raise MissingDependency(f"{name} is not installed", HINT)
    from autotune.dynamo.compiling import compiled

    return compiled(graph, example_inputs, mode, options)
