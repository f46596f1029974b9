"""⑪ `autotune tasks --passes`, `--after PASS`: the graph of a model between its passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autotune.cli.console import columns, put
from autotune.errors import ModelError, UsageError

if TYPE_CHECKING:
    from autotune.api.bindings import Bound
    from autotune.graph.ir import Graph
    from autotune.graph.passes.pipeline import Pass


def show_passes(bound: Bound, after: str | None, precision: str) -> None:
    """Print what every pass leaves, or the graph behind pass `after`; verify all of them.

    Raises UsageError for an unknown pass, ModelError where a pass leaves a graph that is not
    consistent.
    """
    from autotune.graph.network import prepared_graphs
    from autotune.graph.printer import print_graph

    found = prepared_graphs(bound.model, bound.variants[0].shapes, precision)
    if after is None:
        rows = [_row(step, graph) for step, graph in _verified(found)]
        put(
            columns(
                ("pass", "nodes", "constants", "what it does"), rows, right=("nodes", "constants")
            )
        )
        return
    names = []
    for step, graph in _verified(found):
        names.append(step.name)
        if step.name == after:
            put(print_graph(graph))
            return
    raise UsageError(f"there is no pass '{after}'", f"the passes are: {', '.join(names)}")


def _row(step: Pass, graph: Graph) -> tuple[str, ...]:
    return step.name, str(len(graph.nodes)), str(len(graph.constants)), step.summary


def _verified(found: Iterator[tuple[Pass, Graph]]) -> Iterator[tuple[Pass, Graph]]:
    from autotune.graph.verify import MalformedGraph, verify

    for step, graph in found:
        try:
            verify(graph, step.form)
        except MalformedGraph as error:
            raise ModelError(
                f"pass '{step.name}' left an inconsistent graph: {error}",
                "this is a fault of autotune: please report the model",
            ) from error
        yield step, graph
