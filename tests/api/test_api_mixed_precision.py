"""`--precision auto`: what is narrow is what is faster, and the network stays exact enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest
from onnx import ModelProto

import autotune
from autotune.api.bindings import Bound
from autotune.api.compile.mixed_precision import alternatives, mixtures_of
from autotune.api.request import Source
from autotune.api.tune.session import create, prepare
from autotune.config import resolve
from autotune.errors import UsageError
from autotune.graph.bound_model import BoundModel
from autotune.graph.mixture import Mixture
from autotune.graph.network import build_network
from autotune.network.runtime.runtime import Model
from autotune.records import MeasureRecord, read_log
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import steps_to_json
from autotune.search.defaults import default_candidate
from autotune.target import host_target
from autotune.te.products import precision_of
from tests.graph.onnx_models import execute, model, node, onnxruntime_outputs, save
from tests.graph.text_models import text_transformer
from tests.network.test_network_accuracy import cancelling
from tests.network.test_network_precision import conv_net


def two_products(rng: np.random.Generator) -> ModelProto:
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "r"), node("MatMul", "r v", "y")]
    w, v = (rng.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(2))
    return model(nodes, {"x": (16, 64)}, {"w": w, "v": v})


def two_products_of_integers(rng: np.random.Generator) -> ModelProto:
    nodes = [node("MatMulInteger", "x w", "a"), node("MatMulInteger", "z v", "y")]
    w, v = (rng.integers(-127, 128, (n, 64)).astype(np.int8) for n in (64, 96))
    types = {"x": "uint8", "z": "uint8", "a": "int32", "y": "int32"}
    inputs = {"x": (16, 64), "z": (16, 96)}
    return model(nodes, inputs, {"w": w, "v": v}, "a y", types=types)


@pytest.mark.parametrize("make", [conv_net, text_transformer])
def test_a_mixture_holds_every_precision(
    rng: np.random.Generator, make: object, tmp_path: Path
) -> None:
    path = save(make(rng), tmp_path)  # type: ignore[operator]
    mixture = Mixture(BoundModel(path))
    names = sorted(mixture.narrowable)
    wide, narrow = mixture.network("f32"), mixture.network("bf16")
    assert wide.tasks.keys() == build_network(path).tasks.keys()
    assert narrow.tasks.keys() == build_network(path, precision="bf16").tasks.keys()
    assert mixture.network("bf16", set(names)).tasks.keys() == wide.tasks.keys()
    mixed = mixture.network("bf16", set(names[::2]))
    assert mixed.is_mixed
    products = [c for c in mixed.calls if c.narrowable and c.label.endswith(", bf16")]
    assert {n for c in products for n in c.narrowable}.isdisjoint(names[::2])


def test_a_mixed_network_computes_the_model(rng: np.random.Generator, tmp_path: Path) -> None:
    proto = conv_net(rng)
    mixture = Mixture(BoundModel(save(proto, tmp_path)))
    feeds = {"x": rng.standard_normal((1, 4, 8, 8)).astype(np.float32)}
    want = onnxruntime_outputs(proto, feeds)["y"]
    for kept in ({"c1"}, {"c3"}, {"c2", "y"}):
        found = execute(mixture.network("bf16", kept), feeds)["y"]
        assert 1e-6 < np.abs(found - want).max() / np.abs(want).max() < 3e-2


@pytest.mark.slow
def test_the_error_of_the_network_is_the_limit(rng: np.random.Generator, tmp_path: Path) -> None:
    """Products go back to float32 until it holds."""
    path, limit = save(two_products(rng), tmp_path), None
    errors, n_narrow = [], []
    for share in (0.9, 1e-4, 0):
        notes: list[str] = []
        options = {"precision": "auto", "threads": 1, "max_error": limit}
        done = autotune.compile(path, **options, note=notes.append)
        assert done.report is not None
        assert done.report.error <= (limit or 2e-2)
        errors.append(done.report.error)
        n_narrow.append(sum(k.label.endswith(", bf16") for k in done.artifact.kernels))
        assert any(text.startswith("precision auto: ") for text in notes)
        limit = share * errors[0]
    assert errors[0] > 1e-4
    assert n_narrow[0] == 2
    assert n_narrow[1] < 2
    assert n_narrow[2] == 0


@pytest.mark.parametrize("written", [False, True])
def test_a_mixture_follows_lengths(rng: np.random.Generator, tmp_path: Path, written: bool) -> None:
    """Those of its inputs, and those that data decide."""
    nodes = list(two_products(rng).graph.node)
    if written:
        nodes = [node("NonZero", "x", "where"), node("Cast", "where", "places", to=1), *nodes]
    w, v = (rng.standard_normal((256, 256)).astype(np.float32) / 16 for _ in range(2))
    proto = model(nodes, {"x": ("rows", 256)}, {"w": w, "v": v}, "places y" if written else "y")
    path, notes = save(proto, tmp_path), list[str]()
    asked = {"dims": {"rows": "..64"}, "precision": "auto", "check": False, "note": notes.append}
    made = autotune.compile(path, **asked)  # type: ignore[arg-type]
    assert written or any("2 of 2 products" in text for text in notes), notes
    found = Model(made.artifact)
    for rows in (64, 16, 37):
        feeds = {"x": rng.standard_normal((rows, 256)).astype(np.float32)}
        wanted, ours = onnxruntime_outputs(proto, feeds), found.run(feeds)
        for name, array in wanted.items():
            np.testing.assert_allclose(ours[name], array, atol=0.02 * np.abs(array).max())


def test_what_no_precision_bears_is_float32(rng: np.random.Generator, tmp_path: Path) -> None:
    notes: list[str] = []
    path = save(cancelling(rng), tmp_path)
    done = autotune.compile(path, precision="auto", threads=1, note=notes.append)
    assert done.artifact.precision == "f32"
    assert any("are in float32: the error of the network" in text for text in notes)


def measured(path: Path, log: Path, fast: dict[tuple[str, str], float]) -> None:
    """A log of `--precision auto` in which tasks take what `fast` says of (product, precision)."""
    prepared = prepare(Source(path), resolve(None, {"precision": "auto", "threads": 1}).config, log)
    assert prepared.config.max_error == 2e-2
    with create(prepared, log) as session:
        known = set()
        for (network,) in ((prepared.network,), *prepared.others):
            for call in network.calls:
                name = "".join(call.narrowable)
                if call.task in known:
                    continue
                known.add(call.task)
                steps = default_candidate(network.tasks[call.task], prepared.target, 1).steps
                precision = precision_of(network.tasks[call.task])
                seconds = fast.get((name, precision), 1e-9)
                result = MeasureResult(MeasureStatus.OK, (seconds,) * 3, max_error=1e-6)
                session.journal.append(
                    [
                        MeasureRecord(
                            session.header.run_id,
                            len(known),
                            call.task,
                            prepared.target.key,
                            1,
                            orjson.dumps(steps_to_json(steps)).decode(),
                            result,
                        )
                    ]
                )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slow", "narrow"),
    [
        ({("a", "bf16"), ("y", "bf16")}, ""),
        ({("a", "f32"), ("y", "f32")}, "ay"),
        ({("a", "bf16"), ("y", "f32")}, "y"),
    ],
)
def test_every_product_is_what_was_measured_faster(
    rng: np.random.Generator, slow: set[tuple[str, str]], narrow: str, tmp_path: Path
) -> None:
    path, log = save(two_products(rng), tmp_path), tmp_path / "log.jsonl"
    pairs = {(n, p): 1e-2 if (n, p) in slow else 1e-4 for n in "ay" for p in ("f32", "bf16")}
    measured(path, log, pairs)
    done = autotune.compile(log=log)
    labels = [k.label for k in done.artifact.kernels if "MatMul" in k.label]
    assert [label.endswith(", bf16") for label in labels] == [n in narrow for n in "ay"]
    for precision in ("f32", "bf16") if narrow == "y" else ():  # the log has the tasks of both
        assert autotune.compile(log=log, precision=precision).artifact.precision == precision


@pytest.mark.target
@pytest.mark.parametrize(
    ("fastest", "told"),
    [
        ({"a": "int8", "y": "int8"}, ""),
        ({"a": "f32", "y": "int8"}, "1 of 2 products of integers as exact sums of f32"),
        ({"a": "f32", "y": "f32"}, "2 of 2 products of integers as exact sums of f32"),
        ({"a": "bf16", "y": "bf16"}, "2 of 2 products of integers as exact sums of bf16"),
    ],
)
def test_products_of_integers_are_what_was_measured_faster(
    rng: np.random.Generator, fastest: dict[str, str], told: str, tmp_path: Path
) -> None:
    """Whatever it is, the sums are those of the definition."""
    forms = {operand for form in host_target().isa.forms for operand in form.operands}
    if "bf16" in fastest.values() and "bfloat16" not in forms:
        pytest.skip("products of bfloat16 need an instruction for them")
    path, log = save(two_products_of_integers(rng), tmp_path), tmp_path / "log.jsonl"
    pairs = [(n, p) for n in fastest for p in ("int8", "f32", "bf16")]
    measured(path, log, {(n, p): 1e-4 if fastest[n] == p else 1e-2 for n, p in pairs})
    notes: list[str] = []
    done = autotune.compile(log=log, note=notes.append)
    lines = [text for text in notes if "products of integers" in text]
    assert [told in text for text in lines] == ([True] if told else [])
    assert done.report is not None
    assert done.report.error == 0


def test_tasks_of_other_precisions_are_alternatives(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    path, log = save(two_products(rng), tmp_path), tmp_path / "log.jsonl"
    measured(path, log, {})
    header, known = read_log(log).header, read_log(log).workloads
    bound = Bound(BoundModel(Path(path)))
    mixtures = mixtures_of(bound, bound.networks())
    ((other,),) = alternatives(mixtures, header.target)
    assert {k for k, _ in header.tasks} == known.keys()
    assert {k for k in header.parts if known[k].label.endswith(", bf16")} <= other.tasks.keys()
    assert sorted(len(parts) for parts in header.parts.values()) == [1, 1]
    wide, narrow = header.networks
    assert dict(narrow.tasks) == other.weights
    assert dict(wide.tasks).keys() | dict(narrow.tasks) == known.keys()
    assert not wide.parts
    assert not narrow.parts
    with pytest.raises(UsageError, match="precision is 'fp8'"):
        autotune.compile(path, precision="fp8")
