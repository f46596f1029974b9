"""Typical layers behind every pass: what they compute, and their graphs and loops as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from autotune.graph.bound_model import BoundModel
from autotune.graph.network import build_network, prepared_graphs
from autotune.graph.printer import print_graph
from autotune.loopir.lower import lower
from autotune.loopir.printer import print_program
from autotune.search.defaults import default_steps
from benchmarks.outcomes import Kind
from tests.fuzz.judging import Question
from tests.fuzz.passes import changed, judged
from tests.graph.layers import LAYERS
from tests.graph.onnx_models import random_feeds, save
from tests.network.test_network_precision import conv_net
from tests.targets import VNNI

EACH = pytest.mark.parametrize("name", LAYERS)


def layer(name: str) -> ModelProto:
    return LAYERS[name](np.random.default_rng(0))


@EACH
def test_no_pass_changes_what_a_layer_computes(name: str, rng: np.random.Generator) -> None:
    outcome = judged(Question(name, LAYERS[name](rng).SerializeToString()))
    assert outcome.kind is Kind.RIGHT, outcome.text


def test_tensors_have_the_names_of_the_file_also_where_they_are_stored_channels_last(
    rng: np.random.Generator,
) -> None:
    network = build_network(conv_net(rng))
    assert {"r1", "r2", "sum"} <= {name for c in network.calls for name in c.outputs.values()}
    assert {"r1", "r2"} <= {name for c in network.calls for name in c.inputs.values()}


def test_a_pass_that_changes_a_number_is_named(tmp_path: Path) -> None:
    """In each of the forms that a graph goes through."""
    path = save(layer("conv_bn_relu"), tmp_path)
    feeds = random_feeds(build_network(path))
    graphs = list(prepared_graphs(BoundModel(path)))
    for n in range(1, len(graphs)):
        step, graph = graphs[n]
        read = {name for node in graph.nodes for name in node.inputs if name in graph.constants}
        largest = max(read, key=lambda name: graph.constants[name].size)
        constants = {**graph.constants, largest: graph.constants[largest] * np.float32(1.01)}
        broken = [*graphs[:n], (step, replace(graph, constants=constants)), *graphs[n + 1 :]]
        assert changed(broken, feeds).startswith(f"behind {step.name}: output 0")
    assert not changed(graphs, feeds)


@EACH
def test_graphs_behind_all_passes(
    name: str, golden: Callable[[str, str], None], tmp_path: Path
) -> None:
    *_, (_, graph) = prepared_graphs(BoundModel(save(layer(name), tmp_path)))
    golden(f"graph/{name}.txt", f"{print_graph(graph)}\n")


@pytest.mark.sampled(6)
@EACH
def test_loops_of_default_programs(
    name: str, golden: Callable[[str, str], None], tmp_path: Path
) -> None:
    network = build_network(save(layer(name), tmp_path))
    texts = []
    for key, dag in network.tasks.items():
        program = lower(dag, default_steps(dag, VNNI, 2))
        texts.append(f"# {network.labels[key]} x {network.weights[key]}\n{print_program(program)}")
    golden(f"loopir/{name}.txt", "\n\n".join(text.rstrip("\n") for text in texts) + "\n")
