"""⑩ Decoders token by token in other runtimes, beside sessions of ours.

begin = token_loop("onnxruntime", "decoder.onnx", n_threads=1, capacity=2048)
step = begin()                      # an empty sequence
step(prompt); step([[17]])          # new tokens of it, (1, n)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ValueInfoProto, helper

from autotune import telemetry
from autotune.errors import MissingDependency, UsageError
from autotune.graph.reader.decoder_inputs import inputs_at
from autotune.graph.reader.grown import extents_of_folder, growth_of
from autotune.graph.reader.growth import Growth
from autotune.graph.reader.onnx_reader import read_outline
from autotune.network.runtime.apart import Failed, apart
from autotune.network.runtime.baselines import blamed, onnxruntime_session
from autotune.wording import arguments

Array = NDArray[Any]
Step = Callable[[Array], object]
"""Takes new tokens of a sequence, (1, n); earlier ones are kept."""
Begin = Callable[[], Step]
"""Begins a sequence."""


def token_loop(
    name: str, model: Path, n_threads: int, capacity: int, begun: Mapping[str, Array] | None = None
) -> Begin:
    """Sequences of up to `capacity` tokens in the runtime `name`, of `TOKEN_LOOPS`.

    `begun`: what stays for a sequence, as `ModelSession.begin` takes it. Raises MissingDependency
    where it is not installed, ModelError where it refuses the model, UsageError where it does not
    take what stays.
    """
    with blamed(name, "load", f"leave out {arguments(against=name)}"):
        begin = TOKEN_LOOPS[name](model, n_threads, capacity, begun or {})

    def begun_step() -> Step:
        with blamed(name, "run", f"leave out {arguments(against=name)}"):
            step = begin()

        def guarded(tokens: Array) -> object:
            with blamed(name, "run", f"leave out {arguments(against=name)}"):
                return step(tokens)

        return guarded

    return begun_step


def require_alive(
    name: str, model: Path, n_threads: int, capacity: int, begun: Mapping[str, Array]
) -> None:
    """Raise ModelError where the runtime `name` dies of the first token, which it computes apart.

    What it refuses it tells when it is asked.
    """
    with blamed(name, "run", f"leave out {arguments(against=name)}"), suppress(Failed):
        apart().call(_step_once, name, model, n_threads, capacity, dict(begun))


def _step_once(
    name: str, model: Path, n_threads: int, capacity: int, begun: Mapping[str, Array]
) -> None:
    TOKEN_LOOPS[name](model, n_threads, capacity, begun)()(np.zeros((1, 1), np.int64))


def plain_loop(
    path: Path, n_threads: int, capacity: int = 0, begun: Mapping[str, Array] | None = None
) -> Callable[[], PlainSequence]:
    """ONNX Runtime, with each present fed back as the next past; `begun`: see `token_loop`.

    A file with a computation for no past has it for the first step, which makes the caches of the
    encoder; the others read them.
    """
    session = onnxruntime_session(path, n_threads)
    outline = read_outline(path)
    given = begun or {}
    growth, inputs = growth_of(outline, 0, {name: name for name in given})
    values = {value.name: value for value in outline.graph.input}
    extents = _extents(values, given) | extents_of_folder(path, outline, growth.states)
    axes = {n: axis for n, (_, axis) in growth.states.items() if n not in growth.static}
    stays = {*growth.states, *growth.replaced, *growth.held}
    first = {name: _zeros(values[name], extents, axes.get(name)) for name in stays} | {**given}
    names = [value.name for value in session.get_inputs()]
    tokens = next(n for n in names if n not in growth.computed | stays | {growth.flag})
    types = {name: _dtype(value) for name, value in values.items()}
    return lambda: PlainSequence(session, growth, types, tokens, first, inputs.chunk)


class PlainSequence:
    """A sequence in ONNX Runtime; a call returns all outputs by name.

    `first`: states without places, and what stays for the sequence. `chunk`: the number of tokens
    that the file takes; 0 for any. Of several calls for one, the last has the outputs.
    """

    def __init__(
        self,
        session: Any,
        growth: Growth,
        types: Mapping[str, np.dtype[Any]],
        tokens: str,
        first: Mapping[str, Array],
        chunk: int = 0,
    ) -> None:
        self._session, self._growth, self._types = session, growth, types
        self._tokens, self._kept, self._chunk = tokens, dict(first), chunk
        self._names = [value.name for value in session.get_outputs()]
        self.length = 0

    def __call__(self, tokens: Array) -> Mapping[str, Array]:
        """All outputs for new tokens, (1, n), by name."""
        size = self._chunk or tokens.shape[1]
        parts = [tokens[:, n : n + size] for n in range(0, tokens.shape[1], size)]
        return [self._step(part) for part in parts][-1]

    def _step(self, tokens: Array) -> Mapping[str, Array]:
        growth, n, is_first = self._growth, tokens.shape[1], self.length == 0
        feed = {self._tokens: tokens, **inputs_at(growth, self.length, n), **self._kept}
        if growth.flag:
            feed[growth.flag] = np.array([not is_first])
        cast = {name: array.astype(self._types[name], copy=False) for name, array in feed.items()}
        found = self._session.run(self._names, cast)
        results = dict(zip(self._names, found, strict=True))
        fed_back = {name: output for name, (output, _) in growth.states.items()}
        fed_back |= {**growth.replaced, **(growth.passed if is_first and growth.flag else {})}
        self._kept |= {name: results[output] for name, output in fed_back.items()}
        self.length += n
        return results


def _extents(values: Mapping[str, ValueInfoProto], arrays: Mapping[str, Array]) -> dict[str, int]:
    """Extents by the names that inputs have for them."""
    return {
        dim.dim_param: extent
        for name, array in arrays.items()
        for dim, extent in zip(values[name].type.tensor_type.shape.dim, array.shape, strict=True)
        if dim.dim_param
    }


def _zeros(value: ValueInfoProto, extents: Mapping[str, int], axis: int | None) -> Array:
    """An input of zeros; without places along dimension `axis`."""
    dims = value.type.tensor_type.shape.dim
    shape = [dim.dim_value or extents.get(dim.dim_param, 1) for dim in dims]
    return np.zeros([0 if n == axis else extent for n, extent in enumerate(shape)], _dtype(value))


def _dtype(value: ValueInfoProto) -> np.dtype[Any]:
    return helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


def _genai(model: Path, n_threads: int, capacity: int, begun: Mapping[str, Array]) -> Begin:
    """onnxruntime-genai, with its cache in place."""
    if begun:
        raise UsageError(
            "onnxruntime-genai is not timed beside an encoder",
            f"leave out {arguments(against='onnxruntime-genai')}",
        )
    try:
        og: Any = telemetry.imported("onnxruntime_genai")
    except ImportError as error:
        raise MissingDependency(
            "onnxruntime-genai is not installed", "pip install onnxruntime-genai"
        ) from error
    config = og.Config(str(model.parent))
    options = {"session_options": {"intra_op_num_threads": n_threads}}
    config.overlay(json.dumps({"model": {"decoder": options}}))
    loaded = og.Model(config)

    def begin() -> Step:
        params = og.GeneratorParams(loaded)
        params.set_search_options(max_length=capacity + 1, min_length=capacity + 1, do_sample=False)
        generator = og.Generator(loaded, params)

        def step(tokens: Array) -> object:
            return generator.append_tokens(tokens[0].astype(np.int32))

        return step

    return begin


TOKEN_LOOPS: Mapping[str, Callable[[Path, int, int, Mapping[str, Array]], Begin]] = {
    "onnxruntime": plain_loop,
    "onnxruntime-genai": _genai,
}
