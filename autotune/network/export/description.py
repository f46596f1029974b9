"""⑩ What a library tells of itself, so that one program can call any of them: `library.h`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from autotune.dtypes import DTYPES
from autotune.network.export.interface import LibraryInterface, Tensor

Kind = Literal["inputs", "outputs"]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a call's records have a tensor: words of its address and of its shape (-1: fixed)."""

    tensor: Tensor
    word: int
    shape: int


def description(interface: LibraryInterface) -> str:
    """Tables of C, and the function NAME_library; "" of a model with a state."""
    if interface.state is not None:
        return ""
    inputs, input_words = _slots(interface.inputs, is_input=True)
    outputs, result_words = _slots(interface.outputs, is_input=False)
    shapes = "(int (*)(const void *, void *))M(shapes)" if interface.tells_shapes else "NULL"
    return "\n".join(
        [
            *_table("inputs", inputs),
            *_table("outputs", outputs),
            '__attribute__((visibility("default"))) const AutotuneLibrary *M(library)(void) {',
            "  static const AutotuneLibrary found = {",
            f"      AUTOTUNE_LIBRARY, {len(inputs)}, {len(outputs)}, {input_words}, "
            f"{result_words},",
            "      told_inputs, told_outputs,",
            "      (int (*)(const void *, void **))M(create),",
            "      (int (*)(void *, const void *, const void *))M(run),",
            f"      {shapes},",
            "      (void (*)(void *))M(destroy), M(strerror)};",
            "  return &found;",
            "}",
            "",
        ]
    )


def _slots(tensors: Iterable[Tensor], is_input: bool) -> tuple[list[Slot], int]:
    """Those of a side, and how many words its record has (of outputs: that of their shapes)."""
    found: list[Slot] = []
    at = 0
    for n, tensor in enumerate(tensors):
        word, at = (at, at + 1) if is_input else (n, at)
        shape = -1 if tensor.is_fixed else at
        at += 0 if tensor.is_fixed else max(len(tensor.first.shape), 1)
        found.append(Slot(tensor, word, shape))
    return found, at


def _table(kind: Kind, slots: Iterable[Slot]) -> Iterator[str]:
    rows = []
    for n, slot in enumerate(slots):
        end = slot.tensor.first
        yield f"static const int64_t told_{kind}_{n}[] = {{{', '.join(map(str, end.shape)) or 0}}};"
        rows.append(
            f"  {{{quoted(end.name)}, {DTYPES[end.dtype].onnx}, {len(end.shape)}, {slot.word}, "
            f"{slot.shape}, told_{kind}_{n}}}"
        )
    rows = rows or ["  {0}"]
    yield f"static const AutotuneTensor told_{kind}[] = {{\n" + ",\n".join(rows) + "\n};"


def quoted(text: str) -> str:
    """Text as a literal of C, other than ASCII as bytes of UTF-8."""
    plain = {*range(0x20, 0x7F)} - {*b'\\"?'}
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'
