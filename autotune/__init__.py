"""autotune: tune an ONNX model for this CPU and compile it from what was found::

    import autotune

    print(autotune.tune("model.onnx", "model.jsonl", trials=200))
    autotune.compile("model.onnx", log="model.jsonl").artifact.save("model.atn")
    outputs = autotune.load("model.atn").run({"input": array})

and, for computations that are no model::

    from autotune import te
    task = autotune.Task(matmul_add, (1024, 1024, 1024))    # a function of te expressions

Nothing is imported before it is used. Every error that a user can cause is an `AutotuneError`,
with a hint and the exit code that the command would have.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.version import __version__ as __version__

if TYPE_CHECKING:
    from autotune import rules as rules
    from autotune import te as te
    from autotune.api.benching import bench as bench
    from autotune.api.compiling import compile as compile
    from autotune.api.model import resume as resume
    from autotune.api.model import resuming as resuming
    from autotune.api.model import tune as tune
    from autotune.api.model import tuning as tuning
    from autotune.api.schedule import Schedule as Schedule
    from autotune.api.schedule import StageSchedule as StageSchedule
    from autotune.api.task import Best as Best
    from autotune.api.task import Function as Function
    from autotune.api.task import Task as Task
    from autotune.api.task import TaskTiming as TaskTiming
    from autotune.api.tune_result import TuneResult as TuneResult
    from autotune.errors import ArtifactError as ArtifactError
    from autotune.errors import AutotuneError as AutotuneError
    from autotune.errors import CodegenError as CodegenError
    from autotune.errors import DefinitionError as DefinitionError
    from autotune.errors import DynamicShape as DynamicShape
    from autotune.errors import ExitCode as ExitCode
    from autotune.errors import LogBusy as LogBusy
    from autotune.errors import LogLost as LogLost
    from autotune.errors import LogMismatch as LogMismatch
    from autotune.errors import MissingDependency as MissingDependency
    from autotune.errors import ModelError as ModelError
    from autotune.errors import NotCompilable as NotCompilable
    from autotune.errors import NoValidSchedule as NoValidSchedule
    from autotune.errors import OutputError as OutputError
    from autotune.errors import ScheduleError as ScheduleError
    from autotune.errors import UnsupportedOperator as UnsupportedOperator
    from autotune.errors import UsageError as UsageError
    from autotune.errors import WrongNumbers as WrongNumbers
    from autotune.graph.network import build_network as build_network
    from autotune.graph.network import chosen as chosen
    from autotune.graph.reader.interface import ModelMetadata as ModelMetadata
    from autotune.network.compiler import compile_network as compile_network
    from autotune.network.loading import load as load
    from autotune.network.runtime import Model as Model
    from autotune.ort.binding import IOBinding as IOBinding
    from autotune.ort.binding import OrtValue as OrtValue
    from autotune.ort.options import ExecutionMode as ExecutionMode
    from autotune.ort.options import ExecutionOrder as ExecutionOrder
    from autotune.ort.options import GraphOptimizationLevel as GraphOptimizationLevel
    from autotune.ort.options import RunOptions as RunOptions
    from autotune.ort.options import SessionOptions as SessionOptions
    from autotune.ort.options import disable_telemetry_events as disable_telemetry_events
    from autotune.ort.options import get_all_providers as get_all_providers
    from autotune.ort.options import get_available_providers as get_available_providers
    from autotune.ort.options import get_device as get_device
    from autotune.ort.options import (
        set_default_logger_severity as set_default_logger_severity,
    )
    from autotune.ort.options import (
        set_default_logger_verbosity as set_default_logger_verbosity,
    )
    from autotune.ort.options import set_seed as set_seed
    from autotune.ort.session import InferenceSession as InferenceSession
    from autotune.ort.session import NodeArg as NodeArg
    from autotune.ort.stand_in import install as install
    from autotune.ort.stand_in import uninstall as uninstall
    from autotune.records import best_for as best_for
    from autotune.records import read_log as read_log
    from autotune.search.defaults import default_steps as default_steps
    from autotune.target import host_target as host_target

__path__.append(str(Path(__file__).with_name("ort") / "submodules"))  # `capi`, as onnxruntime has

_ERRORS = (
    "ArtifactError",
    "AutotuneError",
    "CodegenError",
    "DefinitionError",
    "DynamicShape",
    "ExitCode",
    "LogBusy",
    "LogLost",
    "LogMismatch",
    "MissingDependency",
    "ModelError",
    "NoValidSchedule",
    "NotCompilable",
    "OutputError",
    "ScheduleError",
    "UnsupportedOperator",
    "UsageError",
    "WrongNumbers",
)
_MODULES = ("rules", "te")
_LAZY = dict.fromkeys(_ERRORS, "autotune.errors")
_LAZY |= {
    "Best": "autotune.api.task",
    "Function": "autotune.api.task",
    "Model": "autotune.network.runtime",
    "Schedule": "autotune.api.schedule",
    "StageSchedule": "autotune.api.schedule",
    "Task": "autotune.api.task",
    "TaskTiming": "autotune.api.task",
    "TuneResult": "autotune.api.tune_result",
    "bench": "autotune.api.benching",
    "compile": "autotune.api.compiling",
    "resume": "autotune.api.model",
    "resuming": "autotune.api.model",
    "tune": "autotune.api.model",
    "tuning": "autotune.api.model",
    "best_for": "autotune.records",
    "build_network": "autotune.graph.network",
    "chosen": "autotune.graph.network",
    "compile_network": "autotune.network.compiler",
    "default_steps": "autotune.search.defaults",
    "host_target": "autotune.target",
    "load": "autotune.network.loading",
    "read_log": "autotune.records",
}
__all__ = [
    "ArtifactError",
    "AutotuneError",
    "Best",
    "CodegenError",
    "DefinitionError",
    "DynamicShape",
    "ExecutionMode",
    "ExecutionOrder",
    "ExitCode",
    "Function",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "LogBusy",
    "LogLost",
    "LogMismatch",
    "MissingDependency",
    "Model",
    "ModelError",
    "ModelMetadata",
    "NoValidSchedule",
    "NodeArg",
    "NotCompilable",
    "OrtValue",
    "OutputError",
    "RunOptions",
    "Schedule",
    "ScheduleError",
    "SessionOptions",
    "StageSchedule",
    "Task",
    "TaskTiming",
    "TuneResult",
    "UnsupportedOperator",
    "UsageError",
    "WrongNumbers",
    "__version__",
    "bench",
    "best_for",
    "build_network",
    "chosen",
    "compile",
    "compile_network",
    "default_steps",
    "disable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "host_target",
    "install",
    "load",
    "read_log",
    "resume",
    "resuming",
    "rules",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
    "te",
    "tune",
    "tuning",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"autotune.{name}")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if not name.startswith("_"):
        with suppress(AttributeError):
            return import_module("autotune.ort.names").attribute(name, "autotune")
    raise AttributeError(f"module 'autotune' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
