"""⑪ A region of a graph as compiled networks: one for every state of its parameters.

    region = GraphRegion(gm, constants, settings)
    outputs = region(*arguments)

Parameters are constants of a network: packed, and folded into others. Where they have changed, the
graph runs in PyTorch until a second call comes with the new ones, which is compiled for them. A
network's first outputs are compared with PyTorch's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from weakref import WeakSet

import torch

from autotune.dynamo.exporting import NotExported, Output, Ported, exported, ported
from autotune.dynamo.settings import Settings
from autotune.dynamo.tensors import Array, Snapshot, array_of, oddity, tensor_of
from autotune.errors import AutotuneError, UnsupportedOperator, WrongNumbers
from autotune.graph.reader.constant_inputs import initialise
from autotune.graph.reader.interface import interface_of
from autotune.graph.reader.model_files import model_file
from autotune.graph.reader.onnx_reader import read_outline
from autotune.network.check.differences import difference, tolerance
from autotune.network.runtime.runtime import Model
from autotune.ort.models import SessionModels
from autotune.ort.preparing import open_sizes

LOGGER = logging.getLogger("autotune")
Function = Callable[..., Any]


class GraphRegion:
    """Outputs of `gm` for arguments in order. `constants`: names of placeholders with parameters.

    `refused`: is told which operators have to run in PyTorch, and gives what runs instead of the
    graph as a whole; None where there is nothing but PyTorch itself.
    """

    def __init__(
        self,
        gm: Any,
        constants: Collection[str],
        settings: Settings,
        refused: Callable[[NotExported], Function | None],
    ) -> None:
        self._gm, self._settings, self._refused = gm, settings, refused
        self._lock = threading.Lock()
        self._network: FrozenGraph | None = None
        self._seen: Snapshot | None = None
        self._instead: Function | None = None
        self._ported: Ported | None = None
        try:
            self._ported = ported(gm, constants)
            self._model = exported(self._ported)
        except NotExported as error:
            self._give_up(error)

    def __call__(self, *arguments: Any) -> Any:
        """Outputs, as the graph gives them."""
        network = self._network
        if network is None or not network.is_of(arguments):
            network = self._network_for(arguments)
        if network is not None:
            try:
                return network.run(arguments)
            except AutotuneError as error:
                self._give_up(_as_refusal(error))
        return (self._instead or self._gm)(*arguments)

    def _network_for(self, arguments: Sequence[Any]) -> FrozenGraph | None:
        """The network for the parameters among these; None: PyTorch computes."""
        with self._lock:
            if self._instead is not None or self._ported is None:
                return None
            if self._network is not None and self._network.is_of(arguments):
                return self._network
            constants = [arguments[port.index] for port in self._ported.constants]
            if not self._is_ready(arguments, constants):
                return None
            try:
                self._network = FrozenGraph(
                    self._ported, self._model, constants, self._gm, self._settings
                )
            except AutotuneError as error:
                self._give_up(_as_refusal(error))
            return self._network

    def _is_ready(self, arguments: Sequence[Any], constants: Sequence[Any]) -> bool:
        """Whether a network may be compiled for these now."""
        odd = oddity(arguments)
        if not odd and any(tensor.is_inference() for tensor in constants):
            odd = "parameters were made in inference mode, where changes are not counted"
        if odd:
            self._give_up(NotExported(odd))
            return False
        is_same = self._seen is None or self._seen.is_of(constants)
        if not is_same:
            LOGGER.warning(
                "autotune: parameters have changed: PyTorch computes until they are used again"
            )
            self._network = None
        self._seen = Snapshot(constants)
        return is_same

    def _give_up(self, refusal: NotExported) -> None:
        """Run something else from now on."""
        self._network = None
        self._instead = self._refused(refusal)
        if self._instead is None:
            LOGGER.warning("autotune: a graph runs in PyTorch: %s", refusal)
            self._instead = self._gm


def _as_refusal(error: AutotuneError) -> NotExported:
    nodes = error.nodes if isinstance(error, UnsupportedOperator) else ()
    return NotExported(error.message, nodes)


class FrozenGraph:
    """A graph with these parameters, compiled for the shapes that come."""

    def __init__(
        self,
        found: Ported,
        model: Any,
        constants: Sequence[Any],
        gm: Any,
        settings: Settings,
    ) -> None:
        self._snapshot = Snapshot(constants)
        self._places = [port.index for port in found.constants]
        self._found, self._inputs, self._gm = found, found.inputs, gm
        names = [port.name for port in found.constants]
        values = {**found.values, **dict(zip(names, constants, strict=True))}
        orders = {port.name: port.order for port in found.constants}
        arrays = {name: _array(tensor, orders.get(name)) for name, tensor in values.items()}
        self._checked: WeakSet[Model] = WeakSet()
        self._models, self._files = _models(model, arrays, settings)

    def is_of(self, arguments: Sequence[Any]) -> bool:
        """Whether the parameters among these are those of the network."""
        return self._snapshot.is_of([arguments[n] for n in self._places])

    def run(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Outputs. Raises as `compile`, and WrongNumbers where they are not PyTorch's."""
        feed = {port.name: _array(arguments[port.index], port.order) for port in self._inputs}
        model = self._models.only or self._models.at(feed)
        found = model.run(feed)
        if model not in self._checked:
            self._compare(self._results(found, arguments), arguments)
            self._checked.add(model)
        return self._results(found, arguments)

    def _results(self, found: Mapping[str, Array], arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Outputs of the graph, of those of the network."""
        known = self._found
        made = {port.name: _tensor(port, found[port.name]) for port in known.exported}
        views: Sequence[Any] = ()
        if known.views is not None:
            views = known.views(*arguments, *[made[port.name] for port in known.bases])
        return tuple([_output(port, made, views, arguments) for port in known.outputs])

    def _compare(self, results: Sequence[Any], arguments: Sequence[Any]) -> None:
        given = self._gm(*arguments)
        expected = (given,) if isinstance(given, torch.Tensor) else given
        for port, result, tensor in zip(self._found.outputs, results, expected, strict=True):
            if port.name or port.view >= 0:
                ours, theirs = array_of(result), array_of(tensor)
                apart = difference(ours, theirs)
                if not apart.within(tolerance(theirs.dtype)):
                    raise WrongNumbers(f"outputs differ from PyTorch's: {apart.what}")


def _array(tensor: Any, order: tuple[int, ...] | None) -> Array:
    return array_of(tensor if order is None else tensor.permute(order))


def _tensor(port: Output, array: Array) -> Any:
    tensor = tensor_of(array)
    return tensor if port.inverse is None else tensor.permute(port.inverse)


def _output(
    port: Output, made: Mapping[str, Any], views: Sequence[Any], arguments: Sequence[Any]
) -> Any:
    if port.name:
        return made[port.name]
    if port.view >= 0:
        return views[port.view]
    return port.value if port.index < 0 else arguments[port.index]


def _models(
    model: Any, arrays: Mapping[str, Array], settings: Settings
) -> tuple[SessionModels, ExitStack]:
    """Compiled networks of a graph with these constants, and the file that they are made from."""
    whole = type(model)()
    whole.CopyFrom(model)
    initialise(whole, arrays)
    files = ExitStack()
    path = files.enter_context(model_file(whole, "graph"))
    outline = read_outline(path)
    request = settings.request(path, settings.dims)
    sizes = open_sizes(outline)
    found = SessionModels(request, interface_of(outline), settings.store, settings.room, sizes)
    if found.only is not None:
        files.close()
    return found, files
