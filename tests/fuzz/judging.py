"""The outcome of a model beside an oracle that shares no code with it.

onnxruntime without optimisations, on the bytes themselves; `onnx.reference` where that has no
kernel. A result may differ by what the oracle's own result changes when the inputs change in
their last bits, and a little: so no tolerance is tuned to an operator.
"""

from __future__ import annotations

import resource
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, helper
from onnx.reference import ReferenceEvaluator

from autotune.errors import AutotuneError
from autotune.network.runtime.runtime import Model
from benchmarks.outcomes import Compiler, Kind, Outcome, Tell, one_line, typed

Array = NDArray[Any]
Feeds = Mapping[str, Array]

RTOL = 2e-4
"""Of an element, and of a hundredth of the largest one."""
SLACK = 50.0
"""Times what the oracle's result moves."""
MAX_BYTES = 6 << 30
NO_ORACLE = "no oracle"
INTERNAL = ("cannot be imported", "cannot be compiled")
"""Messages that blame the model, which is a fault of ours where the model is valid."""
UNRELIABLE = {"LRN", "Softmax", "LogSoftmax", "Hardmax", "BatchNormalization", "Upsample"}
"""Operators that `onnx.reference` has wrong in some opset."""


@dataclass(frozen=True)
class Question:
    """A serialised model and the seed of its inputs. `is_valid`: the standard allows the model."""

    name: str
    model: bytes
    seed: int = 0
    is_valid: bool = True
    feeds: Feeds | None = None


@cache
def _compiler() -> Compiler:
    onnxruntime.set_default_logger_severity(4)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    return Compiler()


def judged(question: Question, tell: Tell = lambda stage: None) -> Outcome:
    """The outcome of a model. What ran without an oracle is right with the text `NO_ORACLE`."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            tell("compile")
            model = _compiler()(question.model)
            tell("run")
            feeds = question.feeds or feeds_of(model, question.seed)
            found = model.run(feeds)
        except AutotuneError as error:
            kind, text = typed(error)
            is_internal = question.is_valid and any(t in text for t in INTERNAL)
            return Outcome(Kind.UNTYPED if is_internal else kind, text)
        except MemoryError:
            return Outcome(Kind.REFUSED, "out of memory")
        except Exception as error:
            return Outcome(Kind.UNTYPED, one_line(f"{type(error).__name__}: {error}"))
        tell("oracle")
        return _compared(question, feeds, list(found.values()))


def feeds_of(model: Model, seed: int) -> dict[str, Array]:
    """Normal floats, some of them whole numbers; integers that are valid indices."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for end in model.input_info:
        if end.stored.startswith("float"):
            values = rng.standard_normal(end.shape) * rng.choice([0.3, 1.0, 3.0])
            out[end.name] = np.asarray(values, end.numpy_dtype)
        else:
            out[end.name] = np.asarray(rng.integers(0, end.limit, end.shape), end.dtype)
    return out


def _compared(question: Question, feeds: Feeds, found: Sequence[Array]) -> Outcome:
    nearby = [shifted(feeds, seed) for seed in (1, 2)]
    fault = ""
    for oracle in (_by_onnxruntime, by_reference):
        try:
            wanted = [oracle(question.model, f) for f in (feeds, *nearby)]
        except Exception:
            continue
        fault = difference(found, wanted[0], wanted[1:])
        if not fault:
            return Outcome(Kind.RIGHT)
        if oracle is _by_onnxruntime and not reference_counts(question.model):
            break
        if not question.is_valid and oracle is by_reference:
            return Outcome(Kind.RIGHT, NO_ORACLE)  # it takes much that the standard does not allow
    return Outcome(Kind.WRONG, fault) if fault else Outcome(Kind.RIGHT, NO_ORACLE)


def reference_counts(model: bytes) -> bool:
    """Whether `onnx.reference` may be right where onnxruntime is not."""
    return not UNRELIABLE & {n.op_type for n in ModelProto.FromString(model).graph.node}


def _by_onnxruntime(model: bytes, feeds: Feeds) -> list[Any]:
    session = oracle_session(model)
    return list(session.run(None, dict(feeds)))


@cache
def _last() -> dict[bytes, Any]:
    return {}


def oracle_session(model: bytes) -> Any:
    """ONNX Runtime's session of a model, without optimisations; the last one is kept."""
    kept = _last()
    if model not in kept:
        kept.clear()
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        kept[model] = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
    return kept[model]


def by_reference(model: bytes, feeds: Feeds) -> list[Any]:
    """Outputs by `onnx.reference`."""
    return list(ReferenceEvaluator(ModelProto.FromString(model)).run(None, dict(feeds)))


def shifted(feeds: Feeds, seed: int) -> dict[str, Array]:
    """Floats changed by some units in the last place."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for name, values in feeds.items():
        if values.dtype.kind == "f":
            noise = rng.choice([-1, 1], values.shape) * np.finfo(values.dtype).eps * 4
            values = np.asarray(values * (1 + noise), values.dtype)
        out[name] = values
    return out


def difference(found: Sequence[Array], wanted: Sequence[Any], moved: Sequence[Any]) -> str:
    """Where outputs differ by more than `moved`, the oracle's results nearby, explains."""
    for n, got in enumerate(found):
        want = np.asarray(wanted[n])
        if got.dtype != want.dtype:
            return f"output {n} has dtype {got.dtype}, expected {want.dtype}"
        if got.shape != want.shape:
            return f"output {n} has shape {got.shape}, expected {want.shape}"
        others = [np.asarray(m[n]) for m in moved]
        bad = ~_close(got, want, others)
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            return (
                f"output {n}: {got[at]!r} at {at}, expected {want[at]!r}, {bad.sum()} of {bad.size}"
            )
    return ""


def _close(got: Array, want: Array, others: Sequence[Array]) -> Array:
    """Which elements are as expected, or where the oracle itself is in doubt."""
    if got.dtype.kind not in "fV" and got.dtype.name != "bfloat16":
        doubt = [want != o for o in others if o.shape == want.shape]
        return np.logical_or.reduce([got == want, *doubt])
    a, b = got.astype(np.float64), want.astype(np.float64)
    wide = [o.astype(np.float64) for o in others if o.shape == want.shape]
    moves = np.max([np.abs(o - b) for o in wide], axis=0) if wide else np.zeros(b.shape)
    finite = np.abs(b[np.isfinite(b)])
    scale = finite.max() if finite.size else 0.0
    eps = max(RTOL, 4 * float(np.finfo(got.dtype).eps) if got.dtype.kind == "f" else 0.02)
    allowed = eps * (np.abs(b) + 0.01 * scale) + SLACK * moves + 1e-30
    same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed)
    doubt = [np.isfinite(o) != np.isfinite(b) for o in wide]
    huge = (np.abs(b) > 1e37) | (np.abs(a) > 1e37)  # the one overflows, the other does not yet
    doubt.append(huge & (np.sign(a) == np.sign(b)))
    out: Array = np.logical_or.reduce([same, *doubt])
    return out


def dtype_of(port: Any) -> str:
    """NumPy's name of the dtype of a port."""
    return str(helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type))
