"""PyTorch as a baseline of single operators, where somebody has installed it.

The project does not depend on it: `pip install torch` beside autotune adds its column.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]


def is_installed() -> bool:
    """Whether `import torch` would find something."""
    return importlib.util.find_spec("torch") is not None


def torch_runner(
    proto: onnx.ModelProto, n_threads: int
) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """A function that runs `proto` node by node, eagerly and without gradients.

    Raises KeyError for an operator that none of `operator_cases` has.
    """
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(n_threads)
    weights = {w.name: torch.from_numpy(numpy_helper.to_array(w).copy()) for w in _weights(proto)}
    steps = [(node, _operation(torch, node)) for node in proto.graph.node]
    name = proto.graph.output[0].name

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with torch.inference_mode():
            values = weights | {n: torch.from_numpy(a) for n, a in inputs.items()}
            for node, operation in steps:
                values[node.output[0]] = operation(*(values[n] for n in node.input))
            return {name: values[name].contiguous().numpy()}

    return run


def _weights(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    return list(proto.graph.initializer)


def _operation(torch: Any, node: onnx.NodeProto) -> Callable[..., Any]:
    """What a node does, with its attributes."""
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    functional = torch.nn.functional
    match node.op_type:
        case "Conv":
            rank = len(attrs["strides"])
            more = {
                "stride": attrs["strides"],
                "padding": attrs["pads"][:rank],
                "dilation": attrs.get("dilations", [1] * rank),
                "groups": attrs.get("group", 1),
            }
            function = getattr(functional, f"conv{rank}d")
            return lambda x, w, b=None: function(x, w, b, **more)
        case "ConvTranspose":
            stride, padding = attrs["strides"], attrs["pads"][:2]
            return lambda x, w: functional.conv_transpose2d(x, w, None, stride, padding)
        case "ReduceL2":
            axes = tuple(attrs["axes"])
            return lambda x: torch.linalg.vector_norm(x, dim=axes)
        case "Transpose":
            perm = list(attrs["perm"])
            return lambda x: x.permute(perm)
        case "Reshape":
            return lambda x, shape: x.reshape(np.asarray(shape).tolist())
        case kind:
            return {"MatMul": torch.matmul, "Relu": torch.relu}[kind]  # type: ignore[no-any-return]
