"""① A model with a batch and a sequence -> the same over its tokens, for the lift.

    ragged_network(bound, {"ids": (batch, sequence), "mask": (batch, sequence)})

The network has three lengths: `batch`, `sequence`, and `tokens`, how many count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autotune.extent import Extents, Length
from autotune.graph.bound_model import BoundModel
from autotune.graph.ir import Graph
from autotune.graph.lengths.imports import NotLifted, OpenModel
from autotune.graph.lengths.lift import lifted
from autotune.graph.network import Network
from autotune.graph.ragged import Ragged
from autotune.graph.ragged.packing import packed_graph, packed_tensors
from autotune.graph.ragged.places import BATCH, OTHERS, SEQUENCE, Tokens
from autotune.graph.ragged.proof import ANYWHERE, BEHIND, is_padding
from autotune.graph.ragged.work import work_of
from autotune.graph.reader.onnx_reader import OnnxModel
from autotune.wording import arguments


def ragged_network(
    bound: BoundModel, dims: Mapping[str, Extents], precision: str = "f32"
) -> Network:
    """The network of a model over the tokens of rows of any length. Raises NotLifted, which says
    why there is none."""
    return lifted_rows(ragged_model(bound, dims, precision))


def ragged_model(bound: BoundModel, dims: Mapping[str, Extents], precision: str) -> RaggedModel:
    """The model over tokens to be lifted. Raises as `ragged_network`."""
    held = bound if bound.parted else bound.held()
    return _plan(OpenModel(held, dims, precision))


def lifted_rows(model: RaggedModel) -> Network:
    """The network of a model over tokens. Raises as `lifted`."""
    network = lifted(model)
    assert model.ragged is not None
    sequence = Length(model.sequence, model.mosts[model.sequence])
    work = work_of(network, model.batch, sequence, model.ragged.number)
    return replace(network, ragged=replace(model.ragged, work=work))


def _plan(model: OpenModel) -> RaggedModel:
    masks = list(_masks(model.dims))
    if not masks:
        raise NotLifted("no input has a batch and a sequence", "compile it without `ragged`")
    batch, sequence = masks[0][1:]
    if more := sorted(model.mosts.keys() - {batch, sequence}):
        same = arguments(dims={more[0]: batch})
        raise NotLifted(
            f"'{more[0]}' is a size beside batch '{batch}' and sequence '{sequence}'; "
            f"where it is one of these, say so: {same}",
        )
    sizes = ((BATCH, SEQUENCE), *OTHERS)
    read = [model.read_at({batch: b, sequence: s})[1] for b, s in sizes]
    tokens = Tokens(read)
    names = packed_tensors(tokens)
    if not names:
        raise NotLifted("no operator keeps tokens apart", "compile it without `ragged`")
    kinds = {name: read[0].types[name].dtype for name, *_ in masks}
    for mask, *_ in masks:
        if kinds[mask] in _FLAGS and is_padding(tokens, names, mask, BEHIND):
            found = _over_tokens(model, tokens, names, mask)
            assert found.ragged is not None
            is_anywhere = is_padding(tokens, names, mask, ANYWHERE)
            return replace(found, ragged=replace(found.ragged, is_anywhere=is_anywhere))
    raise NotLifted(
        "no input is shown to be a mask that leaves out what is behind the end of a row",
        "compile it without `ragged`",
    )


def _over_tokens(model: OpenModel, tokens: Tokens, names: frozenset[str], mask: str) -> RaggedModel:
    batch, sequence = (e for e in model.dims[mask] if isinstance(e, Length))
    ragged = Ragged.beside(mask, {*model.dims, *model.mosts})
    most = Length(ragged.number, batch.most * sequence.most)
    added: dict[str, Extents] = {ragged.tokens: (most, 2), ragged.slots: (batch, sequence)}
    dims = {**model.dims, **added}
    return RaggedModel(
        model.bound,
        dims,
        model.precision,
        tokens=tokens,
        packed=names,
        ragged=ragged,
        batch=batch.name,
        sequence=sequence.name,
    )


_FLAGS = ("int64", "int32", "bool", "float32", "uint8", "int8")


def _masks(dims: Mapping[str, Extents]) -> Iterator[tuple[str, str, str]]:
    """Inputs of a batch and a sequence, with the names of both; those of the most first."""
    pairs = []
    for name, extents in dims.items():
        plain = [e for e in extents if isinstance(e, Length) and (e.factor, e.offset) == (1, 0)]
        if len(plain) == len(extents) == 2 and plain[0].name != plain[1].name:
            pairs.append((name, plain[0].name, plain[1].name))
    yield from (p for p in pairs if p[1:] == pairs[0][1:])


@dataclass(frozen=True)
class RaggedModel(OpenModel):
    """A model over its tokens: see `packing`. `dims` has the two inputs more."""

    tokens: Tokens | None = None
    packed: frozenset[str] = frozenset()
    ragged: Ragged | None = None
    batch: str = ""
    sequence: str = ""

    def read_at(self, numbers: Mapping[str, int]) -> tuple[OnnxModel, Graph]:
        """The padded batch and the single tokens, in one graph."""
        assert self.tokens is not None
        assert self.ragged is not None
        own = {n: d for n, d in self.dims.items() if n not in self.ragged.hidden}
        plain = OpenModel(self.bound, own, self.precision)
        model, padded = plain.read_at(numbers)
        ones = {**numbers, self.batch: numbers[self.ragged.number], self.sequence: 1}
        _, single = plain.read_at(ones)
        graph = packed_graph(padded, single, self.tokens, self.packed, self.ragged)
        return model, graph
