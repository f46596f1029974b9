"""① Mosts of open dimensions that nobody has said anything of (decision 0140).

    open_dimensions(outline)    {"batch": OpenDimension("batch", 8), …}

A batch is up to 16, or 8 beside other dimensions, or 4 of images. A length is up to 512, or less
where a table of counted positions has fewer rows, or where each place of it becomes a step of many
recurrent operators. Height and width are up to 640, those of volumes up to 64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from onnx import ModelProto, NodeProto, numpy_helper

from autotune.graph.fallback.shape_inputs import SHAPE_OPERANDS
from autotune.graph.operators.recurrent import RECURRENT as CELLS
from autotune.graph.reader.dimensions import batches, free_symbols, input_names, input_ranks

_CELLS = frozenset(op.rsplit(".")[-1] for op in CELLS)
RECURRENT = (*_CELLS, "Loop", "Scan")
"""Operators whose steps are nodes."""
_MOST_CELLS = 1024
"""Cells that the places of a length may become: each is compiled as some ten calls."""
BATCH, BATCH_OF_LENGTHS, BATCH_OF_IMAGES = 16, 8, 4
LENGTH, IMAGE, VOLUME = 512, 640, 64
STEPS = (2, 4, 8, 16, 32)
"""Of height and width: what halves them so often, and doubles them again, has such sizes."""
_LONGEST_STEP = 4096
_IMAGE_RANK = 4

Kind: TypeAlias = Literal["batch", "length", "image"]


@dataclass(frozen=True, slots=True)
class OpenDimension:
    """What a dimension is, as far as names and ranks tell, and the most that it is assumed to be.

    `image`: height or width.
    """

    kind: Kind
    most: int


def open_dimensions(model: ModelProto) -> dict[str, OpenDimension]:
    """The dimensions that the file leaves open."""
    free, ranks = free_symbols(model, {}), input_ranks(model)
    batch = batches(model)
    images = {
        n: IMAGE if ranks[p[0].input] == _IMAGE_RANK else VOLUME
        for n, p in free.items()
        if n not in batch and ranks[p[0].input] >= _IMAGE_RANK
    }
    lengths = [n for n in free if n not in batch and n not in images]
    n_samples = BATCH_OF_IMAGES if images else BATCH_OF_LENGTHS if lengths else BATCH
    rows = _power_of_two(
        min(LENGTH, table_rows(model) or LENGTH, _MOST_CELLS // (_cells(model) or 1))
    )
    known = {n: OpenDimension("batch", n_samples) for n in batch}
    known |= {n: OpenDimension("image", most) for n, most in images.items()}
    return {n: known.get(n, OpenDimension("length", rows)) for n in free}


def _cells(model: ModelProto) -> int:
    """How many cells of recurrent operators a step of all of them has."""
    nodes = [n for n in model.graph.node if n.op_type in _CELLS]
    both = [n for n in nodes if any(a.s == b"bidirectional" for a in n.attribute)]
    return len(nodes) + len(both)


def strides(model: ModelProto) -> list[int]:
    """Numbers of places that windows go at once, one window after the other: 5, 10, 20, …"""
    found = [1]
    for step in (max(s) for s in _strides(model)):
        found.append(min(found[-1] * step, _LONGEST_STEP))
    return list(dict.fromkeys(n for n in found if 1 < n < _LONGEST_STEP))


def is_line(model: ModelProto) -> bool:
    """Whether windows go more rows than columns at once, as over a line of text."""
    return any(len(s) == 2 and s[0] > s[1] for s in _strides(model))


def _strides(model: ModelProto) -> Iterator[tuple[int, ...]]:
    """Of windows, and of frames where those are known."""
    known = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            known.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
        if node.op_type == "STFT" and node.input[1] in known:
            yield (int(numpy_helper.to_array(known[node.input[1]]).reshape(-1)[0]),)
        yield from (tuple(a.ints) for a in node.attribute if a.name == "strides" and a.ints)


def table_rows(model: ModelProto) -> int | None:
    """The least rows of a constant of which those are read that are places, counted in the input.

    They are some more than there are places, for the first is not zero. None without such a table;
    one that is read at places that sizes alone tell shows where the model is read.
    """
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    held, counted = set(input_names(model)), set[str]()
    rows: list[int] = []
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[1] in counted:
            rows += shapes.get(node.input[0], ())[:1]
        read = set(_read(node))
        if held.intersection(read) and node.op_type not in ("Shape", "Size"):
            held.update(node.output)
        if counted.intersection(read) or (node.op_type == "CumSum" and held.intersection(read)):
            counted.update(node.output)
    return min(rows, default=None)


def _read(node: NodeProto) -> list[str]:
    """Operands with elements that come into the result: others say which, or how many."""
    if node.op_type.startswith("Gather"):
        return list(node.input[:1])
    deciding = SHAPE_OPERANDS.get(node.op_type, ())
    return [name for n, name in enumerate(node.input) if n not in deciding]


def _power_of_two(most: int) -> int:
    """The largest one that is no more: tables of 514 rows are for 512 places."""
    return 1 << (most.bit_length() - 1)
