"""⑩ Numeric check of a compiled network against an oracle that shares no code with it.

    inputs of several kinds ─► compiled network ─┬─► within the tolerance: right
                            └► oracle ───────────┘ else
    the oracle once more, every result rounded otherwise ─► differs as much: ill-conditioned here
    the standard's own evaluator ─► agrees with the network: the oracle is wrong
    none of these ─► WrongNumbers

See `oracles`, `rounding` and `check_inputs`; docs/check.md has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autotune.config import PRECISIONS
from autotune.dtypes import DTYPES, is_float
from autotune.errors import MissingDependency, ModelError, WrongNumbers
from autotune.graph.network import Network, Port
from autotune.network.baselines import baseline
from autotune.network.check_inputs import check_inputs
from autotune.network.differences import TOLERANCE, Difference, difference, flat_outputs, tolerance
from autotune.network.hybrid import HybridArtifact
from autotune.network.memory import Place, place_of
from autotune.network.oracles import ONNXRUNTIME, Oracle, Oracles, Original
from autotune.network.runtime import Model, random_inputs
from autotune.te.evaluate import evaluate
from autotune.te.strides import spanned

ROUNDING_FACTOR = 8.0
"""Tolerance of an ill-conditioned output, as a multiple of the oracle's own rounding spread.

A sum of K terms rounds K times where the experiment rounds once; eight is above what was found."""

_NARROW_FACTOR = 3.0
"""The same for products in half precision, of which a network has fewer than it has operators."""

_EPS = DTYPES["float32"].eps
_FEW_ROUNDINGS = 4.0
_SAMPLES = 3
_INEXACT = 2.0**8
"""Roundings that a program may differ by: 3·10⁻⁵, where those of the tuner may by 5·10⁻⁵."""
_TELLING = 0.25
"""Largest tolerance: above it, unrelated numbers would pass."""
_TELL_MORE = "; too much to tell right from wrong: give --check-input x.npz"
_MOST_FLOPS = 5e10
"""FLOPs up to which onnx.reference is run; it is too slow for larger networks."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Report:
    """A check that was passed.

    `oracles`: who was asked, and `kinds` on which inputs. `error`: the largest of all outputs over
    their largest finite values; `allowed`: what was allowed of that output. `notes`: lines for a
    user, of what is ill-conditioned and of oracles that failed.
    """

    oracles: tuple[str, ...]
    kinds: tuple[str, ...]
    error: float
    allowed: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"outputs agree with {' and '.join(self.oracles)} on {', '.join(self.kinds)} inputs: "
            f"largest error {self.error:.1e} of the largest value"
        )


def check_model(
    model: Model,
    network: Network,
    original: Original,
    given: Mapping[str, Array] | None = None,
    seed: int = 0,
) -> Report:
    """Compare `model` with the file that it was compiled from.

    `network`: what it was compiled from, for where no other oracle can run the file. `given`:
    inputs of the user, in addition. Raises WrongNumbers.
    """
    oracles = Oracles(original, model.n_threads, partial(_evaluated, model, network))
    kinds = dict(check_inputs(model.input_info, original.proto.graph, seed))
    if given is not None:
        kinds = {"given": dict(given)} | kinds
    checks = [_Check(model, network, oracles, kind, x) for kind, x in kinds.items()]
    asked, unasked = _asked(checks)
    verdicts = [check.verdict(name) for check in asked for name in check.expected]
    worst = max(verdicts, key=lambda v: v.error, default=_Verdict(0.0, TOLERANCE))
    used = dict.fromkeys(check.oracle.name for check in asked)
    notes = (*oracles.problems, *(v.note for v in verdicts if v.note), *_unseen(asked), *unasked)
    checked = tuple(check.kind for check in asked)
    return Report(tuple(used), checked, worst.error, worst.allowed, notes)


def _asked(checks: Sequence[_Check]) -> tuple[list[_Check], list[str]]:
    """The checks that an oracle has an answer to, and a note for each of the others.

    Raises ModelError where there is none.
    """
    asked: list[_Check] = []
    notes: list[str] = []
    for check in checks:
        try:
            check.expected  # noqa: B018  asks
        except ModelError as error:
            notes.append(f"not checked on {check.kind} inputs: {error.message}")
            failure = error
        else:
            asked.append(check)
    if not asked and checks:
        raise failure
    return asked, notes


def _evaluated(model: Model, network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """`evaluate_network`; raises ModelError where a part of the model is not in the network."""
    if isinstance(model.artifact, HybridArtifact):
        raise ModelError(
            "no oracle can run the model on such inputs",
            "give inputs that it can run on (--check-input x.npz), or bind those that are always "
            "the same (--const NAME=VALUE)",
        )
    return evaluate_network(network, inputs)


def joint_report(reports: Sequence[Report]) -> Report:
    """What several checks found together: the largest error, and every note once."""
    worst = max(reports, key=lambda r: r.error)
    return Report(
        tuple(dict.fromkeys(o for r in reports for o in r.oracles)),
        tuple(dict.fromkeys(k for r in reports for k in r.kinds)),
        worst.error,
        worst.allowed,
        tuple(dict.fromkeys(n for r in reports for n in r.notes)),
    )


@dataclass(frozen=True, slots=True)
class _Verdict:
    error: float
    allowed: float
    note: str = ""


@dataclass
class _Check:
    """One inference beside the oracle's, and what else is asked where they differ."""

    model: Model
    network: Network
    oracles: Oracles
    kind: str
    inputs: Mapping[str, Array]
    _asked: dict[float, dict[str, _Spread]] = field(default_factory=dict)

    @cached_property
    def actual(self) -> Mapping[str, Array]:
        return flat_outputs(self.model.run(self.inputs))

    @cached_property
    def _answer(self) -> tuple[Oracle, Mapping[str, Array]]:
        oracle, outputs = self.oracles.ask(self.inputs)
        return oracle, flat_outputs(outputs)

    @property
    def oracle(self) -> Oracle:
        return self._answer[0]

    @property
    def expected(self) -> Mapping[str, Array]:
        return self._answer[1]

    def verdict(self, name: str) -> _Verdict:
        """On one output. Raises WrongNumbers."""
        unit = _unit(self.network)
        floor = max(tolerance(self.expected[name].dtype), _FEW_ROUNDINGS * _EPS * (unit - 1.0))
        found = _difference(self.actual, name, self.expected[name])
        if found.within(floor):
            return _Verdict(found.error, floor)
        spread = self._spread(unit)[name]
        if spread.is_reshaped or self._spread(_INEXACT * unit)[name].is_reshaped:
            return _Verdict(0.0, floor, self._undecided(name))
        allowed = max(floor, (ROUNDING_FACTOR if unit == 1.0 else _NARROW_FACTOR) * spread.error)
        # values near a threshold of the model may fall on either side of it
        inexact = self._spread(_INEXACT * unit)[name].n_moved if found.n_moved else 0
        n_moved = max(spread.n_moved, inexact)
        if found.within(allowed, math.ceil(ROUNDING_FACTOR * n_moved)):
            is_expected = unit > 1.0 and allowed < _TELLING
            note = "" if is_expected else self._ill_conditioned(name, found, spread, n_moved)
            return _Verdict(found.error, allowed, note)
        if self._is_standard(name, floor):
            note = f"output '{name}': {self.oracle.name} differs from the standard's own evaluator"
            return _Verdict(0.0, floor, note + f", which agrees with the network: {found.what}")
        raise self._wrong(name, found, allowed)

    def _spread(self, scale: float) -> dict[str, _Spread]:
        if scale not in self._asked:
            rounded = self.oracle.rounded(self.inputs, range(1, _SAMPLES + 1), scale)
            self._asked[scale] = _spreads(self.expected, map(flat_outputs, rounded))
        return self._asked[scale]

    def _is_standard(self, name: str, floor: float) -> bool:
        """Whether onnx.reference, where it was not the oracle, says what the network says."""
        if self.oracle.name != ONNXRUNTIME or self.network.flops > _MOST_FLOPS:
            return False
        try:
            expected = flat_outputs(self.oracles.reference.run(self.inputs))
        except (MissingDependency, ModelError):
            return False
        return difference(self.actual[name], expected[name]).within(floor)

    def _undecided(self, name: str) -> str:
        return (
            f"ill-conditioned here: output '{name}' on {self.kind} inputs: "
            f"{self.oracle.name} itself returns another shape where it rounds otherwise{_TELL_MORE}"
        )

    def _ill_conditioned(self, name: str, found: Difference, spread: _Spread, n_moved: int) -> str:
        is_told = ROUNDING_FACTOR * spread.error < _TELLING
        theirs = f"{spread.error:.1e}" + (f" and in {n_moved:,} elements" if n_moved else "")
        ours = f"{found.error:.1e}" + (f" and in {found.n_moved:,}" if found.n_moved else "")
        return (
            f"ill-conditioned here: output '{name}' on {self.kind} inputs: {self.oracle.name} "
            f"itself differs by {theirs} where it rounds otherwise, the compiled network by {ours}"
            f"{'' if is_told else _TELL_MORE}"
        )

    def _wrong(self, name: str, found: Difference, allowed: float) -> WrongNumbers:
        precision = self.network.precision
        message = (
            f"output '{name}' differs from the oracle ({self.oracle.name}, {self.kind} inputs) "
            f"by {found.error:.2g} of its largest value, {allowed:.2g} is allowed; {found.what}"
        )
        if precision != "f32":
            return WrongNumbers(
                f"precision {precision} is too narrow for this model: {message}",
                "compile it with --precision f32",
            )
        inexact = ROUNDING_FACTOR * self._spread(_INEXACT)[name].error
        if found.within(inexact) and math.isfinite(found.error):
            return WrongNumbers(
                f"ill-conditioned here: {message}",
                "compile with --max-error 1e-6: programs that round more are too inexact for it",
            )
        return WrongNumbers(message, _REPORT)


_REPORT = (
    "this is a bug: please report the model and the log it was compiled from; "
    "--no-check compiles it as it is"
)


def _unit(network: Network) -> float:
    """A rounding of the products of a network, in roundings of float32."""
    return DTYPES[PRECISIONS[network.precision]].eps / _EPS


@dataclass(frozen=True, slots=True)
class _Spread:
    """The largest differences of an oracle from itself: see `Difference`.

    `is_reshaped`: it even returns another shape, as where rounding decides how many boxes are kept.
    """

    error: float = 0.0
    n_moved: int = 0
    is_reshaped: bool = False


def _difference(found: Mapping[str, Array], name: str, expected: Array) -> Difference:
    """Of one output: lists may be shorter, so that a part of one is missing."""
    if name not in found:
        return Difference(math.inf, 0, "it is not there")
    return difference(found[name], expected)


def _spreads(
    expected: Mapping[str, Array], others: Iterable[Mapping[str, Array]]
) -> dict[str, _Spread]:
    spreads = dict.fromkeys(expected, _Spread())
    for other in others:
        for name, array in expected.items():
            found, known = _difference(other, name, array), spreads[name]
            if math.isfinite(found.error):
                error, n_moved = max(known.error, found.error), max(known.n_moved, found.n_moved)
                spreads[name] = _Spread(error, n_moved, known.is_reshaped)
            else:
                spreads[name] = replace(known, is_reshaped=True)
    return spreads


def _unseen(checks: Iterable[_Check]) -> Iterable[str]:
    """Outputs of which no element was a number, so that nothing was compared."""
    seen: dict[str, bool] = {}
    for check in checks:
        for name, array in check.expected.items():
            floats = array.size and array.dtype.kind == "f"
            seen[name] = seen.get(name, False) or not floats or bool(np.isfinite(array).any())
    return [
        f"output '{name}' has no finite element: --check-input x.npz checks on numbers of yours"
        for name, is_seen in seen.items()
        if not is_seen
    ]


def check_onnxruntime(model: Model, onnx_model: Any, seed: int = 0) -> float:
    """Error against ONNX Runtime on the same weights (path or ModelProto), as `max_error`.

    Raises WrongNumbers above the tolerance, MissingDependency without ONNX Runtime, ModelError
    where that cannot run the model.
    """
    inputs = random_inputs(model.input_info, seed)
    expected = baseline("onnxruntime", onnx_model, model.n_threads)(inputs)
    return _require(model.run(inputs), expected)


def check_network(model: Model, network: Network, seed: int = 0) -> float:
    """Error against `evaluate_network`; slow for large models. Raises WrongNumbers."""
    inputs = random_inputs(model.input_info, seed)
    return _require(model.run(inputs), evaluate_network(network, inputs))


def evaluate_network(network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs by plain NumPy: every call's DAG evaluated on strided views of the storages."""
    storages: dict[str, Array] = {}

    def view(name: str) -> Array:
        return _view(storages, network, place_of(network.values, name))

    for port in network.inputs:
        target = view(port.value)
        target[...] = inputs[port.name].reshape(target.shape)
    for call in network.calls:
        arrays = {p: view(value) for p, value in call.inputs.items()} | dict(call.constants)
        results = evaluate(network.tasks[call.task], arrays)
        for name, value in call.outputs.items():
            target = view(value)
            target[...] = results[name].reshape(target.shape)
    return {p.name: _user(view(p.value), p) for p in network.outputs}


def _view(storages: dict[str, Array], network: Network, place: Place) -> Array:
    if place.root not in storages:
        root = network.values[place.root]
        # NaN marks storage that no kernel wrote
        unset = np.nan if is_float(root.dtype) else 0
        storages[place.root] = np.full(spanned(root.shape, root.strides), unset, root.dtype)
    flat = storages[place.root]
    strides = [s * flat.itemsize for s in place.strides]
    return as_strided(flat[place.offset :], place.shape, strides)


def _user(array: Array, port: Port) -> Array:
    with np.errstate(over="ignore"):
        return np.array(array).reshape(port.shape).astype(DTYPES[port.dtype].numpy)


def _require(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    worst = 0.0
    for name, array in expected.items():
        found, allowed = difference(actual[name], array), tolerance(array.dtype)
        if not found.within(allowed):
            raise WrongNumbers(
                f"output '{name}' differs from the oracle by {found.error:.2g} of its largest "
                f"value, {allowed:.2g} is allowed; {found.what}",
                _REPORT,
            )
        worst = max(worst, found.error)
    return worst
