"""⑪ `quantise`: products of a float32 model as products of bytes, where that is faster and alike.

    samples ─► ranges ─► all products in bytes ─┬─► seconds of each product, beside float32
                                                └─► those that gain, if that network is faster
    outputs on samples held back are alike ─► written, and timed in turns with float32; else
    products go back to float32, those first that gain least for the error that each makes alone

Ranges are found on every second sample; outputs are compared on the others.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.api.compile.compiled import Compiled
from autotune.api.compile.compiling import compile_plan, plan
from autotune.api.compile.fallback import Sources
from autotune.api.compile.kept import kept_or_made
from autotune.api.compile.mixed_precision import most_within, seconds_by_product
from autotune.api.compile.selection import CompilePlan, Progress, no_progress
from autotune.api.request import (
    CompileRequest,
    Dims,
    Given,
    Like,
    Note,
    Shapes,
    by_fields,
    logged,
    silent,
)
from autotune.api.sources import model_bytes, model_files
from autotune.brief import brief
from autotune.config import AUTO_MAX_ERROR, LEAST_AGREEMENT
from autotune.errors import UsageError, WrongNumbers
from autotune.file_kinds import QUANTISED
from autotune.files import replacing, require_place
from autotune.graph.network import Port, chosen
from autotune.graph.reader.dimensions import SIZE
from autotune.graph.reader.model_files import ModelSource, model_file
from autotune.graph.reader.onnx_reader import read_file
from autotune.names import require_known
from autotune.network.artifact.artifact import Endpoint
from autotune.network.bench.gate import GateVerdict, loads_of, rounds_within, verdict
from autotune.network.bench.profile import seconds_per_call
from autotune.network.check.check_inputs import inferences
from autotune.network.check.oracles import by_onnxruntime
from autotune.network.quantise.likeness import Arrays, Judge, Likeness, Runner
from autotune.network.quantise.quantiser import (
    ENTROPY,
    MIN_MAX,
    float_form,
    is_quantised_already,
    quantisation_package,
)
from autotune.network.runtime.arguments import require_inputs
from autotune.network.runtime.loading import proved_model
from autotune.network.runtime.runtime import Model
from autotune.target import Target
from autotune.units import format_seconds
from autotune.wording import arguments
from autotune.work_folders import work_folder

_LEAST_ROWS = 200
"""Labels of which one is half a percent."""
_ALONE = 8
"""Samples on which the error of each product alone is measured."""
_TRIED_S, _TIMED_S = 2.0, 6.0
_LEAST_RMS = 1e-9
_FEWER = 0.9
"""Of the products that ONNX Runtime finds alike, where those that were compiled are not."""


@dataclass(frozen=True)
class QuantiseRequest:
    """`model`: see `compile`. `data`: arrays by the names of the inputs, whose first dimension are
    samples, or one such mapping per inference; a model of one input takes an array of any name.
    `output`: the ONNX file that is written. `shapes`, `dims`, `like`, `constants`, `threads`: as
    for `compile`. `labels`: outputs whose rows are scores, of which the highest has to be the same;
    None: those that look like it. `agreement`: the least share of rows with equal labels.
    `max_error`: where there are no labels, the largest difference over the largest value. `force`:
    `output` may take the place of a file that `quantise` did not write. `note` is told, in a line
    each, what a user should know.
    """

    model: ModelSource
    data: Given
    output: str | Path
    _: KW_ONLY
    shapes: Shapes | None = None
    dims: Dims | None = None
    like: Like = None
    constants: Mapping[str, Any] | None = None
    threads: int | None = None
    labels: Sequence[str] | None = None
    agreement: float = LEAST_AGREEMENT
    max_error: float = AUTO_MAX_ERROR
    force: bool = False
    note: Note = logged


@brief
@dataclass(frozen=True, slots=True)
class Quantised:
    """A model of integers that was written to `path`, timed in turns with float32.

    `float_s`, `integer_s`: seconds of an inference; `speed`: how many times as fast it is, from
    `slowest` to `fastest` with 95 %. `likeness`: of its outputs on the samples held back.
    `integers`: names of the products in bytes, and `floats` of the others.
    """

    path: Path
    float_s: float
    integer_s: float
    speed: float
    slowest: float
    fastest: float
    n_rounds: int
    likeness: Likeness
    integers: tuple[str, ...]
    floats: tuple[str, ...]

    @property
    def is_slower(self) -> bool:
        """Whether integers are slower than float32 here, beyond doubt."""
        return self.fastest < 1

    def __str__(self) -> str:
        n = len(self.integers)
        share = f"{n} of {n + len(self.floats)} products in bytes"
        times = f"{format_seconds(self.float_s)} in float32, {format_seconds(self.integer_s)} so"
        return (
            f"measured in turns: {times} ({self.speed:.3f}x, {self.slowest:.3f}x to "
            f"{self.fastest:.3f}x); {self.likeness}; {share}"
        )


@by_fields(QuantiseRequest)
def quantise(request: QuantiseRequest) -> Quantised:
    """Write a model with products of bytes, calibrated by ONNX Runtime on samples of its inputs.

    A product stays in float32 where bytes are measured to be no faster, or where the outputs would
    differ by more than permitted. Raises UsageError for a model or data that do not go together,
    MissingDependency without onnxruntime, WrongNumbers where no product can be in bytes. The words
    are those of the command line:
    """
    return quantised(request)


def quantised(request: QuantiseRequest, progress: Progress = no_progress) -> Quantised:
    """`quantise` for a request; `progress` is told of long work."""
    quantisation_package()
    with (
        model_file(request.model) as path,
        work_folder() as folder,
    ):
        return Quantising(replace(request, model=path), path, folder, progress).run()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A network with some products in bytes: their names, its file, and itself compiled."""

    products: tuple[str, ...]
    path: Path
    model: Model


class Quantising:
    """The work on one request, whose model is the file `path`; further files go into `folder`."""

    def __init__(
        self, request: QuantiseRequest, path: Path, folder: Path, progress: Progress
    ) -> None:
        self.request, self._folder, self._progress = request, folder, progress
        self._output, self._n_written = Path(request.output), 0
        asked = self._asked(path, check=True, note=request.note)
        first = self._plan(asked)
        variant, *others = first.bound.variants
        if others or variant.lengths:
            sizes = f": {arguments(dims=dict.fromkeys(variant.lengths, SIZE))}"
            raise UsageError(
                "a model is calibrated at one shape",
                f"give every dimension a single size{sizes if variant.lengths else ''}",
            )
        kind = None if request.force else QUANTISED
        require_place(self._output, model_bytes(path), model_files(path), kind=kind)
        (original,) = first.bound.originals()
        given = read_file(path)
        if is_quantised_already(given):
            raise UsageError(f"{path.name} is quantised already", "give the model in float32")
        _require_outputs([o.name for o in given.graph.output], request.labels or ())
        sources = first.sources()
        samples = samples_of(sources.inputs[0], request.data)
        self._calibration, self._held = samples[::2], samples[1::2]
        self._fixed = original.fed
        self._target = first.target
        made = kept_or_made(asked, lambda _: compile_plan(first, sources))
        self._float = proved_model(made.artifact)
        self._judge = Judge(self._float.run, self._held, tuple(request.labels or ()))
        with progress("folding constants"):
            self.form = float_form(given, folder)
        if not self.form.products:
            raise UsageError(
                f"{path.name} has no product with constant float32 weights",
                "there is nothing to quantise: give the model in float32",
            )
        self._ranges = self._found_ranges(MIN_MAX)

    def run(self) -> Quantised:
        """The model of integers, written."""
        for text in self._told():
            self.request.note(text)
        begun, gains = self._fastest()
        found = begun, self.likeness(begun.model.run)
        if not self._is_alike(found[1]):
            found = self._without_outliers(begun, found[1])
        if not self._is_alike(found[1]):
            found = self.alike(begun, gains, found[1])
        candidate, likeness = found
        result = self._timed(candidate, likeness)
        with replacing(self._output) as file, candidate.path.open("rb") as source:
            shutil.copyfileobj(source, file)
        return result

    # --- compiled networks ---

    def _asked(self, path: Path, check: bool = False, note: Note = silent) -> CompileRequest:
        asked = self.request
        return CompileRequest(
            path,
            shapes=asked.shapes,
            dims=asked.dims,
            like=asked.like,
            constants=asked.constants,
            threads=asked.threads,
            check=check,
            note=note,
        )

    def _plan(self, request: CompileRequest) -> CompilePlan:
        return replace(plan(request), progress=self._progress)

    def _written(self, products: Iterable[str]) -> tuple[tuple[str, ...], Path]:
        """A file with these products in bytes, and their names in order."""
        names = set(products)
        ordered = tuple(name for name in self.form.products if name in names)
        self._n_written += 1
        path = self._folder / f"integers{self._n_written}.onnx"
        self.form.write(self._ranges, ordered, path)
        return ordered, path

    def candidate(self, products: Iterable[str]) -> _Candidate:
        """The network with these products in bytes, compiled."""
        ordered, path = self._written(products)
        return _Candidate(ordered, path, self._compiled(path))

    def _compiled(self, path: Path) -> Model:
        """The network of a file, which may be compiled already under another name."""

        def make(request: CompileRequest) -> Compiled:
            return compile_plan(self._plan(request))

        return proved_model(kept_or_made(self._asked(path), make, is_passing=True).artifact)

    def _seconds(self, path: Path, known: Mapping[str, float]) -> dict[str, float]:
        """`seconds_of_products` of the network of a file."""
        return seconds_of_products(self._plan(self._asked(path)).sources(), known)

    # --- speed ---

    def _fastest(self) -> tuple[_Candidate, Mapping[str, float]]:
        """All products in bytes, or those alone that gain; and the seconds that each gains."""
        everything = self.candidate(self.form.products)
        floats = self._compiled(self.form.path)
        with self._progress("timing products"):
            both = seconds_per_call((floats, everything.model), self._held[0])
        before = self._seconds(self.form.path, both[0])
        after = self._seconds(everything.path, both[1])
        gains = {n: before.get(n, 0.0) - after.get(n, 0.0) for n in everything.products}
        faster = [name for name, gain in gains.items() if gain > 0]
        if not faster or len(faster) == len(gains):
            return everything, gains
        some = self.candidate(faster)
        with self._progress("timing both in turns"):
            found = self._in_turns(some.model, everything.model, _TRIED_S)
        return (some if found.ratio < 1 else everything), gains

    def _in_turns(self, now: Model, before: Model, time_s: float) -> GateVerdict:
        inputs = dict(self._held[0])
        return verdict(rounds_within(loads_of(now, inputs), loads_of(before, inputs), time_s), None)

    def _timed(self, candidate: _Candidate, likeness: Likeness) -> Quantised:
        inputs = dict(self._held[0])
        ours, theirs = candidate.model, self._float
        with self._progress("timing in turns with float32"):
            rounds = rounds_within(loads_of(ours, inputs), loads_of(theirs, inputs), _TIMED_S)
        found, float_s = verdict(rounds, None), float(np.median(rounds.before_s))
        floats = tuple(n for n in self.form.products if n not in candidate.products)
        return Quantised(
            self._output,
            float_s,
            float_s * found.ratio,
            1 / found.ratio,
            1 / found.high,
            1 / found.low,
            found.n_rounds,
            likeness,
            candidate.products,
            floats,
        )

    # --- outputs ---

    def _found_ranges(self, method: str) -> Any:
        fed = [{**sample, **self._fixed} for sample in self._calibration]
        with self._progress("calibrating") as tell:
            return self.form.ranges(fed, tell, method)

    def _without_outliers(self, begun: _Candidate, before: Likeness) -> tuple[_Candidate, Likeness]:
        """The same products with ranges that cut outliers off, if the outputs are more alike."""
        usual, self._ranges = self._ranges, self._found_ranges(ENTROPY)
        candidate = self.candidate(begun.products)
        found = self.likeness(candidate.model.run)
        if (found.agreement, -found.error) > (before.agreement, -before.error):
            return candidate, found
        self._ranges = usual
        return begun, before

    def likeness(self, run: Runner) -> Likeness:
        """Outputs of a network on the samples held back, beside those of float32."""
        with self._progress("comparing outputs") as tell:
            return self._judge.likeness(run, tell=tell)

    def _by_onnxruntime(self, path: Path) -> Runner:
        """A file in ONNX Runtime: what is compiled of it has the same outputs but for roundings."""
        run = by_onnxruntime(self._float.n_threads, path)
        return lambda inputs: run({**inputs, **self._fixed})

    def _is_alike(self, found: Likeness) -> bool:
        if self._judge.has_labels:
            return found.agreement >= self.request.agreement
        return found.error <= self.request.max_error

    def alike(
        self, begun: _Candidate, gains: Mapping[str, float], first: Likeness
    ) -> tuple[_Candidate, Likeness]:
        """As many products in bytes as the outputs permit. Raises WrongNumbers where none is."""
        errors = self._errors(begun.products)
        by_gain = sorted(
            begun.products,
            key=lambda name: -gains.get(name, 0.0) / max(errors[name], _LEAST_RMS) ** 2,
        )
        by_error = sorted(begun.products, key=lambda name: errors[name])
        order, n = self._most_alike(by_gain)
        if not n:  # the first alone makes too large an error for its gain
            order, n = self._most_alike(by_error)
        while n > 0:
            candidate = self.candidate(order[:n])
            likeness = self.likeness(candidate.model.run)
            if self._is_alike(likeness):
                self.request.note(
                    f"{len(order) - n} of {len(order)} products stay in float32: in bytes, {first}"
                )
                return candidate, likeness
            n = min(n - 1, int(_FEWER * n))
        limit = (
            arguments(agreement=self.request.agreement)
            if self._judge.has_labels
            else arguments(max_error=self.request.max_error)
        )
        raise WrongNumbers(
            f"no product can be in bytes: with all of them {first}",
            f"give more samples of what the model is for, or permit more than {limit}",
        )

    def _most_alike(self, order: Sequence[str]) -> tuple[Sequence[str], int]:
        """How many of the first products may be in bytes, but not all, by ONNX Runtime."""

        def within(n: int) -> Likeness | None:
            if n == len(order):
                return None
            found = self.likeness(self._by_onnxruntime(self._written(order[:n])[1]))
            return found if self._is_alike(found) else None

        found = most_within(len(order), within)
        return order, found[0] if found else 0

    def _errors(self, products: Sequence[str]) -> dict[str, float]:
        """RMS errors of the outputs where one product alone is in bytes, by ONNX Runtime."""
        samples = self._calibration[:_ALONE]
        errors = {}
        with self._progress("measuring the error of each product") as tell:
            for n, name in enumerate(products):
                run = self._by_onnxruntime(self._written([name])[1])
                errors[name] = self._judge.likeness(run, samples).rms
                tell(n + 1, len(products))
        return errors

    # --- notes ---

    def _told(self) -> Iterable[str]:
        """What a user should know before."""
        if not multiplies_bytes(self._target):
            yield (
                f"{self._target.cpu} has no instruction that multiplies bytes (VNNI): they halve "
                "no time here"
            )
        if self._judge.has_labels:
            names = ", ".join(self._judge.labels) or "whole numbers"
            yield f"labels decide, of {names}: {arguments(agreement=self.request.agreement)}"
        else:
            yield f"no output has labels: {arguments(max_error=self.request.max_error)} decides"
        n_rows = len(self._held) * self._judge.n_rows
        if self._judge.has_labels and n_rows < _LEAST_ROWS:
            yield (
                f"{n_rows} labels are compared, one of which is {100 / n_rows:.1f} %: "
                f"{_LEAST_ROWS} and more tell half a percent"
            )


def _require_outputs(known: Sequence[str], names: Iterable[str]) -> None:
    """Raise UsageError for names that are no outputs of a model."""
    require_known("output", names, known)


def multiplies_bytes(target: Target) -> bool:
    """Whether an instruction of the target multiplies bytes."""
    return any({"int8", "uint8"} & {*form.operands} for form in target.isa.forms)


def seconds_of_products(sources: Sources, known: Mapping[str, float]) -> dict[str, float]:
    """Seconds of every product of a running network, by the name of its node.

    `known`: of a call of each task that it has.
    """
    calls = (call for network in sources.networks for call in chosen(network, known).calls)
    return seconds_by_product((call, known[call.task]) for call in calls if call.task in known)


def samples_of(ports: Sequence[Port], data: Given) -> list[Arrays]:
    """The inferences in `data`, for a model with the inputs `ports`.

    Raises UsageError for other names, shapes or types, numbers that are not finite, and less than
    two inferences.
    """
    known = tuple(Endpoint(p.name, p.shape, p.dtype, 0) for p in ports)
    found: list[Arrays] = []
    for given in [data] if isinstance(data, Mapping) else data or ():
        arrays = _named(known, given)
        several = inferences([known], arrays)
        if not several:
            require_inputs(known, arrays)
        found += several
    for n, arrays in enumerate(found):
        require_inputs(known, arrays)
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise UsageError(
                    f"sample {n} has NaN or infinity in '{name}'", "leave it out of `data`"
                )
    if len(found) < 2:
        raise UsageError(
            f"{len(found)} samples are too few to calibrate on some and to compare on others",
            "give some hundred, along the first dimension of each array of `data`",
        )
    return found


def _named(ports: Sequence[Endpoint], arrays: Arrays) -> Arrays:
    """A single array by the name of the only input."""
    if len(ports) == len(arrays) == 1:
        return {ports[0].name: next(iter(arrays.values()))}
    return arrays
