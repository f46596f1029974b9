"""Views that move each row by its number: one read of moving places, equal elements."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from autotune.graph.ir import Graph, Node, TensorType
from autotune.graph.passes.driver import rewrite
from autotune.graph.passes.oblique import OBLIQUE


class Views:
    """A chain of views of `x`, and its elements by NumPy."""

    def __init__(self, *shape: int) -> None:
        self.x = self.value = np.arange(prod(shape)).reshape(shape)
        self.types, self.nodes, self.last = {"x": TensorType(shape, "int64")}, list[Node](), "x"

    def reshape(self, *shape: int) -> Views:
        return self._add("Reshape", self.value.reshape(shape))

    def slice(self, *starts: int, shape: tuple[int, ...]) -> Views:
        taken = tuple(slice(a, a + n) for a, n in zip(starts, shape, strict=True))
        return self._add("Slice", self.value[taken], starts=starts, steps=(1,) * len(starts))

    def _add(self, op: str, value: np.ndarray, **attrs: object) -> Views:
        name = f"v{len(self.nodes)}"
        self.nodes.append(Node(name, op, (self.last,), (name,), attrs))
        self.value, self.last, self.types[name] = value, name, TensorType(value.shape, "int64")
        return self

    def merged(self) -> Graph:
        """The graph behind the rule."""
        return rewrite(Graph(("x",), (self.last,), tuple(self.nodes), {}, self.types), OBLIQUE)


def places(node: Node, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The elements of an Oblique."""
    grid = np.indices(shape)
    rows, starts = node.attrs["rows"], node.attrs["starts"]
    pairs = zip(rows, starts, strict=True)
    found: np.ndarray = x[tuple(np.tensordot(row, grid, 1) + start for row, start in pairs)]
    return found


@pytest.mark.parametrize("seed", range(30))
def test_rows_that_move_are_one_read(seed: int) -> None:
    """Scores of rows over distances become those over columns, and back."""
    rng = np.random.default_rng(seed)
    heads, n = (int(k) for k in rng.integers((1, 2), (4, 12)))
    if seed % 2:
        views = Views(heads, n, 2 * n).reshape(heads, 2 * n, n)
        views = views.slice(0, 1, 0, shape=(heads, 2 * n - 1, n)).reshape(heads, n, 2 * n - 1)
        views.slice(0, 0, 0, shape=(heads, n, n))
    else:
        views = Views(heads, n, 2 * n - 1).reshape(heads, n * (2 * n - 1))
        views = views.slice(0, n - 1, shape=(heads, n * (2 * n - 2)))
        views = views.reshape(heads, n, 2 * n - 2).slice(0, 0, 0, shape=(heads, n, n - 1))
    (node,) = views.merged().nodes
    assert (node.op, node.inputs) == ("Oblique", ("x",))
    np.testing.assert_array_equal(places(node, views.x, views.value.shape), views.value)


@pytest.mark.parametrize("seed", range(30))
def test_views_of_other_kinds_stay(seed: int) -> None:
    """Dimensions that are joined, parted and cut have no moving rows."""
    rng = np.random.default_rng(seed)
    a, b, c = (int(k) for k in rng.integers(2, 6, 3))
    views = Views(a, b, c).reshape(a * b, c) if seed % 2 else Views(a * b, c)
    views = views.slice(0, 1, shape=(a * b, c - 1)).reshape(a, b, c - 1)
    views.slice(1, 0, 0, shape=(a - 1, b, c - 1))
    assert [n.op for n in views.merged().nodes] == [n.op for n in views.nodes]
