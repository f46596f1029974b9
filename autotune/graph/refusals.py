"""① Unsupported-operator diagnostics: one error names all, each by its first node with the reason.

refusals = Refusals()
for node in graph.nodes:
    with refusals.of(node):
        visit(node)                     # may raise UnsupportedOperator, or fail
refusals.check(graph.outputs, editor.nodes)     # raises one error that names them all

Behind the import, refused nodes stay in the graph as `Refused` nodes, so that one error names those
of all passes:

except UnsupportedOperator as error: nodes = refused(node, error)      # in every pass
require_supported(graph)                                              # after all passes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from autotune.errors import AutotuneError, ModelError, UnsupportedOperator
from autotune.graph.ir import CUT_HINT, Graph, Node
from autotune.graph.limits import check_type

_REFUSED = "Refused"


class Refusals:
    """Collects the nodes that were refused while a graph is visited."""

    def __init__(self) -> None:
        self.found: list[tuple[Node, UnsupportedOperator]] = []

    @contextmanager
    def of(self, node: Node) -> Iterator[None]:
        """Record a refusal of `node`; any other failure becomes an error that names it."""
        try:
            with naming(node):
                yield
        except UnsupportedOperator as error:
            self.found.append((node, error))

    def check(self, outputs: Iterable[str], nodes: Iterable[Node]) -> None:
        """Raises UnsupportedOperator where an output depends on a node that was refused.

        Reasons that may be consequences of an earlier refusal are left out.
        """
        if not self.found:
            return
        makers = {o: n for n in (*nodes, *(n for n, _ in self.found)) for o in n.outputs if o}
        live = _reached(outputs, makers)
        found = [(n, e) for n, e in self.found if n.name in live or live & set(n.outputs)]
        makers_of_none = {o for n, _ in found for o in n.outputs}
        first = [
            (n, e)
            for n, e in found
            if not e.reason or not makers_of_none & _reached(n.inputs, makers)
        ]
        if first:
            raise together(first)


def _reached(names: Iterable[str], makers: dict[str, Node]) -> set[str]:
    """All tensors on which some tensors depend, themselves included."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name and name not in found:
            found.add(name)
            maker = makers.get(name)
            todo += maker.inputs if maker else ()
    return found


def together(found: list[tuple[Node, UnsupportedOperator]]) -> UnsupportedOperator:
    """One error for all refusals."""
    error = found[0][1] if len(found) == 1 else _joined(found)
    error.nodes = frozenset(x for node, _ in found for x in (node.name, *node.outputs) if x)
    return error


def _joined(found: list[tuple[Node, UnsupportedOperator]]) -> UnsupportedOperator:
    kinds: dict[tuple[str, str], list[Node]] = {}
    for node, error in found:
        kinds.setdefault((node.op, error.reason), []).append(node)
    parts = [_told(op, reason, nodes) for (op, reason), nodes in kinds.items()]
    n_kinds = len({op for op, _ in kinds})
    head = f"{n_kinds} operators are" if n_kinds > 1 else "an operator is"
    hint = CUT_HINT if any(not reason for _, reason in kinds) else found[0][1].hint
    return UnsupportedOperator(f"{head} not supported: {', '.join(parts)}", hint)


def _told(op: str, reason: str, nodes: list[Node]) -> str:
    where = (
        f"{len(nodes)} nodes, first '{nodes[0].name}'"
        if len(nodes) > 1
        else (f"1 node, '{nodes[0].name}'")
    )
    return f"'{op}' ({where}{': ' + reason if reason else ''})"


@contextmanager
def naming(node: Node) -> Iterator[None]:
    """Turn any failure into an error that names `node`."""
    try:
        yield
    except AutotuneError:
        raise
    except MemoryError as error:
        raise ModelError(
            f"operator '{node.op}' (node '{node.name}') needs more memory than there is",
            "make the model smaller, or import it on a larger machine",
        ) from error
    except Exception as error:
        raise _failed(node, error) from error


def refused(node: Node, error: UnsupportedOperator) -> list[Node]:
    """The nodes that stand for one that is not supported: one for every result."""
    attrs = {"error": error, "node": node}
    outputs = filter(None, node.outputs)
    return [Node(node.name, _REFUSED, node.inputs, (name,), attrs) for name in outputs]


def is_refused(node: Node) -> bool:
    """Whether a node stands for one that a pass refused."""
    return node.op == _REFUSED


def require_supported(
    graph: Graph, check: Callable[[Graph, Node], UnsupportedOperator | None]
) -> None:
    """Raises one UnsupportedOperator for all nodes that a pass refused, and those of `check`.

    Raises ModelError where one that is left makes a tensor of too many elements.
    """
    found: dict[tuple[str, str], tuple[Node, UnsupportedOperator]] = {}
    for node in graph.nodes:
        refused = is_refused(node)
        error = node.attrs["error"] if refused else check(graph, node)
        if error is not None:
            original = node.attrs["node"] if refused else node
            found.setdefault((original.name, error.reason), (original, error))
    if found:
        raise together(list(found.values()))
    for node in graph.nodes:
        for name in filter(None, node.outputs):
            check_type(node, name, graph.shape(name))


def _failed(node: Node, error: Exception) -> ModelError:
    """The error for an unexpected failure; most likely the node is malformed."""
    text = " ".join(str(error).split())[:120]
    return ModelError(
        f"operator '{node.op}' (node '{node.name}') cannot be imported: "
        f"{type(error).__name__}{': ' + text if text else ''}",
        "check its inputs and attributes with onnx.checker.check_model(model, full_check=True); "
        "if it is valid, please report the model",
    )
