"""Ensembles of decision trees: what files say of them, and the tables that programs read.

A `Forest` has nodes by number; `tables_of` writes every tree as words of up to 32 leaves, from left
to right, and tests that rule leaves out. All tests are one comparison, `key[column] <= threshold`:

    x <= t, x < t       the key of x (`TreeKeys`) against that of t, or of the number below
    x > t, x >= t       the same with the branches exchanged
    x == t, x in set    a column of its own that is 1 where it holds and else 0 (`Members`)
    NaN                 the largest key where its branch is the second one, the smallest elsewhere

A test that fails rules out the leaves of its first branch. Leaves of the second branch that are in
later words than all of the first need a test of their own: of the negated key, which fails where
the first one holds. So of all words of a tree one alone is not empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

WORD_BITS = 32
MOST_LEAVES = 1 << 22
"""Leaves of all trees; more would be tables of gigabytes."""
_MOST_SHARED = 4
"""Times that a node may occur on average: branches may be shared, which multiplies leaves."""
_LEAF = "LEAF"
_EXCHANGED = ("BRANCH_GT", "BRANCH_GTE", "BRANCH_EQ", "BRANCH_MEMBER")
"""Modes whose first branch is the one of rows that fail."""
_OF_SETS = ("BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_LEAST_TABLE = 64
"""Words that are worth a table of their own."""
_MOST_OF_HALF = 1 << 15
"""What half of the narrowest number of a node holds."""
_STEP = 4
"""Tests that a loop over tests takes at once."""


class Members(NamedTuple):
    """Whether a feature is one of some numbers, or NaN where that counts."""

    feature: int
    numbers: tuple[float, ...]
    takes_nan: bool


@dataclass(frozen=True)
class Forest:
    """Nodes by number; `weights`: of a leaf, by target. `first`, `second`: branches of a test."""

    feature: Sequence[int]
    mode: Sequence[str]
    value: Sequence[float]
    missing: Sequence[bool]
    true: Sequence[int]
    false: Sequence[int]
    weights: Mapping[int, Mapping[int, float]]
    roots: Sequence[int]
    sets: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[int, ...]:
        """Those for which any leaf has a weight."""
        return tuple(sorted({t for w in self.weights.values() for t in w}))


class Walk(NamedTuple):
    """Nodes [m, 2]: the step to the first branch in the upper half, which the second one follows,
    and column in the lower half; threshold. Leaves stay.

    `values` [m, k]. `roots` [g, t, 1]: of trees of about one depth, of which `depths` tells the
    steps.
    """

    nodes: Array
    values: Array
    roots: list[Array]
    depths: tuple[int, ...]


class Tables(NamedTuple):
    """Words [g, v] of all trees; `n`: tests of one, `k`: targets of a group.

    `feature`, `absent`, `flip` [c]: columns. `tests`: for consecutive words, column, threshold and
    leaves [g, v, n]. `values` [g, v, k, 32]. `targets`: g·k numbers.
    """

    feature: Array
    absent: Array
    flip: Array
    tests: list[tuple[Array, Array, Array]]
    values: Array
    several: bool
    targets: tuple[int, ...]
    walk: Walk


class Malformed(ValueError):
    """Attributes that describe no trees."""


_Test = tuple[int, int, int]
"""Column, threshold, and the leaves that remain where it fails."""


class _Writer:
    """The tables while they grow."""

    def __init__(self, forest: Forest, dtype: str, n_features: int) -> None:
        self.forest, self.kind = forest, np.dtype(dtype)
        self.bits = np.dtype(f"i{self.kind.itemsize}")
        self.low, self.high = (int(f(self.bits)) for f in (_low, _high))
        self.n_features = n_features
        self.columns: dict[tuple[int, int, int], int] = {}
        self.members: dict[Members, int] = {}
        self.n_leaves = 0
        self.most_leaves = min(MOST_LEAVES, _MOST_SHARED * len(forest.mode) + WORD_BITS)

    def column(self, feature: int, absent: int, flip: int) -> int:
        return self.columns.setdefault((feature, absent, flip), len(self.columns))

    def test(self, n: int) -> tuple[int, int, int, int, int]:
        """Feature, key of NaN, threshold, first and second branch of node `n`."""
        f = self.forest
        mode, value, missing, feature = f.mode[n], f.value[n], f.missing[n], f.feature[n]
        if not 0 <= feature < self.n_features:
            raise Malformed(f"feature {feature} of {self.n_features}")
        is_exchanged = mode in _EXCHANGED
        branches = (f.false[n], f.true[n]) if is_exchanged else (f.true[n], f.false[n])
        if mode in _OF_SETS:
            numbers = f.sets.get(n, (value,))
            asked = Members(feature, numbers, missing and mode != "BRANCH_NEQ")
            feature = self.n_features + self.members.setdefault(asked, len(self.members))
            return feature, self.high, self.key(0.5), *branches
        absent = self.low if missing != is_exchanged else self.high
        if value != value:  # nothing is less or equal, and nothing more
            return feature, absent, self.high - 1 if is_exchanged else self.low, *branches
        below = mode in ("BRANCH_LT", "BRANCH_GTE")
        return feature, absent, self.key(value) - below, *branches

    def key(self, value: float) -> int:
        """The integer of a number in the order of the numbers."""
        bits = int(np.array(value, self.kind).view(self.bits))
        return bits if bits >= 0 else 0 if bits == self.low else bits ^ self.high

    def tree(self, root: int) -> tuple[list[int], list[list[_Test]]]:
        """The leaves of a tree from left to right, and the tests of each word of them."""
        leaves: list[int] = []
        spans: list[tuple[int, int, int, int, int, int]] = []
        todo: list[tuple[Any, ...]] = [(root,)]
        while todo:
            n, *known = todo.pop()
            if not known:
                if self.forest.mode[n] == _LEAF:
                    leaves.append(n)
                    self.n_leaves += 1
                    if self.n_leaves > self.most_leaves:
                        raise Malformed("nodes that are no trees, or too many leaves")
                    continue
                *test, first, second = self.test(n)
                todo += [(n, test, second, len(leaves)), (first,)]
            elif len(known) == 3:
                test, second, begin = known
                todo += [(n, test, begin, len(leaves), None), (second,)]
            else:
                test, begin, middle, _ = known
                spans.append((*test, begin, middle, len(leaves)))
            if len(todo) > 2 * len(self.forest.mode) + 2:
                raise Malformed("nodes that are no trees")
        return leaves, self.words(spans, len(leaves))

    def words(
        self, spans: Sequence[tuple[int, int, int, int, int, int]], n_leaves: int
    ) -> list[list[_Test]]:
        words: list[list[_Test]] = [[] for _ in range(-(-n_leaves // WORD_BITS))]
        for feature, absent, threshold, begin, middle, end in spans:
            column = self.column(feature, absent, 0)
            for w in _words(begin, middle):
                words[w].append((column, threshold, _without(w, begin, middle)))
            later = [w for w in _words(middle, end) if begin < w * WORD_BITS]
            if later:
                column = self.column(feature, absent, -1)
                for w in later:
                    words[w].append((column, ~threshold - 1, _without(w, middle, end)))
        return words


def _low(bits: Any) -> int:
    return int(np.iinfo(bits).min)


def _high(bits: Any) -> int:
    return int(np.iinfo(bits).max)


def _words(begin: int, end: int) -> range:
    """Words that hold some of the leaves."""
    return range(begin // WORD_BITS, -(-end // WORD_BITS))


def _without(word: int, begin: int, end: int) -> int:
    """All bits but those of some leaves, as a number with a sign."""
    first = word * WORD_BITS
    low, high = max(begin - first, 0), min(end - first, WORD_BITS)
    bits = ~((1 << high) - (1 << low)) & 0xFFFFFFFF
    return bits - (1 << WORD_BITS) if bits >> 31 else bits


_Words = list[tuple[list[int], list[_Test]]]
"""Words of trees: leaves from left to right, and tests."""


def tables_of(
    forest: Forest, dtype: str, n_features: int, absent: float
) -> tuple[Tables, list[Members]]:
    """The tables of a forest on features of a float `dtype`, and the columns behind them.

    `absent`: value of a target for which a leaf has no weight. Raises Malformed.
    """
    writer = _Writer(forest, dtype, n_features)
    trees = [writer.tree(root) for root in forest.roots]
    targets = forest.targets or (0,)
    groups, owners = _groups(forest, targets, trees)
    own = [(t,) for t in targets] if len(groups) > 1 else [targets]
    n_words = max(1, *map(len, groups), 0)
    values = np.full((len(groups), n_words, len(own[0]), WORD_BITS), absent, dtype)
    for g, group in enumerate(groups):
        for v, (leaves, _) in enumerate(group):
            for bit, leaf in enumerate(leaves):
                for target, weight in forest.weights.get(leaf, {}).items():
                    values[g, v, own[g].index(target), bit] = weight
    listed = [[tests for _, tests in group] for group in groups]
    feature, nans, flips = np.array([*writer.columns] or [(0, writer.high, 0)], np.int64).T
    return Tables(
        feature.astype(np.int32),
        nans.astype(writer.bits),
        flips.astype(writer.bits),
        _tests(listed, n_words, writer.bits),
        values,
        any(len(words) > 1 for _, words in trees),
        targets,
        walk_of(writer, owners, own, absent),
    ), [*writer.members]


def _groups(
    forest: Forest, targets: Sequence[int], trees: Sequence[tuple[list[int], list[list[_Test]]]]
) -> tuple[list[_Words], list[int]]:
    """The words of all trees, or for each target those of its trees; most tests come first.

    And the group of each tree.

    Each target has a group where it has trees of its own, about as many as the others.
    """
    owners = [_only_target(forest, leaves) for leaves, _ in trees]
    groups: dict[int | None, _Words] = {t: [] for t in targets}
    for owner, (leaves, words) in zip(owners, trees, strict=True):
        own = ((leaves[w * WORD_BITS :][:WORD_BITS], tests) for w, tests in enumerate(words))
        groups.setdefault(owner, []).extend(own)
    every = [word for group in groups.values() for word in group]
    most = max(map(len, groups.values()))
    is_split = None not in groups and 2 * most * len(targets) <= 3 * len(every)
    found = [groups[t] for t in targets] if is_split else [every]
    places = [targets.index(t) if is_split and t is not None else 0 for t in owners]
    return [sorted(group, key=lambda word: -len(word[1])) for group in found], places


def walk_of(
    writer: _Writer, owners: Sequence[int], own: Sequence[tuple[int, ...]], absent: float
) -> Walk:
    """The walks of all trees, whose groups are `owners`; `own`: targets of a group."""
    nodes: list[tuple[int, int, int]] = []
    weights: list[int] = []
    found = [_walk(writer, root, nodes, weights) for root in writer.forest.roots]
    nodes.append((0, 0, writer.high))
    values = np.full((len(nodes), len(own[0])), absent, writer.kind)
    place = {t: k for targets in own for k, t in enumerate(targets)}
    for n, leaf in enumerate(weights):
        for target, weight in writer.forest.weights.get(leaf, {}).items():
            values[n, place[target]] = weight
    groups: list[list[tuple[int, int]]] = [[] for _ in own]
    for owner, walk in zip(owners, found, strict=True):
        groups[owner].append(walk)
    ordered = [sorted(group, key=lambda walk: -walk[1]) for group in groups]
    n_trees = max(1, *map(len, ordered), 0)
    depths = [max(g[t][1] if t < len(g) else 0 for g in ordered) for t in range(n_trees)]
    roots = np.full((len(own), n_trees, 1), len(nodes) - 1, np.int32)
    for g, group in enumerate(ordered):
        roots[g, : len(group), 0] = [root for root, _ in group]
    cuts = [0]
    for t, depth in enumerate(depths):
        deepest = depths[cuts[-1]]
        if 4 * depth <= 3 * deepest and t - cuts[-1] >= _LEAST_TABLE <= n_trees - t:
            cuts.append(t)
    ends = [*cuts[1:], n_trees]
    parts = [roots[:, begin:end] for begin, end in zip(cuts, ends, strict=True)]
    step, column, threshold = np.array(nodes, np.int64).T
    fits = max(int(step.max()), int(column.max())) < _MOST_OF_HALF
    bits, half = (writer.bits, 4 * writer.bits.itemsize) if fits else (np.dtype("i8"), 32)
    table = np.stack([(step << half) + column, threshold], 1).astype(bits)
    return Walk(table, values, parts, tuple(depths[begin] for begin in cuts))


def _walk(
    writer: _Writer, root: int, nodes: list[tuple[int, int, int]], weights: list[int]
) -> tuple[int, int]:
    """Append the nodes of a tree level by level: its root, and steps to its deepest leaf."""
    begin, depth, level = len(nodes), 0, [root]
    free = begin + 1
    while level:
        below: list[int] = []
        for n in level:
            weights.append(n)
            if writer.forest.mode[n] == _LEAF:
                nodes.append((0, 0, writer.high))
                continue
            feature, absent, threshold, first, second = writer.test(n)
            nodes.append((free - len(nodes), writer.column(feature, absent, 0), threshold))
            free += 2
            below += [first, second]
        depth, level = depth + bool(below), below
    return begin, depth


def _only_target(forest: Forest, leaves: Sequence[int]) -> int | None:
    """The target for which all leaves of a tree have a weight; None for several, and for none."""
    found = {t for n in leaves for t in forest.weights.get(n, {})}
    return found.pop() if len(found) == 1 else None


def _rounded(n_tests: int) -> int:
    return -(-n_tests // _STEP) * _STEP if n_tests > _STEP else max(n_tests, 1)


def _tests(
    groups: Sequence[Sequence[Sequence[_Test]]], n_words: int, bits: Any
) -> list[tuple[Array, Array, Array]]:
    """Tests of the words of each group, which begin with those of most tests.

    Words of fewer tests than seven eighths are in a table of their own. What is missing in one is
    a test that rules nothing out.
    """
    sizes = [
        _rounded(max(len(group[v]) if v < len(group) else 0 for group in groups))
        for v in range(n_words)
    ]
    cuts = [0]
    for v, size in enumerate(sizes):
        if 8 * size <= 7 * sizes[cuts[-1]] and v - cuts[-1] >= _LEAST_TABLE <= n_words - v:
            cuts.append(v)
    found = []
    for begin, end in zip(cuts, [*cuts[1:], n_words], strict=True):
        shape = (len(groups), end - begin, sizes[begin])
        column, leaves = np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
        threshold = np.zeros(shape, bits)
        for g, group in enumerate(groups):
            for v, tests in enumerate(group[begin:end]):
                if tests:
                    n = len(tests)
                    column[g, v, :n], threshold[g, v, :n], leaves[g, v, :n] = zip(
                        *tests, strict=True
                    )
        found.append((column, threshold, leaves))
    return found
