"""⑩ Run an artifact on NumPy arrays.

    model = load("resnet50.atn")
    outputs = model.run({"input": array})         # by name
    output = model(array)                           # in order
    model(array, out=output)                        # into arrays of yours

Between input and output there is one call into machine code: no allocation, no Python. C-contiguous
inputs are read in place. Outputs are arrays that nobody else has, which the last kernels write in
place. Those in half precision are converted from and to float32 on the way.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autotune.brief import cut
from autotune.codegen.jit import Library
from autotune.codegen.memory import Recycled, aligned
from autotune.codegen.team import load_libgomp, team
from autotune.dtypes import DTYPES
from autotune.errors import ArtifactError, UsageError
from autotune.network.arguments import (
    Inputs,
    Outputs,
    as_array,
    in_order,
    outputs_given,
    writable_in_place,
)
from autotune.network.artifact import Artifact, Endpoint, KernelInfo, Split, require_features
from autotune.network.blocks import Blocks
from autotune.network.direct_call import direct_call
from autotune.network.direct_ir import DIRECT
from autotune.network.entry import ARENA, CONSTANTS, PROFILE, RUN, SYNC_BYTES
from autotune.target import require_cores, usable_cores
from autotune.units import format_bytes

Array = NDArray[Any]

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Seconds of one kernel in one inference, with the barrier before the next."""

    kernel: KernelInfo
    time_s: float


def load(path: str | Path, n_threads: int | None = None) -> Model:
    """Load a compiled network; `n_threads` as in `Model`, but no more than there are cores.

    An artifact is native code that runs with the rights of this process: load only what you trust.
    What is damaged is refused (`Artifact.load`), what somebody has written on purpose is not.

    Raises as `Artifact.load` does, and UsageError for a number of threads that is out of range.
    """
    require_cores(n_threads or 1)
    return model_of(Artifact.load(path), n_threads)


def model_of(artifact: Artifact, n_threads: int | None = None) -> Model:
    """The model of an artifact, ready to run: see `Model`.

    Raises MissingDependency for one of which a part runs in ONNX Runtime, where that is missing.
    """
    if type(artifact) is Artifact:
        return Model(artifact, n_threads)
    from autotune.network.hybrid import HybridArtifact  # which imports this module, and `onnx`
    from autotune.network.hybrid_runtime import HybridModel

    assert isinstance(artifact, HybridArtifact)
    return HybridModel(artifact, n_threads)


class Model:
    """A network ready to run on `n_threads` threads (None: as many as it was tuned for, at most
    one per core that this process may use).

    Safe to call from several threads: a lock lets one inference run at a time, because all share
    one arena. Every Python thread that calls `run` gets worker threads of its own from libgomp.
    A model that was loaded before a fork works in the child as well, with workers of the child's.
    An artifact for several shapes runs the variant that its arguments have the shapes of; all
    `variants` share one arena.
    """

    def __init__(
        self, artifact: Artifact, n_threads: int | None = None, memory: Memory | None = None
    ) -> None:
        if n_threads is not None and n_threads < 1:
            raise UsageError(f"cannot run on {n_threads} threads", "give 1 or more")
        require_features(artifact.target, artifact.name)
        self.n_threads = n_threads or min(artifact.n_threads, usable_cores())
        self.artifact = artifact
        self._team = team()
        load_libgomp()
        self._library = Library(artifact.objects)
        entry = self._library.address(RUN)
        self._run = _ENTRY(entry)
        self._profile = _ENTRY(self._library.address(PROFILE))
        self._memory = memory or Memory(artifact)
        self._arena = self._memory.arena
        self._expected = {end.name: (end, end.numpy_dtype) for end in artifact.inputs}
        self._results = {end.name: (end, end.numpy_dtype) for end in artifact.outputs}
        self._outputs = [Recycled(end.shape, DTYPES[end.stored].numpy) for end in artifact.outputs]
        halves = [end for end in artifact.outputs if end.stored != end.dtype]
        self._halves = {end.name: end.numpy_dtype for end in halves}
        self._times = np.zeros(len(artifact.kernels) + 1, np.int64)
        self._table = np.zeros(artifact.n_bases + 2, np.uintp)
        self._table[[ARENA, CONSTANTS]] = self._arena.ctypes.data, artifact.constants.ctypes.data
        self._table[-2:] = self._memory.sync.ctypes.data, self._times.ctypes.data
        self._table_address = self._table.ctypes.data
        self._team.join(self._memory)
        self._others = tuple(Model(other, n_threads, self._memory) for other in artifact.others)
        self._telling, self._by_shape = telling_shapes(artifact)
        self._blocks = None if artifact.split is None else self._blocks_of(artifact.split)
        self._direct = None
        if self._library.has(DIRECT):  # files of earlier versions lack it
            code = self._library.address(DIRECT), entry
            self._direct = direct_call(
                artifact.inputs,
                artifact.outputs,
                self._outputs,
                code,
                self.n_threads,
                self._table_address,
                self._memory,
                self._team,
            )

    @property
    def variants(self) -> tuple[Model, ...]:
        """The model at each of its shapes; this one is the first of them."""
        return (self, *self._others)

    @property
    def input_info(self) -> tuple[Endpoint, ...]:
        """Name, shape and dtype of every input."""
        return self.artifact.inputs

    @property
    def output_info(self) -> tuple[Endpoint, ...]:
        """Name, shape and dtype of every output."""
        return self.artifact.outputs

    def __repr__(self) -> str:
        ins, outs = map(_ends_text, (self.artifact.inputs, self.artifact.outputs))
        shapes = f", {len(self.variants)} variants" if self._others else ""
        name, threads = self.artifact.name, self.n_threads
        return cut(f"Model({name}, {threads} threads{shapes}: {ins} -> {outs})")

    def __reduce__(self) -> tuple[Any, ...]:
        return Model, (self.artifact, self.n_threads)

    def run(self, inputs: Inputs, out: Outputs = None) -> dict[str, Array]:
        """Outputs of one inference by name.

        `inputs`: NumPy arrays, or what gives one without copying it (`__dlpack__`, `__array__`), by
        name or in order. `out`: arrays for the outputs, by name or in order, which are returned; a
        C-contiguous one that shares no memory with an input is written in place. Raises UsageError
        where names, shapes or dtypes do not fit.
        """
        model: Model = self
        if self._telling is not None:
            inputs = self._named(inputs)
            number = self._number(inputs)
            if number is None:
                return self._by_blocks(inputs, out)
            model = self._others[number - 1] if number else self
        if model._direct is not None:
            found = model._direct(inputs, out)
            if found is not None:
                return found
        return model._call(model._run, model._named(inputs), out)

    async def run_async(self, inputs: Inputs, out: Outputs = None) -> dict[str, Array]:
        """`run` in a thread of the event loop's default executor; other tasks go on meanwhile.

        `inputs` are read until it ends. A task that is cancelled does not end in the middle of an
        inference, so that `out` is as it was, or written as a whole.
        """
        from autotune.network.awaited import awaited  # asyncio takes longer to import than we do

        return await awaited(partial(self.run, inputs, out))

    def __call__(self, *inputs: Any, out: Outputs = None) -> Array | tuple[Array, ...]:
        """`run` for inputs in order: the output, or a tuple of several."""
        found = tuple(self.run(inputs, out).values())
        return found[0] if len(found) == 1 else found

    def variant(self, inputs: Mapping[str, Array]) -> Model:
        """The one of `variants` that has the shapes of `inputs`, as far as they differ in shapes.

        Raises UsageError where there is none.
        """
        if self._telling is None:
            return self
        number = self._number(inputs)
        if number is None:
            raise _no_variant(self.artifact, inputs)
        return self._others[number - 1] if number else self

    def at(self, shapes: Mapping[str, tuple[int, ...]]) -> Model:
        """This model as one for a number of samples that no variant is for: its ports say so.

        Raises UsageError where it is not computed by variants.
        """
        if self._blocks is None:
            raise UsageError("the model has no dimension of any extent", "compile it with `split`")
        inputs = tuple(replace(end, shape=shapes[end.name]) for end in self.artifact.inputs)
        feed = {end.name: np.broadcast_to(np.zeros(1), end.shape) for end in inputs}
        model = object.__new__(Model)  # over the same memory: `copy` makes another
        model.__dict__.update(self.__dict__)
        model.artifact = replace(self.artifact, inputs=inputs, outputs=self._blocks.outputs(feed))
        return model

    def _number(self, inputs: Mapping[str, Array]) -> int | None:
        """Which variant has the shapes of `inputs`."""
        assert self._telling is not None
        try:
            return self._by_shape.get(self._telling(inputs))
        except (KeyError, AttributeError, TypeError):
            return None

    def _by_blocks(self, inputs: Mapping[str, Array], out: Outputs) -> dict[str, Array]:
        if self._blocks is None:
            raise _no_variant(self.artifact, inputs)
        return self._blocks.run(inputs, out)

    def _blocks_of(self, split: Split) -> Blocks:
        return Blocks(self.variants, split, partial(_no_variant, self.artifact))

    def profile(self, inputs: Mapping[str, Array]) -> list[KernelTime]:
        """Time every kernel of one inference, in order; run it a few times first to warm up."""
        if self._telling is not None and self.variant(inputs) is not self:
            return self.variant(inputs).profile(inputs)
        seconds = self._team.call(self._profile_locked, self._check(inputs))
        pairs = zip(self.artifact.kernels, seconds, strict=True)
        return [KernelTime(kernel, time_s) for kernel, time_s in pairs]

    def _named(self, inputs: Inputs) -> Mapping[str, Array]:
        return inputs if isinstance(inputs, Mapping) else in_order(self.artifact.inputs, inputs)

    def _call(self, entry: Any, inputs: Mapping[str, Array], out: Outputs) -> dict[str, Array]:
        arrays = self._check(inputs)
        given = {} if out is None else outputs_given(self._results, out)
        in_place = writable_in_place(given, self._results, arrays) if given else {}
        if self._team.forked_thread:
            found = self._team.call(self._locked, entry, arrays, in_place)
        else:
            found = self._locked(entry, arrays, in_place)
        for name, array in given.items():
            if found[name] is not array:
                array[...] = found[name]
                found[name] = array
        return found

    def _profile_locked(self, inputs: list[Array]) -> list[float]:
        with self._memory.lock:
            self._call_locked(self._profile, inputs, {})
            return [float(t) for t in np.diff(self._times) * 1e-9]

    def _locked(
        self, entry: Any, inputs: list[Array], given: Mapping[str, Array]
    ) -> dict[str, Array]:
        with self._memory.lock:
            return self._call_locked(entry, inputs, given)

    def _call_locked(
        self, entry: Any, inputs: list[Array], given: Mapping[str, Array]
    ) -> dict[str, Array]:
        arrays: dict[int, Array] = {}
        for end, array in zip(self.artifact.inputs, inputs, strict=True):
            if end.window is None:
                arrays[end.base] = array
            else:
                window = _window(self._arena, end)
                window[...] = array.reshape(window.shape)
        ends = zip(self.artifact.outputs, self._outputs, strict=True)
        outputs = {
            end.name: given[end.name] if end.name in given else memory.take()
            for end, memory in ends
        }
        for end in self.artifact.outputs:
            if end.window is None:
                arrays[end.base] = outputs[end.name]
        for slot, array in arrays.items():
            self._table[slot] = array.__array_interface__["data"][0]  # `ctypes` is slower
        entry(self._table_address, self.n_threads)
        for end in self.artifact.outputs:
            if end.window is not None:
                window = _window(arrays.get(end.base, self._arena), end)
                outputs[end.name][...] = window.reshape(end.shape)
        if self._halves:
            outputs |= rounded(outputs, self._halves)
        return outputs

    def _check(self, inputs: Mapping[str, Array]) -> list[Array]:
        return _all_checked(self._expected, inputs)


class Memory:
    """What inferences of an artifact work in, one at a time: arena, barrier, and the lock."""

    def __init__(self, artifact: Artifact) -> None:
        self.arena = _arena(artifact)
        self.sync = aligned((SYNC_BYTES,), "uint8")
        self.lock = threading.Lock()

    def renew(self) -> None:
        """Forget, in the child of a fork, an inference that another thread was in."""
        self.lock = threading.Lock()
        self.sync.fill(0)


_Telling = Callable[[Mapping[str, Array]], object]


def telling_shapes(artifact: Artifact) -> tuple[_Telling | None, dict[object, int]]:
    """What of the inputs tells variants apart, as a function, and their numbers by it.

    One input where that is enough, else all whose shapes differ. None for a single variant of a
    model that is not split.
    """
    shapes = _shapes(artifact)
    if not shapes[0]:
        return None, {}
    alone = [n for n in shapes[0] if len({s[n] for s in shapes}) == len(shapes)]
    if alone:
        name = alone[0]
        return (lambda x: x[name].shape), {s[name]: k for k, s in enumerate(shapes)}
    names = tuple(shapes[0])
    found: dict[object, int] = {tuple(s[n] for n in names): k for k, s in enumerate(shapes)}
    return (lambda x: tuple([x[n].shape for n in names])), found


def _shapes(artifact: Artifact) -> list[dict[str, tuple[int, ...]]]:
    """Shapes of the inputs of each variant, as far as variants may differ in them."""
    shapes = [{end.name: end.shape for end in a.inputs} for a in (artifact, *artifact.others)]
    told = artifact.split.axes if artifact.split else {}
    return [
        {n: s[n] for n in s if n in told or len({other[n] for other in shapes}) > 1} for s in shapes
    ]


def _no_variant(artifact: Artifact, inputs: Mapping[str, Array]) -> UsageError:
    """The error for inputs of shapes that no variant has; it lists those that there are."""
    require_names(artifact.inputs, inputs)
    shapes = _shapes(artifact)
    given = {n: getattr(inputs[n], "shape", ()) for n in shapes[0]}
    any_of = f", with any '{artifact.split.dimension}'" if artifact.split else ""
    return UsageError(
        f"no variant is for inputs of shape {_shapes_text(given)}",
        f"there are {'; '.join(map(_shapes_text, shapes))}{any_of}: "
        "compile the model for more with `dims`",
    )


def _ends_text(ends: Sequence[Endpoint]) -> str:
    return ", ".join(f"{e.name} {e.dtype}{list(e.shape)}" for e in ends)


def _shapes_text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{n} {'x'.join(map(str, s)) or 'scalar'}" for n, s in shapes.items())


def _arena(artifact: Artifact) -> Array:
    n_bytes = max(variant.arena_bytes for variant in artifact.variants)
    try:
        arena = aligned((n_bytes,), "uint8")
    except (MemoryError, OverflowError) as error:
        raise ArtifactError(
            f"'{artifact.name}' needs {format_bytes(n_bytes)} of working memory",
            "free some memory, or compile the model for smaller inputs (`shapes`)",
        ) from error
    arena.fill(0)  # touch the pages now, not in the first inference
    return arena


def require_inputs(ports: tuple[Endpoint, ...], inputs: Mapping[str, Array]) -> None:
    """Raise UsageError where `inputs` lack one of `ports`, or have others, shapes or dtypes."""
    _all_checked({end.name: (end, end.numpy_dtype) for end in ports}, inputs)


def require_names(ports: Sequence[Endpoint], inputs: Mapping[str, Array]) -> None:
    """Raise UsageError where `inputs` lack one of `ports`, or have others."""
    names = [end.name for end in ports]
    if inputs.keys() != set(names):
        wanted = ", ".join(f"'{name}'" for name in names)
        given = ", ".join(f"'{name}'" for name in inputs) or "none"
        raise UsageError(f"the inputs are {given}", f"the model's inputs are {wanted}")


def _all_checked(
    expected: Mapping[str, tuple[Endpoint, np.dtype[Any]]], inputs: Mapping[str, Array]
) -> list[Array]:
    if inputs.keys() != expected.keys():
        require_names([end for end, _ in expected.values()], inputs)
    return [require_input(*known, inputs[name]) for name, known in expected.items()]


def rounded(outputs: Mapping[str, Array], dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
    """Outputs in half precision: what is too large becomes infinite, as rounding has it."""
    with np.errstate(over="ignore", invalid="ignore"):
        return {name: outputs[name].astype(dtype) for name, dtype in dtypes.items()}


def random_inputs(ports: tuple[Endpoint, ...], seed: int = 0) -> dict[str, Array]:
    """Standard normal floats, valid indices, and flags, for every input."""
    rng = np.random.default_rng(seed)
    return {p.name: random_array(rng, p) for p in ports}


_WORDS = ("a", "b", "c", "cat", "dog", "0", "1", "")


def random_array(rng: np.random.Generator, port: Endpoint) -> Array:
    """Numbers for one input, or short words where it takes strings: see `random_inputs`.

    Raises UsageError for a sequence or an optional.
    """
    if not port.dtype:
        raise UsageError(
            f"input '{port.name}' is no tensor, and none is drawn at random",
            "run the model on your own in Python: `model.run({name: [array, …]})`",
        )
    if port.dtype == "string":
        return np.array(_WORDS, object)[rng.integers(0, len(_WORDS), port.shape)]
    if port.is_float:
        return rng.standard_normal(port.shape).astype(port.numpy_dtype)
    return rng.integers(0, port.limit, port.shape).astype(port.numpy_dtype)


def require_input(end: Endpoint, dtype: np.dtype[Any], given: Any) -> Array:
    """`given` as a contiguous array, as it is stored, if it has the shape and dtype of `end`."""
    array = given if isinstance(given, np.ndarray) else as_array(end.name, given)
    if array.dtype != dtype:
        name = f"ml_dtypes.{dtype}" if hasattr(ml_dtypes, dtype.name) else f"'{dtype}'"
        raise UsageError(
            f"input '{end.name}' has dtype {array.dtype}, expected {dtype}",
            f"convert it: array.astype({name})",
        )
    if array.shape != end.shape:
        raise UsageError(
            f"input '{end.name}' has shape {array.shape}, expected {end.shape}",
            "shapes are fixed when the model is tuned; compile it for this one with `shapes`",
        )
    if end.stored != end.dtype:
        return array.astype(end.stored, order="C")
    # np.require would look for this more slowly, just when the interpreter has left the caches
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    return np.require(array, requirements=["C", "A"])


def _window(storage: Array, end: Endpoint) -> Array:
    """The elements of `end` inside `storage`, in the shape in which they lie there."""
    assert end.window is not None
    shape, strides = end.window
    start = storage.reshape(-1).view(np.uint8)[end.offset :]
    kind = DTYPES[end.stored].numpy
    first = start[: kind.itemsize].view(kind)
    return as_strided(first, shape, [s * kind.itemsize for s in strides])
