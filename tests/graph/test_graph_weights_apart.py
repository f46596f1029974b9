"""Reading a model without copying its weights gives what ONNX's own parser gives."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from autotune.cache import FileStore
from autotune.errors import ModelError
from autotune.graph.reader import onnx_reader
from autotune.graph.reader.onnx_reader import load_model, model_hash, read_file, read_outline


def raw(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32", name: str = "w"
) -> TensorProto:
    return numpy_helper.from_array(rng.standard_normal(shape).astype(dtype), name)


def listed(rng: np.random.Generator, name: str = "w") -> TensorProto:
    values = rng.standard_normal(2048).tolist()
    return helper.make_tensor(name, TensorProto.FLOAT, (32, 64), values)


FORMS: dict[str, Callable[[np.random.Generator], TensorProto]] = {
    "large": lambda rng: raw(rng, (32, 64)),
    "small": lambda rng: raw(rng, (4, 64)),
    "at the limit": lambda rng: raw(rng, (16, 64)),
    "double": lambda rng: raw(rng, (32, 64), "float64"),
    "half": lambda rng: raw(rng, (32, 64), "float16"),
    "integers": lambda rng: raw(rng, (32, 64), "int64"),
    "as a list": listed,
}


def model(weight: TensorProto) -> ModelProto:
    kind = weight.data_type
    ends = [
        helper.make_tensor_value_info(n, kind, (2, m))
        for n, m in (("x", weight.dims[0]), ("y", 64))
    ]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_the_same_in_every_form(
    rng: np.random.Generator, form: str, tmp_path: Path
) -> None:
    weight = FORMS[form](rng)
    path = tmp_path / "m.onnx"
    onnx.save(model(weight), path)
    found = load_model(path)
    rest = {t.name: numpy_helper.to_array(t) for t in found.proto.graph.initializer}
    expected = numpy_helper.to_array(weight)
    wide = expected.astype(np.float32) if form == "half" else expected
    np.testing.assert_array_equal((found.weights | rest)["w"], wide, strict=True)
    assert (
        numpy_helper.to_array(read_file(path).graph.initializer[0]).tobytes() == expected.tobytes()
    )
    assert read_outline(path).graph.initializer[0].dims == weight.dims


def test_the_outline_of_a_model_does_not_read_its_weights(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(raw(rng, (32, 64))), path)
    assert read_outline(path).ByteSize() < 1000 < 32 * 64 * 4 < path.stat().st_size


@pytest.mark.parametrize("n_bytes", [1, 10, 100, 200, 4000, -1])
def test_a_truncated_file_is_refused_in_one_line(
    rng: np.random.Generator, n_bytes: int, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model(raw(rng, (32, 64))).SerializeToString()[:n_bytes])
    for read in (load_model, model_hash):
        with pytest.raises(ModelError) as error:
            read(path)
        assert "\n" not in error.value.message


def test_external_weights_are_read_from_their_files(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    weight = raw(rng, (32, 64))
    expected = numpy_helper.to_array(weight)
    onnx.save(model(weight), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    np.testing.assert_array_equal(load_model(path).weights["w"], expected)
    before = model_hash(path)
    (tmp_path / "w.bin").write_bytes(expected[::-1].tobytes())
    assert model_hash(path) != before


def test_a_file_is_hashed_once_until_it_changes(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[list[Path]] = []
    hash_files = onnx_reader._hash
    monkeypatch.setattr(onnx_reader, "_hash", lambda f: hashed.append(list(f)) or hash_files(f))
    monkeypatch.setattr(onnx_reader, "_SETTLED_S", -1.0)
    store = FileStore(tmp_path / "store", 1 << 20)
    path = tmp_path / "m.onnx"
    found = []
    for _ in range(2):
        onnx.save(model(raw(rng, (32, 64))), path)
        found += [model_hash(path, store) for _ in range(3)]
        assert found[-1] == model_hash(path)
    assert len(set(found)) == 2
    assert len(hashed) == 2 + 2  # one of each content, and two without the store


def test_a_file_that_has_just_been_written_is_not_known_by_its_times(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "store", 1 << 20)
    path = tmp_path / "m.onnx"
    data = [model(raw(rng, (32, 64))).SerializeToString() for _ in range(2)]
    path.write_bytes(data[0])
    info = os.stat(path)
    first = model_hash(path, store)
    path.write_bytes(data[1])
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert model_hash(path, store) != first
