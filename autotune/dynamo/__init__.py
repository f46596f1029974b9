"""⑪ A backend of `torch.compile`: graphs of PyTorch's as compiled networks, for inference.

    compiled = torch.compile(model, backend="autotune")
    with torch.inference_mode():
        y = compiled(x)

    compiling    FX graph of dynamo ─► functional FX graph ─► Region
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


def backend(
    graph: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend `"autotune"` of `torch.compile`: a function that computes `graph`.

    `options`: see `settings.OPTIONS`. Raises UsageError for others, MissingDependency without
    PyTorch.
    """
    if find_spec("torch") is None:
        raise MissingDependency("torch is not installed", "pip install 'autotune-compiler[torch]'")
    from autotune.dynamo.compiling import compiled

    return compiled(graph, example_inputs, mode, options)
