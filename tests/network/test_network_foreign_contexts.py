"""Contexts that are damaged, or of something else: a line each, and the host process lives."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import autotune
from autotune.network.provider.library import digest_of
from tests.network.provider_client import Client, exported, inputs_of, parsed

FEEDS = inputs_of("lengths", 3)
OTHERS = {
    "more ports": """f (float[4] x, float[4] s, float[4] u) => (float[4] y, float[4] z)
        { y = Add(x, u) z = Add(x, s) }""",
    "another rank": """f (float[4] x, float[4] s) => (float[4] y, float[4] z)
        { y = Add(x, s) z = Mul(x, s) }""",
    "wider outputs": """f (float[3, 64] x, float[3] s) => (double[3, 64] y, double[3] z)
        { y = Cast<to = 11>(x) z = Cast<to = 11>(s) }""",
}


@dataclass(frozen=True)
class Damage:
    """`change`: what becomes of a folder. `said`: a part of the error, of one line.

    `original`: ONNX Runtime runs the model beside it where the session may fall back.
    """

    change: Callable[[Path], None]
    said: str = "autotune: "
    original: bool = True


def node(_said: str = "autotune: ", **attributes: object) -> Damage:
    """Other attributes of the node; None: without it."""

    def change(folder: Path) -> None:
        model = onnx.load(folder / "net_ctx.onnx")
        (one,) = model.graph.node
        kept = [a for a in one.attribute if a.name not in attributes]
        made = [helper.make_attribute(k, v) for k, v in attributes.items() if v is not None]
        del one.attribute[:]
        one.attribute.extend([*kept, *made])
        onnx.save(model, folder / "net_ctx.onnx")

    has_names = (
        "EPContext" not in _said
        and "notes" not in attributes
        and "onnx_model_filename" not in attributes
    )
    return Damage(change, _said, has_names)


def file(change: Callable[[Path], object], name: str = "libnet.so", is_new: bool = False) -> Damage:
    """Another file in the place of one; `is_new`: with the digest of that."""

    def changed(folder: Path) -> None:
        place = folder / name
        data = place.read_bytes()
        place.unlink()
        place.with_suffix(".before").write_bytes(data)
        change(place)
        if is_new:
            _with_digest(folder)

    return Damage(changed)


def graph(change: Callable[[onnx.GraphProto], object], said: str = "autotune: ") -> Damage:
    """Another graph around the node."""

    def changed(folder: Path) -> None:
        model = onnx.load(folder / "net_ctx.onnx")
        change(model.graph)
        onnx.save(model, folder / "net_ctx.onnx")

    return Damage(changed, said, original=False)


def original(change: Callable[[Path], object]) -> Damage:
    """No library, and something else in the place of the model beside it."""

    def changed(folder: Path) -> None:
        (folder / "libnet.so").unlink()
        (folder / "lengths.onnx").unlink()
        change(folder / "lengths.onnx")

    return Damage(changed, original=False)


def _with_digest(folder: Path) -> None:
    model = onnx.load(folder / "net_ctx.onnx")
    for a in model.graph.node[0].attribute:
        if a.name == "notes":
            _, *names = a.s.decode().split("\n")
            a.s = "\n".join([digest_of(folder / "libnet.so"), *names]).encode()
    onnx.save(model, folder / "net_ctx.onnx")


def _part(share: float, place: Path) -> int:
    data = place.with_suffix(".before").read_bytes()
    return place.write_bytes(data[: int(len(data) * share)])


def _compiled(text: str) -> Callable[[Path], None]:
    def change(place: Path) -> None:
        source = place.with_suffix(".c")
        source.write_text(text)
        subprocess.run(["cc", "-shared", "-o", place, source], check=True)

    return change


def _other(text: str, **options: Any) -> Callable[[Path], None]:
    """The library of another network in the place of this one's."""

    def change(place: Path) -> None:
        done = autotune.compile(parsed(text), check=False, **options)
        folder = place.parent / "other"
        autotune.export(done.artifact, folder, "net", cc=options.get("cc"))
        shutil.copy(folder / "libnet.so", place)

    return change


def _of_type(graph: onnx.GraphProto, n: int, kind: int) -> None:
    graph.output[n].type.tensor_type.elem_type = kind


def _renamed(graph: onnx.GraphProto) -> None:
    graph.node[0].output[0] = graph.output[0].name = "other"


def _extent(graph: onnx.GraphProto, value: int) -> None:
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = value


DAMAGES = {
    "a name that leaves the folder": node(ep_cache_context="../out/libnet.so"),
    "a name that leaves it within": node(ep_cache_context="a/../../out/libnet.so"),
    "a path of the system": node(ep_cache_context="/etc/passwd"),
    "no name of a file": node(ep_cache_context=""),
    "a name without an end": node(ep_cache_context="x" * 100_000),
    "a name in conversions": node(ep_cache_context="%s%n%s%n.so", partition_name="%n%n"),
    "a file that is not there": node(ep_cache_context="libother.so"),
    "another file": node(ep_cache_context="net.h"),
    "a number for a name": node("EPContext", ep_cache_context=7),
    "numbers for a name": node("EPContext", partition_name=[1.0, 2.0]),
    "the bytes themselves": node(embed_mode=1, ep_cache_context=b"\x7fELF\0\1\2"),
    "another network": node(partition_name="other"),
    "no network": node(partition_name=None),
    "a network of a long name": node(partition_name="n" * 100_000),
    "no notes": node(notes=None),
    "empty notes": node(notes=""),
    "another digest": node(notes="1:2\nx\ns\ny\nz"),
    "a digest without names": node(notes="1:2"),
    "notes of a million lines": node(notes="\n" * 1_000_000),
    "half a library": file(partial(_part, 0.5)),
    **{
        f"{part} of a library, of its digest": file(partial(_part, part), is_new=True)
        for part in (0.002, 0.1, 0.5, 0.9)
    },
    "an empty library": file(lambda place: place.touch()),
    "no library": file(lambda place: None),
    "links in a circle": file(lambda place: place.symlink_to(place.name)),
    "a link to nothing": file(lambda place: place.symlink_to("nothing")),
    "a folder": file(lambda place: place.mkdir()),
    "a pipe": file(lambda place: os.mkfifo(place)),
    "a device": file(lambda place: place.symlink_to("/dev/zero")),
    "a text": file(lambda place: place.write_text("no library"), is_new=True),
    "a library of others": file(_compiled("int f(void) { return 1; }"), is_new=True),
    "records of another version": file(
        _compiled("static int v = 99; void *net_library(void) { return &v; }"), is_new=True
    ),
    "no records": file(_compiled("void *net_library(void) { return 0; }"), is_new=True),
    **{what: file(_other(text), is_new=True) for what, text in OTHERS.items()},
    "outputs of wider elements": graph(lambda g: _of_type(g, 0, onnx.TensorProto.INT8)),
    "outputs of strings": graph(lambda g: _of_type(g, 1, onnx.TensorProto.STRING)),
    "an input less": graph(lambda g: g.node[0].input.pop()),
    "an output less": graph(lambda g: g.node[0].output.pop(), ""),
    "inputs in another order": graph(lambda g: g.node[0].input.__setitem__(slice(2), ["s", "x"])),
    "an extent beyond all": graph(lambda g: _extent(g, 1 << 62), "x"),
    "no original": original(lambda place: None),
    "an empty original": original(lambda place: place.touch()),
    "an original in a circle": original(lambda place: place.symlink_to(place.name)),
    "the context itself": original(lambda place: shutil.copy(place.parent / "net_ctx.onnx", place)),
    "an original of other types": original(
        lambda place: onnx.save(parsed(OTHERS["wider outputs"]), place)
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_foreign_context_is_a_line(
    what: str, lengths: Path, tmp_path: Path, client: Client
) -> None:
    if what in ("a library of others", "records of another version", "no records"):
        _require_cc()
    damage, folder = DAMAGES[what], tmp_path / "to"
    shutil.copytree(lengths, folder)
    damage.change(folder)
    said = client(folder, FEEDS)
    assert isinstance(said, str), said
    assert damage.said in said
    said = said[said.rfind("autotune: ") :]
    assert len(said.strip().splitlines()) == 1 or "autotune: " not in said
    assert isinstance(client(folder, FEEDS, fallback="1"), list if damage.original else (list, str))
    assert isinstance(client(lengths, FEEDS), list)


def test_a_network_that_nothing_renames_is_found_by_its_names(
    lengths: Path, tmp_path: Path, client: Client
) -> None:
    folder = tmp_path / "to"
    shutil.copytree(lengths, folder)
    for change in (_renamed, lambda g: _extent(g, -9)):  # ONNX Runtime's sign of any extent
        graph(change).change(folder)
        assert client(folder, FEEDS) == client(lengths, FEEDS)


def test_another_provider_of_the_node_is_no_concern_of_ours(
    lengths: Path, tmp_path: Path, client: Client
) -> None:
    folder = tmp_path / "to"
    shutil.copytree(lengths, folder)
    node(source="OpenVINOExecutionProvider").change(folder)
    said = client(folder, FEEDS)
    assert isinstance(said, str)
    assert "autotune: " not in said


def test_a_library_for_another_cpu_names_what_it_lacks(tmp_path: Path, client: Client) -> None:
    folder = exported("lengths", tmp_path, target="sapphirerapids")
    said = client(folder, FEEDS)
    if isinstance(said, list):
        pytest.skip("this CPU has all that the other has")
    assert "autotune: net: " in said
    assert isinstance(client(folder, FEEDS, fallback="1"), list)


def _require_cc() -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a compiler of C")


@pytest.mark.parametrize("n", [0, 1, 100, 400])
def test_half_a_model_is_an_error_of_onnxruntime(
    n: int, lengths: Path, tmp_path: Path, client: Client
) -> None:
    folder = tmp_path / "to"
    shutil.copytree(lengths, folder)
    data = (lengths / "net_ctx.onnx").read_bytes()
    (folder / "net_ctx.onnx").write_bytes(data[:n])
    assert isinstance(client(folder, FEEDS), str)


def test_many_damaged_libraries_never_end_the_host(
    lengths: Path, tmp_path: Path, client: Client
) -> None:
    whole = (lengths / "libnet.so").read_bytes()
    rng = np.random.default_rng(7)
    for n in range(20):
        folder = tmp_path / str(n)
        shutil.copytree(lengths, folder)
        data = bytearray(whole)
        if n % 2:
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        else:
            del data[int(rng.integers(len(data))) :]
        (folder / "libnet.so").write_bytes(data)
        assert "is damaged" in client(folder, FEEDS)
        assert isinstance(client(folder, FEEDS, fallback="1"), list)
