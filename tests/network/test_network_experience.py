"""What is known of a model's rounding: from other shapes and other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from autotune.api.compile.compiling import compile
from autotune.cache import FileStore
from autotune.network.check import oracles
from autotune.network.check.experience import Experience, Spread


def test_what_was_found_is_kept_for_others_but_for_shapes(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 1 << 20)
    first = Experience(store, "model")
    first.add("random", 1.0, {"y": Spread(1e-4, 2, 1e-5, True), "z": Spread()})
    first.add("random", 1.0, {"y": Spread(1e-5, 3, 1e-6)})
    assert first.known("random", 1.0)["y"] == Spread(1e-4, 3, 1e-5)
    assert Experience(store, "model").known("random", 1.0) == first.known("random", 1.0)
    assert not first.known("of zeros", 1.0)
    assert not Experience(store, "another").known("random", 1.0)
    assert not first.known("random", 256.0)


def test_experiments_have_a_budget_and_one_sample_in_any_case() -> None:
    now = 0.0

    def samples() -> Iterator[int]:
        nonlocal now
        for number in range(3):
            now += 25.0
            yield number

    experience = Experience(clock=lambda: now)
    assert list(experience.within_budget(samples())) == [0, 1, 2]
    assert list(experience.within_budget(samples())) == [0]


def test_a_second_shape_of_an_ill_conditioned_model_needs_no_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of numbers that nearly cancel: whoever sums in another order gets another result."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = """<ir_version: 8, opset_import: ["" : 17]>
      m (float[n,4096] x) => (float[n] y) {
      a = Exp (x) b = ReduceSum <keepdims = 0> (a, axes)
      nearly = Constant <value_float = 1.00001> () c = Mul (a, nearly)
      d = ReduceSum <keepdims = 0> (c, axes) y = Sub (d, b) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.helper.make_tensor("axes", 7, [1], [1]))
    onnx.save(model, tmp_path / "m.onnx")
    asked: list[float] = []
    rounded: Callable[..., Any] = oracles.rounded_anew

    def counted(proto: Any, seed: int, scale: float) -> Any:
        asked.append(scale)
        return rounded(proto, seed, scale)

    monkeypatch.setattr(oracles, "rounded_anew", counted)
    numbers = []
    for n in (3, 5):
        compile(tmp_path / "m.onnx", shapes={"x": (n, 4096)}, threads=1)
        numbers.append(len(asked))
    if not numbers[0]:
        pytest.skip("sums of this CPU's programs are as exact as the oracle's")
    assert numbers[1] == numbers[0]
