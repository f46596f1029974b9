"""⑩ Sessions of ONNX Runtime: made with few settings, and run on arrays of any type.

session = ort_session(onnxruntime_package(), "model.onnx", SessionSetting(n_threads=2))
values = run_session(onnxruntime_package(), session, None, {"x": array})
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ALL, BASIC, NONE = "ORT_ENABLE_ALL", "ORT_ENABLE_BASIC", "ORT_DISABLE_ALL"
"""Levels of optimisation, by the names that ONNX Runtime has for them."""
_QUIET = 4
_NUMPYS = re.compile(r"tensor\((float|double|float16|bool|string|complex\d+|u?int(8|16|32|64))\)")


@dataclass(frozen=True, slots=True)
class SessionSetting:
    """`n_threads`: 0 for ONNX Runtime's own number. `spin`: whether threads wait for work without
    sleeping, for a while. `saved`: a file that gets the optimised model, if it has a name.
    """

    n_threads: int = 0
    level: str = ALL
    spin: bool = True
    saved: str = ""


def ort_session(package: Any, model: str | bytes, setting: SessionSetting) -> Any:
    """A session of a file or of a model's bytes, which writes no warnings. Raises as ONNX Runtime
    does."""
    options = package.SessionOptions()
    options.intra_op_num_threads = setting.n_threads
    options.log_severity_level = _QUIET
    options.graph_optimization_level = getattr(package.GraphOptimizationLevel, setting.level)
    if not setting.spin:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if setting.saved:
        options.optimized_model_filepath = setting.saved
    return package.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_session(
    package: Any, session: Any, names: Sequence[str] | None, inputs: Mapping[str, Any]
) -> list[Any]:
    """The outputs `names`, or all, in order: arrays, lists and dictionaries as ONNX has them."""
    if not any(map(_is_small, (*session.get_inputs(), *session.get_outputs()))):
        found: list[Any] = session.run(names, inputs)
        return found
    from autotune.network.runtime.ort_values import array_of, ort_value  # imports `onnx`

    given = {name: ort_value(package, array) for name, array in inputs.items()}
    wanted = names or [output.name for output in session.get_outputs()]
    return [array_of(value) for value in session.run_with_ort_values(wanted, given)]


def _is_small(port: Any) -> bool:
    """Whether a port has elements of a type that NumPy does not have."""
    return port.type.startswith("tensor(") and _NUMPYS.fullmatch(port.type) is None
