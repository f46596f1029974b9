"""⑩ The segments of a hybrid artifact ready to run, over named tensors.

    steps.run(tensors, seconds) ─► tensors, with results of the segments

An If runs one of its branches, a Loop its body once for each iteration; both look at a tensor that
was computed just before. A body has tensors of its own, and gets those that it reads from around.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import SMALL_TYPES
from autotune.errors import ModelError
from autotune.network.artifact.artifact import Endpoint
from autotune.network.artifact.hybrid import HybridBody, HybridControl, HybridSegment, leaves
from autotune.network.runtime.onnx_session import OnnxSession, as_array
from autotune.network.runtime.runtime import Model
from autotune.network.runtime.working_memory import Memory

Array = NDArray[Any]
Tensors: TypeAlias = dict[str, Any]
Seconds: TypeAlias = "NDArray[np.float64] | None"
"""Of every kernel and ONNX file of the artifact; inferences add to them. None: not measured."""


@dataclass(frozen=True)
class StepSetting:
    """Settings of all steps: see `HybridModel`. `is_alone`, `is_apart`: see `OnnxSession`."""

    n_threads: int
    memory: Memory
    is_alone: bool
    is_apart: bool = False


class HybridSteps:
    """The segments of a model or a body. `first_row`: of theirs in `Seconds`."""

    def __init__(
        self, segments: Sequence[HybridSegment], setting: StepSetting, first_row: int = 0
    ) -> None:
        static = _static_types(segments)
        self.steps: list[_Step] = []
        row = first_row
        for segment in segments:
            self.steps.append(_step(segment, setting, static, row))
            row += sum(map(_n_rows, segment.leaves()))

    def run(self, tensors: Tensors, seconds: Seconds) -> None:
        """One inference. Raises ModelError where ONNX Runtime fails."""
        for step in self.steps:
            step(tensors, seconds)

    def untaken(self) -> Iterator[str]:
        """`the else branch of If 'name'`, of bodies that no inference has run so far."""
        for step in self.steps:
            if isinstance(step, Decided):
                for what, body, n_runs in zip(step.parts, step.bodies, step.n_runs, strict=True):
                    if n_runs:
                        yield from body.steps.untaken()
                    else:
                        yield f"the {what} of {step.control.op} '{step.control.name}'"

    def decisions(self) -> Iterator[Decided]:
        """Data-dependent control flow, also inside of bodies."""
        for step in self.steps:
            if isinstance(step, Decided):
                yield step
                for body in step.bodies:
                    yield from body.steps.decisions()


_Step: TypeAlias = "Callable[[Tensors, Seconds], None]"


def _step(
    segment: HybridSegment,
    setting: StepSetting,
    static: Mapping[str, tuple[tuple[int, ...], str]],
    row: int,
) -> _Step:
    if segment.control is not None:
        kind = _Branches if segment.control.op == "If" else _Loop
        return kind(segment.control, setting, row)
    if segment.network is not None:
        model = Model(segment.network, setting.n_threads, setting.memory)
        return _Compiled(segment.inputs, model, row)
    how = setting.n_threads, setting.is_alone, setting.is_apart
    session = OnnxSession(segment.onnx, segment.outputs, static, *how)
    return _Foreign(session, row)


def _n_rows(leaf: HybridSegment) -> int:
    return 1 if leaf.network is None else len(leaf.network.kernels)


@dataclass(frozen=True, slots=True)
class _Compiled:
    names: tuple[str, ...]
    model: Model
    row: int

    def __call__(self, tensors: Tensors, seconds: Seconds) -> None:
        given = {name: as_array(tensors[name]) for name in self.names}
        tensors |= self.model.run(given)
        if seconds is not None:
            times = [kernel.time_s for kernel in self.model.profile(given)]
            seconds[self.row : self.row + len(times)] += times


@dataclass(frozen=True, slots=True)
class _Foreign:
    session: OnnxSession
    row: int

    def __call__(self, tensors: Tensors, seconds: Seconds) -> None:
        start = time.perf_counter()
        tensors |= self.session.run(tensors)
        if seconds is not None:
            seconds[self.row] += time.perf_counter() - start


class _Body:
    """A branch, or the body of a loop: the first of its inputs are given, the rest captured."""

    def __init__(self, body: HybridBody, n_given: int, setting: StepSetting, row: int) -> None:
        names = [end.name for end in body.inputs]
        self.given, self.captured = names[:n_given], names[n_given:]
        self.number_shape = body.inputs[0].shape if n_given else ()
        self.outputs = body.outputs
        self.steps = HybridSteps(body.segments, setting, row)

    def run(self, given: Sequence[Any], around: Mapping[str, Any], seconds: Seconds) -> list[Any]:
        """The outputs in order."""
        tensors = {name: around[name] for name in self.captured}
        tensors.update(zip(self.given, given, strict=True))
        self.steps.run(tensors, seconds)
        return [tensors[end.name] for end in self.outputs]


class Decided:
    """A node whose branch or number of iterations the data decide.

    `n_runs`: how often each branch was taken, or the body ran.
    """

    def __init__(self, control: HybridControl, setting: StepSetting, row: int) -> None:
        self.control = control
        n_given = 0 if control.op == "If" else len(control.operands) - 1
        self.bodies: list[_Body] = []
        for body in control.bodies:
            self.bodies.append(_Body(body, n_given, setting, row))
            row += sum(map(_n_rows, leaves(body.segments)))
        self.parts = ("then branch", "else branch") if control.op == "If" else ("body",)
        self.n_runs = [0] * len(self.bodies)

    def __call__(self, tensors: Tensors, seconds: Seconds) -> None:
        """Run the chosen branch or iterations; results become tensors."""
        results = self.results(tensors, seconds)
        pairs = zip(self.control.results, results, strict=True)
        tensors.update((name, value) for name, value in pairs if name)

    def results(self, tensors: Tensors, seconds: Seconds) -> Sequence[Any]:
        """The results of the node in order."""
        raise NotImplementedError

    def operand(self, n: int, tensors: Tensors, default: Any = None) -> Any:
        """The value of an operand; `default` where it is absent."""
        name = self.control.operands[n]
        if name in self.control.constants:
            return self.control.constants[name].copy()
        return tensors[name] if name else default

    def number(self, value: Any) -> Any:
        """The only element of a tensor. Raises ModelError where there are none or several."""
        array = np.asarray(as_array(value))
        if array.size != 1:
            raise ModelError(
                f"{self.control.op} '{self.control.name}' is decided by a tensor of "
                f"{array.size} elements, not by one",
                "check the inputs",
            )
        return array.item()


class _Branches(Decided):
    def results(self, tensors: Tensors, seconds: Seconds) -> Sequence[Any]:
        taken = 0 if self.number(self.operand(0, tensors)) else 1
        self.n_runs[taken] += 1
        return self.bodies[taken].run((), tensors, seconds)


class _Loop(Decided):
    def results(self, tensors: Tensors, seconds: Seconds) -> Sequence[Any]:
        body, n_operands = self.bodies[0], len(self.control.operands)
        limit = self.operand(0, tensors)
        n_most = np.inf if limit is None else self.number(limit)
        holds = self.number(self.operand(1, tensors, True))
        carried = [self.operand(n, tensors) for n in range(2, n_operands)]
        rows: list[list[Any]] = [[] for _ in body.outputs[1 + len(carried) :]]
        n = 0
        while holds and n < n_most:
            number = np.full(body.number_shape, n, np.int64)
            condition, *made = body.run((number, *carried), tensors, seconds)
            carried = made[: len(carried)]
            for row, value in zip(rows, made[len(carried) :], strict=True):
                row.append(as_array(value))
            holds, n = self.number(condition), n + 1
        self.n_runs[0] += n
        ends = body.outputs[1 + len(carried) :]
        return [*carried, *(self._stacked(r, e) for r, e in zip(rows, ends, strict=True))]

    def _stacked(self, rows: list[Any], end: Any) -> Array:
        if not rows:
            extents = (max(extent, 0) for extent in end.shape)
            return np.zeros((0, *extents), end.numpy_dtype)
        if len({row.shape for row in rows}) > 1:
            raise ModelError(
                f"Loop '{self.control.name}' collects '{end.name}' of another shape in every "
                "iteration",
                "check the inputs",
            )
        return np.stack(rows)


def _static_types(segments: Sequence[HybridSegment]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of the tensors that compiled segments read: they are made in arrays.

    Stated shapes of outputs of the model may be wrong, and nothing depends on them.
    """
    ends = (e for s in segments if s.network for e in s.network.inputs)
    return {e.name: (e.shape, as_passed(e).stored) for e in ends}


def as_passed(end: Endpoint) -> Endpoint:
    """An end in the type that its elements have between segments: small ones are not converted."""
    return replace(end, is_native=True) if end.dtype in SMALL_TYPES else end
