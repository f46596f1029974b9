"""⑩ ONNX Runtime's quantiser: ranges of tensors on samples, and models with products of bytes.

    form = float_form(model, folder)        batch normalisations folded, every node named
    ranges = form.ranges(feeds)             of every tensor, on samples
    form.write(ranges, products, path)      QDQ in front of these products

Data are uint8 with a zero point, weights int8 with a scale per output channel. A tensor is rounded
once, where a product reads it: sums of products, biases, activations and residual sums are float32
in registers until then. Rounding what lies between as well, as ONNX Runtime does by itself, made
seven times the error in a MobileNetV3 (RMS 0.052 for 0.0075), and saves nothing where it is fused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from autotune import telemetry
from autotune.errors import MissingDependency
from autotune.file_kinds import QUANTISER
from autotune.graph.reader.node_order import all_nodes, put_in_order
from autotune.graph.reader.onnx_reader import drop_initializers_from_inputs
from autotune.graph.reader.opsets import opset_of
from autotune.network.quantise.likeness import Arrays
from autotune.network.runtime.apart import apart
from autotune.network.runtime.baselines import blamed
from autotune.network.runtime.onnxruntime_package import ONNXRUNTIME, onnxruntime_package
from autotune.network.runtime.ort_sessions import BASIC, NONE, SessionSetting

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators with constant weights that are products of bytes."""

MIN_MAX, ENTROPY = METHODS = ("MinMax", "Entropy")
"""Of finding a range: the least and the largest element, or what loses least information when it
is cut off there (Migacz, "8-bit inference with TensorRT", 2017)."""
_LEAST_OPSET = 13
"""The first one with a scale per channel."""
_QUANTISED = ("Integer", "QLinear", "DequantizeLinear", "QuantizeLinear", "NBits", "QGemm", "QAtt")
"""Parts of the names of operators of quantised models."""


def quantisation_package() -> Any:
    """The quantiser of ONNX Runtime. Raises MissingDependency."""
    try:
        onnxruntime_package()
        return telemetry.imported("onnxruntime.quantization")
    except ImportError as error:
        raise MissingDependency(
            "onnxruntime, which calibrates the model, is not installed",
            "pip install 'autotune-compiler[quantise]'",
        ) from error


def is_quantised_already(model: ModelProto) -> bool:
    """Whether a model has operators of integers, or integers that are dequantised."""
    graphs = (model.graph, *model.functions)
    return any(
        part in node.op_type for graph in graphs for node in all_nodes(graph) for part in _QUANTISED
    )


def float_form(model: ModelProto, folder: Path) -> FloatForm:
    """`model` as the quantiser takes it; files go into `folder`. Raises ModelError."""
    given, ready = folder / "given.onnx", folder / "float.onnx"
    drop_initializers_from_inputs(model)
    with blamed("onnx", "convert", ""):
        if opset_of(model.opset_import) < _LEAST_OPSET:
            model = onnx.version_converter.convert_version(model, _LEAST_OPSET)
        onnx.save(model, given)
    with blamed(ONNXRUNTIME, "prepare", ""):
        apart().session(str(given), SessionSetting(level=BASIC, saved=str(ready)))
        found = onnx.shape_inference.infer_shapes(onnx.load(ready))
    given.unlink()
    _name_nodes(found.graph)
    onnx.save(found, ready)
    return FloatForm(found, ready)


@dataclass(frozen=True)
class FloatForm:
    """A model in float32 whose nodes have names of their own, and its file."""

    proto: ModelProto
    path: Path

    @cached_property
    def products(self) -> tuple[str, ...]:
        """Names of the products with constant weights, in order."""
        kind = TensorProto.FLOAT
        weights = {
            t.name for t in self.proto.graph.initializer if t.data_type == kind and len(t.dims) > 1
        }
        return tuple(
            node.name
            for node in self.proto.graph.node
            if node.op_type in PRODUCTS and _is_standard(node) and node.input[1] in weights
        )

    def ranges(
        self,
        feeds: Sequence[Arrays],
        tell: Callable[[int, int], None] = lambda n, total: None,
        method: str = MIN_MAX,
    ) -> Any:
        """Ranges of the operands of products over `feeds`, one of `METHODS`. Raises ModelError."""
        package = quantisation_package()
        with blamed(ONNXRUNTIME, "calibrate", ""), _silence(), redirect_stdout(StringIO()):
            path = str(self.path.with_name("augmented.onnx"))
            kind = getattr(package.calibrate, f"{method}Calibrater")
            calibrator = kind(str(self.path), [*PRODUCTS], path, symmetric=False)
            calibrator.augment_graph()
            calibrator.infer_session = apart().session(path, SessionSetting(level=NONE))
            for n, arrays in enumerate(feeds):  # it keeps all tensors of one reader in memory
                calibrator.collect_data(_reader(package, arrays))
                tell(n + 1, len(feeds))
            return calibrator.compute_data()

    def write(self, ranges: Any, products: Sequence[str], path: Path) -> None:
        """Write the model with these `products`, one at least, in bytes. Raises ModelError."""
        package = quantisation_package()
        model = ModelProto()
        model.CopyFrom(self.proto)
        kinds = package.QuantType.QInt8, package.QuantType.QUInt8
        options = {
            "OpTypesToExcludeOutputQuantization": [*PRODUCTS],
            "QuantizeBias": False,
            "QDQDisableWeightAdjustForInt32Bias": True,
        }
        with blamed(ONNXRUNTIME, "quantise", ""), _silence():
            quantiser = package.QDQQuantizer(
                model, True, False, *kinds, ranges, [*products], [], [*PRODUCTS], options
            )
            quantiser.quantize_model()
            put_in_order(quantiser.model.model.graph)  # it appends what it makes
            quantiser.model.model.producer_name = QUANTISER
            onnx.save(quantiser.model.model, path)


def _reader(package: Any, arrays: Arrays) -> Any:
    """A sample, as the calibrator asks for it."""
    left = iter([dict(arrays)])
    base = package.CalibrationDataReader
    return type("Samples", (base,), {"get_next": lambda self: next(left, None)})()


def _is_standard(node: NodeProto) -> bool:
    return node.domain in ("", "ai.onnx")


def _name_nodes(graph: GraphProto) -> None:
    """Give nodes without a name of their own one."""
    taken: set[str] = set()
    for n, node in enumerate(graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.output[0] or node.op_type}#{n}"
        taken.add(node.name)


@contextmanager
def _silence() -> Iterator[None]:
    """Without the warnings of the quantiser, unless the program has a handler for them."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
