"""Plans of calls: machine code finds numbers and copies windows as the definitions in Python do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autotune.codegen.image.jit import Library
from autotune.codegen.team import ports_code
from autotune.codegen.team.native_object import ports_object
from autotune.dtypes import DTYPES as DTYPES_BY_NAME
from autotune.errors import UsageError
from autotune.extent import Extent, Length, at, longest
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.artifact.numbers import numbers_of
from autotune.network.artifact.plan import CallPlan, call_plan
from autotune.strides import dense
from autotune.target import host_target
from tests.network.sized_networks import sized_artifact

Function = Callable[..., int]
DTYPES = ("float32", "int64", "uint8", "float64", "bool")
WINDOW_BYTES, SLOT = 1 << 17, 9


@pytest.fixture(scope="module")
def code() -> dict[str, Function]:
    library = Library([ports_object(host_target())])

    def compiled(name: str) -> Function:
        n = vars(ports_code)[name].__code__.co_argcount
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * n)
        function: Any = kind(library.address(ports_code.SYMBOLS + name))
        function.library = library
        return lambda *values: int(function(*values))

    return {name: compiled(name) for name in ports_code.EXPORTED}


@pytest.fixture(scope="module")
def template() -> Artifact:
    return sized_artifact((Length("batch", 2), Length("rows", 3)))


def extents(rng: np.random.Generator, lengths: list[Length]) -> tuple[Extent, ...]:
    def one() -> Extent:
        follows = rng.integers(0, 2)
        return lengths[rng.integers(0, len(lengths))] if follows else int(rng.integers(1, 5))

    return tuple(one() for _ in range(rng.integers(0, 4)))


def drawn_lengths(rng: np.random.Generator) -> list[Length]:
    def one(name: str) -> Length:
        factor, least = int(rng.integers(1, 4)), int(rng.integers(1, 3))
        most = least + int(rng.integers(0, 5))
        return Length(name, most, factor, int(rng.integers(1 - factor, 3)), least)

    return [one(name) for name in ("b", "n", "a")[: rng.integers(1, 4)]]


def port(rng: np.random.Generator, name: str, own: tuple[Extent, ...], start: int) -> Endpoint:
    """One whose window lies in the arena from byte `start` on, its axes in any order."""
    shape = longest(own)
    order = rng.permutation(len(shape)) if rng.integers(0, 2) else range(len(shape))
    room = dense(tuple(shape[k] + int(rng.integers(0, 2)) for k in order))
    strides = dict(zip(order, room, strict=True))
    window = shape, tuple(int(strides[k]) for k in range(len(shape)))
    dtype = str(rng.choice(DTYPES))
    has = own if any(isinstance(e, Length) for e in own) else ()
    return Endpoint(name, shape, dtype, SLOT, start, window, extents=has)


def artifact_of(
    template: Artifact, lengths: list[Length], inputs: list[Endpoint], outputs: list[Endpoint]
) -> Artifact:
    """One of these ports, and of an input for each number."""
    hidden = {e.name: f"{e.name}?" for e in lengths}
    bases = [Endpoint(n, (1,), "int64", 2 + k) for k, n in enumerate(hidden.values())]
    ports = {"inputs": (*inputs, *bases), "outputs": tuple(outputs)}
    return replace(template, **ports, n_bases=SLOT + 1, lengths=hidden)


def view(arena: NDArray[Any], end: Endpoint) -> NDArray[Any]:
    """The elements of a port of one size in the arena."""
    assert end.window is not None
    shape, strides = end.window
    first = arena.view(np.uint8)[end.offset :][: end.numpy_dtype.itemsize].view(end.numpy_dtype)
    return as_strided(first, shape, [s * first.itemsize for s in strides])


def words(plan: CallPlan) -> NDArray[Any]:
    return np.array(plan.words, np.int64)


@pytest.mark.sampled(60)
@pytest.mark.parametrize("seed", range(600))
def test_arrays_of_any_size_go_into_windows_and_out_of_them(
    code: dict[str, Function], template: Artifact, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lengths = drawn_lengths(rng)
    own = [tuple(lengths), *(extents(rng, lengths) for _ in range(3))]
    ports = [port(rng, f"p{k}", e, WINDOW_BYTES * k) for k, e in enumerate(own)]
    made = artifact_of(template, lengths, ports[:2], ports[2:])
    plan = call_plan(made)
    numbers = {e.name: int(rng.integers(e.least, e.most + 1)) for e in lengths}
    sized = made.at(numbers)
    arrays = [
        rng.integers(0, 2, end.shape).astype(end.numpy_dtype)
        for end in (*sized.inputs, *sized.outputs)
    ]
    arena = rng.integers(0, 255, 5 * WINDOW_BYTES, np.uint8)
    table = np.zeros(plan.all_words, np.int64)
    table[SLOT] = arena.ctypes.data
    shapes = [np.array(array.shape or (0,), np.int64) for array in arrays]
    table[plan.arrays : plan.shapes] = [array.ctypes.data for array in arrays]
    table[plan.shapes : plan.first_room] = [shape.ctypes.data for shape in shapes]
    own_words, start = words(plan), table.ctypes.data
    w, at_shapes = own_words.ctypes.data, start + 8 * plan.shapes
    assert code["numbers_of"](w, at_shapes, start + 8 * plan.table_words) == 0
    assert table[plan.table_words :][: len(lengths)].tolist() == list(numbers.values())

    expected = arena.copy()
    for end, array in zip(sized.inputs, arrays, strict=False):
        view(expected, end)[...] = array
    code["enter"](w, start, 0)
    assert arena.tobytes() == expected.tobytes()
    told = [ctypes.c_int64.from_address(int(table[2 + k])).value for k in range(len(lengths))]
    assert told == list(numbers.values())
    code["leave"](w, start, 0)
    for k, (end, array) in enumerate(zip(sized.outputs, arrays[2:], strict=True)):
        assert array.tobytes() == view(arena, end).tobytes()
        there = np.zeros(5, np.int64)
        numbers_at = start + 8 * plan.table_words
        assert code["extents_of"](w, 2 + k, numbers_at, there.ctypes.data) == array.size
        assert tuple(there[: array.ndim]) == array.shape


REASONS = {
    ports_code.OTHER: "has shape",
    ports_code.ABOVE: "at most",
    ports_code.BELOW: "at least",
    ports_code.BETWEEN: "which no",
    ports_code.DISAGREES: "disagree",
}


@pytest.mark.sampled(100)
@pytest.mark.parametrize("seed", range(1000))
def test_shapes_that_no_number_has_are_found_as_in_python(
    code: dict[str, Function], template: Artifact, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lengths = drawn_lengths(rng)
    own = [tuple(lengths), *(extents(rng, lengths) for _ in range(2))]
    ports = [port(rng, f"p{k}", e, 0) for k, e in enumerate(own)]
    made = artifact_of(template, lengths, ports, [])
    plan = call_plan(made)
    numbers = {e.name: int(rng.integers(e.least, e.most + 1)) for e in lengths}
    given = {end.name: list(at(e, numbers)) for end, e in zip(ports, own, strict=True)}
    if rng.integers(0, 4):
        changed = given[f"p{rng.integers(0, 3)}"]
        if changed:
            changed[rng.integers(0, len(changed))] = int(rng.integers(0, 20))
    shapes = [np.array(shape or [0], np.int64) for shape in given.values()]
    addresses = np.array([shape.ctypes.data for shape in shapes], np.int64)
    found = np.zeros(4, np.int64)
    own_words = words(plan)
    wrong = code["numbers_of"](own_words.ctypes.data, addresses.ctypes.data, found.ctypes.data)
    shapes_given = {name: tuple(shape) for name, shape in given.items()}
    if not wrong:
        expected = {e.name: int(found[k]) for k, e in enumerate(lengths)}
        assert numbers_of(ports, shapes_given) == expected
        return
    with pytest.raises(UsageError, match=REASONS[wrong % ports_code.REASONS]) as failure:
        numbers_of(ports, shapes_given)
    where, axis = divmod(wrong // ports_code.REASONS, ports_code.AXES_MOST)
    assert f"'p{where}'" in str(failure.value)
    assert f"dimension {axis} " in str(failure.value) or "dimension" not in str(failure.value)


@pytest.mark.parametrize(
    ("kind", "name"), [(ports_code.HALF, "float16"), (ports_code.BFLOAT, "bfloat16")]
)
def test_halves_are_widened_and_rounded_as_numpy_does(
    code: dict[str, Function], rng: np.random.Generator, kind: int, name: str
) -> None:
    """All halves, widened in place, and float32 on, between and beside them."""
    dtype = DTYPES_BY_NAME[name].numpy
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = np.empty(bits.size, np.float32)
    at = wide.ctypes.data
    wide.view(np.uint16)[bits.size :] = bits
    code["widen"](kind, bits.size, at + bits.nbytes, at)
    expected = bits.view(dtype).astype(np.float32)
    np.testing.assert_array_equal(wide, expected)
    assert (np.signbit(wide) == np.signbit(expected)).all()

    around = np.concatenate([expected.view(np.uint32) + np.uint32(d) for d in (0, 1, 0xFFFFFFFF)])
    middle = (expected.view(np.uint32)[:-1] >> 1) + (expected.view(np.uint32)[1:] >> 1)
    drawn = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    single = np.concatenate([around, middle, middle + np.uint32(1), drawn]).view(np.float32)
    with np.errstate(all="ignore"):
        wanted = single.astype(dtype)
    address = single.ctypes.data
    code["narrow"](kind, single.size, address, address)
    found = single.view(np.uint16)[: single.size].view(dtype)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))
    assert (np.signbit(found) == np.signbit(wanted)).all()
