"""The numbers of a graph behind every pass, beside those of the graph as it was read.

    outcome = judged(question)      # wrong: names the first pass behind which an output differs

The graph is evaluated node by node in NumPy (`tests.graph.graph_values`), so a pass is found that
changes what the graph computes, whatever the passes behind it and code generation make of that.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from autotune.errors import AutotuneError
from autotune.graph.bound_model import BoundModel
from autotune.graph.ir import Graph
from autotune.graph.network import build_network, prepared_graphs
from autotune.graph.passes.pipeline import Form, GraphPass
from autotune.graph.reader.model_files import model_file
from benchmarks.outcomes import Kind, Outcome, Tell, one_line
from tests.fuzz.judging import Question, difference, shifted
from tests.graph.graph_values import ORACLES, GraphValues
from tests.graph.onnx_models import random_feeds

Array = NDArray[Any]


def judged(question: Question, tell: Tell = lambda stage: None) -> Outcome:
    """Whether every pass leaves what the graph of a model computes, within rounding."""
    onnxruntime.set_default_logger_severity(4)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            network = build_network(question.model)
        except AutotuneError as error:
            return Outcome(Kind.REFUSED, one_line(str(error)))
        tell("passes")
        with model_file(question.model) as path:
            graphs = list(prepared_graphs(BoundModel(path)))
        fault = changed(graphs, random_feeds(network, question.seed))
    return Outcome(Kind.WRONG, fault) if fault else Outcome(Kind.RIGHT)


def changed(graphs: Sequence[tuple[GraphPass, Graph]], feeds: Mapping[str, Array]) -> str:
    """The first pass behind which an output is another one, and where; "" if there is none.

    `graphs`: as it was read, and behind every pass. The standard leaves some numbers open, of which
    the oracles have different ones: the passes may follow either.
    """
    fault = _changed(graphs, feeds, GraphValues(ORACLES))
    return fault and _changed(graphs, feeds, GraphValues(ORACLES[::-1])) and fault


def _changed(
    graphs: Sequence[tuple[GraphPass, Graph]], feeds: Mapping[str, Array], values: GraphValues
) -> str:
    steps = [step for step, _ in graphs]
    nearby = (feeds, *(shifted(feeds, seed) for seed in (1, 2)))
    wanted, *moved = (values(graphs[0][1], Form.ONNX, steps, f) for f in nearby)
    for n, (step, graph) in enumerate(graphs):
        fault = difference(values(graph, step.form, steps[n + 1 :], feeds), wanted, moved)
        if fault:
            return f"behind {step.name}: {fault}"
    return ""
