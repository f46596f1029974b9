"""⑪ A model as ONNX Runtime's scripts use it: compiled on first use, kept in the cache folder.

    import autotune as ort

    session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    logits, = session.run(["logits"], {"ids": ids})

docs/drop-in.md lists supported, ignored and refused options.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from autotune import names
from autotune.api.bindings import arrays_of
from autotune.api.request import Dims, made_by_fields
from autotune.cache import FileStore, artifact_store
from autotune.calls import PublicNames
from autotune.dtypes import DTYPE_OF_WORD, word_in
from autotune.errors import UsageError
from autotune.graph.reader.grown import growth_of
from autotune.graph.reader.interface import Extent, ModelMetadata, ModelPort, interface_of
from autotune.graph.reader.model_files import model_file, with_external_data
from autotune.graph.reader.onnx_reader import read_outline
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.runtime import Model
from autotune.ort.binding import IOBinding, OrtValue
from autotune.ort.cached import fitting_artifact
from autotune.ort.callbacks import Callback, CallbackThreads
from autotune.ort.copies import copy_of
from autotune.ort.exceptions import as_client_error, raises_client_errors
from autotune.ort.kept_state import KeptState
from autotune.ort.models import LOGGER, SessionModels
from autotune.ort.options import (
    CPU_PROVIDER,
    RunOptions,
    SessionOptions,
    get_all_providers,
    require_known,
)
from autotune.ort.preparing import open_sizes, with_log
from autotune.ort.request import SessionArguments, SessionRequest
from autotune.ort.room import Room
from autotune.ort.waits import told_if_long
from autotune.units import counted

_LISTED = (list, tuple, int, float)
_FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"
"""Of a session's options: where external data of a model are that is given as bytes."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: its name, its type as `tensor(float)`, and its shape.

    Extents are numbers, names of open dimensions, or None.
    """

    name: str
    type: str
    shape: list[Extent]


class InferenceSession(PublicNames):
    """A model ready to run: the interface of `onnxruntime.InferenceSession`, compiled for this CPU.

    See `SessionArguments`; of `sess_options` the threads and dimensions count; `providers`,
    `provider_options` and `disabled_optimizers` do not.

    Safe to use in several threads; it can be pickled (the path, or the bytes, not what was
    compiled). Raises as `compile`; see there.
    """

    @raises_client_errors
    @made_by_fields(SessionArguments)
    def __init__(self, asked: SessionArguments) -> None:
        model = _source(asked.path_or_bytes)
        options = SessionOptions.of(asked.sess_options)
        options.require_known()
        if isinstance(model, bytes):
            model = with_external_data(model, options.entries.get(_FOLDER_ENTRY) or ".")
        room = asked.room()
        threads = asked.threads or options.intra_op_num_threads
        dims = {**options.dims, **(asked.dims or {})}
        request = asked.request(model, threads, dims, arrays_of(asked.constants))
        _note_providers(asked.providers)
        self._saved = (request, options, asked.store_bytes, room)
        self._open(*self._saved)
        if options.optimized_model_filepath:
            content = model if isinstance(model, bytes) else model.read_bytes()
            Path(options.optimized_model_filepath).write_bytes(content)

    def _open(
        self, request: SessionRequest, options: SessionOptions, store_bytes: int | None, room: Room
    ) -> None:
        self._options = options
        self._model_path = str(request.model) if isinstance(request.model, Path) else None
        self._providers = [CPU_PROVIDER]  # programs read both, as they read ONNX Runtime's
        with model_file(request.model, request.name) as path:
            outline = read_outline(path)
            self._interface = interface_of(outline)
        request = with_log(request)
        self._copy = copy_of(request.model) if self._interface.open_inputs else None
        if self._copy is not None:  # other shapes are compiled from the loaded file
            request = replace(request, model=self._copy.path)
        store = None if store_bytes is None else artifact_store(store_bytes)
        self._constants = dict(request.constants)
        self._output_names = tuple(port.name for port in self._interface.outputs)
        self._kept = None
        if request.capacity is not None:
            self._kept = _kept_state(request, store, room.memory)
            request = request.without_state()
        sizes = open_sizes(outline, request.constants)
        self._models = SessionModels(request, self._interface, store, room, sizes)
        self._bound = _extents(request.dims)
        self._threads = request.n_running
        self._is_plain = not self._constants
        self._callbacks = CallbackThreads()

    @raises_client_errors
    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Outputs in the order of `output_names`; of None, all in the order of the model.

        `input_feed`: arrays by name (NumPy's, OrtValues, or what gives an array without a copy).
        Other threads run Python meanwhile. Raises UsageError for what does not fit the model, and
        as `compile` where shapes come for the first time.
        """
        if run_options is not None:
            require_known(run_options)
        feed = input_feed if self._is_plain else self._without_constants(input_feed)
        try:
            found = self._run(feed)
        except UsageError:
            given = self._without_initialisers(feed)
            self._require_inputs(given)
            given = self._listed(given) or given
            if given is feed:
                raise
            found = self._run(given)
        try:
            return [found[name] for name in output_names or self._output_names]
        except KeyError as error:
            raise self._no_output(error.args[0]) from None

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback,
        user_data: Any = None,
        run_options: RunOptions | None = None,
    ) -> None:
        """`run` in another thread, which ends with `callback(outputs, user_data, error)`.

        `outputs` is empty where `error` is not. `input_feed` is read until then.
        """
        run = partial(self.run, output_names, input_feed, run_options)
        self._callbacks.start(run, callback, user_data)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """`run` of values."""
        feed = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        return list(map(OrtValue, self.run(output_names, feed, run_options)))

    def io_binding(self) -> IOBinding:
        """An empty binding for `run_with_iobinding`."""
        return IOBinding(self)

    @raises_client_errors
    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """One inference on bound arrays: outputs that are bound to memory are written there."""
        if run_options is not None:
            require_known(run_options)
        bound = iobinding.outputs
        if not bound:
            raise UsageError("no output is bound", "binding.bind_output(name)")
        for name in bound.keys() - set(self._output_names):
            raise self._no_output(name)
        feed = self._without_constants(iobinding.inputs)
        out = {name: array for name, array in bound.items() if array is not None}
        found = self._run(feed, out or None)
        iobinding.results = [OrtValue(found[name], name in out) for name in bound]

    def get_inputs(self) -> list[NodeArg]:
        """The inputs, in the order of the model."""
        return list(map(self._node_arg, self._interface.inputs))

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the order of the model."""
        return list(map(self._node_arg, self._interface.outputs))

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: weights are compiled."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """Origin of the model, as its file declares it."""
        return self._interface.metadata

    def get_session_options(self) -> SessionOptions:
        """The options that it was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """The CPU."""
        return [CPU_PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """None."""
        return {CPU_PROVIDER: {}}

    @raises_client_errors
    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: object = None
    ) -> None:
        """Ignored: everything runs on this CPU. Raises UsageError for one that does not exist."""
        unknown = _other_providers(providers) - set(get_all_providers())
        if unknown:
            error = UsageError(f"Unknown Provider Type: {min(unknown)}", f"there is {CPU_PROVIDER}")
            raise as_client_error(error, RuntimeError, ValueError)
        _note_providers(providers)

    def enable_fallback(self) -> None:
        """Ignored."""

    def disable_fallback(self) -> None:
        """Ignored."""

    def end_profiling(self) -> NoReturn:
        """Raises UsageError: there is no profile."""
        raise UsageError(
            "there is no profile", "autotune bench MODEL.atn --per-task times every kernel"
        )

    def models(self) -> tuple[Model, ...]:
        """Networks compiled so far, one `Model` for every combination of shapes."""
        return tuple(self._models)

    def __repr__(self) -> str:
        ins, outs = (
            ", ".join(f"{arg.name} {arg.type} {arg.shape}" for arg in args)
            for args in (self.get_inputs(), self.get_outputs())
        )
        threads = counted(self._threads, "thread")
        return f"InferenceSession({self._saved[0].name}: {ins} -> {outs}, {threads})"

    def __getstate__(self) -> tuple[Any, ...]:
        return self._saved

    def __setstate__(self, saved: tuple[Any, ...]) -> None:
        self._saved = saved
        self._open(*saved)

    def _run(self, feed: Mapping[str, Any], out: Any = None) -> dict[str, Any]:
        """Outputs by name, by the state that is kept, or the model for the shapes of the feed."""
        found = None if self._kept is None else self._kept.run(feed)
        if found is None:
            return self._model_at(feed).run(feed, out)
        for name, array in (out or {}).items():
            array[...] = found[name]
            found[name] = array
        return found

    def _model_at(self, feed: Mapping[str, Any]) -> Model:
        return self._models.only or self._models.at(feed)

    def _listed(self, feed: Mapping[str, Any]) -> dict[str, Any] | None:
        """`feed` with arrays in the place of lists and numbers; None where there are none."""
        types = {port.name: port.type for port in self._interface.inputs}
        listed = {
            name: value
            for name, value in feed.items()
            if isinstance(value, _LISTED) and types.get(name, "").startswith("tensor(")
        }
        if not listed:
            return None
        try:
            arrays = {n: np.asarray(v, _dtype_of(types[n])) for n, v in listed.items()}
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(
                f"a list is no array: {error}", "give NumPy arrays (np.asarray)"
            ) from error
        return {**feed, **arrays}

    def _without_constants(self, feed: Mapping[str, Any]) -> Mapping[str, Any]:
        """Inputs that are none any more may be given, with the value that they are bound to."""
        for name in feed.keys() & self._constants.keys():
            if not np.array_equal(np.asarray(feed[name]), self._constants[name]):
                raise UsageError(
                    f"input '{name}' is bound to another value", "leave it out of `constants`"
                )
        return {name: value for name, value in feed.items() if name not in self._constants}

    def _without_initialisers(self, feed: Mapping[str, Any]) -> Mapping[str, Any]:
        """Inputs of which the file has the value may be given that value."""
        values = self._interface.initialisers
        named = feed.keys() & values.keys()
        for name in named:
            value = values[name]
            if value is None or not np.array_equal(np.asarray(feed[name]), value):
                raise UsageError(
                    f"input '{name}' is an initialiser: its value is compiled",
                    f"leave '{name}' out, or remove the initialiser from the model",
                )
        return {n: v for n, v in feed.items() if n not in named} if named else feed

    def _require_inputs(self, feed: Mapping[str, Any]) -> None:
        """Raise UsageError where inputs are missing (as ONNX Runtime says it), or are none."""
        ports = [port.name for port in self._interface.inputs]
        missing = [name for name in ports if name not in feed and name not in self._constants]
        if missing:
            text = f"Required inputs ({missing}) are missing from input feed ({list(feed)})."
            raise as_client_error(UsageError(text, "give every input"), ValueError)
        names.require_known("input", feed, ports)

    def _node_arg(self, port: ModelPort) -> NodeArg:
        shape = [self._bound.get(n, n) if isinstance(n, str) else n for n in port.shape]
        return NodeArg(port.name, port.type, shape)

    def _no_output(self, name: str) -> UsageError:
        return names.unknown_name("output", name, self._output_names)


def _kept_state(request: SessionRequest, store: FileStore | None, memory: str) -> KeptState:
    """The state of a session that is asked for a capacity. Raises as `compile`."""
    assert request.capacity is not None
    with model_file(request.model, request.name) as path:
        growth, _ = growth_of(read_outline(path), request.capacity, request.state)
    if growth.flag or growth.replaced or growth.passed or growth.static:
        raise UsageError(
            f"the caches of '{request.name}' are not all fed back",
            "take its steps by `autotune.compile` and `Model.session`",
        )
    with told_if_long(request.name):
        found, artifact = fitting_artifact(request, store, LOGGER.info, memory)
    return KeptState(model_of(artifact, found.n_running).session(), growth)


def _dtype_of(kind: str) -> str:
    """NumPy's name of the elements of `tensor(float)`."""
    word = word_in(kind)
    return {**DTYPE_OF_WORD, "string": "object"}.get(word, word)


def _source(given: object) -> Path | bytes:
    """Path or bytes of the model of a session. Raises UsageError for other types."""
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    if isinstance(given, str | os.PathLike):
        return Path(given).absolute()
    hint = "give the path of an ONNX file, or its bytes"
    raise as_client_error(UsageError(f"a session of a {type(given).__name__}", hint), TypeError)


def _extents(dims: Dims) -> dict[str, int]:
    """Dimensions that have one extent."""
    return {name: values for name, values in dims.items() if isinstance(values, int)}


def _other_providers(providers: Sequence[Any] | None) -> set[str]:
    """Those that are ignored of names, or pairs of a name and options."""
    return {p if isinstance(p, str) else p[0] for p in providers or ()} - {CPU_PROVIDER}


def _note_providers(providers: Sequence[Any] | None) -> None:
    """Note the providers that are ignored; warn of those that do not exist."""
    others = _other_providers(providers)
    for name in sorted(others - set(get_all_providers())):
        warnings.warn(
            f"Specified provider '{name}' is not in available provider names. "
            f"Available providers: '{CPU_PROVIDER}'",
            stacklevel=4,
        )
    if others:
        LOGGER.info("%s are not used: everything runs on this CPU", ", ".join(sorted(others)))
