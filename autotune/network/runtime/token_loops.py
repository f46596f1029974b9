"""⑩ Decoders token by token in other runtimes, beside sessions of ours.

begin = token_loop("onnxruntime", "decoder.onnx", n_threads=1, capacity=2048)
step = begin()                      # an empty sequence
step(prompt); step([[17]])          # new tokens of it, (1, n)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from autotune.errors import MissingDependency
from autotune.graph.reader.grown import extents_of_folder
from autotune.graph.reader.onnx_reader import read_outline
from autotune.graph.reader.states import (
    DecoderInputs,
    StatePair,
    decoder_inputs,
    find_states,
    inputs_at,
)
from autotune.network.runtime.baselines import blamed, onnxruntime_session
from autotune.wording import arguments

Array = NDArray[Any]
Step = Callable[[Array], object]
"""Takes new tokens of a sequence, (1, n); earlier ones are kept."""
Begin = Callable[[], Step]
"""Begins a sequence."""


def token_loop(name: str, model: Path, n_threads: int, capacity: int) -> Begin:
    """Sequences of up to `capacity` tokens in the runtime `name`, of `TOKEN_LOOPS`.

    Raises MissingDependency where it is not installed, ModelError where it refuses the model.
    """
    with blamed(name, "load", f"leave out {arguments(against=name)}"):
        begin = TOKEN_LOOPS[name](model, n_threads, capacity)

    def begun() -> Step:
        with blamed(name, "run", f"leave out {arguments(against=name)}"):
            step = begin()

        def guarded(tokens: Array) -> object:
            with blamed(name, "run", f"leave out {arguments(against=name)}"):
                return step(tokens)

        return guarded

    return begun


def plain_loop(path: Path, n_threads: int, capacity: int = 0) -> Callable[[], PlainSequence]:
    """ONNX Runtime, with each present fed back as the next past."""
    session = onnxruntime_session(path, n_threads)
    outline = read_outline(path)
    states = find_states(outline)
    inputs = decoder_inputs(outline, states)
    extents = extents_of_folder(path, outline, (pair.input for pair in states))
    types = {
        value.name: helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in outline.graph.input
    }
    shapes = {value.name: value.shape for value in session.get_inputs()}
    own = {pair.input for pair in states} | {n for n, _ in inputs.total_axes} | set(inputs.lasts)
    own |= {*inputs.masks, *inputs.positions, *inputs.totals}
    tokens = next(name for name in shapes if name not in own)

    def begin() -> PlainSequence:
        past = {
            pair.input: np.zeros(_empty(shapes[pair.input], pair, extents), types[pair.input])
            for pair in states
        }
        return PlainSequence(session, states, inputs, types, tokens, past)

    return begin


class PlainSequence:
    """A sequence in ONNX Runtime; a call returns all outputs by name."""

    def __init__(
        self,
        session: Any,
        states: tuple[StatePair, ...],
        inputs: DecoderInputs,
        types: Mapping[str, np.dtype[Any]],
        tokens: str,
        past: dict[str, Array],
    ) -> None:
        self._session, self._states, self._inputs = session, states, inputs
        self._types, self._tokens, self._past = types, tokens, past
        self._names = [value.name for value in session.get_outputs()]
        self.length = 0

    def __call__(self, tokens: Array) -> Mapping[str, Array]:
        """All outputs for new tokens, (1, n), by name."""
        feed = {self._tokens: tokens, **inputs_at(self._inputs, self.length, tokens.shape[1])}
        cast = {name: array.astype(self._types[name]) for name, array in feed.items()}
        found = self._session.run(self._names, cast | self._past)
        results = dict(zip(self._names, found, strict=True))
        self._past = {pair.input: results[pair.output] for pair in self._states}
        self.length += tokens.shape[1]
        return results


def _empty(shape: list[int | str], pair: StatePair, extents: Mapping[str, int]) -> list[int]:
    """The shape of a cache without places."""
    found = [d if isinstance(d, int) else extents.get(d, 1) for d in shape]
    return [0 if n == pair.axis else extent for n, extent in enumerate(found)]


def _genai(model: Path, n_threads: int, capacity: int) -> Begin:
    """onnxruntime-genai, with its cache in place."""
    try:
        import onnxruntime_genai as og
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


TOKEN_LOOPS: Mapping[str, Callable[[Path, int, int], Begin]] = {
    "onnxruntime": plain_loop,
    "onnxruntime-genai": _genai,
}
