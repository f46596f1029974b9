"""① Mosts of open dimensions that nobody has said anything of (decision 0140).

    for ranges in assumed(outline):         # the first that the model can be compiled for counts
        ranges                              {"batch": "..8", "sequence": "..512"}

A batch is up to 16, or 8 beside other dimensions, or 4 of images. A length is up to 512, or as many
rows as a table of positions in the file has. Height and width are up to 640, in steps of as few as
the model can have.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from onnx import ModelProto, NodeProto, numpy_helper

from autotune.graph.reader.dimensions import batches, free_symbols, input_names, input_ranks

BATCH, BATCH_OF_LENGTHS, BATCH_OF_IMAGES = 16, 8, 4
LENGTH, IMAGE = 512, 640
STEPS = (1, 2, 4, 8, 16, 32)
"""Of height and width: what halves them so often, and doubles them again, has such sizes."""
_IMAGE_RANK = 4
_COUNTED = ("CumSum",)
"""Operators that count places of the input, as some tables of positions are read."""


def assumed(
    model: ModelProto, mosts: Mapping[str, int] | None = None
) -> Iterator[dict[str, int | str]]:
    """What the open dimensions may be, the most general first; nothing where none is open.

    A dimension without a range has one extent. `mosts`: of some of them, in the place of those that
    nobody has said; no length has more than a table of positions.
    """
    free, ranks = free_symbols(model, {}), input_ranks(model)
    batch = batches(model)
    images = [n for n, p in free.items() if n not in batch and ranks[p[0].input] == _IMAGE_RANK]
    lengths = [n for n in free if n not in batch and n not in images]
    if not free or any(ranks[p[0].input] > _IMAGE_RANK for n, p in free.items() if n in lengths):
        return
    most = BATCH_OF_IMAGES if images else BATCH_OF_LENGTHS if lengths else BATCH
    rows = table_rows(model) if lengths else None
    own = dict.fromkeys(lengths, _power_of_two(min(LENGTH, rows or LENGTH)))
    known = {**dict.fromkeys(batch, most), **own, **dict.fromkeys(images, IMAGE), **(mosts or {})}
    if rows is not None:
        known |= {name: min(known[name], rows) for name in lengths}
    for several in dict.fromkeys((True, False) if batch and (images or lengths) else (True,)):
        for step in STEPS if images else (1,):
            steps = dict.fromkeys(images, step)
            fixed: dict[str, int | str] = {} if several else dict.fromkeys(batch, 1)
            yield {n: fixed.get(n) or _range(known[n], steps.get(n, 1)) for n in free}


def _range(most: int, step: int) -> str:
    """All sizes up to a most, or the next one that steps reach."""
    return f"..{-(-most // step) * step}/{step}" if step > 1 else f"..{most}"


def table_rows(model: ModelProto) -> int | None:
    """The least rows of a constant that are read by a place, not by what an input holds.

    A Gather of such an index, a Slice up to it, and a Gather of places that are counted: those have
    some rows more, for the first place is not zero. None without such a table.
    """
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    held, counted, sized = set(input_names(model)), set[str](), set[str]()
    rows: list[int] = []
    for node in model.graph.node:
        if node.op_type == "Constant":
            shapes.update(
                (node.output[0], tuple(a.t.dims)) for a in node.attribute if a.HasField("t")
            )
            continue
        if node.op_type in ("Shape", "Size"):
            sized.update(node.output)
            continue
        rows += _rows_read(node, model, shapes, {*(sized - held), *counted})
        if held.intersection(node.input):
            held.update(node.output)
        if sized.intersection(node.input):
            sized.update(node.output)
        if node.op_type in _COUNTED or counted.intersection(node.input):
            counted.update(node.output)
    return min(rows, default=None)


def _rows_read(
    node: NodeProto,
    model: ModelProto,
    shapes: Mapping[str, tuple[int, ...]],
    places: Container[str],
) -> Iterator[int]:
    """Rows of a constant of which `node` reads those at some of the `places`."""
    shape = shapes.get(node.input[0], ()) if node.input else ()
    if node.op_type == "Gather" and len(shape) > 1 and node.input[1] in places:
        yield shape[0]
    if node.op_type == "Slice" and shape and len(node.input) > 2 and node.input[2] in places:
        axes = _integers(model, node.input[3]) if len(node.input) > 3 else range(len(shape))
        yield from (shape[a] for a in axes if shape[a] > 1)


def _integers(model: ModelProto, name: str) -> list[int]:
    """The values of a constant, none where the outline has no data of it."""
    found = [t for t in model.graph.initializer if t.name == name]
    found += [
        a.t for n in model.graph.node if name in n.output for a in n.attribute if a.name == "value"
    ]
    try:
        return [int(n) for t in found for n in numpy_helper.to_array(t).reshape(-1)]
    except (ValueError, TypeError):
        return []


def _power_of_two(most: int) -> int:
    """The largest one that is no more: tables of 514 rows are for 512 places."""
    return 1 << (most.bit_length() - 1)
