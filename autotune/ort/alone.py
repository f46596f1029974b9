"""⑪ The names of onnxruntime for programs that run where it is not installed.

from autotune.ort import alone
session = alone.InferenceSession("model.onnx")      # compiled when it is made, or first called
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = (
    {
        "IOBinding": "autotune.ort.binding",
        "InferenceSession": "autotune.ort.session",
        "ModelMetadata": "autotune.graph.reader.interface",
        "NodeArg": "autotune.ort.session",
        "OrtValue": "autotune.ort.binding",
        "SessionIOBinding": "autotune.ort.binding",
        "copy_tensors": "autotune.ort.binding",
    }
    | dict.fromkeys(
        (
            "OrtAllocatorType",
            "OrtDevice",
            "OrtMemType",
            "OrtMemoryInfo",
        ),
        "autotune.ort.memory",
    )
    | dict.fromkeys(
        (
            "ExecutionMode",
            "ExecutionOrder",
            "GraphOptimizationLevel",
            "RunOptions",
            "SessionOptions",
            "__version__",
            "disable_telemetry_events",
            "enable_telemetry_events",
            "get_all_providers",
            "get_available_providers",
            "get_build_info",
            "get_device",
            "get_ep_devices",
            "get_version_string",
            "has_collective_ops",
            "preload_dlls",
            "set_default_logger_callback",
            "set_default_logger_severity",
            "set_default_logger_verbosity",
            "set_global_thread_pool_sizes",
            "set_seed",
        ),
        "autotune.ort.options",
    )
)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'onnxruntime' has no attribute '{name}'")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
