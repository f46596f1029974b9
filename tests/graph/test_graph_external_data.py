"""Data beside a model: through links as caches and environments have them, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from autotune.errors import ModelError
from autotune.graph.network import build_network
from autotune.graph.reader.external_data import Places, external_files, load_external, tensors_of
from autotune.graph.reader.onnx_reader import model_hash, read_file, read_outline
from tests.graph.onnx_models import execute

DATA = "model.onnx_data"
X = np.arange(64, dtype=np.float32).reshape(1, 64)
TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,64] x) => (float[1,48] y) { y = MatMul (x, w) }"""


def saved(folder: Path) -> Path:
    proto = parser.parse_model(TEXT)
    w = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(proto, folder / "model.onnx", save_as_external_data=True, location=DATA)
    return folder / "model.onnx"


def moved(path: Path, target: Path) -> None:
    """A file elsewhere, with a relative link in its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    path.symlink_to(os.path.relpath(target, path.parent))


def hub(root: Path, inside: str = "") -> Path:
    path = saved(root / "snapshots/4e5f" / inside)
    for n, name in enumerate(("model.onnx", DATA)):
        moved(path.with_name(name), root / "blobs" / (f"{n}" * 40))
    return path


def hub_with_a_model_of_its_own(root: Path) -> Path:
    path = saved(root / "snapshots/4e5f")
    moved(path.with_name(DATA), root / "blobs/1")
    return path


def link_within(root: Path) -> Path:
    path = saved(root)
    moved(root / DATA, root / "shards/weights.bin")
    return path


def hard_link(root: Path) -> Path:
    path = saved(root)
    os.link(root / DATA, root / "in another environment")
    return path


def folder_that_is_a_link(root: Path) -> Path:
    saved(root / "versions/2")
    (root / "current").symlink_to("versions/2")
    return root / "current/model.onnx"


def longer_without_a_length(root: Path) -> Path:
    path = saved(root)
    with (root / DATA).open("ab") as file:
        file.write(b"what follows")
    return stated(path, length=None)


def stated(path: Path, **told: Any) -> Path:
    """The model with other words about its data; None: without them."""
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        known = {e.key: e.value for e in tensor.external_data} | told
        del tensor.external_data[:]
        for key, value in known.items():
            if value is not None:
                tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(proto.SerializeToString())
    return path


READ: tuple[Callable[[Path], Path], ...] = (
    saved,
    hub,
    lambda root: hub(root, "onnx/fp32"),
    link_within,
    hard_link,
    folder_that_is_a_link,
    longer_without_a_length,
)


@pytest.mark.parametrize("make", READ)
@pytest.mark.parametrize("relative", [False, True])
def test_what_onnxruntime_reads_is_read(
    make: Callable[[Path], Path], relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path)
    monkeypatch.chdir(path.parent)
    path = Path(path.name) if relative else path
    (want,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": X})
    got = execute(build_network(path), {"x": X})["y"]
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    before = model_hash(path)
    data = path.parent / DATA
    data.write_bytes(bytes(data.stat().st_size))
    assert model_hash(path) != before


def test_a_model_beside_links_of_a_cache_is_read(tmp_path: Path) -> None:
    """Another file of the user's, as an optimiser writes it; ONNX Runtime refuses it."""
    assert execute(build_network(hub_with_a_model_of_its_own(tmp_path)), {"x": X})["y"].any()


def elsewhere(root: Path) -> Path:
    path = saved(root / "model")
    moved(path.with_name(DATA), root / "other/weights.bin")
    return path


def elsewhere_in_two_steps(root: Path) -> Path:
    path = elsewhere(root)
    (root / "model/link").symlink_to("../other/weights.bin")
    path.with_name(DATA).unlink()
    path.with_name(DATA).symlink_to("link")
    return path


def elsewhere_by_a_folder(root: Path) -> Path:
    path = elsewhere(root)
    path.with_name("sub").symlink_to("../other")
    return stated(path, location="sub/weights.bin")


def a_cache_that_is_none(root: Path) -> Path:
    path = saved(root / "snapshots/4e5f")
    moved(path.with_name(DATA), root / "secrets/1")
    return path


def only_the_model_is_a_link(root: Path) -> Path:
    path = saved(root / "data")
    (root / "model.onnx").symlink_to(path)
    return root / "model.onnx"


def fifo(root: Path) -> Path:
    path = saved(root)
    (root / DATA).unlink()
    os.mkfifo(root / DATA)
    return path


def loop(root: Path) -> Path:
    path = saved(root)
    (root / DATA).unlink()
    (root / DATA).symlink_to(DATA)
    return path


def shorter(root: Path) -> Path:
    path = saved(root)
    (root / DATA).write_bytes(b"0" * 100)
    return stated(path, length=None)


REFUSED: tuple[Callable[[Path], Path], ...] = (
    elsewhere,
    elsewhere_in_two_steps,
    elsewhere_by_a_folder,
    a_cache_that_is_none,
    only_the_model_is_a_link,
    fifo,
    loop,
    shorter,
    lambda root: stated(saved(root / "a/b"), location=f"../b/{DATA}"),
    lambda root: stated(saved(root), location=str(root / DATA)),
    lambda root: stated(saved(root), location="."),
    lambda root: stated(saved(root), location="\0"),
    lambda root: stated(saved(root), location="w" * 5000),
    lambda root: stated(saved(root), offset=-4),
    lambda root: stated(saved(root), offset="four"),
    lambda root: stated(saved(root), length=10**18),
    lambda root: stated(saved(root), length=-1),
    lambda root: stated(saved(root), length=4),
)


@pytest.mark.parametrize("make", REFUSED)
def test_what_leads_elsewhere_or_does_not_fit_is_refused(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="'w'") as caught:
        build_network(make(tmp_path))
    assert "\n" not in caught.value.message
    assert "truncated" not in caught.value.message


KINDS = [TensorProto.INT4, TensorProto.UINT2, TensorProto.BFLOAT16, TensorProto.DOUBLE]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 2), (64,)])
def test_without_a_length_a_tensor_has_the_bytes_of_its_shape(
    kind: int, shape: tuple[int, ...], tmp_path: Path
) -> None:
    tensor = helper.make_tensor("w", kind, shape, [1] * int(np.prod(shape)))
    want = numpy_helper.to_array(tensor).tolist()
    (tmp_path / "w.bin").write_bytes(b"before" + tensor.raw_data + _data(tensor) + b"behind")
    stripped = TensorProto(name="w", data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "6")):
        stripped.external_data.add(key=key, value=value)
    model = ModelProto()
    model.graph.initializer.append(stripped)
    load_external(model, Places.in_folder(tmp_path))
    assert numpy_helper.to_array(model.graph.initializer[0]).tolist() == want


def _data(tensor: TensorProto) -> bytes:
    """The bytes of a tensor that `make_tensor` did not make raw."""
    return (
        numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
        if not tensor.raw_data
        else b""
    )


EVERYWHERE = """<ir_version: 10, opset_import: ["": 17, "own": 1]>
g (float[2] x, bool b) => (float[2] y) {
  c = Constant <value = float[2] {1, 2}> ()
  d = If (b) <
    then_branch = t () => (float[2] u) <float[2] w = {3, 4}> { u = Add (w, x) },
    else_branch = e () => (float[2] v) {
      k = Constant <value = float[2] {5, 6}> ()
      v = Add (k, x)
    }
  >
  f = own.plus (d)
  y = Add (c, f)
}
<domain: "own", opset_import: ["": 17]>
plus (a) => (r) {
  m = Constant <value = float[2] {7, 8}> ()
  r = Add (a, m)
}"""


def test_tensors_are_found_wherever_they_lie(tmp_path: Path) -> None:
    proto = parser.parse_model(EVERYWHERE)
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [9.0])
    indices = helper.make_tensor("", TensorProto.INT64, [1], [1])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    proto.graph.node.add(op_type="Add", input=["y", "s"], output=["z"])
    proto.graph.output[0].name = "z"
    want = [numpy_helper.to_array(t).tolist() for t in tensors_of(proto)]
    assert len(want) == 6
    for n, tensor in enumerate(tensors_of(proto)):
        data = numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
        (tmp_path / f"{n}.bin").write_bytes(data)
        kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        kept.data_location = TensorProto.EXTERNAL
        kept.external_data.add(key="location", value=f"{n}.bin")
        tensor.CopyFrom(kept)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    places = Places.of(path)
    assert external_files(read_outline(path), places) == [tmp_path / f"{n}.bin" for n in range(6)]
    found = onnx.load(path, load_external_data=False)
    load_external(found, places)
    assert [numpy_helper.to_array(t).tolist() for t in tensors_of(found)] == want
    assert [t.name for t in read_file(path).graph.initializer] == ["s"]
