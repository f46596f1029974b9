"""Calls that go straight into machine code: what they take, and what they leave to Python."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import AutotuneError, Model, Task, te
from autotune.extent import Length
from tests.network.sized_networks import IN, OUT, drawn, sized_artifact

Array = NDArray[Any]
SHAPE = (4, 6)


def mixed() -> tuple[te.Tensor, te.Tensor]:
    a, n = te.placeholder(SHAPE, "a"), te.placeholder(SHAPE, "n", "int32")
    twice = te.compute(SHAPE, lambda i, j: a[i, j] * 2, "twice")
    return twice, te.compute(SHAPE, lambda i, j: n[i, j] + 1, "next")


@pytest.fixture(scope="module")
def model() -> Model:
    return Task(mixed, (), threads=1).build().model


@pytest.fixture(scope="module")
def usual(model: Model) -> Model:
    """The same without direct calls."""
    other = Model(model.artifact, 1)
    other._direct = None
    return other


def floats() -> Array:
    return np.arange(24, dtype=np.float32).reshape(SHAPE)


def integers() -> Array:
    return np.arange(24, dtype=np.int32).reshape(SHAPE)


def unaligned(array: Array) -> Array:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    found = memory[1:].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def read_only(array: Array) -> Array:
    array.setflags(write=False)
    return array


class Subclass(np.ndarray[Any, Any]):
    """An array of somebody else's."""


class Foreign:
    """An object that describes itself as something else than an array."""

    __array_struct__ = "no capsule"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return floats()


FORMS: Mapping[str, Callable[[Array], Any]] = {
    "plain": lambda a: a,
    "columns first": lambda a: np.asfortranarray(a),
    "every second": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "backwards": lambda a: a[::-1],
    "transposed": lambda a: np.ascontiguousarray(a.T),
    "flat": lambda a: a.reshape(-1),
    "more dimensions": lambda a: a.reshape(4, 6, 1),
    "one row less": lambda a: a[:3],
    "empty": lambda a: a[:0],
    "swapped bytes": lambda a: a.astype(a.dtype.newbyteorder()),
    "as the other type": lambda a: a.view(np.int32 if a.dtype == np.float32 else np.float32),
    "wider": lambda a: a.astype(np.float64),
    "bytes": lambda a: a.view("V4"),
    "unaligned": unaligned,
    "read-only": read_only,
    "subclass": lambda a: a.view(Subclass),
    "foreign": lambda a: Foreign(),
    "list": lambda a: a.tolist(),
    "scalar": lambda a: a[0, 0],
    "none": lambda a: None,
}


def result(model: Model, inputs: Any, out: Any) -> Any:
    """Outputs and what is in `out`, or the error, as text."""
    try:
        found = model.run(inputs, out)
    except AutotuneError as error:
        return str(error)
    return str({name: (type(a), a.tolist()) for name, a in found.items()}), str(out)


@pytest.mark.parametrize(("one", "other"), [*itertools.product(FORMS, ["plain", "columns first"])])
def test_arrays_of_any_form_give_what_they_give_without_direct_calls(
    model: Model, usual: Model, one: str, other: str
) -> None:
    def called(by: Model, n: int) -> Any:
        arrays = [floats(), integers(), np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.int32)]
        arrays[n] = FORMS[one](arrays[n])
        arrays[n ^ 1] = FORMS[other](arrays[n ^ 1])
        return result(by, arrays[:2], arrays[2:] if n > 1 else None)

    for n in range(4):
        assert called(model, n) == called(usual, n)


def test_names_that_do_not_fit_are_refused(model: Model, usual: Model) -> None:
    a, n = floats(), integers()
    for inputs in ({"a": a}, {"a": a, "m": n}, {"a": a, "n": n, "x": a}, [a], (a, n, a), a, 3):
        try:
            expected = result(usual, inputs, None)
        except TypeError:
            continue
        assert result(model, inputs, None) == expected
    good = {"n": n, "a": a}
    outs: list[Any] = [{"twice": a.copy()}, {"none": a}, [a.copy()], (a.copy(), n.copy(), a), a]
    for out in outs:
        assert result(model, good, out) == result(usual, good, out)


@pytest.mark.parametrize("given", ["twice", "next"])
def test_some_outputs_are_written_to_arrays_and_others_made(
    model: Model, usual: Model, given: str
) -> None:
    """Without a closer look, which takes longer than many networks."""
    feed, out = {"a": floats(), "n": integers()}, {"twice": floats(), "next": integers()}
    assert model._direct is not None
    found = model._direct(feed, {given: out[given]})
    assert found is not None
    assert found[given] is out[given]
    assert str(found) == str(usual.run(feed))


def test_outputs_that_share_memory_are_told_from_those_that_do_not(
    model: Model, usual: Model
) -> None:
    for k in range(-30, 31, 6):
        texts = []
        for by in (model, usual):
            memory = np.zeros(96, np.float32)
            memory[36:60] = 1
            a, out = memory[36:60].reshape(SHAPE), memory[36 + k : 60 + k].reshape(SHAPE)
            texts.append(result(by, [a, integers()], [out, np.zeros(SHAPE, np.int32)]))
        assert texts[0] == texts[1]
    memory = np.zeros(24, np.int32)
    both = memory.view(np.float32).reshape(SHAPE), memory.reshape(SHAPE)
    assert "share memory" in result(model, [floats(), integers()], both)


def test_an_array_that_has_changed_between_calls_is_looked_at_again(model: Model) -> None:
    a, n, twice, following = floats().copy(), integers(), floats(), integers()
    feed, out = {"a": a, "n": n}, {"twice": twice, "next": following}
    assert model.run(feed, out)["twice"] is twice
    a.resize((8, 6), refcheck=False)  # has other memory now
    assert "shape (8, 6)" in result(model, feed, out)
    a.resize(SHAPE, refcheck=False)
    a[...] = 3
    assert (model.run(feed, out)["twice"] == 6).all()
    twice.setflags(write=False)
    assert "cannot be written" in result(model, feed, out)
    twice.setflags(write=True)
    a.shape = (6, 4)
    assert "shape (6, 4)" in result(model, feed, out)


def test_results_belong_to_the_caller(model: Model) -> None:
    first = model.run([floats(), integers()])
    model.run([floats() * 0, integers() * 0])
    np.testing.assert_array_equal(first["twice"], floats() * 2)


def test_threads_that_call_one_model_get_their_own_results(model: Model) -> None:
    wrong: list[int] = []

    def work(k: int) -> None:
        a, n = floats() * k, integers() * k
        for _ in range(500):
            found = model.run({"a": a, "n": n})
            if not (np.array_equal(found["twice"], 2 * a) and np.array_equal(found["next"], n + 1)):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


ROWS = Length("rows", 40)


@pytest.fixture(scope="module")
def sized() -> Model:
    return Model(sized_artifact((Length("batch", 4), ROWS)), 1)


@pytest.fixture(scope="module")
def usual_sized(sized: Model) -> Model:
    """The same without direct calls."""
    other = Model(sized.artifact, 1)
    other._direct_code = None
    return other


SIZED_FORMS: Mapping[str, Callable[[Array], Any]] = {
    **FORMS,
    "another size": lambda a: a[:, :-1] if a.ndim > 2 else a[:-1],
    "beyond the most": lambda a: np.repeat(a, 40, axis=-2),
    "transposed": lambda a: np.ascontiguousarray(a.T),
    "more dimensions": lambda a: a[..., None],
    "scalar": lambda a: a.flat[0],
    "foreign": lambda a: memoryview(a),
}


@pytest.mark.parametrize("form", SIZED_FORMS)
def test_a_call_of_any_size_is_what_it_is_without_direct_calls(
    sized: Model, usual_sized: Model, form: str, rng: np.random.Generator
) -> None:
    """Also where memory behind the length holds what another call left."""
    b, n = int(rng.integers(1, 5)), int(rng.integers(2, 41))

    def called(by: Model, k: int, has_out: bool) -> Any:
        arrays = [*drawn(np.random.default_rng(k), b, n).values()]
        out = [np.zeros(s, np.float32) for s in ((b, n, OUT), (b, OUT), (n, IN))]
        given = [*arrays, *out]
        given[k] = SIZED_FORMS[form](given[k])
        by.spoil()
        return result(by, given[:2], given[2:] if has_out else None)

    for k in range(5):
        assert called(sized, k, k > 1) == called(usual_sized, k, k > 1)


def test_sized_calls_are_direct(sized: Model, rng: np.random.Generator) -> None:
    for b, n in ((1, 1), (4, 40), (2, 17)):
        inputs = drawn(rng, b, n)
        expected = sized.run(inputs)
        direct = sized.variant(inputs)._direct
        assert direct is not None
        out = {"s": np.zeros((b, OUT), np.float32)}
        for given in (None, out):
            found = direct(inputs, given)
            assert found is not None
            assert str(found) == str(expected)
        assert found["s"] is out["s"]


def test_a_network_with_windows_is_called_directly(rng: np.random.Generator) -> None:
    """Its parts of a result are copied by machine code as well."""
    model = Model(sized_artifact((2, ROWS)), 1).sized({"rows": 5})
    z = rng.standard_normal((5, IN)).astype(np.float32)
    x = rng.standard_normal((2, 5, IN)).astype(np.float32)
    assert (model.run([x, z])["same"] == z).all()
    assert model._direct is not None
    both = model._direct([x, z], {"same": z})
    assert both is None  # an input and an output share memory
