"""The weights that the benchmark of sparse weights prunes, and one of its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import sparse


def test_pruned_weights_are_zero_in_whole_blocks_or_two_of_four() -> None:
    blocks = sparse.Pruning(0.8, (4, 16)).weights(64, 64, 0).reshape(16, 4, 4, 16)
    n_left = (blocks != 0).sum(axis=(1, 3))
    assert set(np.unique(n_left)) == {0, 64}
    halves = sparse.Pruning(0.5, pattern=True).weights(64, 32, 0).reshape(16, 4, 32)
    assert ((halves != 0).sum(axis=1) == 2).all()


def test_a_pruned_layer_is_measured_beside_the_dense_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "WIDTH", 64)
    monkeypatch.setattr(sparse, "INNER", 128)
    row = sparse._layer(sparse.Pruning(0.9, (4, 16)), tmp_path, sparse.Plan(1, 0, 0.01))
    assert float(row["times_faster"]) > 0
    assert set(sparse.HEAD) | set(row) == set(sparse.FIELDS)
