"""① Einsum: an equation becomes the labels of every operand, and many operands become pairs.

    Einsum("...ij,jk->...ik", a, b)  -> Einsum(a, b), labels "ABij jk ABik"
    Einsum("ab,bc,cd->ad", x, y, z)  -> Einsum(Einsum(x, y), z), labels "ab bc ac" and "ac cd ad"

A label is one letter of the equation; those of an ellipsis are letters that it does not use.
"""

from __future__ import annotations

import string
from collections import Counter

from autotune.errors import ModelError
from autotune.graph.ir import Editor, Node, Shape, unsupported


def einsum(editor: Editor, node: Node) -> None:
    """Rewrite one Einsum; see the module."""
    *sources, result = labels(editor, node)
    name, so_far = node.inputs[0], sources[0]
    if len(sources) == 1:
        _emit(editor, node, (name,), [so_far, result], node.output)
        return
    for n, (other, found) in enumerate(zip(node.inputs[1:], sources[1:], strict=True), 2):
        later = {*result, *"".join(sources[n:])}
        both = dict.fromkeys(so_far + found)
        is_last = n == len(sources)
        kept = result if is_last else "".join(a for a in both if a in later)
        extents = _extents(editor, ((name, so_far), (other, found)))
        out = (
            node.output if is_last else editor.new(f"{node.output}.{n}", [extents[a] for a in kept])
        )
        _emit(editor, node, (name, other), [so_far, found, kept], out)
        name, so_far = out, kept


def labels(editor: Editor, node: Node) -> list[str]:
    """Labels of every operand, then of the result; without `->` those that occur once, sorted."""
    left, arrow, right = node.attrs["equation"].replace(" ", "").partition("->")
    sources = left.split(",")
    ranks = [len(editor.types[name].shape) for name in node.inputs]
    if len(sources) != len(ranks):
        raise _malformed(node, f"it is for {len(sources)} operands, there are {len(ranks)}")
    n_dots = [
        rank - len(source.replace("...", "")) if "..." in source else 0
        for rank, source in zip(ranks, sources, strict=True)
    ]
    fits = (
        n >= 0 if "..." in source else rank == len(source)
        for source, rank, n in zip(sources, ranks, n_dots, strict=True)
    )
    if not all(fits):
        raise _malformed(node, "its labels are not as many as the dimensions of an operand")
    if arrow and "..." not in right and max(n_dots) > 0:
        raise _malformed(node, "its result lacks the ellipsis of its operands")
    unused = "".join(a for a in string.ascii_uppercase + string.ascii_lowercase if a not in left)
    if max(n_dots) > len(unused):
        raise unsupported(node, editor.graph, "its operands have too many dimensions")
    dots = unused[: max(n_dots)]
    if not arrow:
        counts = Counter(left.replace("...", "").replace(",", ""))
        right = "..." + "".join(sorted(a for a, n in counts.items() if n == 1))
    full = [s.replace("...", dots[len(dots) - n :]) for s, n in zip(sources, n_dots, strict=True)]
    return [*full, right.replace("...", dots)]


def einsum_shape(editor: Editor, node: Node) -> Shape:
    """The shape of the result. Raises ModelError for labels that do not fit to the operands."""
    *sources, result = labels(editor, node)
    extents = _extents(editor, tuple(zip(node.inputs, sources, strict=True)))
    for name, source in zip(node.inputs, sources, strict=True):
        pairs = zip(source, editor.types[name].shape, strict=True)
        wrong = next((a for a, n in pairs if n not in (1, extents[a])), None)
        if wrong is not None:
            raise _malformed(node, f"'{wrong}' stands for different extents")
    if len(set(result)) != len(result) or any(a not in extents for a in result):
        raise _malformed(node, "its result repeats a label, or has one that no operand has")
    return tuple(extents[a] for a in result)


def _malformed(node: Node, reason: str) -> ModelError:
    return ModelError(
        f"operator 'Einsum' (node '{node.name}') has equation '{node.attrs['equation']}': {reason}",
        "export the model again",
    )


def _extents(editor: Editor, operands: tuple[tuple[str, str], ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, source in operands:
        for label, extent in zip(source, editor.types[name].shape, strict=True):
            found[label] = extent if found.get(label, 1) == 1 else found[label]
    return found


def _emit(editor: Editor, node: Node, names: tuple[str, ...], parts: list[str], out: str) -> None:
    editor.emit(Node(node.name, "Einsum", names, (out,), {"labels": " ".join(parts)}))
