"""⑩ A library that `autotune export` wrote, called from Python: no LLVM, no compiler.

    model = ExportedModel("libresnet50.so")
    outputs = model.run({"input": array})

It loads itself by ctypes, and has the interface of `Model` as far as a library of C can.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.calls import PublicNames
from autotune.codec import from_json
from autotune.dtypes import numpy_dtype
from autotune.errors import ArtifactError, UsageError
from autotune.extent import Extent, Extents, Length
from autotune.former_names import renamed
from autotune.graph.texts import Texts
from autotune.network.artifact.artifact import Endpoint
from autotune.network.artifact.numbers import fronts, variant_of
from autotune.network.artifact.variants import VariantChoice
from autotune.network.runtime.arguments import Inputs, as_array
from autotune.network.runtime.border import Border

Array = NDArray[Any]
_OTHER_CPU = 1


class _Options(ctypes.Structure):
    _fields_ = (
        ("threads", ctypes.c_int),
        ("callers", ctypes.c_int),
        ("any_cpu", ctypes.c_int),
        ("weights", ctypes.c_char_p),
    )


@dataclass(frozen=True, slots=True)
class LibraryPort:
    """An input or output: its shapes in all variants; `is_fixed`: they are one.

    `extents`: with lengths, those of its dimensions; `shapes` are the longest then. `written`: of
    an output some of whose lengths the network writes.
    """

    name: str
    dtype: np.dtype[Any]
    shapes: tuple[tuple[int, ...], ...]
    is_fixed: bool
    extents: tuple[Extents, ...] = ()
    written: Extents = ()

    def end(self, variant: int) -> Endpoint:
        """The port in a variant."""
        extents = self.extents[variant] if self.extents else ()
        return Endpoint(
            self.name,
            self.shapes[variant],
            self.dtype.name,
            0,
            extents=extents,
            written=self.written,
        )


class ExportedModel(PublicNames):
    """A network in a library of C. Threads may call it at once: `callers` at a time, others wait.

    Raises ArtifactError for a file that is no such library, or is for another CPU.
    """

    @renamed("0.3", n_threads="threads")
    def __init__(self, path: str | Path, threads: int | None = None, callers: int = 1) -> None:
        self.path = Path(path).resolve()
        name = self.path.name.removeprefix("lib").split(".")[0]
        try:
            self._library = ctypes.CDLL(str(self.path))
            text = self._function(f"{name}_signature", ctypes.c_char_p)()
        except (OSError, AttributeError) as error:
            raise ArtifactError(
                f"'{path}' is no library written by autotune: {error}",
                "give a libNAME.so of export",
            ) from error
        self.signature: dict[str, Any] = json.loads(text)
        if "capacity" in self.signature:
            raise ArtifactError(
                f"'{path}' has a state, which programs in C keep",
                "in Python load the artifact: `autotune.load(FILE).session()`",
            )
        self._error = self._function(f"{name}_strerror", ctypes.c_char_p, ctypes.c_int)
        self._run = self._function(f"{name}_run", ctypes.c_int, *[ctypes.c_void_p] * 3)
        self.input_info = tuple(map(_port, self.signature["inputs"]))
        self._results_info = tuple(map(_port, self.signature["outputs"]))
        self._written: Mapping[str, str] = self.signature.get("written", {})
        hidden = set(self._written.values())
        self.output_info = tuple(p for p in self._results_info if p.name not in hidden)
        n_variants = min((len(port.shapes) for port in self.input_info), default=1)
        self._sides = [[port.end(k) for port in self.input_info] for k in range(n_variants)]
        self._has_lengths = any(port.extents for port in self.input_info)
        self._choice = VariantChoice(
            [{port.name: port.shapes[k] for port in self.input_info} for k in range(n_variants)]
        )
        texts = self.signature.get("texts")
        self._border = None if texts is None else Border(from_json(Texts, texts))
        self._handle = ctypes.c_void_p()
        create = self._function(f"{name}_create", ctypes.c_int, *[ctypes.c_void_p] * 2)
        options = _Options(threads=threads or 0, callers=callers)
        self._require(create(ctypes.byref(options), ctypes.byref(self._handle)))
        destroy = self._function(f"{name}_destroy", None, ctypes.c_void_p)
        end = weakref.finalize(self, destroy, self._handle)
        end.atexit = False

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Outputs of one inference by name; `inputs`: arrays by name or in order.

        Raises UsageError where names, shapes or dtypes do not fit.
        """
        if self._border is None:
            return self._outputs(inputs)
        given = self._named(inputs)
        numbers, new = self._border.numbers(given)
        return self._border.texts(self._outputs(numbers), new)

    def _outputs(self, inputs: Inputs) -> dict[str, Array]:
        arrays = self._checked(inputs)
        named = {p.name: a for p, a in zip(self.input_info, arrays, strict=True)}
        ends = self._results(named)
        outputs = {end.name: np.empty(end.shape, end.numpy_dtype) for end in ends}
        words = [w for p, a in zip(self.input_info, arrays, strict=True) for w in _words(p, a)]
        given = (ctypes.c_int64 * max(len(words), 1))(*words)
        made = (ctypes.c_int64 * max(len(outputs), 1))(*(a.ctypes.data for a in outputs.values()))
        self._require(self._run(self._handle, ctypes.byref(given), ctypes.byref(made)))
        return fronts(ends, self._written, outputs) if self._written else outputs

    def __call__(self, *inputs: Any) -> Array | tuple[Array, ...]:
        """`run` for inputs in order: the output, or a tuple of several."""
        found = tuple(self.run(inputs).values())
        return found[0] if len(found) == 1 else found

    def _function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        found = getattr(self._library, name)
        found.restype, found.argtypes = result, arguments
        return found  # type: ignore[no-any-return]

    def _named(self, inputs: Inputs) -> Mapping[str, Any]:
        names = [port.name for port in self.input_info]
        return inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=False))

    def _checked(self, inputs: Inputs) -> list[Array]:
        given, names = self._named(inputs), [port.name for port in self.input_info]
        if given.keys() != set(names) or len(inputs) != len(names):
            wanted = ", ".join(f"'{name}'" for name in names)
            raise UsageError("other inputs are given than the model has", f"they are {wanted}")
        return [_fitting(port, given[port.name]) for port in self.input_info]

    def _results(self, arrays: Mapping[str, Array]) -> list[Endpoint]:
        """The outputs for these inputs. Raises UsageError where their shapes do not fit."""
        if not self._has_lengths:
            variant = self._variant(arrays)
            return [port.end(variant) for port in self._results_info]
        shapes = {name: array.shape for name, array in arrays.items()}
        variant, numbers = variant_of(self._sides, shapes)
        return [port.end(variant).at(numbers) for port in self._results_info]

    def _variant(self, arrays: Mapping[str, Array]) -> int:
        number = self._choice.number(arrays)
        if number is None:
            raise self._choice.error(arrays)
        for port in self.input_info:
            shape, wanted = arrays[port.name].shape, port.shapes[number]
            if shape != wanted:
                raise UsageError(
                    f"input '{port.name}' has shape {shape}, expected {wanted}",
                    "give an array of that shape",
                )
        return number

    def _require(self, status: int) -> None:
        if status:
            text = self._error(status).decode()
            hint = "export it for this CPU" if status == _OTHER_CPU else "export it anew"
            raise ArtifactError(f"'{self.path}': {text}", hint)


def _port(data: Mapping[str, Any]) -> LibraryPort:
    shapes = tuple(tuple(shape) for shape in data["shapes"])
    extents = tuple(tuple(map(_extent, one)) for one in data.get("extents", ()))
    written = tuple(map(_extent, data.get("written", ())))
    dtype = numpy_dtype(data["dtype"])
    return LibraryPort(data["name"], dtype, shapes, data["fixed"], extents, written)


def _extent(data: Any) -> Extent:
    return from_json(Length, data) if isinstance(data, dict) else int(data)


def _fitting(port: LibraryPort, value: Any) -> Array:
    array = value if isinstance(value, np.ndarray) else as_array(port.name, value)
    if array.dtype != port.dtype:
        raise UsageError(
            f"input '{port.name}' has dtype {array.dtype}, expected {port.dtype}",
            f"convert it: array.astype('{port.dtype}')",
        )
    return np.require(array, requirements=["C", "A"])


def _words(port: LibraryPort, array: Array) -> tuple[int, ...]:
    """Fields of the record of inputs: the address, then the shape where variants differ in it."""
    return (array.ctypes.data, *(() if port.is_fixed else array.shape))
