"""Official cases that are refused, with the fallback and by ONNX Runtime alone.

python -m benchmarks.conformance   # asks for both of every case that is refused
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from autotune.api.compile.compiling import compile as compile_model
from autotune.errors import AutotuneError
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.onnxruntime_package import onnxruntime_package
from autotune.network.runtime.runtime import Model
from benchmarks.outcomes import Case, Outcome, Tell, judge

Array = NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]


def with_fallback(case: Case, tell: Tell) -> Outcome:
    """The outcome of a case where what is not compiled runs in ONNX Runtime."""
    return judge(case, _cut, tell)


def by_onnxruntime(case: Case, tell: Tell) -> Outcome:
    """The outcome of a case in ONNX Runtime; refused where it has no kernel."""
    return judge(case, _Session, tell)


def _cut(model: bytes, shapes: Shapes | None = None) -> Model:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
        compiled = compile_model(path, shapes=dict(shapes or {}), threads=1, check=False)
        return model_of(compiled.artifact, 1)


class _Session:
    """A model in ONNX Runtime, its arrays by name."""

    def __init__(self, model: bytes, shapes: Shapes | None = None) -> None:
        onnxruntime = onnxruntime_package()
        onnxruntime.set_default_logger_severity(4)
        try:
            self._session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise _refusal(error) from error

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name."""
        names = [o.name for o in self._session.get_outputs()]
        known = {i.name for i in self._session.get_inputs()}
        given = {n: a for n, a in inputs.items() if n in known}
        try:
            return dict(zip(names, self._session.run(names, given), strict=True))
        except Exception as error:
            raise _refusal(error) from error


def _refusal(error: Exception) -> AutotuneError:
    return AutotuneError(" ".join(str(error).split()) or type(error).__name__)
