"""Float32 models as ONNX Runtime quantises them, calibrated on random inputs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from autotune.network.quantise.quantiser import quantisation_package

_SAMPLES = 4


def quantised(source: Path, target: Path, form: str) -> Path:
    """Write `source` with int8 weights to `target`; `form`: "QDQ" or "dynamic".

    QDQ has uint8 data and a scale per output channel.
    """
    quantization = quantisation_package()
    quant_pre_process = import_module(f"{quantization.__name__}.shape_inference").quant_pre_process

    ready = target.with_suffix(".ready.onnx")
    quant_pre_process(source, ready, skip_symbolic_shape=True)
    if form == "dynamic":
        quantization.quantize_dynamic(ready, target, weight_type=quantization.QuantType.QInt8)
    else:
        quantization.quantize_static(
            ready,
            target,
            samples_of(onnx.load(ready), quantization.CalibrationDataReader),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
        )
    return target


def samples_of(model: onnx.ModelProto, base: Any) -> Any:
    """A reader of calibration data: a few standard normal float32 inputs."""
    rng = np.random.default_rng(0)
    known = {a.name for a in model.graph.initializer}
    shapes = {
        port.name: [d.dim_value for d in port.type.tensor_type.shape.dim]
        for port in model.graph.input
        if port.name not in known
    }
    feeds = [
        {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
        for _ in range(_SAMPLES)
    ]
    left = iter(feeds)
    return type("Samples", (base,), {"get_next": lambda self: next(left, None)})()
