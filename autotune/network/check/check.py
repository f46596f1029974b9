"""⑩ Numeric check of a compiled network against an oracle that shares no code with it.

    inputs of several kinds ─► compiled network ─┬─► within the tolerance: right
                            └► oracle ───────────┘ else
    the oracle once more, every result rounded otherwise ─► differs as much: ill-conditioned here
    every operator by its definition ─► agrees with the network: the oracle is wrong
    none of these ─► WrongNumbers

See `oracles`, `rounding` and `check_inputs`; docs/check.md has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from autotune.errors import MissingDependency, ModelError, WrongNumbers
from autotune.graph.fallback.shape_inputs import inputs_bound_by_value
from autotune.graph.network import Network
from autotune.network.artifact.hybrid import HybridArtifact
from autotune.network.check.accuracy import GIVEN, Report, Tally, worst_of
from autotune.network.check.check_inputs import check_inputs
from autotune.network.check.differences import (
    Difference,
    difference,
    flat_outputs,
    scale_of,
    tolerance,
)
from autotune.network.check.evaluation import evaluate_network
from autotune.network.check.experience import Experience, Spread
from autotune.network.check.experiments import (
    INEXACT,
    ROUNDING_FACTOR,
    TELLING,
    factor_of,
    found_difference,
    least_error,
    other_precisions,
    spreads,
    unit_of,
)
from autotune.network.check.oracles import Oracle, Oracles, Original, by_onnxruntime
from autotune.network.check.quantised_outputs import (
    has_scales,
    is_quantised,
    is_within_a_step,
    output_steps,
)
from autotune.network.check.standard import Judgement, by_definition
from autotune.network.check.undefined_outputs import draws, undefined_outputs
from autotune.network.runtime.hybrid_runtime import HybridModel
from autotune.network.runtime.onnxruntime_package import ONNXRUNTIME
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.wording import VALUE, arguments

_STEPS_FACTOR = 3.0
"""The same for quantised models, whose values fall on other sides by `INEXACT` in plenty."""

_SAMPLES = 3
_TELL_MORE = "; too much to tell right from wrong: give `check_inputs=ARRAYS`"
_MOST_FLOPS = 5e10
"""FLOPs up to which operators are computed by definition, which is too slow for larger networks."""

_MOST_NAMES = 3
"""Nodes that a note names."""

Array = NDArray[Any]


def check_model(
    model: Model,
    network: Network,
    original: Original,
    given: Mapping[str, Array] | Sequence[Mapping[str, Array]] | None = None,
    seed: int = 0,
    experience: Experience | None = None,
    n_kinds: int | None = None,
) -> Report:
    """Compare `model` with the file that it was compiled from.

    `network`: its source, for where no other oracle can run the file. `given`:
    inputs of the user, in addition, of one inference or of several. `experience`: of this model at
    other shapes. `n_kinds`: of other inputs, all by default. Raises WrongNumbers.
    """
    oracles = Oracles(original, model.n_threads, partial(_evaluated, model, network))
    own = [dict(given)] if isinstance(given, Mapping) else list(given or ())
    kinds = (
        *((GIVEN, x) for x in own),
        *islice(check_inputs(model.input_info, original.outline.graph, seed), n_kinds),
    )
    findings = _Findings(model, network, oracles, bool(own), experience or Experience())
    for kind, inputs in kinds:
        findings.add(kind, inputs)
    return findings.report(len(own))


class _Findings:
    """Findings of the inferences of a check so far."""

    def __init__(
        self,
        model: Model,
        network: Network,
        oracles: Oracles,
        has_given: bool,
        experience: Experience,
    ) -> None:
        original = oracles.original
        outline = original.outline
        undefined = undefined_outputs(outline.graph, draws(model.artifact))
        steps = output_steps(original.proto if has_scales(outline) else outline)
        kinds = is_quantised(outline), steps, undefined, has_given, experience
        self._setting = _Setting(model, network, oracles, *kinds)
        self._tallies: dict[str, Tally] = {}
        self._notes: dict[tuple[str, str], tuple[float, str]] = {}
        self._seen: dict[str, bool] = {}
        self._asked: dict[str, str] = {}
        """Kinds of inputs -> the oracle that had an answer."""
        self._unasked: list[str] = []
        self._failure = ModelError("no oracle can run the model")

    def add(self, kind: str, inputs: Mapping[str, Array]) -> None:
        """Compare one inference. Raises WrongNumbers."""
        check = _Check(self._setting, kind, inputs)
        try:
            expected = check.expected
            if kind != GIVEN:
                _ = check.actual
        except ModelError as error:
            self._unasked.append(f"not checked on {kind} inputs: {error.message}")
            self._failure = error
            return
        self._asked[kind] = check.oracle.name
        for name, array in expected.items():
            verdict = check.verdict(name)
            step = self._setting.steps.get(name, 0.0)
            tally = self._tallies.setdefault(name, Tally(name, step))
            tally.is_decided |= verdict.is_decided
            actual = check.actual.get(name)
            if actual is not None and actual.shape == array.shape:
                tally.add(kind, verdict.found, verdict.allowed, actual, array)
            if verdict.note:
                known = self._notes.get((name, kind), (-1.0, ""))
                self._notes[name, kind] = max(known, (verdict.found.error, verdict.note))
            self._seen[name] = self._seen.get(name, False) or _has_numbers(array)

    def report(self, n_given: int) -> Report:
        """All of it. Raises ModelError where no oracle had an answer to anything."""
        if not self._asked and self._unasked:
            hint = _given_otherwise(self._setting.oracles.original.outline)
            raise ModelError(f"not checked on any inputs: {self._failure.message}", hint)
        outputs = tuple(tally.accuracy for tally in self._tallies.values())
        worst = worst_of(outputs)
        unseen = (
            f"output '{name}' has no finite element: `check_inputs=ARRAYS` checks on yours"
            for name, is_seen in self._seen.items()
            if not is_seen
        )
        told = (*(text for _, text in self._notes.values()), *_untaken(self._setting.model))
        notes = (*self._setting.oracles.problems, *told, *unseen, *dict.fromkeys(self._unasked))
        used = tuple(dict.fromkeys(self._asked.values()))
        kinds = tuple(self._asked)
        return Report(used, kinds, worst.error, worst.allowed, notes, outputs, n_given)


def _untaken(model: Model) -> Iterator[str]:
    """A note on branches that no input has reached: they are not checked."""
    names = model.untaken() if isinstance(model, HybridModel) else ()
    if names:
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        yield (
            f"not checked, for no input leads there: {', '.join(names[:_MOST_NAMES])}{more}: "
            "`check_inputs=ARRAYS` checks on yours"
        )


def _has_numbers(array: Array) -> bool:
    """Whether something of an output can be compared."""
    return not (array.size and array.dtype.kind == "f") or bool(np.isfinite(array).any())


def _evaluated(model: Model, network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """`evaluate_network`; raises ModelError where a part of the model is not in the network."""
    if isinstance(model.artifact, HybridArtifact):
        raise ModelError("no oracle can run the model on such inputs")
    if model.ragged_ports is not None:  # all places, as `sized` models compute
        n = inputs[model.ragged_ports.ragged.mask].size
        inputs = model.ragged_ports.with_places(inputs, n)
    return evaluate_network(network, inputs)


@dataclass(frozen=True, slots=True)
class _Verdict:
    found: Difference
    allowed: float
    note: str = ""
    is_decided: bool = True


@dataclass(frozen=True, slots=True)
class _Setting:
    """The two sides of a check, and facts of the model.

    `steps`: see `quantised_outputs`. `undefined`: see `undefined_outputs`. `has_given`: whether
    there are inputs of the user's. `experience`: with other inputs of the model.
    """

    model: Model
    network: Network
    oracles: Oracles
    is_quantised: bool
    steps: Mapping[str, float]
    undefined: Mapping[str, str]
    has_given: bool
    experience: Experience


@dataclass
class _Check:
    """One inference beside the oracle's, and further experiments where they differ."""

    setting: _Setting
    kind: str
    inputs: Mapping[str, Array]
    _asked: dict[float, dict[str, Spread]] = field(default_factory=dict)
    _borrows: bool = True
    """Whether experiments at other shapes count."""

    @property
    def network(self) -> Network:
        return self.setting.network

    @cached_property
    def actual(self) -> Mapping[str, Array]:
        return flat_outputs(self.setting.model.run(self.inputs))

    @cached_property
    def _answer(self) -> tuple[Oracle, Mapping[str, Array]]:
        oracle, outputs = self.setting.oracles.ask(self.inputs)
        return oracle, flat_outputs(outputs)

    @property
    def oracle(self) -> Oracle:
        return self._answer[0]

    @property
    def expected(self) -> Mapping[str, Array]:
        return self._answer[1]

    def verdict(self, name: str) -> _Verdict:
        """On one output. Raises WrongNumbers."""
        unit = unit_of(self.network.precision)
        floor = max(tolerance(self.expected[name].dtype), least_error(unit))
        if name in self.setting.undefined:
            note = f"output '{name}' {self.setting.undefined[name]}: it is not checked"
            return _Verdict(Difference(0.0, 0, ""), floor, note, is_decided=False)
        found = found_difference(self.actual, name, self.expected[name])
        if found.within(floor):
            return _Verdict(found, floor)
        for self._borrows in (True, False):
            verdict = self._by_experiment(name, found, floor, unit)
            if verdict is not None:
                return verdict
        as_defined = self._beside_the_definition(name)
        if as_defined is not None and as_defined.within(floor):
            note = (
                f"output '{name}': {self.oracle.name} computes {_listed(self._defined.deviating)}"
            )
            note += f" otherwise than defined, the network as defined: {found.what}"
            return _Verdict(as_defined, floor, note)
        raise self._wrong(name, found, floor)

    def _by_experiment(
        self, name: str, found: Difference, floor: float, unit: float
    ) -> _Verdict | None:
        """Whether the oracle differs as much from itself where it rounds otherwise."""
        if self._is_reshaped(name, unit):
            return _Verdict(Difference(0.0, 0, ""), floor, self._undecided(name), is_decided=False)
        if self.setting.is_quantised and unit == 1.0:
            return self._in_steps(name, found, floor)
        return self._rounded_otherwise(name, found, floor, unit)

    def _is_reshaped(self, name: str, unit: float) -> bool:
        """Whether rounding decides the shape of an output, so that nothing can be compared."""
        if name in self.actual and self.actual[name].dtype != self.expected[name].dtype:
            return False
        return any(self._spread(name, scale).is_reshaped for scale in (unit, INEXACT * unit))

    def _rounded_otherwise(
        self, name: str, found: Difference, floor: float, unit: float
    ) -> _Verdict | None:
        """Whether rounding in another order explains a difference."""
        spread = self._spread(name, unit)
        allowed = max(floor, self._factor * spread.error)
        # values near a threshold of the model may fall on either side of it
        inexact = self._spread(name, INEXACT * unit).n_moved if found.n_moved else 0
        n_moved = max(spread.n_moved, inexact)
        if not found.within(allowed, math.ceil(ROUNDING_FACTOR * n_moved)):
            return None
        if self._is_judged and found.error > TELLING:
            return None
        is_expected = unit > 1.0 and allowed < TELLING
        note = "" if is_expected else self._ill_conditioned(name, found, spread, n_moved)
        return _Verdict(found, allowed, note, is_expected or _is_told(spread))

    def _in_steps(self, name: str, found: Difference, floor: float) -> _Verdict | None:
        """Whether values halfway between two steps of a quantised model explain a difference.

        One step of the output's own scale is no error. What comes of steps further inside is found
        by the experiment, with all that programs may round: as many values fall on the other side.
        """
        step, expected = self.setting.steps.get(name, 0.0), self.expected[name]
        if step and is_within_a_step(self.actual[name], expected, step):
            return _Verdict(found, max(floor, step / scale_of(expected)))
        spread = self._spread(name, INEXACT)
        allowed = max(floor, _STEPS_FACTOR * spread.error)
        is_right = found.within(allowed, math.ceil(_STEPS_FACTOR * spread.n_moved))
        if not is_right or found.rms > max(floor, _STEPS_FACTOR * spread.rms):
            return None
        theirs, ours = _amount(spread.error, spread.n_moved), _amount(found.error, found.n_moved)
        return _Verdict(
            found,
            allowed,
            f"quantised model: output '{name}' on {self.kind} inputs depends on values halfway "
            f"between two steps, which fall on either side: {self.oracle.name} itself differs by "
            f"{theirs} where it rounds otherwise, the compiled network by {ours}",
        )

    @property
    def _is_judged(self) -> bool:
        """Whether a precision that leaves too little of these outputs is refused.

        Not on random numbers where there are inputs of the user's: they may tell nothing.
        """
        return unit_of(self.network.precision) > 1.0 and (
            self.kind == GIVEN or not self.setting.has_given
        )

    @property
    def _factor(self) -> float:
        return factor_of(unit_of(self.network.precision))

    def _spread(self, name: str, scale: float) -> Spread:
        """Spread of the oracle under perturbed rounding; at other shapes, where that is enough."""
        experience = self.setting.experience
        known = experience.known(self.kind, scale)
        if self._borrows and name in known:
            return known[name]
        if scale not in self._asked:
            rounded = self.oracle.rounded(self.inputs, range(1, _SAMPLES + 1), scale)
            samples = experience.within_budget(map(flat_outputs, rounded))
            self._asked[scale] = spreads(self.expected, samples)
            experience.add(self.kind, scale, self._asked[scale])
        return self._asked[scale][name]

    def _beside_the_definition(self, name: str) -> Difference | None:
        """Difference of an output from the definition of its operators; None where ONNX Runtime
        follows the definition, or none is known."""
        if self.oracle.name != ONNXRUNTIME or self.network.flops > _MOST_FLOPS:
            return None
        expected = flat_outputs(self._defined.outputs).get(name)
        if not self._defined.deviating or expected is None:
            return None
        return found_difference(self.actual, name, expected)

    @cached_property
    def _defined(self) -> Judgement:
        """Nothing where it is unknown."""
        model, fixed = self.setting.oracles.original.proto, self.setting.oracles.original.fed
        try:
            return by_definition(model, {**self.inputs, **fixed}, self.setting.model.n_threads)
        except (MissingDependency, ModelError):
            return Judgement({}, ())

    def _undecided(self, name: str) -> str:
        return (
            f"ill-conditioned here: output '{name}' on {self.kind} inputs: "
            f"{self.oracle.name} itself returns another shape where it rounds otherwise{_TELL_MORE}"
        )

    def _ill_conditioned(self, name: str, found: Difference, spread: Spread, n_moved: int) -> str:
        theirs, ours = _amount(spread.error, n_moved), _amount(found.error, found.n_moved)
        return (
            f"ill-conditioned here: output '{name}' on {self.kind} inputs: {self.oracle.name} "
            f"itself differs by {theirs} where it rounds otherwise, the compiled network by {ours}"
            f"{'' if _is_told(spread) else _TELL_MORE}"
        )

    def _wrong(self, name: str, found: Difference, floor: float) -> WrongNumbers:
        precision = self.network.precision
        is_quantised = self.setting.is_quantised and precision == "f32"
        spread = self._spread(name, INEXACT if is_quantised else unit_of(self.network.precision))
        allowed = max(floor, (_STEPS_FACTOR if is_quantised else self._factor) * spread.error)
        if self._is_judged:
            allowed = min(allowed, TELLING)
        message = (
            f"output '{name}' differs from the oracle ({self.oracle.name}, {self.kind} inputs) "
            f"by {found.error:.2g} of its largest value, {allowed:.2g} is allowed; {found.what}"
        )
        if precision != "f32":
            return WrongNumbers(
                f"precision {precision} is too narrow for this model: {message}",
                _other_precisions(precision, self.setting.has_given),
            )
        if is_quantised:
            return WrongNumbers(message, _REPORT)
        inexact = ROUNDING_FACTOR * self._spread(name, INEXACT).error
        if found.within(inexact) and math.isfinite(found.error):
            return WrongNumbers(
                f"ill-conditioned here: {message}",
                "compile with `max_error=1e-6`: programs that round more are too inexact for it",
            )
        return WrongNumbers(message, _REPORT)


def _given_otherwise(proto: ModelProto) -> str:
    """Hint for a model that cannot run on random inputs."""
    names = inputs_bound_by_value(proto)
    told = arguments(constants=dict.fromkeys(names or ("NAME",), VALUE))
    return (
        f"bind inputs that decide what is computed and are always the same ({told}), give inputs "
        "that it can run on (`check_inputs=ARRAYS`), or compile it unchecked (`check=False`)"
    )


_REPORT = (
    "this is a bug: please report the model and the log it was compiled from; "
    "`check=False` compiles it as it is"
)


def _other_precisions(precision: str, has_given: bool) -> str:
    told = "" if has_given else "; check on numbers of yours: `check_inputs=ARRAYS`"
    return f"{other_precisions(precision)}{told}"


def _amount(error: float, n_moved: int) -> str:
    return f"{error:.1e}" + (f" and in {n_moved:,} elements" if n_moved else "")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _is_told(spread: Spread) -> bool:
    """Whether the tolerance of an ill-conditioned output tells right from wrong."""
    return ROUNDING_FACTOR * spread.error < TELLING


def check_onnxruntime(model: Model, onnx_model: Any, seed: int = 0) -> float:
    """Error against ONNX Runtime on the same weights (path or ModelProto), as `max_error`.

    Raises WrongNumbers above the tolerance, MissingDependency without ONNX Runtime, ModelError
    where that cannot run the model.
    """
    inputs = random_inputs(model.input_info, seed)
    expected = by_onnxruntime(model.n_threads, onnx_model)(inputs)
    return _require(model.run(inputs), expected)


def check_network(model: Model, network: Network, seed: int = 0) -> float:
    """Error against `evaluate_network`; slow for large models. Raises WrongNumbers."""
    inputs = random_inputs(model.input_info, seed)
    return _require(model.run(inputs), evaluate_network(network, inputs))


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
