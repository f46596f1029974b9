"""Sums of parallel linear branches against onnxruntime, and when they become one convolution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import NodeProto

from autotune.graph.network import Network
from tests.graph.onnx_models import assert_matches, model, node

IMAGE = {"x": (1, 6, 9, 7)}


def values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def normalisation(
    rng: np.random.Generator, x: str, out: str, channels: int
) -> tuple[NodeProto, dict[str, np.ndarray]]:
    names = [f"{out}.{n}" for n in ("scale", "shift", "mean", "var")]
    constants = {n: values(rng, channels) for n in names[:3]} | {
        names[3]: np.abs(values(rng, channels)) + 1
    }
    return node("BatchNormalization", " ".join([x, *names]), out), constants


def n_convolutions(network: Network) -> int:
    return sum("Conv" in call.label for call in network.calls)


@pytest.mark.slow
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_sums_of_branches(rng: np.random.Generator, data: st.DataObject, tmp_path: Path) -> None:
    """Windows of several sizes around the same pixels, scaled and plain inputs, in any order."""
    group, per_group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    channels = group * per_group
    stride = data.draw(st.integers(1, 2))
    nodes, constants, branches = list[NodeProto](), dict[str, np.ndarray](), list[str]()
    kinds = list[str]()
    for n in range(data.draw(st.integers(2, 4))):
        others = {"scale", "plain"} - set(kinds)  # once each: several may cancel to nothing
        kind = data.draw(st.sampled_from(["conv", "conv", *sorted(others)]))
        kinds.append(kind)
        if kind == "conv" or stride > 1:
            kernel = [data.draw(st.sampled_from([1, 3, 5])) for _ in range(2)]
            steps = [data.draw(st.integers(1, 2)) for _ in range(2)]
            half = [d * (k // 2) for k, d in zip(kernel, steps, strict=True)]
            constants |= {
                f"w{n}": values(rng, channels, per_group, *kernel),
                f"b{n}": values(rng, channels),
            }
            bias = data.draw(st.sampled_from(["", f" b{n}"]))
            attrs = {"group": group, "strides": [stride] * 2, "dilations": steps}
            nodes.append(node("Conv", f"x w{n}{bias}", f"c{n}", pads=half * 2, **attrs))
            branches.append(f"c{n}")
        elif kind == "scale":
            scale, more = normalisation(rng, "x", f"s{n}", channels)
            nodes.append(scale)
            constants |= more
            branches.append(f"s{n}")
        else:
            branches.append("x")
    total = branches[0]
    for n, branch in enumerate(branches[1:]):
        pair = data.draw(st.permutations([total, branch]))
        total = f"t{n}"
        nodes.append(node(data.draw(st.sampled_from(["Add", "Sub"])), " ".join(pair), total))
    nodes.append(node("Relu", total))
    assert_matches(model(nodes, {"x": (1, channels, 7, 9)}, constants), tmp_path, 2e-5)


def test_a_block_trained_with_branches_is_one_convolution(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    identity, constants = normalisation(rng, "x", "i", 6)
    wide, more = normalisation(rng, "a", "an", 6)
    constants |= more | {"w": values(rng, 6, 6, 3, 3), "v": values(rng, 6, 6, 1, 1)}
    nodes = [
        identity,
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        wide,
        node("Conv", "x v", "b"),
        node("Add", "an b", "c"),
        node("Add", "c i", "d"),
        node("Mul", "d k", "e"),
        node("Relu", "e"),
    ]
    network = assert_matches(
        model(nodes, IMAGE, constants | {"k": values(rng, 6, 1, 1)}), tmp_path, 2e-5
    )
    assert [c.label for c in network.calls] == ["Transpose+Conv+Relu", "Transpose"]


def test_a_block_of_linear_parts_is_one_convolution(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    """x + γ·(conv(x) − norm(x)): a RepMixer."""
    norm, constants = normalisation(rng, "x", "n", 6)
    nodes = [
        norm,
        node("Conv", "x w", "a", pads=[1, 1, 1, 1], group=6),
        node("Sub", "a n", "b"),
        node("Mul", "b k", "c"),
        node("Add", "x c", "d"),
        node("Relu", "d"),
    ]
    constants |= {"w": values(rng, 6, 1, 3, 3), "k": values(rng, 6, 1, 1)}
    network = assert_matches(model(nodes, IMAGE, constants), tmp_path, 2e-5)
    assert [c.label for c in network.calls] == ["Transpose", "Conv+Relu", "Transpose"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"kernel": (1, 3), "pads": [0, 1, 0, 1]}, {"kernel": (3, 1), "pads": [1, 0, 1, 0]}),
        (
            {"kernel": (3, 3), "pads": [1] * 4},
            {"kernel": (3, 3), "pads": [2] * 4, "dilations": [2, 2]},
        ),
        ({"kernel": (3, 3), "pads": [1] * 4}, {"kernel": (3, 3), "pads": [1] * 4, "group": 2}),
    ],
    ids=["cross", "dilation", "group"],
)
def test_branches_that_stay_apart(
    rng: np.random.Generator, first: dict[str, object], second: dict[str, object], tmp_path: Path
) -> None:
    constants, nodes = dict[str, np.ndarray](), list[NodeProto]()
    for name, attrs in (("a", dict(first)), ("b", dict(second))):
        kernel = attrs.pop("kernel")
        assert isinstance(kernel, tuple)
        constants[f"w{name}"] = values(rng, 6, 6 // int(str(attrs.get("group", 1))), *kernel)
        nodes.append(node("Conv", f"x w{name}", name, **attrs))
    nodes += [node("Add", "a b", "c"), node("Relu", "c")]
    assert n_convolutions(assert_matches(model(nodes, IMAGE, constants), tmp_path, 2e-5)) == 2


def test_a_branch_that_others_read_stays(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("Conv", "x v", "b"),
        node("Add", "a b", "c"),
        node("Mul", "c a"),
    ]
    constants = {"w": values(rng, 6, 6, 3, 3), "v": values(rng, 6, 6, 1, 1)}
    assert n_convolutions(assert_matches(model(nodes, IMAGE, constants), tmp_path, 2e-5)) == 2
