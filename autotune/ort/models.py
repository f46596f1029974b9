"""⑪ The models of a session: one for all sizes, or one for every combination of shapes.

    models = SessionModels(request, interface, store)
    models.at({"ids": ids, "mask": mask}).run(…)

A model of static shapes is compiled at once, and so are all shapes that dimensions or a log name;
else one for all sizes (`sizes`) when the first inputs come, or, where there can be none, one for
the shapes of each. Threads that need one at the same time wait for one compilation.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.cache import FileStore
from autotune.dtypes import tensor_type
from autotune.errors import AutotuneError, UsageError
from autotune.graph.reader.interface import Interface, ModelPort
from autotune.network.runtime.arguments import as_array
from autotune.network.runtime.loading import model_of
from autotune.network.runtime.runtime import Model
from autotune.ort.cached import fitting_artifact
from autotune.ort.logs import names_shapes
from autotune.ort.request import SessionRequest, SizesRefused
from autotune.ort.room import Room
from autotune.ort.sizes import AllSizes, OpenSizes
from autotune.ort.waits import told_if_long
from autotune.units import format_shapes

Key: TypeAlias = "tuple[tuple[int, ...], ...]"
"""Shapes of the open inputs, in their order."""

LOGGER = logging.getLogger("autotune")
_MOST_KEYS = 4096
"""Shapes whose model is known at once."""


class SessionModels:
    """Models of `request`, ready to run; there is `room` for those that were not named before.

    `sizes`: open dimensions, where one model may be for all of them.
    """

    def __init__(
        self,
        request: SessionRequest,
        interface: Interface,
        store: FileStore | None,
        room: Room,
        sizes: OpenSizes | None = None,
    ) -> None:
        self._request = request
        self._sizes = AllSizes(sizes) if sizes else None
        self._whole: Model | None = None
        self._store = store
        self._room = room
        self._names = tuple(n for n in interface.open_inputs if n not in request.constants)
        self._open = {p.name: p for p in interface.inputs if p.name in self._names}
        self._inputs = tuple(port.name for port in interface.inputs)
        self._models: dict[Key, Model] = {}
        self._extra: dict[Model, int] = {}  # when it was last called, of those not named before
        self._calls = itertools.count()
        self._lock = threading.Lock()
        if request.dims or request.log or not self._names:
            self._compile_named()
        self.only = self._models.get(()) if not self._names else None
        """The model, where all its shapes are static."""

    def at(self, feed: Mapping[str, Any]) -> Model:
        """The model for the shapes of these inputs. Raises as `compiling.compile`."""
        try:
            key = tuple([feed[name].shape for name in self._names])
            found = self._models[key]
        except (KeyError, AttributeError, TypeError):
            return self._compiled(feed)
        if found in self._extra:
            self._extra[found] = next(self._calls)
        return found

    def __iter__(self) -> Any:
        return iter(list(dict.fromkeys(self._models.values())))

    def _compile_named(self) -> None:
        """Compile the shapes that the request names; those of its log, where it has none."""
        request = self._request
        is_named = bool(request.dims) or not self._names
        if not is_named and not names_shapes(request.log):
            return
        for model in self._model(request).variants:
            shapes = {end.name: end.shape for end in model.input_info}
            self._models[tuple(shapes[name] for name in self._names)] = model

    def _compiled(self, feed: Mapping[str, Any]) -> Model:
        example = {name: _array_of(feed, name) for name in self._inputs if name in feed}
        ports = self._open.items()
        shapes = {name: _shape_of(_array_of(feed, name), port) for name, port in ports}
        key = tuple(shapes.values())
        with self._lock:
            found = self._models.get(key)
            if found is not None:
                return found
            model = self._of_all_sizes(example) or self._at_shapes(shapes, example)
            if self._whole is not None and len(self._models) >= _MOST_KEYS:
                self._forget(self._whole)
            self._models[key] = model
            self._extra[model] = next(self._calls)
            order = sorted(self._extra, key=self._extra.__getitem__)
            for gone in order[: self._room.leaving([model.n_bytes for model in order])]:
                self._drop(gone)
            return model

    def _drop(self, model: Model) -> None:
        """Let a model go that was not named before."""
        self._forget(model)
        del self._extra[model]
        if self._whole is model:
            self._whole = None

    def _forget(self, model: Model) -> None:
        """Dispatch the calls of a model anew."""
        for at in [at for at, known in self._models.items() if known is model]:
            del self._models[at]

    def _of_all_sizes(self, example: Mapping[str, NDArray[Any]]) -> Model | None:
        """The model for all sizes, compiled for larger ones where a call has some.

        None where none is for this call.
        """
        sizes, shapes = self._sizes, {name: array.shape for name, array in example.items()}
        if sizes is None or not sizes.may_take(shapes):
            return None
        is_new = sizes.note(example) and self._request.packs is None
        if self._whole is None or is_new or not sizes.takes(shapes):
            mosts = sizes.wanted
            told = format_shapes(sizes.text(shapes, mosts))
            LOGGER.info("compiling %s for %s", self._request.name, told)
            request = replace(self._request, shapes={}, dims={}, mosts=mosts, held=sizes.held)
            request = replace(request, ragged=request.is_packed(sizes))
            try:
                model = self._model(replace(request, check_inputs=example))
            except AutotuneError as error:  # of the model, then it comes again
                if isinstance(error, SizesRefused) and sizes.hold():
                    return self._of_all_sizes(example)
                LOGGER.info("sizes are compiled one by one: %s", error.message)
                sizes.is_final = True
                self._sizes = sizes if self._whole else None
                return None
            if self._whole is not None:
                self._drop(self._whole)
            sizes.adopt(model.input_info)
            self._whole = model
        return self._whole if sizes.takes(shapes) else None

    def _at_shapes(
        self, shapes: dict[str, tuple[int, ...]], example: Mapping[str, NDArray[Any]]
    ) -> Model:
        """A model for one combination of shapes; without the log, where that has no task of it."""
        LOGGER.info("compiling %s for %s", self._request.name, format_shapes(shapes))
        request = replace(self._request, shapes=shapes, dims={}, check_inputs=example or None)
        return self._model(request)

    def _model(self, request: SessionRequest) -> Model:
        with told_if_long(request.name):
            found = fitting_artifact(request, self._store, LOGGER.info, self._room.memory)
        return model_of(found[1], found[0].n_running)


def _array_of(feed: Mapping[str, Any], name: str) -> NDArray[Any]:
    """Raises UsageError where the input is missing, or is no array."""
    if name not in feed:
        given = ", ".join(f"'{n}'" for n in feed) or "none"
        raise UsageError(f"the input '{name}' is missing", f"the inputs given are {given}")
    value = feed[name]
    return value if isinstance(value, np.ndarray) else as_array(name, value)


def _shape_of(array: NDArray[Any], port: ModelPort) -> tuple[int, ...]:
    """The shape of an input. Raises UsageError where it does not fit the declared one."""
    kind = tensor_type(array.dtype.name)
    if kind != port.type and array.dtype.kind in "fiub":
        raise UsageError(
            f"input '{port.name}' is a {kind}, expected {port.type}", "convert it: array.astype"
        )
    shape = array.shape
    pairs = zip(port.shape, shape, strict=False)
    fits = len(shape) == len(port.shape) and all(n == a or not isinstance(n, int) for n, a in pairs)
    if port.shape and not fits:
        wanted = ", ".join("?" if n is None else str(n) for n in port.shape)
        raise UsageError(
            f"input '{port.name}' has shape {shape}, expected ({wanted})",
            "give an array of that shape",
        )
    return shape
