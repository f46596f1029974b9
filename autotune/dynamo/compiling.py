"""⑪ The backend: graphs of dynamo's made functional, and their regions compiled.

compiled(graph, example_inputs, mode, options) ─► function of the graph's inputs
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from autotune.dynamo.exporting import NotExported
from autotune.dynamo.partition import is_whole, names_in, partitioned
from autotune.dynamo.region import GraphRegion
from autotune.dynamo.settings import Settings

LOGGER = logging.getLogger("autotune")


def compiled(
    graph: Any,
    example_inputs: Sequence[Any],
    mode: str | None,
    options: Mapping[str, Any] | None,
) -> Callable[..., Any]:
    """A function of the inputs of `graph`; the graph itself where gradients are wanted of it."""
    settings = Settings.of(mode, options)
    reason = _reason_against(graph, example_inputs)
    if reason:
        LOGGER.warning("autotune: a graph runs in PyTorch: %s", reason)
        function: Callable[..., Any] = graph.forward
        return function
    inference = partial(_compiled_inference, settings=settings)
    with _composites_kept():
        made: Callable[..., Any] = aot_autograd(
            fw_compiler=inference, inference_compiler=inference
        )(graph, example_inputs)
    return made


def _reason_against(graph: Any, example_inputs: Sequence[Any]) -> str:
    """Reason why a graph is not compiled; empty where it is."""
    tensors = [*graph.parameters(), *example_inputs]
    if torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors):
        return "gradients are wanted: call it under torch.inference_mode()"
    return ""


@contextmanager
def _composites_kept() -> Iterator[None]:
    """Linear, attention and the like stay one operator in traced graphs, as exporters keep them."""
    from torch.export import exported_program

    names = "_split_decomp_table_to_cia_and_python_decomp", "_override_composite_implicit_decomp"
    split, keep = (getattr(exported_program, name, None) for name in names)
    if split is None or keep is None:  # of another version: their parts are compiled
        yield
        return
    composites, _ = split({})
    with keep(composites):
        yield


def _compiled_inference(
    gm: Any, example_inputs: Sequence[Any], settings: Settings
) -> Callable[[list[Any]], Any]:
    """What runs a functional graph."""
    constants = _constants(gm)
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default  # between parts, strides may be others
    gm.recompile()
    function = region_of(gm, constants, settings)

    def run(arguments: list[Any]) -> Any:
        given = tuple(arguments)
        arguments.clear()
        return function(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def region_of(gm: Any, constants: Collection[str], settings: Settings) -> Callable[..., Any]:
    """What computes a graph: a region, or a graph of several where some of it is PyTorch's."""

    def cut(refused: Collection[str]) -> Callable[..., Any] | None:
        function: Callable[..., Any] | None = partitioned(
            gm, refused, lambda part: region_of(part, constants, settings)
        )
        return function

    def instead(refusal: NotExported) -> Callable[..., Any] | None:
        refused = frozenset(_names(refusal.targets)) & names_in(gm)
        if not refused:
            return None
        LOGGER.info("autotune: %s: PyTorch runs it", refusal)
        return cut(refused)

    return GraphRegion(gm, constants, settings, instead) if is_whole(gm) else cut(()) or gm


def _names(targets: Collection[str]) -> Iterator[str]:
    """Names of FX nodes for those of ONNX: `node_conv2d`, `split__0`."""
    for target in targets:
        yield target
        yield target.removeprefix("node_").split("__")[0]


def _constants(gm: Any) -> frozenset[str]:
    """Placeholders with parameters and buffers that a graph only reads."""
    context = TracingContext.try_get()
    facts = context.fw_metadata if context else None
    if facts is None:
        return frozenset()
    names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    infos = facts.input_info
    written = {n for n, info in enumerate(infos) if info.mutates_data or info.mutates_metadata}
    return frozenset(names[n] for n in facts.static_input_indices if n not in written)
