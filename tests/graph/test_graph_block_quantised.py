"""Weights in blocks of few bits, in every form of the operators of com.microsoft: the numbers of
ONNX Runtime."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper, save

from autotune.errors import AutotuneError
from autotune.graph.network import Network, build_network
from autotune.loopir.lower import lower
from autotune.search.defaults import default_candidate
from autotune.target import host_target
from autotune.te.evaluate import evaluate
from tests.graph.onnx_models import Array, execute, onnxruntime_outputs
from tests.schedule.running import assert_computes, random_inputs

pytestmark = pytest.mark.target

pytest.importorskip("onnxruntime")
N = 8


def model(
    op: str, names: list[str], x: Array, constants: Mapping[str, Array], attrs: Mapping[str, Any]
) -> ModelProto:
    """One operator of com.microsoft that reads `x` and constants."""
    nodes = [helper.make_node(op, names, ["y"], "n", domain="com.microsoft", **attrs)]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype("f")), None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def assert_same(proto: ModelProto, x: Array, folder: Path) -> Network:
    """The output is that of ONNX Runtime; the network, to look at its constants."""
    save(proto, folder / "model.onnx")
    network = build_network(folder / "model.onnx")
    found = execute(network, {"x": x})["y"]
    want = onnxruntime_outputs(proto, {"x": x})["y"]
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    return network


def positive(rng: np.random.Generator, *shape: int) -> Array:
    return (0.5 + rng.random(shape)).astype(np.float32)


GROUPS: Mapping[str, Callable[[np.random.Generator, int, int], Array]] = {
    "sorted": lambda rng, k, block: np.arange(k) // block,
    "permuted": lambda rng, k, block: rng.permutation(np.arange(k) // block),
    "uneven": lambda rng, k, block: rng.integers(0, -(-k // block), k),
}
FORMS = [
    *((bits, 80, 32, None, zeros) for bits in (2, 4, 8) for zeros in ("", "packed", "float")),
    *((4, 96, 32, groups, zeros) for groups in GROUPS for zeros in ("", "packed")),
    *((4, 272, block, None, "") for block in (16, 64, 128, 256)),
    (8, 80, 16, "permuted", "float"),
]


@pytest.mark.parametrize(("bits", "k", "block", "groups", "zeros"), FORMS)
@pytest.mark.parametrize("rows", [1, 3])
def test_products(
    rng: np.random.Generator,
    bits: int,
    k: int,
    block: int,
    groups: str | None,
    zeros: str,
    rows: int,
    tmp_path: Path,
) -> None:
    n_blocks = -(-k // block)
    constants = {
        "b": rng.integers(0, 256, (N, n_blocks, block * bits // 8)).astype(np.uint8),
        "s": positive(rng, N, n_blocks),
        "bias": positive(rng, N),
    }
    if zeros == "float":
        constants["z"] = positive(rng, N, n_blocks) * (1 << (bits - 1))
    elif zeros:
        constants["z"] = rng.integers(0, 256, (N, -(-n_blocks * bits // 8))).astype(np.uint8)
    if groups:
        constants["g"] = GROUPS[groups](rng, k, block).astype(np.int32)
    names = ["x", "b", "s", *(n if n in constants else "" for n in ("z", "g")), "bias"]
    attrs = {"K": k, "N": N, "bits": bits, "block_size": block}
    x = rng.standard_normal((rows, k)).astype(np.float32)
    proto = model("MatMulNBits", names, x, constants, attrs)
    save(proto, tmp_path / "model.onnx")
    network = build_network(tmp_path / "model.onnx")
    found, want = execute(network, {"x": x})["y"], of_definition(x, constants, attrs)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6 * np.abs(want).max())
    if not zeros or (not groups and (bits, zeros) != (8, "float")):
        # ONNX Runtime refuses the others, or reads other zero points where columns are in groups
        assert_same(proto, x, tmp_path)
    n_stored = 2 * n_blocks if groups == "uneven" else n_blocks
    stored = sum(a.nbytes for c in network.calls for a in c.constants.values())
    order = 8 * n_stored * block if groups else 0
    assert stored <= N * n_stored * (block * bits // 8 + 8) + order + 4 * N + 64


def of_definition(x: Array, constants: Mapping[str, Array], attrs: Mapping[str, int]) -> Array:
    """x · ((q - zero) · scale)ᵀ + bias, scales and zero points those of a column's group."""
    k, n, bits, block = (attrs[name] for name in ("K", "N", "bits", "block_size"))

    def numbers(packed: Array) -> Array:
        wide = (packed[..., None] >> np.arange(0, 8, bits)) & ((1 << bits) - 1)
        return wide.reshape(n, -1)

    q, scale = numbers(constants["b"])[:, :k], constants["s"].astype(np.float64)
    zero = constants.get("z", np.full(scale.shape, 1 << (bits - 1)))
    zero = numbers(zero)[:, : scale.shape[1]] if zero.dtype == np.uint8 else zero
    group = constants.get("g", np.arange(k) // block)
    result: Array = x @ ((q - zero[:, group]) * scale[:, group]).T + constants["bias"]
    return result


@pytest.mark.parametrize(
    ("bits", "k", "block", "zeros"),
    [
        (4, 80, 32, False),
        (4, 256, 128, True),
        (8, 96, 32, True),
        (8, 64, 16, False),
        (2, 64, 32, 1),
    ],
)
def test_products_with_data_in_bytes(
    rng: np.random.Generator, bits: int, k: int, block: int, zeros: bool, tmp_path: Path
) -> None:
    n_blocks = -(-k // block)
    x = rng.standard_normal((2, 3, k)).astype(np.float32)
    x[0, 0, :block] = 0.0
    x[0, 1, :block] *= 1e-38
    attrs = {"K": k, "N": N, "bits": bits, "block_size": block, "accuracy_level": 4}
    constants = {
        "b": rng.integers(0, 256, (N, n_blocks, block * bits // 8)).astype(np.uint8),
        "s": positive(rng, N, n_blocks),
        "bias": positive(rng, N),
    }
    if zeros:
        constants["z"] = rng.integers(0, 256, (N, -(-n_blocks * bits // 8))).astype(np.uint8)
    names = ["x", "b", "s", "z" if zeros else "", "", "bias"]
    network = assert_same(model("MatMulNBits", names, x, constants, attrs), x, tmp_path)
    found = execute(network, {"x": x})["y"]
    exact = of_definition(x.astype(np.float64), constants, attrs)
    assert (np.abs(found - exact) <= rounding_of_data(x, constants, attrs)).all()
    want = of_definition(rounded(x, block), constants, attrs)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-6 * np.abs(want).max())
    product = next(c for c in network.calls if "bytedot" in str(network.tasks[c.task]))
    dag = network.tasks[product.task]
    inputs = random_inputs(dag) | dict(product.constants)
    program = lower(dag, default_candidate(dag, host_target(), 1).steps)
    assert_computes(program, inputs, evaluate(dag, inputs), host_target(), (1,))


def rounded(x: Array, block: int) -> Array:
    """The data that bytes stand for, in float64: halves to even, of m/127 in each block."""
    n_more = -x.shape[-1] % block
    blocks = np.pad(x, [(0, 0), (0, 0), (0, n_more)]).reshape(*x.shape[:2], -1, block)
    largest = np.abs(blocks).max(-1, keepdims=True)
    is_zero = largest < 2.0**-119
    factor = np.float32(127) / np.where(is_zero, np.float32(np.inf), largest)
    steps = np.rint(blocks * factor).astype(np.float64)
    found: Array = (steps * largest / 127).reshape(*x.shape[:2], -1)[..., : x.shape[-1]]
    return found


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
def test_scales_stay_as_small_as_the_model_has_them(
    rng: np.random.Generator, kind: str, tmp_path: Path
) -> None:
    k, n, dtype = 1024, 544, np.dtype(getattr(ml_dtypes, kind, kind))
    scales = positive(rng, n, k // 32).astype(dtype).astype(np.float32)
    constants = {"b": rng.integers(0, 256, (n, k // 32, 16)).astype(np.uint8), "s": scales}
    attrs = {"K": k, "N": n, "bits": 4, "block_size": 32, "accuracy_level": 4}
    x = rng.standard_normal((2, k)).astype(np.float32)
    network = assert_same(model("MatMulNBits", ["x", "b", "s"], x, constants, attrs), x, tmp_path)
    assert dtype in [a.dtype for call in network.calls for a in call.constants.values()]


def rounding_of_data(x: Array, constants: Mapping[str, Array], attrs: Mapping[str, int]) -> Array:
    """The largest errors of outputs when data are rounded to bytes, block by block.

    No value moves by more than half a step of its block, m/254.
    """
    k, block = attrs["K"], attrs["block_size"]
    padded = np.pad(np.abs(x), [(0, 0), (0, 0), (0, -k % block)])
    largest = padded.reshape(*x.shape[:2], -1, block).max(-1).repeat(block, -1)[..., :k]
    weights = of_definition(np.eye(k), {**constants, "bias": np.zeros(N)}, attrs)
    errors: Array = largest / 254 @ np.abs(weights) + 1e-4
    return errors


def test_data_stay_floats_where_columns_are_in_groups(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    x = rng.standard_normal((2, 64)).astype(np.float32)
    attrs = {"K": 64, "N": N, "bits": 4, "block_size": 32, "accuracy_level": 4}
    constants = {
        "b": rng.integers(0, 256, (N, 2, 16)).astype(np.uint8),
        "s": positive(rng, N, 2),
        "g": rng.permutation(np.arange(64, dtype=np.int32) // 32),
        "bias": np.zeros(N, np.float32),
    }
    save(model("MatMulNBits", ["x", "b", "s", "", "g"], x, constants, attrs), tmp_path / "m.onnx")
    found = execute(build_network(tmp_path / "m.onnx"), {"x": x})["y"]
    np.testing.assert_allclose(found, of_definition(x, constants, attrs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("k", "block"), [(64, 16), (96, 64)])
def test_products_with_sixteen_values(
    rng: np.random.Generator, kind: int, k: int, block: int, tmp_path: Path
) -> None:
    constants = {
        "b": rng.integers(0, 256, N * k // 2).astype(np.uint8),
        "s": positive(rng, -(-N * k // block)),
    }
    attrs = {"K": k, "N": N, "block_size": block, "quant_type": kind}
    x = rng.standard_normal((3, k)).astype(np.float32)
    network = assert_same(model("MatMulBnb4", ["x", "b", "s"], x, constants, attrs), x, tmp_path)
    (call,) = network.calls
    assert sum(a.nbytes for a in call.constants.values() if a.dtype == np.uint8) == N * k // 2


TABLES = [
    *(("uint8", bits, (50, 64), 0, 1, zeros) for bits in (4, 8) for zeros in (True, False)),
    *((kind, 4, (50, 64), 0, 1, zeros) for kind in ("int4", "uint4") for zeros in (True, False)),
    ("int4", 4, (3, 10, 32), 1, 2, True),
    ("uint4", 4, (40, 6), 1, 0, True),
]


@pytest.mark.parametrize(("kind", "bits", "shape", "axis", "along", "zeros"), TABLES)
def test_rows_of_tables(
    rng: np.random.Generator,
    kind: str,
    bits: int,
    shape: tuple[int, ...],
    axis: int,
    along: int,
    zeros: bool,
    tmp_path: Path,
) -> None:
    block = 16
    extents = tuple(-(-n // block) if d == along else n for d, n in enumerate(shape))
    low = -8 if kind == "int4" else 0
    q, z = (rng.integers(low, low + (1 << bits), s) for s in (shape, extents))
    constants = {"q": table(q, kind, bits), "s": positive(rng, *extents)}
    names = ["q", "x", "s"]
    if zeros:
        constants["z"] = table(z, kind, bits)
        names.append("z")
    attrs = {"gather_axis": axis, "quantize_axis": along, "block_size": block, "bits": bits}
    x = np.array([[0, 1, shape[axis] - 1], [-1, 2, 2]])
    proto = model("GatherBlockQuantized", names, x, constants, attrs)
    network = assert_same(proto, x, tmp_path)
    (call,) = network.calls
    stored = max(a.nbytes for a in call.constants.values() if a.dtype == np.uint8)
    assert stored == q.size * bits // 8 or axis == len(shape) - 1


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("zeros", [False, True])
def test_a_tied_table_is_there_once(
    rng: np.random.Generator, level: int, zeros: bool, tmp_path: Path
) -> None:
    n, k, block = 2048, 96, 32
    q, z = (rng.integers(0, 16, (n, m)) for m in (k, k // block))
    constants = {"q": table(q, "uint8", 4), "s": positive(rng, n, k // block)}
    if zeros:
        padded = np.concatenate([z, np.zeros((n, 1), int)], axis=1)
        constants["z"] = table(padded, "uint8", 4)
    weights = constants | {"b": constants["q"].reshape(n, k // block, block // 2)}
    weights["m"] = positive(rng, k)
    more = ["z"] if zeros else []
    attrs = {"block_size": block, "bits": 4}
    look = {"gather_axis": 0, "quantize_axis": 1, **attrs}
    product = {"N": n, "K": k, "accuracy_level": level, **attrs}
    nodes = [
        helper.make_node(op, names, [made], made, domain="com.microsoft", **own)
        for op, names, made, own in (
            ("GatherBlockQuantized", ["q", "x", "s", *more], "rows", look),
            ("MatMulNBits", ["data", "b", "s", *more], "y", product),
        )
    ]
    nodes.insert(1, helper.make_node("Mul", ["rows", "m"], ["data"]))  # data in bytes without ties
    x = np.array([[0, 1, n - 1, -5, 77]])
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 7, x.shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(a, name) for name, a in weights.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    network = assert_same(proto, x, tmp_path)
    arrays = [a for call in network.calls for a in call.constants.values()]
    first, *others = [a for a in arrays if a.nbytes >= q.size // 2]
    assert others
    assert all(np.shares_memory(first, a) for a in others)


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("block", [32, 64])
def test_weights_are_converted_once_as_long_as_somebody_holds_them(
    rng: np.random.Generator, level: int, block: int, tmp_path: Path
) -> None:
    n, n_blocks = 2048, 3
    packed = rng.integers(0, 256, (n, n_blocks, block // 2), dtype=np.uint8)
    attrs = {"N": n, "K": n_blocks * block, "bits": 4, "block_size": block}
    x = rng.standard_normal((2, n_blocks * block)).astype(np.float32)
    constants: dict[str, Array] = {"b": packed, "s": positive(rng, n, n_blocks)}
    proto = model("MatMulNBits", ["x", "b", "s"], x, constants, {**attrs, "accuracy_level": level})
    path = tmp_path / "model.onnx"
    save(proto, path)

    def weights() -> Array:
        arrays = [a for call in build_network(path).calls for a in call.constants.values()]
        return next(a for a in arrays if a.nbytes == packed.nbytes)

    first, again = weights(), weights()
    assert np.shares_memory(first, again)
    with pytest.raises(ValueError, match="read-only"):
        again += again
    kept = weakref.ref(first if first.base is None else first.base)
    del first, again
    gc.collect()
    assert kept() is None


def table(q: Array, kind: str, bits: int) -> Array:
    """Integers as an operand holds them: two of 4 bits in a byte, or of a type of their own."""
    if kind != "uint8":
        return q.astype(getattr(ml_dtypes, kind))
    q = q.astype(np.uint8)
    return q[..., 0::2] | (q[..., 1::2] << 4) if bits == 4 else q


@pytest.mark.parametrize(
    "kind", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float4_e2m1fn"]
)
def test_weights_of_small_floats_stay_small(
    rng: np.random.Generator, kind: str, tmp_path: Path
) -> None:
    w = rng.integers(0, 256, (64, 24)).astype(np.uint8)
    values = (w & 15 if "4_" in kind else w).view(getattr(ml_dtypes, kind))
    values = np.where(np.isfinite(values.astype(np.float32)), values, values.dtype.type(0.5))
    x, scale = rng.standard_normal((3, 64)).astype(np.float32), positive(rng, 4, 24)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["real"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "real"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(values, "w"), numpy_helper.from_array(scale, "s")]
    ports = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", (3, 64)), ("y", (3, 24)))]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    save(proto, tmp_path / "model.onnx")
    network = build_network(tmp_path / "model.onnx")
    real = values.astype(np.float64) * np.repeat(scale, 16, axis=0)
    want = x.astype(np.float64) @ real
    found = execute(network, {"x": x})["y"]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())
    (call,) = network.calls
    stored = [a.nbytes for a in call.constants.values() if a.dtype.kind in "iu"]
    assert stored == [w.size // (2 if "4_" in kind else 1)]
    dag = network.tasks[call.task]
    inputs = random_inputs(dag) | dict(call.constants)
    program = lower(dag, default_candidate(dag, host_target(), 1).steps)
    assert_computes(program, inputs, evaluate(dag, inputs), host_target(), (1,))


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        ({"b": np.zeros((N, 2, 15), np.uint8)}, "blocks of 32"),
        ({"g": np.full(64, 2, np.int32)}, "g_idx"),
    ],
)
def test_what_does_not_fit_is_refused(
    rng: np.random.Generator, more: dict[str, Array], hint: str, tmp_path: Path
) -> None:
    constants = {"b": np.zeros((N, 2, 16), np.uint8), "s": positive(rng, N, 2), **more}
    names = ["x", "b", "s", "", "g" if "g" in constants else ""]
    attrs = {"K": 64, "N": N, "bits": 4, "block_size": 32}
    x = np.zeros((1, 64), np.float32)
    save(model("MatMulNBits", names, x, constants, attrs), tmp_path / "model.onnx")
    with pytest.raises(AutotuneError, match=hint):
        build_network(tmp_path / "model.onnx")


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_filters_of_small_floats_keep_their_fractions(
    rng: np.random.Generator, kind: str, tmp_path: Path
) -> None:
    dtype = getattr(ml_dtypes, kind)
    w = rng.standard_normal((5, 3, 3)).astype(dtype)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
        helper.make_node("Conv", ["x", "d"], ["y"]),
    ]
    x = rng.standard_normal((1, 3, 9)).astype(np.float32)
    tensors = [numpy_helper.from_array(a, n) for n, a in (("w", w), ("s", np.array(0.5, "f4")))]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info("y", 1, (1, 5, 7))],
        tensors,
    )
    imports = [helper.make_opsetid("", 21)]
    save(helper.make_model(graph, opset_imports=imports, ir_version=10), tmp_path / "m.onnx")
    found = execute(build_network(tmp_path / "m.onnx"), {"x": x})["y"]
    windows = np.lib.stride_tricks.sliding_window_view(x[0], 3, 1)
    want = np.einsum("cok,nck->no", windows, 0.5 * w.astype(np.float32))
    np.testing.assert_allclose(found[0], want, rtol=1e-5, atol=1e-5)
