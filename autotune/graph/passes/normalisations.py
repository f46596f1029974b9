"""① GroupNormalization from the three nodes as which exporters write it.

    Reshape(InstanceNormalization(Reshape(x)))  -> GroupNormalization(x)

where the inner Reshape makes (n, g, …) of x (n, c, …), and the outer one restores the shape of x. x
then stays channels last, without Transposes around the Reshapes.
"""

from __future__ import annotations

import numpy as np

from autotune.graph.ir import Editor, Graph, Node, float_array


def group_normalisations(graph: Graph) -> Graph:
    """Rewrite InstanceNormalization between two Reshapes as GroupNormalization.

    Where scale and bias are constant and the intermediates have a single consumer.
    """
    editor, readers = Editor(graph), graph.consumers()
    makers = {node.output: node for node in graph.nodes}

    def private(name: str, op: str) -> Node | None:
        maker = makers.get(name)
        alone = len(readers.get(name, ())) == 1 and name not in graph.outputs
        return maker if maker is not None and maker.op == op and alone else None

    for node in graph.nodes:
        norm = private(node.inputs[0], "InstanceNormalization") if node.op == "Reshape" else None
        split = private(norm.inputs[0], "Reshape") if norm is not None else None
        joined = _joined(editor, node, norm, split) if norm and split else None
        editor.emit(joined or node)
    return editor.build()


def _joined(editor: Editor, node: Node, norm: Node, split: Node) -> Node | None:
    shape = editor.types[split.inputs[0]].shape
    n, n_groups, *_ = editor.types[split.output].shape
    params = [editor.constants.get(name) for name in norm.inputs[1:]]
    fits = len(shape) > 2 and shape[0] == n and shape[1] % n_groups == 0
    if not fits or editor.types[node.output].shape != shape:
        return None
    names = [split.inputs[0]]
    for name, value in zip(norm.inputs[1:], params, strict=True):
        if value is None:
            return None
        repeated = float_array(np.repeat(value, shape[1] // n_groups))
        names.append(editor.constant(f"{name}.channels", repeated))
    attrs = {**norm.attrs, "num_groups": n_groups}
    return Node(norm.name, "GroupNormalization", tuple(names), node.outputs, attrs)
