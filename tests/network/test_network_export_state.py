"""An exported model with a state: sessions in C give the bits of those in Python."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import autotune
from autotune.errors import ArtifactError, MissingDependency
from autotune.network.artifact.artifact import Artifact
from autotune.network.export.library import write_library
from autotune.network.export.module import write_module
from autotune.network.runtime.exported import ExportedModel
from autotune.network.runtime.loading import model_of
from autotune.toolchain import Toolchain, toolchain
from tests.decoders import VOCABULARY, WIDTH, decoder
from tests.node import node, run_script
from tests.small_decoders import hybrid

CAPACITY, PLACES = 12, 6
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
RECURRENT = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[1,4] x, float[1,4] h) => (float[1,4] y, float[1,4] hn) {
        s = Add (x, h)
        hn = Tanh (s)
        y = Mul (hn, x)
    }"""


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    told = {"capacity": CAPACITY, "dims": {"encoder": PLACES}, "check": False}
    told["scores"] = "all"
    return autotune.compile(decoder(cross="hidden"), threads=1, **told).artifact


@pytest.fixture(scope="module")
def folder(artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(artifact, tmp_path_factory.mktemp("library"))


def tools() -> Toolchain:
    try:
        return toolchain(None, "x86_64")
    except MissingDependency as error:
        pytest.skip(str(error))


def exported(artifact: Artifact, folder: Path) -> Path:
    write_library(artifact, "net", folder, tools(), False)
    return folder


class Library:
    """Sessions of a library by `ctypes`."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(str(folder / "libnet.so"))
        model = ctypes.c_void_p()
        assert self("create", None, ctypes.byref(model)) == 0
        self.model = model

    def __call__(self, name: str, *arguments: Any) -> int:
        function: Callable[..., int] = getattr(self._library, f"net_{name}")
        if name == "length":
            function.restype = ctypes.c_int64  # type: ignore[attr-defined]
        return function(*arguments)

    def open(self) -> ctypes.c_void_p:
        session = ctypes.c_void_p()
        assert self("open", self.model, ctypes.byref(session)) == 0
        return session

    def step(self, session: Any, n: int, *arrays: np.ndarray, made: np.ndarray) -> int:
        given = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        out = (ctypes.c_void_p * 1)(made.ctypes.data)
        return self("step", session, ctypes.c_int64(n), given, out)

    def begin(self, session: Any, *arrays: np.ndarray) -> int:
        given = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        return self("begin", session, given)


def encoded(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(1, PLACES, WIDTH)).astype(np.float32)
    return {"encoder_hidden_states": states, "encoder_attention_mask": np.ones((1, PLACES), int)}


def test_steps_are_the_bits_of_python(artifact: Artifact, folder: Path) -> None:
    library = Library(folder)
    pairs = [(library.open(), model_of(artifact).session()) for _ in range(2)]
    for seed, (theirs, ours) in enumerate(pairs):
        given = encoded(seed)
        ours.begin(given)
        assert library.begin(theirs, *(given[end.name] for end in ours.begin_info)) == 0
    for n in (5, 1, 4, 2):  # both in turns: each has a state of its own
        for seed, (theirs, ours) in enumerate(pairs):
            tokens = np.random.default_rng(n + seed).integers(0, VOCABULARY, (1, n))
            logits = np.empty((1, n, VOCABULARY), np.float32)
            assert library.step(theirs, n, tokens, made=logits) == 0
            np.testing.assert_array_equal(logits, ours.step(tokens))
            assert library("length", theirs) == ours.length


def test_a_status_tells_what_cannot_be(folder: Path) -> None:
    library = Library(folder)
    session, tokens = library.open(), np.zeros((1, CAPACITY), np.int64)
    logits = np.empty((1, CAPACITY, VOCABULARY), np.float32)
    assert library.step(session, 1, tokens, made=logits) == 7  # NOT_BEGUN
    given = encoded(0)
    order = sorted(given)  # as the header lists them
    assert library.begin(session, *(given[name] for name in order)) == 0
    assert library.step(session, CAPACITY - 1, tokens, made=logits) == 0
    assert library.step(session, 2, tokens, made=logits) == 6  # FULL
    assert library.step(session, 0, tokens, made=logits) == 3  # NO_ARGUMENT
    assert library("length", session) == CAPACITY - 1
    first = logits[0, 0].copy()
    library("reset", session)
    assert library.step(session, 1, tokens, made=logits) == 0
    np.testing.assert_array_equal(logits[0, 0, :], first)
    library("close", session)


def test_what_comes_with_it_is_strict_c_and_runs(folder: Path, tmp_path: Path) -> None:
    cc = tools().cc
    program = tmp_path / "example"
    told = (str(folder / "example.c"), f"-I{folder}", f"-L{folder}", "-lnet")
    subprocess.run([*cc, *STRICT, *told, f"-Wl,-rpath,{folder}", "-o", str(program)], check=True)
    found = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("logits: ")
    text = (folder / "net.h").read_text()
    assert f"#define NET_CAPACITY {CAPACITY}" in text
    assert f"#define NET_OUTPUT_LOGITS_COUNT {VOCABULARY} /* for each place" in text
    (tmp_path / "header.cc").write_text('#include "net.h"\nint main() { return NET_OK; }\n')
    subprocess.run(
        [
            *cc,
            "-x",
            "c++",
            *STRICT,
            f"-I{folder}",
            "-c",
            str(tmp_path / "header.cc"),
            "-o",
            "/dev/null",
        ],
        check=True,
    )


def test_a_recurrent_state_is_replaced(tmp_path: Path) -> None:
    made = onnx.parser.parse_model(RECURRENT)
    compiled = autotune.compile(made, state={"h": "hn"}, check=False, threads=1).artifact
    library, ours = Library(exported(compiled, tmp_path)), model_of(compiled).session()
    session = library.open()
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(1, 4)).astype(np.float32)
        y = np.empty_like(x)
        assert library.step(session, 1, x, made=y) == 0
        np.testing.assert_array_equal(y, ours.step(x))


def test_states_of_a_fixed_shape_alone_advance_by_places(tmp_path: Path) -> None:
    told = {"capacity": CAPACITY, "scores": "all", "check": False}
    compiled = autotune.compile(hybrid(2, caches=False), threads=1, **told).artifact
    library, ours = Library(exported(compiled, tmp_path)), model_of(compiled).session()
    session = library.open()
    for n in (5, 1, 4, 2):
        tokens = np.random.default_rng(n).integers(0, VOCABULARY // 4, (1, n))
        logits = np.empty((1, n, 8), np.float32)
        assert library.step(session, n, tokens, made=logits) == 0
        np.testing.assert_array_equal(logits, ours.step(tokens))
    assert library("length", session) == ours.length == CAPACITY


def test_others_say_who_keeps_the_state(artifact: Artifact, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="has a state"):
        ExportedModel(folder / "libnet.so")


SESSIONS = """
import fs from "node:fs";
import {create} from "./net.mjs";
const {given, tokens} = JSON.parse(fs.readFileSync("inputs.json"));
const model = await create({sessions: 2}), told = [];
const sessions = given.map(({states}) => {
  const session = model.session();
  session.begin({encoder_hidden_states: Float32Array.from(states),
                 encoder_attention_mask: new BigInt64Array(PLACES).fill(1n)});
  return session;
});
for (const each of tokens)
  each.forEach((ids, k) => {
    const {logits} = sessions[k].step({input_ids: BigInt64Array.from(ids, BigInt)});
    told.push({logits: [...logits], length: sessions[k].length});
  });
const failures = [
  () => model.session(),
  () => sessions[0].step({input_ids: new BigInt64Array(1)}),
  () => sessions[0].step({}),
  () => model.run({}),
].map((call) => { try { return `${call()}`; } catch (error) { return error.message; } });
const first = new BigInt64Array(1).fill(BigInt(tokens[0][1][0]));
sessions[1].reset();
const [again] = sessions[1].step({input_ids: first}).logits;
console.log(JSON.stringify({told, failures, again, threads: model.threads}));
""".replace("PLACES", str(PLACES))


@pytest.mark.parametrize("threads", [1, 2])
def test_sessions_of_a_module_compute_what_those_of_python_compute(
    threads: int, tmp_path: Path
) -> None:
    node()
    told: dict[str, Any] = {"capacity": CAPACITY, "dims": {"encoder": PLACES}, "scores": "all"}
    model = decoder(layers=4, cross="hidden")
    try:
        made = autotune.compile(model, target="wasm32", threads=threads, check=False, **told)
    except MissingDependency as error:
        pytest.skip(error.message)
    write_module(made.artifact, "net", tmp_path, False)
    here = model_of(autotune.compile(model, threads=1, check=False, **told).artifact)
    ours, given = [here.session() for _ in range(2)], [encoded(seed) for seed in range(2)]
    rng = np.random.default_rng(0)
    tokens = [[rng.integers(0, VOCABULARY, n).tolist() for _ in ours] for n in (5, 1, 4, 2)]
    states = [{"states": one["encoder_hidden_states"].ravel().tolist()} for one in given]
    (tmp_path / "inputs.json").write_text(json.dumps({"given": states, "tokens": tokens}))
    found = json.loads(run_script(SESSIONS, tmp_path))
    for session, one in zip(ours, given, strict=True):
        session.begin(one)
    steps = iter(found["told"])
    for each in tokens:
        for session, ids in zip(ours, each, strict=True):
            expected, step = session.step(np.array([ids])), next(steps)
            logits = np.array(step["logits"], np.float32).reshape(expected.shape)
            np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
            assert step["length"] == session.length
    texts = ("no room for another", "no room for 1", "'input_ids' is missing", "call session()")
    assert all(text in said for text, said in zip(texts, found["failures"], strict=True))
    np.testing.assert_allclose(found["again"], found["told"][1]["logits"][0], rtol=1e-5)
    assert found["threads"] == threads


def test_a_module_replaces_a_recurrent_state(tmp_path: Path) -> None:
    node()
    told: dict[str, Any] = {"state": {"h": "hn"}, "check": False}
    model = onnx.parser.parse_model(RECURRENT)
    try:
        made = autotune.compile(model, target="wasm32", **told)
    except MissingDependency as error:
        pytest.skip(error.message)
    write_module(made.artifact, "net", tmp_path, False)
    session = model_of(autotune.compile(model, threads=1, **told).artifact).session()
    given = np.random.default_rng(0).normal(size=(3, 1, 4)).astype(np.float32)
    script = f"""
    import {{create}} from "./net.mjs";
    const session = (await create()).session();
    for (const x of {given[:, 0].tolist()})
      console.log(JSON.stringify([...session.step({{x: Float32Array.from(x)}}).y]));
    """
    found = [json.loads(line) for line in run_script(script, tmp_path).splitlines()]
    expected = [session.step(x)[0] for x in given]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert run_script('await import("./example.mjs")', tmp_path).startswith("y Float32Array(4)")
