"""⑪ Options of ONNX Runtime's sessions, as scripts set them: honoured ones and ignored ones.

    options = SessionOptions()
    options.intra_op_num_threads = 2            # threads of the compiled network
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL    # ignored

Options of ONNX Runtime's execution are ignored; options that would change results are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, NoReturn

from autotune.errors import AutotuneError, UsageError
from autotune.ort.exceptions import as_client_error
from autotune.version import __version__ as autotune_version

CPU_PROVIDER = "CPUExecutionProvider"
_PROVIDERS = (
    "Tensorrt", "NvTensorRTRTX", "CUDA", "MIGraphX", "ROCM", "OpenVINO", "Dnnl", "VitisAI", "QNN",
    "NNAPI", "VSINPU", "JS", "CoreML", "ArmNN", "ACL", "Dml", "Rknpu", "WebNN", "WebGPU", "Xnnpack",
    "CANN", "Azure", "CPU",
)  # fmt: skip
__version__ = "1.22.0"
"""The version of onnxruntime that has the names of this package; programs compare it."""


class GraphOptimizationLevel(IntEnum):
    """Ignored: compiled networks are always optimised."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Ignored: kernels run one after the other, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """Ignored."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass(slots=True)
class SessionOptions:
    """`intra_op_num_threads` (0: the default) and dimensions by name count, other fields do not.

    `optimized_model_filepath` gets a copy of the model. `enable_profiling` asks for a file that is
    not written here: `InferenceSession` refuses it, as it refuses what would replace weights or
    operators.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: Any = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: Any = ExecutionMode.ORT_SEQUENTIAL
    execution_order: Any = ExecutionOrder.DEFAULT
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    optimized_model_filepath: str = ""
    use_deterministic_compute: bool = False
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    use_per_session_threads: bool = True
    dims: dict[str, int] = field(default_factory=dict)
    """Dimensions that `add_free_dimension_override_by_name` has bound."""
    entries: dict[str, str] = field(default_factory=dict)

    def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
        """Bind a dimension, wherever it occurs: the model is then compiled for it at once."""
        self.dims[name] = extent

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Ignored, but kept."""
        self.entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Value of `add_session_config_entry`. Raises UsageError for another key."""
        if key not in self.entries:
            error = UsageError(f"there is no session configuration '{key}'", "add it before")
            raise as_client_error(error, RuntimeError)
        return self.entries[key]

    def has_session_config_entry(self, key: str) -> bool:
        """Whether `add_session_config_entry` was given that key."""
        return key in self.entries

    def add_provider(self, name: str, options: object = None) -> None:
        """Ignored: everything runs on this CPU."""

    def add_free_dimension_override_by_denotation(self, name: str, extent: int) -> NoReturn:
        """Raises UsageError."""
        raise _refused("a dimension by its denotation", "bind it by its name")

    def add_initializer(self, name: str, value: object) -> NoReturn:
        """Raises UsageError."""
        raise _refused("an initializer", "store it in the model")

    def add_external_initializers(self, names: object, values: object) -> NoReturn:
        """Raises UsageError."""
        raise _refused("initializers", "store them in the model")

    def add_external_initializers_from_files_in_memory(self, *files: object) -> NoReturn:
        """Raises UsageError."""
        raise _refused("initializers", "store them in the model")

    def register_custom_ops_library(self, path: str) -> NoReturn:
        """Raises UsageError."""
        raise _refused(
            "a library of operators", "give definitions of your own: InferenceSession(operators=)"
        )

    @classmethod
    def of(cls, given: Any) -> SessionOptions:
        """Options that may be onnxruntime's. Raises UsageError where they replace weights."""
        if given is None or isinstance(given, cls):
            return given or cls()
        if getattr(given, "replaces_model", False):
            raise _refused("weights or operators", "store them in the model")
        names = [f.name for f in fields(cls) if f.name != "entries" and hasattr(given, f.name)]
        return cls(**{name: getattr(given, name) for name in names})

    def require_known(self) -> None:
        """Raise UsageError for options of a session that are not supported."""
        if self.enable_profiling:
            raise UsageError(
                "enable_profiling writes no profile here",
                "leave it out; autotune bench MODEL.atn --per-task times every kernel",
            )
        if self.intra_op_num_threads < 0:
            raise UsageError(
                f"intra_op_num_threads is {self.intra_op_num_threads}", "give 1 or more, or 0"
            )


@dataclass(slots=True)
class RunOptions:
    """Ignored, but for `terminate`, which is refused."""

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    training_mode: bool = False
    entries: dict[str, str] = field(default_factory=dict)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Ignored, but kept."""
        self.entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Value of `add_run_config_entry`; empty for another key."""
        return self.entries.get(key, "")


def require_known(options: Any) -> None:
    """Raise UsageError for unsupported fields of RunOptions, which may be onnxruntime's."""
    if options.terminate:
        raise UsageError("the run is terminated by its RunOptions", "leave `terminate` out")
    if getattr(options, "training_mode", False):
        raise UsageError("training_mode is not for inference", "leave it out")


def get_available_providers() -> list[str]:
    """Names in `providers=` with an effect: the CPU."""
    return [CPU_PROVIDER]


def get_all_providers() -> list[str]:
    """Valid names in `providers=`: those of other devices are ignored."""
    return [f"{name}ExecutionProvider" for name in _PROVIDERS]


def get_device() -> str:
    """`CPU`."""
    return "CPU"


def set_default_logger_severity(level: int) -> None:
    """Ignored: set the level of the logger "autotune" of the standard library."""


def set_default_logger_verbosity(level: int) -> None:
    """Ignored, as `set_default_logger_severity`."""


def set_seed(seed: int) -> None:
    """Ignored: operators that draw random numbers are not compiled."""


def disable_telemetry_events() -> None:
    """Nothing is ever sent."""


def enable_telemetry_events() -> None:
    """Ignored: nothing is ever sent."""


def get_version_string() -> str:
    """The version of onnxruntime that has these names."""
    return __version__


def get_build_info() -> str:
    """Name and version of this package."""
    return f"autotune {autotune_version}"


def get_ep_devices() -> list[Any]:
    """None: this CPU is no plug-in."""
    return []


def has_collective_ops() -> bool:
    """False."""
    return False


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: object = None
) -> None:
    """Ignored: there are none to load."""


def set_default_logger_callback(callback: object) -> None:
    """Ignored, as `set_default_logger_severity`."""


def set_global_thread_pool_sizes(intra_op: int, inter_op: int) -> None:
    """Ignored: every session has threads of its own."""


def _refused(what: str, hint: str) -> AutotuneError:
    hint = f"{hint}, or pip install onnxruntime"
    error = UsageError(f"SessionOptions cannot give {what} without onnxruntime", hint)
    return as_client_error(error, RuntimeError)
