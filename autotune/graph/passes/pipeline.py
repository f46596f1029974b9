"""① The passes between an imported model and the partition, in the order in which they run.

graph = prepare(graph)                                              every pass
for step, graph in prepared(graph): verify(graph, step.form)        and a look between them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from enum import Enum
from functools import partial

from autotune.graph.ir import Graph
from autotune.graph.passes.affine import DEQUANTISE, FOLD, MOVE, UNSIGNED
from autotune.graph.passes.cached_products import (
    AS_STORED,
    GROUPED,
    IN_PLACE,
    SCALED,
    SOFTMAX,
    TURNED_LAST,
    WIDEN_LAST,
)
from autotune.graph.passes.driver import rewrite
from autotune.graph.passes.expert_products import EXPERTS
from autotune.graph.passes.float_integers import float_integers
from autotune.graph.passes.fold_scales import FOLD_AFFINE
from autotune.graph.passes.hoisting import HOIST_ELEMENTWISE, HOIST_NARROWING
from autotune.graph.passes.layout import channels_last
from autotune.graph.passes.lookups import TABULATE
from autotune.graph.passes.normalisations import GROUP_NORM
from autotune.graph.passes.oblique import OBLIQUE
from autotune.graph.passes.parallel_convolutions import MERGE_BRANCHES
from autotune.graph.passes.phases import HOIST_PHASES
from autotune.graph.passes.precision import narrow_products
from autotune.graph.passes.quantised import PRODUCT
from autotune.graph.passes.requantisation import REQUANTISE
from autotune.graph.passes.rewrites import CANONICAL, RESOLVE
from autotune.graph.passes.simplify import IDENTITY, RESHAPE, drop_empty_outputs
from autotune.graph.passes.small_constants import STORE_HALF, STORE_SCALES
from autotune.graph.passes.small_types import store_small_types
from autotune.graph.passes.tied_tables import TIED
from autotune.graph.passes.transposes import TRANSPOSE
from autotune.graph.rewriter import RewriteLog, Rule


class Form(Enum):
    """IR level of a graph."""

    ONNX = "onnx"
    """Operators of opset 22 and those of passes, in ONNX's order of dimensions."""
    STORED = "stored"
    """Shapes are those in memory: channels last."""
    RESOLVED = "resolved"
    """The same; every input is data, and every node has a definition or is a view."""


@dataclass(frozen=True, slots=True)
class GraphPass:
    """A rewrite of the graph: by rules, or by a function of the whole graph.

    `form`: that of its result; its argument has the one before. `about`: one line.
    """

    name: str
    rewriting: tuple[Rule, ...] | Callable[[Graph], Graph]
    form: Form = Form.ONNX
    about: str = ""

    def run(self, graph: Graph, log: RewriteLog | None = None) -> Graph:
        """The rewritten graph; `log` counts the rewrites of rules."""
        if isinstance(self.rewriting, tuple):
            return rewrite(graph, *self.rewriting, log=log)
        return self.rewriting(graph)

    @property
    def summary(self) -> str:
        """One line for people: `about`, else the docstring of its function or first rule."""
        first = self.rewriting[0].apply if isinstance(self.rewriting, tuple) else self.rewriting
        return self.about or (first.__doc__ or "").strip().splitlines()[0]


PASSES: tuple[GraphPass, ...] = (
    GraphPass("store-small-types", store_small_types),
    GraphPass("drop-empty-outputs", drop_empty_outputs),
    GraphPass("identities", (IDENTITY,)),
    GraphPass("dequantise-constants", (DEQUANTISE,)),
    GraphPass("canonical", (CANONICAL,)),
    GraphPass(
        "quantised",
        (UNSIGNED, MOVE, PRODUCT, REQUANTISE),
        about="Products of dequantised tensors become products of integers.",
    ),
    GraphPass(
        "hoist-elementwise",
        (
            *(FOLD, RESHAPE, WIDEN_LAST, TURNED_LAST, GROUP_NORM, SCALED, GROUPED, AS_STORED),
            *(EXPERTS, SOFTMAX, HOIST_ELEMENTWISE, TABULATE),
        ),
        about="Move elementwise operators in front of Reshape and Transpose; functions of a byte "
        "become tables, heads that share keys rows of one product.",
    ),
    GraphPass("products-in-place", (IN_PLACE,)),
    GraphPass(
        "fold-linear",
        (HOIST_PHASES, FOLD_AFFINE, MERGE_BRANCHES),
        about="Fold scales, shifts and parallel branches into the weights of products.",
    ),
    GraphPass("tied-tables", (TIED,)),
    GraphPass("store-small-constants", (STORE_HALF, STORE_SCALES)),
    GraphPass("channels-last", channels_last, Form.STORED),
    GraphPass("merge-transposes", (TRANSPOSE, RESHAPE), Form.STORED),
    GraphPass("resolve", (RESOLVE,), Form.RESOLVED),
    GraphPass("oblique", (OBLIQUE,), Form.RESOLVED),
    GraphPass("hoist-narrowing", (HOIST_NARROWING, IDENTITY), Form.RESOLVED),
)


_N_FIRST = next(n for n, step in enumerate(PASSES) if step.form is not Form.ONNX)
"""Passes that are the same whatever products are computed in."""


def passes(
    dtype: str = "float32", kept: Set[str] = frozenset(), floats: Set[str] = frozenset()
) -> tuple[GraphPass, ...]:
    """The passes for products whose factors are of `dtype`, but for those of `kept` nodes.

    `floats`: nodes whose products of integers are products of floats, see `float_integers`.
    """
    added: list[GraphPass] = []
    if floats:
        stored = floats - kept if dtype != "float32" else frozenset()
        added.append(GraphPass("float-integers", float_integers(floats, stored)))
    if dtype != "float32":
        added.append(GraphPass("narrow-products", _bound(narrow_products, dtype=dtype, kept=kept)))
    return (*PASSES[:_N_FIRST], *added, *PASSES[_N_FIRST:])


def _bound(run: Callable[..., Graph], **arguments: str | Set[str]) -> Callable[[Graph], Graph]:
    """`run` with arguments, and with its docstring."""
    found = partial(run, **arguments)
    found.__doc__ = run.__doc__
    return found


def prepare_first(graph: Graph) -> Graph:
    """The graph before the pass that makes products narrow: the same for every precision."""
    for step in PASSES[:_N_FIRST]:
        graph = step.run(graph)
    return graph


def prepare_rest(
    graph: Graph, dtype: str, kept: Set[str] = frozenset(), floats: Set[str] = frozenset()
) -> Graph:
    """The passes of `prepare` that follow `prepare_first`; see `passes`."""
    for step in passes(dtype, kept, floats)[_N_FIRST:]:
        graph = step.run(graph)
    return graph


def prepared(
    graph: Graph, dtype: str = "float32", log: RewriteLog | None = None
) -> Iterator[tuple[GraphPass, Graph]]:
    """Run all passes in order: each with its result, to print or to verify it.

    `dtype`: of the factors of products. `log`: takes the rewrites of rules, and limits them.
    Nodes that a pass refuses stay as `Refused` nodes; `refusals.require_supported` names them all.
    """
    for step in passes(dtype):
        graph = step.run(graph, log)
        yield step, graph


def prepare(graph: Graph, dtype: str = "float32") -> Graph:
    """The graph behind the last pass."""
    for _, result in prepared(graph, dtype):
        graph = result
    return graph
