"""① Survey of a model: nodes that can be compiled, and facts of every tensor.

    survey(model, operators, declared, forced) ─► Survey: refused nodes, constants, types

Every node of the file is imported alone (see `import_engine`). A node that is refused makes tensors
that are known by their declared types alone; what reads a tensor whose shape the data decide is
refused as well, until a shape is static again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import onnx
from onnx import ModelProto, NodeProto, TypeProto

from autotune.dtypes import DTYPES, SMALL_TYPES
from autotune.errors import AutotuneError
from autotune.graph.ir import Array, Node, TensorType
from autotune.graph.operators.user_operators import UserOperators
from autotune.graph.reader.functions import check_calls
from autotune.graph.reader.import_engine import ImportEngine
from autotune.graph.reader.inference import is_static
from autotune.graph.reader.ml_shapes import ml_types
from autotune.graph.reader.node_order import names_read
from autotune.graph.reader.onnx_nodes import functions_of, graph_of, type_of
from autotune.graph.reader.onnx_reader import OnnxModel, forget_shape

Ask = Callable[[ModelProto, tuple[str, ...]], Mapping[str, TypeProto]]
"""Types of tensors of a model, by the runtime that will run it; unknown ones are left out."""


def nobody(model: ModelProto, names: tuple[str, ...]) -> Mapping[str, TypeProto]:
    """An `Ask` that knows nothing more: all is to be compiled."""
    return {}


NOT_SUPPORTED = "not supported"


@dataclass(frozen=True)
class Survey:
    """Facts about the nodes of a file, which are named by their positions.

    `refused`: nodes that cannot be compiled, with the reason. `known`: nodes all of whose results
    are constants. `constants`, `types`: of tensors of the file, as far as they are known; types are
    static. `makers`: the node of the file behind a node or a tensor of the graph, by name.
    """

    refused: dict[int, str]
    known: set[int]
    constants: dict[str, Array]
    types: dict[str, TensorType]
    makers: dict[str, int]

    def is_static(self, name: str) -> bool:
        """Whether all extents of a tensor are known."""
        return name in self.constants or name in self.types


def survey(
    model: OnnxModel,
    operators: UserOperators,
    declared: DeclaredTypes,
    forced: Mapping[int, str],
    known: Mapping[str, TensorType] = MappingProxyType({}),
) -> Survey:
    """Import the nodes of `model` one by one, whatever becomes of each.

    `forced`: nodes that are refused for reasons that are known already. `known`: types of results
    of such, beyond those that are declared.
    """
    return _Surveyor(model, operators, declared, forced, known).run()


@dataclass
class DeclaredTypes:
    """Types of tensors as ONNX infers them, and unknown ones by `ask`."""

    model: OnnxModel
    ask: Ask
    _inferred: dict[str, TypeProto] = field(default_factory=dict)
    _asked: Mapping[str, TypeProto] | None = None

    def __post_init__(self) -> None:
        proto = _without_shapes(self.model.proto)
        try:
            found = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
        except Exception:  # of a model of any kind: there is less to go by
            found = proto.graph
        for value in (*found.value_info, *found.input, *found.output):
            self._inferred[value.name] = value.type

    def of(self, name: str) -> TypeProto | None:
        """The type of a tensor, a sequence or a map; None where unknown."""
        kind = self._inferred.get(name)
        if kind is not None and _says_rank(kind):
            return kind
        if self._asked is None:
            nodes = self.model.proto.graph.node
            names = (o for node in nodes for o in node.output if o)
            unknown = tuple(n for n in names if not _says_rank(self._inferred.get(n)))
            self._asked = self.ask(self.model.complete(), unknown)
        return self._asked.get(name, kind)

    def static(self, name: str) -> TensorType | None:
        """The type of a tensor if all extents are known."""
        kind = self.of(name)
        if kind is None or not _says_rank(kind) or kind.WhichOneof("value") != "tensor_type":
            return None
        found = type_of(kind)
        return found if min(found.shape, default=0) >= 0 else None


def _without_shapes(model: ModelProto) -> ModelProto:
    """`model` without the shapes that it states of results, which may be wrong."""
    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for output in bare.graph.output:
        forget_shape(output)
    return bare


def _says_rank(kind: TypeProto | None) -> bool:
    if kind is None or kind.WhichOneof("value") is None:
        return False
    tensor = kind.tensor_type
    is_tensor = kind.WhichOneof("value") == "tensor_type"
    return not is_tensor or (bool(tensor.elem_type) and tensor.HasField("shape"))


class _Surveyor:
    def __init__(
        self,
        model: OnnxModel,
        operators: UserOperators,
        declared: DeclaredTypes,
        forced: Mapping[int, str],
        known: Mapping[str, TensorType],
    ) -> None:
        functions = functions_of(model.proto)
        check_calls(functions)
        graph = graph_of(model.proto.graph, model.opset, model.weights, functions)
        self.protos = model.proto.graph.node
        self.engine = ImportEngine(graph, operators)
        self.declared, self.forced, self.known = declared, forced, known
        self.made = {o for node in graph.nodes for o in node.outputs}
        self.found = Survey({}, set(), {}, {}, {})

    def run(self) -> Survey:
        editor = self.engine.editor
        for n, node in enumerate(editor.graph.nodes):
            self._look_at(n, node)
        for name in self.made | set(editor.graph.inputs) | set(editor.graph.constants):
            if name in editor.constants:
                self.found.constants[name] = editor.constants[name]
            if is_static(name, editor):
                self.found.types[name] = editor.types[name]
        return self.found

    def _look_at(self, n: int, node: Node) -> None:
        editor = self.engine.editor
        n_nodes, n_refusals = len(editor.nodes), len(self.engine.refusals.found)
        reason = self.forced.get(n) or self._unreadable(self.protos[n])
        if not reason:
            try:
                self.engine.take(node)
            except AutotuneError as error:
                reason = error.message
        refused = self.engine.refusals.found[n_refusals:]
        if refused and not reason:
            reason = _reason(node, *refused[0])
        results = [o for o in node.outputs if o]
        reason = reason or next(filter(None, map(self._undecided, results)), "")
        if not reason and results and all(o in editor.constants for o in results):
            self.found.known.add(n)
        elif not reason:
            names = (*node.inputs, *results)
            reason = next(filter(None, map(self._foreign, names)), "")
        if reason:
            self._refuse(n, node, n_nodes, reason)
        for made in editor.nodes[n_nodes:]:
            for name in (made.name, *made.outputs):
                self.found.makers.setdefault(name, n)

    def _unreadable(self, node: NodeProto) -> str:
        """Reason why compiled code cannot read the operands of a node."""
        editor, sequences = self.engine.editor, self.engine.unfold.sequences
        bodies = (a.g for a in node.attribute if a.HasField("g"))
        outer = (name for body in bodies for name in names_read(body) if name in self.made)
        for name in (*filter(None, node.input), *outer):
            if name not in sequences and not is_static(name, editor):
                return f"the shape of '{name}' is known only at run time"
        return ""

    def _undecided(self, name: str) -> str:
        editor = self.engine.editor
        if name in self.engine.unfold.sequences:
            return ""
        kind = editor.types.get(name)
        is_static = kind is not None and min(kind.shape, default=0) >= 0
        return "" if is_static else f"the shape of '{name}' is known only at run time"

    def _foreign(self, name: str) -> str:
        kind = self.engine.editor.types.get(name)
        is_known = kind is None or kind.dtype in DTYPES or kind.dtype in SMALL_TYPES
        return "" if kind is None or is_known else f"type {_dtype_text(kind.dtype)}"

    def _refuse(self, n: int, node: Node, n_nodes: int, reason: str) -> None:
        """Forget the import of a node; its results are known by their declared types."""
        editor = self.engine.editor
        self.found.refused[n] = reason
        del editor.nodes[n_nodes:]
        for name in filter(None, node.outputs):
            editor.constants.pop(name, None)
            editor.types.pop(name, None)
            self.engine.unfold.sequences.pop(name, None)
            kind = self.known.get(name) or self.declared.static(name)
            if kind is not None:
                editor.types[name] = kind
        first = editor.types.get(node.inputs[0]) if node.inputs else None
        if first is not None and min(first.shape, default=0) >= 0:
            for name, kind in zip(node.outputs, ml_types(node, first), strict=False):
                editor.types.setdefault(name, kind)


def _dtype_text(dtype: str) -> str:
    return "string" if dtype == "object" else dtype


def _reason(node: Node, inner: Node, error: AutotuneError) -> str:
    told = getattr(error, "reason", "") or NOT_SUPPORTED
    return told if inner.op == node.op else f"{inner.op}: {told}"
