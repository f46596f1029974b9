"""⑩ Run an artifact on NumPy arrays.

    model = load("resnet50.atn")
    outputs = model.run({"input": array})         # by name
    output = model(array)                           # in order
    model(array, out=output)                        # into arrays of yours

Between input and output there is one call into machine code: no allocation, no Python. C-contiguous
inputs are read in place. Outputs are arrays of their own, which the last kernels write in
place. Those in half precision are converted from and to float32 on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.brief import cut
from autotune.calls import PublicNames
from autotune.codegen.memory import Recycled
from autotune.dtypes import DTYPES
from autotune.errors import UsageError
from autotune.former_names import renamed
from autotune.machine import require_threads
from autotune.measure.threads import default_threads
from autotune.network.artifact.artifact import (
    Artifact,
    Endpoint,
)
from autotune.network.artifact.cpus import for_this_cpu
from autotune.network.artifact.numbers import extents_text, fronts, numbers_of, require_numbers
from autotune.network.artifact.variants import VariantChoice, choice_of
from autotune.network.runtime.arguments import (
    Inputs,
    Outputs,
    all_checked,
    ends_by_name,
    in_order,
    outputs_given,
    require_names,
    writable_in_place,
)
from autotune.network.runtime.border import Border
from autotune.network.runtime.direct_call import DirectCode, direct_call
from autotune.network.runtime.kernel_time import KernelTime
from autotune.network.runtime.network_call import NetworkCall
from autotune.network.runtime.ragged import Feeds, RaggedPorts, Rows
from autotune.network.runtime.session import ModelSession, step_together
from autotune.network.runtime.sizes import Memories, ModelSizes, has_room, result_memory
from autotune.network.runtime.working_memory import CallerMemory, Memory, NetworkCode, Place
from autotune.units import counted
from autotune.wording import arguments

Array = NDArray[Any]


class Model(PublicNames):
    """A network ready to run on `threads` threads (None: as many as it was tuned for, or
    fewer where fewer are usable, see `measure.threads`).

    Threads may call it at once: each caller has working memory of its own, all share the constants.
    The threads of one team (`codegen.team`) help any caller with work left to compute, so one
    caller gets all cores, and as many callers as there are cores get one each. A model that was
    loaded before a fork works in the child as well, with threads of the child's. An artifact for
    several shapes runs the variant that has the shapes of its arguments; one with lengths takes
    any size up to its most, and a new one costs what any other does.
    """

    _ragged: RaggedPorts | None = None
    """What a caller of a model over tokens gives."""
    _border: Border | None = None
    """What makes numbers of strings, of a model that has some."""
    _sizes: ModelSizes[Model] | None = None
    _places: Mapping[int, int] = MappingProxyType({})
    """Addresses of the numbers of a model of one size, by their base."""
    _whole: tuple[Model, Mapping[str, int]] | None = None
    """The model that it is one size of, and its numbers."""

    @renamed("0.3", n_threads="threads")
    def __init__(
        self, artifact: Artifact, threads: int | None = None, memory: Memory | None = None
    ) -> None:
        require_threads(threads, are_here=False)
        artifact = for_this_cpu(artifact, artifact.name)
        self._asked = threads
        self.n_threads = threads or default_threads(artifact.n_threads)
        self.artifact = artifact
        self._memory = memory or Memory(artifact)
        self._code = NetworkCode(self._memory.library, artifact)
        if artifact.ragged is not None:
            self._ragged = RaggedPorts(artifact, artifact.ragged)
        self._border = Border(artifact.texts) if artifact.texts else None
        self._expected = ends_by_name(artifact.own_inputs)
        self._results = ends_by_name(artifact.outputs)
        self._outputs: Memories = {
            end.name: Recycled(end.shape, DTYPES[end.stored].numpy) for end in artifact.outputs
        }
        self._network = NetworkCall(artifact, self._code, self.n_threads, self._outputs)
        others = artifact.others
        self._others = tuple(Model(other, self.n_threads, self._memory) for other in others)
        state = artifact.state
        self._appends = state is not None and bool(state.filled or state.held)
        self._choice = None
        if not self._appends and any(one.artifact.lengths for one in self.variants):
            self._sizes = ModelSizes(self.variants)
        elif not self._appends:
            self._choice = needed_choice(artifact)
        self._direct = self._direct_code = None
        if not self._appends:
            code = self._code
            self._direct_code = DirectCode.of(
                code.plan, code.direct, self.n_threads, self._memory, code
            )
        if self._direct_code is not None and not artifact.lengths:
            self._direct = direct_call(self._direct_code, tuple(self._outputs.values()))

    @property
    def variants(self) -> tuple[Model, ...]:
        """The model at each of its shapes; this one is the first of them."""
        return (self, *self._others)

    @property
    def n_bytes(self) -> int:
        """Bytes in memory of constants, code and working memory, of all variants together.

        Shared constants count as if they were private.
        """
        code = len(self.artifact.image.data)
        return int(self.artifact.constants.nbytes) + code + self._memory.n_bytes

    @property
    def input_info(self) -> tuple[Endpoint, ...]:
        """Name, shape and dtype of every input; with lengths the longest shape, and `extents`."""
        ports = self.artifact.own_inputs
        if self._border is not None:
            ports = self._border.shown(ports)
        if self._ragged is None:
            return ports
        hidden = self._ragged.ragged.hidden
        return tuple(p for p in ports if p.name not in hidden)

    @property
    def is_ragged(self) -> bool:
        """Whether it computes the tokens of rows of different lengths alone: see `run_ragged`."""
        return self._ragged is not None

    @property
    def ragged_ports(self) -> RaggedPorts | None:
        """What a caller of a model over tokens gives and gets; None of others."""
        return self._ragged

    @property
    def output_info(self) -> tuple[Endpoint, ...]:
        """Name, shape and dtype of every output; with lengths the longest shape, and `extents`, or
        `written` where data decide."""
        ports = self.artifact.own_outputs
        return ports if self._border is None else self._border.shown(ports)

    @property
    def lengths(self) -> dict[str, int]:
        """The largest number of each length, by name."""
        hidden = self._ragged.ragged.number if self._ragged else None
        return {n: most for n, most in self.artifact.mosts.items() if n != hidden}

    def __repr__(self) -> str:
        ins, outs = map(_ends_text, (self.input_info, self.output_info))
        shapes = f", {len(self.variants)} variants" if self._others else ""
        mosts = "".join(f", {name} ≤ {most}" for name, most in self.lengths.items())
        name, threads = self.artifact.name, self.n_threads
        return cut(f"Model({name}, {counted(threads, 'thread')}{shapes}{mosts}: {ins} -> {outs})")

    def __reduce__(self) -> tuple[Any, ...]:
        if self._whole is not None:
            return _at_size, self._whole
        return Model, (self.artifact, self._asked)

    def run(self, inputs: Inputs, out: Outputs = None) -> dict[str, Array]:
        """Outputs of one inference by name.

        `inputs`: NumPy arrays, or objects that give one uncopied (`__dlpack__`, `__array__`), by
        name or in order. `out`: arrays for the outputs, by name or in order, which are returned; a
        C-contiguous one that shares no memory with an input is written in place. Raises UsageError
        where names, shapes or dtypes do not fit.
        """
        if self._border is not None:
            self._border.require_no_out(out)
            given, new = self._border.numbers(self._named(inputs))
            return self._border.texts(self._run(given, None), new)
        return self._run(inputs, out) if self._ragged is None else self._run_rows(inputs, out)

    def _run(self, inputs: Inputs, out: Outputs) -> dict[str, Array]:
        """`run` for all inputs of the network, in numbers."""
        model: Model = self
        if self.artifact.written and out is not None:
            raise UsageError(
                f"the sizes of outputs of '{self.artifact.name}' are decided by data",
                "leave out `out`",
            )
        if self._sizes is not None:
            model = self._sizes.of(inputs)
        elif self._choice is not None:
            inputs = self._named(inputs)
            number = self._choice.number(inputs)
            if number is None:
                raise self._no_variant(inputs)
            model = self._others[number - 1] if number else self
        if model._direct is not None:
            found = model._direct(inputs, out)
            if found is not None:
                return model._fronts(found) if model.artifact.written else found
        found = model._call(model._named(inputs), out)
        return model._fronts(found) if model.artifact.written else found

    def _fronts(self, found: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs as far as their lengths say that are among them."""
        return fronts(self.artifact.own_outputs, self.artifact.written, found)

    def run_ragged(self, rows: Rows) -> dict[str, Any]:
        """Outputs of rows of different lengths, of a model that was compiled with `ragged`.

        `rows`: see `ragged.RaggedPorts.batches`. Raises UsageError.
        """
        if self._ragged is None:
            raise UsageError("the model is not over tokens", "compile it with `ragged`")
        return self._ragged.run_lists(self._run, rows)

    def _run_rows(self, inputs: Inputs, out: Outputs) -> dict[str, Array]:
        """`run` over tokens."""
        assert self._ragged is not None
        given = self._named(inputs)
        if self._whole is not None:
            return self._run(self._with_places(given), out)
        return self._ragged.run(self._run, given, out)

    def _with_places(self, inputs: Inputs) -> Feeds:
        assert self._ragged is not None
        n = self._whole[1].get(self._ragged.ragged.number) if self._whole else None
        return self._ragged.with_places(self._named(inputs), n)

    def run_bound(
        self, inputs: Mapping[str, Array], out: Mapping[str, Array], places: Mapping[int, int]
    ) -> dict[str, Array]:
        """`run` without any check, on C-contiguous arrays as they are stored.

        Arrays of `out` are written in place. `places`: addresses, by their base, of inputs and
        outputs that neither has. Of a model with lengths, that of one size (`sized`) is run.
        """
        with self._memory.lent() as working:
            place = self._place(working)
            places = {**self._places, **places}
            return self._network(working, place, self._code.run, inputs, out, places)

    def profile_bound(
        self, inputs: Mapping[str, Array], out: Mapping[str, Array], places: Mapping[int, int]
    ) -> list[KernelTime]:
        """The time of every kernel of `run_bound`, in order."""
        places = {**self._places, **places}
        return self._profiled(inputs, out, places)

    def session(self) -> ModelSession:
        """A session of a model with a state: see `session.ModelSession`. Raises UsageError."""
        return ModelSession(self)

    def step_together(self, sessions: Sequence[ModelSession], *inputs: Any, **named: Any) -> Any:
        """Advance several sessions of this model by one place each; outputs as of their `step`.

        `inputs`: in order or by name, with a row for each session, as the outputs have. Numbers of
        sessions that the model was compiled for (`sessions`) read its weights once; others are made
        of these. Raises UsageError as `step`; then all states are as they were.
        """
        given = in_order(sessions[0].input_info, inputs) if inputs and sessions else {}
        found = tuple(step_together(self, sessions, given | named).values())
        return found[0] if len(found) == 1 else found

    async def run_async(self, inputs: Inputs, out: Outputs = None) -> dict[str, Array]:
        """`run` in a thread of the event loop's default executor; other tasks go on meanwhile.

        `inputs` are read until it ends. A task that is cancelled does not end in the middle of an
        inference, so that `out` is as it was, or written as a whole.
        """
        from autotune.network.runtime.awaited import (
            awaited,  # asyncio takes longer to import than we do
        )

        return await awaited(partial(self.run, inputs, out))

    def __call__(self, *inputs: Any, out: Outputs = None) -> Array | tuple[Array, ...]:
        """`run` for inputs in order: the output, or a tuple of several."""
        found = tuple(self.run(inputs, out).values())
        return found[0] if len(found) == 1 else found

    def variant(self, inputs: Mapping[str, Array]) -> Model:
        """The one of `variants` that has the shapes of `inputs`, as far as they differ in shapes.

        Of a model with lengths, that of one size. Raises UsageError where there is none.
        """
        if self._ragged is not None:
            inputs = dict(self._with_places(inputs))
        if self._sizes is not None:
            return self._sizes.of(inputs)
        if self._choice is None:
            return self
        number = self._choice.number(inputs)
        if number is None:
            raise self._no_variant(inputs)
        return self._others[number - 1] if number else self

    def at(self, shapes: Mapping[str, tuple[int, ...]]) -> Model:
        """This model as one for inputs of these shapes, by lengths: its ports say so.

        Raises UsageError where these are no shapes of its inputs.
        """
        if self._sizes is None:
            raise UsageError(
                "the model has no dimension of any extent",
                f"compile it with some: {arguments(dims={'batch': '..32'})}",
            )
        one = np.zeros(1)
        if self._ragged is not None:
            return self.sized(numbers_of(self.input_info, shapes))
        return self._sizes.of({n: np.broadcast_to(one, shape) for n, shape in shapes.items()})

    def sized(self, numbers: Mapping[str, int]) -> Model:
        """This model at these numbers of its lengths: one of one size, over the same memory.

        Raises UsageError for others than `Artifact.possible`.
        """
        if self._ragged is not None:
            numbers = self._ragged.numbers(numbers)
        require_numbers(self.artifact.possible, numbers)
        if not self.artifact.lengths:
            return self
        model = object.__new__(Model)  # `copy` makes another
        model.__dict__.update(self.__dict__)
        model._fix(self, numbers)
        return model

    @property
    def numbers(self) -> Mapping[str, int]:
        """The numbers that a model of one size has in the place of lengths."""
        return self._whole[1] if self._whole is not None else {}

    def spoil(self) -> None:
        """Fill the working memory that the next caller gets with NaN and -1.

        What is read there before it is written, or behind a length, shows in the outputs then.
        """
        with self._memory.lent() as working:
            working.arena[:] = 0xFF

    def _fix(self, whole: Model, numbers: Mapping[str, int]) -> None:
        """Become the model `whole` at these numbers, which they are bound to."""
        artifact = whole.artifact
        self.artifact = artifact.at(numbers)
        ends, results = artifact.outputs, self.artifact.outputs
        self._expected, self._results = ends_by_name(self.artifact.inputs), ends_by_name(results)
        memories: Mapping[str, Any] = whole._outputs
        rooms = {e.base: memories[e.name] for e in ends if e.extents and e.window is None}
        self._outputs = {
            end.name: result_memory(end, result, memories[end.name])
            for end, result in zip(ends, results, strict=True)
        }
        self._network = NetworkCall(self.artifact, self._code, self.n_threads, self._outputs, rooms)
        if self._direct_code is not None:
            own = tuple(self._outputs.values())
            self._direct = direct_call(self._direct_code, own, [has_room(one) for one in own])
        self._numbers = {name: np.array([numbers[name]], np.int64) for name in artifact.lengths}
        bases = {end.name: end.base for end in artifact.inputs}
        self._places = {
            bases[port]: self._numbers[name].ctypes.data for name, port in artifact.lengths.items()
        }
        self._sizes = self._choice = None
        self._others, self._whole = (), (whole, dict(numbers))

    def _no_variant(self, inputs: Mapping[str, Array]) -> UsageError:
        """The error for inputs of shapes that no variant has."""
        require_names(self.input_info, inputs)
        assert self._choice is not None
        return self._choice.error(inputs)

    def profile(self, inputs: Mapping[str, Array]) -> list[KernelTime]:
        """Time every kernel of one inference, in order; run it a few times first to warm up."""
        self._require_no_state()
        if self._border is not None:
            inputs = self._border.numbers(inputs)[0]
        return self._profile(inputs)

    def _profile(self, inputs: Mapping[str, Array]) -> list[KernelTime]:
        variant = self.variant(inputs)
        if variant is not self:
            return variant._profile(inputs)
        arrays = self._check(self._with_places(inputs) if self._ragged else inputs)
        return self._profiled(arrays, {}, self._places)

    def _profiled(
        self, inputs: Mapping[str, Array], out: Mapping[str, Array], places: Mapping[int, int]
    ) -> list[KernelTime]:
        with self._memory.lent() as working:
            place = self._place(working)
            place.times[:] = 0
            self._network(working, place, self._code.profile, inputs, out, places)
            seconds = np.diff(place.times) * 1e-9
        pairs = zip(self.artifact.kernels, seconds.tolist(), strict=True)
        return [KernelTime(kernel, time_s) for kernel, time_s in pairs]

    def _require_no_state(self) -> None:
        """Raise UsageError for a model whose rows lie in buffers of a session."""
        if self._appends:
            raise UsageError(
                f"'{self.artifact.name}' has a state", "open a session: `model.session()`"
            )

    def _place(self, working: CallerMemory) -> Place:
        """Place of this network in the working memory of a caller."""
        found = working.places.get(self._code)
        if found is None:
            found = working.places[self._code] = Place(
                self.artifact, self._code, self.n_threads, working.arena
            )
        return found

    def _named(self, inputs: Inputs) -> Mapping[str, Array]:
        return inputs if isinstance(inputs, Mapping) else in_order(self.input_info, inputs)

    def _call(self, inputs: Mapping[str, Array], out: Outputs) -> dict[str, Array]:
        self._require_no_state()
        arrays = self._check(inputs)
        given = {} if out is None else outputs_given(self._results, out)
        in_place = writable_in_place(given, self._results, arrays.values()) if given else {}
        with self._memory.lent() as working:
            place = self._place(working)
            found = self._network(working, place, self._code.run, arrays, in_place, self._places)
        for name, array in given.items():
            if found[name] is not array:
                array[...] = found[name]
                found[name] = array
        return found

    def _check(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return all_checked(self._expected, inputs)


def needed_choice(artifact: Artifact) -> VariantChoice | None:
    """That of an artifact's variants; None for a single one."""
    choice = choice_of(artifact)
    return choice if choice.names else None


def _at_size(model: Model, numbers: Mapping[str, int]) -> Model:
    return model.sized(numbers)


def _ends_text(ends: Sequence[Endpoint]) -> str:
    return ", ".join(f"{e.name} {e.dtype}[{extents_text(e)}]" for e in ends)


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
        words = np.array([*_WORDS, *port.words], object)
        return words[rng.integers(0, len(words), port.shape)]
    if port.is_float:
        return rng.standard_normal(port.shape).astype(port.numpy_dtype)
    return rng.integers(0, port.limit, port.shape).astype(port.numpy_dtype)
