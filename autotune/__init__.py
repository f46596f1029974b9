"""autotune: tune an ONNX model for this CPU and compile it from what was found::

    import autotune

    print(autotune.tune("model.onnx", "model.jsonl", trials=200))
    autotune.compile("model.onnx", log="model.jsonl").artifact.save("model.atn")
    outputs = autotune.load("model.atn").run({"input": array})

and, for computations that are no model::

    from autotune import te
    task = autotune.Task(matmul_add, (1024, 1024, 1024))    # a function of te expressions

Nothing is imported before it is used. Every error that a user can cause is an `AutotuneError`,
with a hint and the exit code that the command would have. On another system than Linux the import
raises UnsupportedPlatform, an ImportError; on another CPU all but `ExportedModel` does.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.platforms import require_host, require_linux
from autotune.version import __version__ as __version__

require_linux()

if TYPE_CHECKING:
    from autotune import rules as rules
    from autotune import te as te
    from autotune.api.compile.benching import bench as bench
    from autotune.api.compile.benching import bench_tokens as bench_tokens
    from autotune.api.compile.compiling import compile as compile
    from autotune.api.exporting import export as export
    from autotune.api.quantising import Quantised as Quantised
    from autotune.api.quantising import quantise as quantise
    from autotune.api.reporting import report as report
    from autotune.api.te.schedule import Schedule as Schedule
    from autotune.api.te.schedule import StageSchedule as StageSchedule
    from autotune.api.te.task import Best as Best
    from autotune.api.te.task import Function as Function
    from autotune.api.te.task import Task as Task
    from autotune.api.te.task import TaskTiming as TaskTiming
    from autotune.api.tune.model import resume as resume
    from autotune.api.tune.model import resuming as resuming
    from autotune.api.tune.model import tune as tune
    from autotune.api.tune.model import tuning as tuning
    from autotune.api.tune.tune_result import TuneResult as TuneResult
    from autotune.errors import ArgumentError as ArgumentError
    from autotune.errors import ArtifactError as ArtifactError
    from autotune.errors import AutotuneError as AutotuneError
    from autotune.errors import BeyondLimits as BeyondLimits
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
    from autotune.errors import NoteForbidden as NoteForbidden
    from autotune.errors import NoValidSchedule as NoValidSchedule
    from autotune.errors import OutputError as OutputError
    from autotune.errors import ScheduleError as ScheduleError
    from autotune.errors import StoreError as StoreError
    from autotune.errors import TooSlow as TooSlow
    from autotune.errors import UnsupportedOperator as UnsupportedOperator
    from autotune.errors import UnsupportedPlatform as UnsupportedPlatform
    from autotune.errors import UsageError as UsageError
    from autotune.errors import WrongNumbers as WrongNumbers
    from autotune.graph.network import build_network as build_network
    from autotune.graph.network import chosen as chosen
    from autotune.graph.operators.user_operators import Composition as Composition
    from autotune.graph.reader.interface import ModelMetadata as ModelMetadata
    from autotune.graph.rewriter import Rewriter as Rewriter
    from autotune.network.compile.compiler import compile_network as compile_network
    from autotune.network.provider.library import onnxruntime_provider as onnxruntime_provider
    from autotune.network.runtime.exported import ExportedModel as ExportedModel
    from autotune.network.runtime.loading import load as load
    from autotune.network.runtime.runtime import Model as Model
    from autotune.network.runtime.session import ModelSession as ModelSession
    from autotune.network.serving.prefixes import Prefixes as Prefixes
    from autotune.network.serving.scheduler import QueueFull as QueueFull
    from autotune.network.serving.scheduler import TextRequest as TextRequest
    from autotune.network.serving.scheduler import TurnScheduler as TurnScheduler
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
    from autotune.reporting.report import SearchReport as SearchReport
    from autotune.search.defaults import default_steps as default_steps
    from autotune.target import host_target as host_target

__path__.append(str(Path(__file__).with_name("ort") / "submodules"))  # `capi`, as onnxruntime has

_MODULES = ("rules", "te")
_NAMES = {
    "autotune.api.compile.benching": ("bench", "bench_tokens"),
    "autotune.api.compile.compiling": ("compile",),
    "autotune.api.exporting": ("export",),
    "autotune.api.quantising": ("Quantised", "quantise"),
    "autotune.api.reporting": ("report",),
    "autotune.api.tune.model": ("resume", "resuming", "tune", "tuning"),
    "autotune.api.te.schedule": ("Schedule", "StageSchedule"),
    "autotune.api.te.task": ("Best", "Function", "Task", "TaskTiming"),
    "autotune.api.tune.tune_result": ("TuneResult",),
    "autotune.errors": (
        "ArgumentError",
        "ArtifactError",
        "AutotuneError",
        "BeyondLimits",
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
        "NoteForbidden",
        "NotCompilable",
        "OutputError",
        "ScheduleError",
        "StoreError",
        "TooSlow",
        "UnsupportedOperator",
        "UnsupportedPlatform",
        "UsageError",
        "WrongNumbers",
    ),
    "autotune.graph.network": ("build_network", "chosen"),
    "autotune.graph.operators.user_operators": ("Composition",),
    "autotune.graph.rewriter": ("Rewriter",),
    "autotune.network.compile.compiler": ("compile_network",),
    "autotune.network.provider.library": ("onnxruntime_provider",),
    "autotune.network.runtime.exported": ("ExportedModel",),
    "autotune.network.runtime.loading": ("load",),
    "autotune.network.runtime.runtime": ("Model",),
    "autotune.network.runtime.session": ("ModelSession",),
    "autotune.network.serving.prefixes": ("Prefixes",),
    "autotune.network.serving.scheduler": ("QueueFull", "TextRequest", "TurnScheduler"),
    "autotune.records": ("best_for", "read_log"),
    "autotune.reporting.report": ("SearchReport",),
    "autotune.search.defaults": ("default_steps",),
    "autotune.target": ("host_target",),
}
_ANYWHERE = ("autotune.errors", "autotune.network.runtime.exported")
_LAZY = {name: module for module, names in _NAMES.items() for name in names}
_OF_ONNXRUNTIME = (
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "disable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "install",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
    "uninstall",
)
"""Those that `dir` names: `autotune` has all of them."""
__all__ = sorted(["__version__", *_MODULES, *_LAZY, *_OF_ONNXRUNTIME])


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and _LAZY.get(name) not in _ANYWHERE:
        require_host()
    if name in _MODULES:
        return import_module(f"autotune.{name}")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if not name.startswith("_"):
        with suppress(AttributeError):
            return import_module("autotune.ort.names").attribute(name, "autotune")
        with suppress(AttributeError):
            return import_module("autotune.former_names").former_name(name)
        names = import_module("autotune.te.tvm_names")
        if name in names.PACKAGE:
            names.refuse("autotune", name, names.PACKAGE)
    own = sys.modules[__name__]  # Python names the nearest below a traceback
    raise AttributeError(f"module 'autotune' has no attribute '{name}'", name=name, obj=own)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
