"""⑩ Baselines of `bench`: other runtimes that run the same ONNX model.

Each baseline computes in float32, with as many threads as the compiled model and the settings for
the lowest latency of a single inference, or for the most inferences of several callers; all other
settings are its defaults. Each inference binds its inputs again and allocates new outputs, as
`runtime.Model` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from autotune import telemetry
from autotune.errors import AutotuneError, MissingDependency, ModelError
from autotune.network.runtime.apart import Failed, apart, has_onnxruntime
from autotune.network.runtime.onnxruntime_package import onnxruntime_package
from autotune.network.runtime.ort_sessions import NONE, SessionSetting, ort_session, run_session
from autotune.wording import arguments

_REASON_WIDTH = 400
_MOST_READ = 10_000  # characters of a message: `shorten` takes time for each

Array = NDArray[Any]
Runner = Callable[[Mapping[str, Array]], dict[str, Array]]


def baseline(name: str, model: Any, n_threads: int) -> Runner:
    """A function that runs `model` (path or ModelProto) by the runtime `name`, of `BASELINES`.

    Raises MissingDependency where it is not installed, ModelError where it refuses the model; so
    does the function where it refuses the inputs.
    """
    with blamed(name, "load", f"leave out {arguments(against=name)}"):
        runner = BASELINES[name](model, n_threads)

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with blamed(name, "run", f"leave out {arguments(against=name)}"):
            return runner(inputs)

    return run


def require_alive(name: str, model: Any, n_threads: int, inputs: Mapping[str, Array]) -> None:
    """Raise ModelError where the runtime `name` dies of `model`, of which it computes one inference
    apart. What it refuses it tells when it is asked."""
    with blamed(name, "run", f"leave out {arguments(against=name)}"), suppress(Failed):
        apart().call(_run_once, name, model, n_threads, dict(inputs))


def _run_once(name: str, model: Any, n_threads: int, inputs: Mapping[str, Array]) -> None:
    BASELINES[name](model, n_threads)(inputs)


def baselines_of_callers(
    name: str, model: Any, n_threads: int, n_callers: int
) -> dict[str, tuple[Runner, ...]]:
    """Runners of baseline `name` for `n_callers` concurrent threads, one each, by name.

    ONNX Runtime comes twice: one session for all, and `:per-caller` a session of one thread each.
    Raises as `baseline` does.
    """

    def guarded(run: Runner) -> Runner:
        def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
            with blamed(name, "run", f"leave out {arguments(against=name)}"):
                return run(inputs)

        return call

    with blamed(name, "load", f"leave out {arguments(against=name)}"):
        found = _OF_CALLERS[name](model, n_threads, n_callers)
    return {name + kind: tuple(map(guarded, runners)) for kind, runners in found.items()}


def _onnxruntime_of_callers(
    model: Any, n_threads: int, n_callers: int
) -> dict[str, Sequence[Runner]]:
    shared = onnxruntime_runner(model, n_threads)
    own = [onnxruntime_runner(model, 1) for _ in range(n_callers)]
    return {"": [shared] * n_callers, ":per-caller": own}


def _openvino_of_callers(
    model: Any, n_threads: int, n_callers: int, precision: str = "f32"
) -> dict[str, Sequence[Runner]]:
    return {"": openvino_runners(model, n_threads, precision, n_callers)}


def wide_inputs(model: Any) -> frozenset[str]:
    """Names of the inputs that a model takes in float32; none of a path's, which is as it was."""
    if not isinstance(model, ModelProto):
        return frozenset()
    kinds = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
    return frozenset(name for name, kind in kinds.items() if kind == TensorProto.FLOAT)


@contextmanager
def blamed(name: str, action: str, hint: str) -> Iterator[None]:
    """Turn an exception of a runtime into a ModelError: each has its own."""
    try:
        yield
    except AutotuneError:
        raise
    except Exception as error:
        said = str(error)[:_MOST_READ]
        reason = shorten(said, _REASON_WIDTH) or type(error).__name__
        raise ModelError(f"{name} cannot {action} the model: {reason}", hint) from error


def onnxruntime_runner(model: Any, n_threads: int) -> Runner:
    """A function that runs `model` (path or ModelProto) by ONNX Runtime, else at its defaults."""
    session = onnxruntime_session(model, n_threads)
    names = [output.name for output in session.get_outputs()]
    package = onnxruntime_package()
    return lambda inputs: dict(zip(names, run_session(package, session, None, inputs), strict=True))


def onnxruntime_session(model: Any, n_threads: int) -> Any:
    """ONNX Runtime's session of `model` (path or ModelProto). Raises MissingDependency."""
    try:
        package = onnxruntime_package()
    except ImportError as error:
        raise _missing("onnxruntime") from error
    return ort_session(package, _source(model), SessionSetting(n_threads))


def apart_runner(model: Any, n_threads: int) -> Runner:
    """A function that runs `model` (path or ModelProto) by ONNX Runtime node by node, apart.

    Raises MissingDependency.
    """
    if not has_onnxruntime():
        raise _missing("onnxruntime")
    session = apart().session(_source(model), SessionSetting(n_threads, NONE, spin=False))
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def openvino_default_runner(model: Any, n_threads: int) -> Runner:
    """`openvino_runner` in the precision that OpenVINO chooses: bfloat16 where the CPU has it."""
    return openvino_runner(model, n_threads, precision="")


def openvino_runner(model: Any, n_threads: int, precision: str = "f32") -> Runner:
    """A function that runs `model` (path or ModelProto) by OpenVINO, else at its defaults.

    The precision hint keeps OpenVINO from computing in bfloat16 on CPUs that support it; "" leaves
    that to OpenVINO. Inputs are read in place.
    """
    return openvino_runners(model, n_threads, precision)[0]


def openvino_runners(
    model: Any, n_threads: int, precision: str, n_callers: int | None = None
) -> list[Runner]:
    """`openvino_runner`; for `n_callers` one function each, in streams as OpenVINO chooses them."""
    try:
        openvino: Any = telemetry.imported("openvino")
    except ImportError as error:
        raise _missing("openvino") from error
    core = openvino.Core()
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision} if precision else {}
    settings["INFERENCE_NUM_THREADS"] = n_threads
    if n_callers is None:
        settings |= {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    else:
        settings |= {"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": n_callers}
    network = core.read_model(_source(model))
    given = [port.get_names() for port in network.inputs]
    names = [port.get_names() for port in network.outputs]
    compiled = core.compile_model(network, "CPU", settings)

    def run(request: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
        # Bind by position: OpenVINO drops the names of inputs that no node reads.
        ordered = [inputs[name] for aliases in given for name in aliases if name in inputs]
        arrays = request.infer(ordered, share_inputs=True).values()
        pairs = zip(names, arrays, strict=True)
        return {name: np.asarray(array) for aliases, array in pairs for name in aliases}

    return [partial(run, compiled.create_infer_request()) for _ in range(n_callers or 1)]


BASELINES: dict[str, Callable[[Any, int], Runner]] = {
    "onnxruntime": onnxruntime_runner,
    "openvino": openvino_runner,
    "openvino:default": openvino_default_runner,
}
"""Runtimes that `bench` accepts as `against`, by package name."""

_OF_CALLERS: dict[str, Callable[[Any, int, int], dict[str, Sequence[Runner]]]] = {
    "onnxruntime": _onnxruntime_of_callers,
    "openvino": _openvino_of_callers,
    "openvino:default": partial(_openvino_of_callers, precision=""),
}


def _source(model: Any) -> str | bytes:
    if isinstance(model, str | Path):
        return str(model)
    data: bytes = model.SerializeToString()
    return data


def _missing(package: str) -> MissingDependency:
    return MissingDependency(
        f"{package} is not installed",
        f"pip install {package} (the extra 'bench' has all of them), or leave it out",
    )
