"""One artifact for several CPUs: shared weights, code of each, and the one that fits is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import autotune
from autotune.api.compile.for_cpus import nearest
from autotune.errors import ArtifactError, ExitCode, UsageError
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.cpus import in_order
from autotune.network.runtime.loading import load, read_artifact
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.target import common_target, demands, missing_features, parse_target
from tests.cli.conftest import mlp
from tests.forking import Cli
from tests.hybrid_models import DECIDED
from tests.hybrid_models import saved as hybrid
from tests.network.artifact_mutations import read_parts, write_parts
from tests.network.test_network_variants import encoder
from tests.targets import AMX, AVX2, AVX512, BF16, VNNI

LATER = "diamondrapids"  # not what tests run on


def manifests(artifact: Artifact) -> list[dict[str, Any]]:
    return [v.manifest() for one in artifact.by_cpu for v in one.variants]


def saved(done: Any, path: Path) -> Path:
    done.artifact.save(path)
    return path


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder for CPUs with AVX-512 and for all."""
    folder = tmp_path_factory.mktemp("cpus")
    model = encoder(folder / "encoder.onnx")
    asked = {"dims": {"batch": 1, "sequence": 16}, "threads": 2}
    one = autotune.compile(model, target="x86-64-v3", check=False, **asked)
    saved(one, folder / "one.atn")
    targets = "x86-64-v3,x86-64-v4"
    return saved(autotune.compile(model, target=targets, **asked), folder / "several.atn")


@pytest.mark.slow
def test_weights_are_stored_once_and_the_more_demanding_code_comes_first(several: Path) -> None:
    found = read_artifact(several)
    assert [one.target.cpu for one in found.by_cpu] == ["x86-64-v4", "x86-64-v3"]
    assert len({id(a.constants) for a in found.over_the_constants()}) == 1
    alone = several.with_name("one.atn").stat().st_size
    assert several.stat().st_size < 1.3 * alone


@pytest.mark.slow
def test_every_code_that_runs_here_is_right_and_the_first_of_it_is_loaded(several: Path) -> None:
    found = read_artifact(several)
    fitting = [one for one in found.by_cpu if not missing_features(one.target)]
    taken = load(several)
    assert taken.artifact.target == fitting[0].target
    for variant in taken.variants:
        inputs = random_inputs(variant.input_info)
        y = variant.run(inputs)["y"]
        for one in fitting:
            assert one.max_error is not None
            np.testing.assert_allclose(Model(one).run(inputs)["y"], y, rtol=1e-4, atol=1e-4)
    assert all(one.max_error is None for one in found.by_cpu if one not in fitting)


@pytest.mark.slow
def test_a_library_of_c_takes_the_same_code(several: Path, tmp_path: Path) -> None:
    made = autotune.export(several, tmp_path / "out", "net")
    assert made.cpu == "x86-64-v4, x86-64-v3"
    library, model = autotune.ExportedModel(tmp_path / "out/libnet.so"), load(several)
    for variant in model.variants:
        inputs = random_inputs(variant.input_info)
        assert np.array_equal(library.run(inputs)["y"], variant.run(inputs)["y"])


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    done = autotune.compile(mlp(), target="x86-64-v3,cascadelake", threads=1, check=False)
    found = read_artifact(saved(done, tmp_path / "m.atn"))
    assert manifests(found) == manifests(done.artifact)
    assert json.loads(read_parts(tmp_path / "m.atn")["manifest.json"])["version"] == 9


def test_each_cpu_has_every_shape(tmp_path: Path) -> None:
    model = mlp(batch="n")
    targets = "x86-64-v3,x86-64-v4"
    done = autotune.compile(model, target=targets, dims={"n": [1, 4]}, threads=1, check=False)
    found = read_artifact(saved(done, tmp_path / "m.atn"))
    assert [len(one.variants) for one in found.by_cpu] == [2, 2]
    loaded = load(tmp_path / "m.atn")
    autotune.export(found, tmp_path / "out", "net")
    library = autotune.ExportedModel(tmp_path / "out/libnet.so")
    for n in (1, 4):
        x = {"x": np.arange(8 * n, dtype=np.float32).reshape(n, 8)}
        assert loaded.run(x)["y"].shape == (n, 8)
        assert np.array_equal(library.run(x)["y"], loaded.run(x)["y"])


def test_a_file_without_code_for_this_cpu_is_refused(tmp_path: Path) -> None:
    done = autotune.compile(mlp(), target=f"{LATER},sapphirerapids", threads=1, check=False)
    path = saved(done, tmp_path / "m.atn")
    if any(not missing_features(one.target) for one in done.artifact.by_cpu):
        pytest.skip("this CPU runs it")
    with pytest.raises(ArtifactError, match=f"{LATER} and sapphirerapids; this CPU has not"):
        load(path)
    autotune.export(path, tmp_path / "out", "net")
    with pytest.raises(ArtifactError, match="this CPU lacks instructions"):
        autotune.ExportedModel(tmp_path / "out/libnet.so")


@pytest.mark.slow
def test_parts_of_onnxruntime_are_stored_once_for_all_cpus(tmp_path: Path) -> None:
    model = hybrid(DECIDED, tmp_path)
    targets = "x86-64-v3,cascadelake"
    done = autotune.compile(model, target=targets, threads=1, keep_cut=True)
    path = saved(done, tmp_path / "m.atn")
    alone = autotune.compile(model, target="x86-64-v3", threads=1, keep_cut=True, check=False)
    names = {n for n in read_parts(saved(alone, tmp_path / "one.atn")) if n.startswith("onnx/")}
    assert {n for n in read_parts(path) if n.startswith("onnx/")} == names
    found, again = load(path), read_artifact(path)
    assert len(again.by_cpu) == 2
    inputs = random_inputs(found.input_info)
    expected = load(tmp_path / "one.atn").run(inputs)["y"]
    np.testing.assert_allclose(found.run(inputs)["y"], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "cpus", [None, [], [{}], "znver4", [1, 2], [{}] * 17, [{}, {"image": {}}], [{}, {}]]
)
def test_cpus_that_cannot_be_are_damage(cpus: Any, tmp_path: Path) -> None:
    done = autotune.compile(mlp(), target="x86-64-v3,cascadelake", threads=1, check=False)
    parts = read_parts(saved(done, tmp_path / "m.atn"))
    manifest = {**json.loads(parts["manifest.json"]), "cpus": cpus}
    write_parts(tmp_path / "m.atn", parts, manifest)
    with pytest.raises(ArtifactError, match="is damaged"):
        read_artifact(tmp_path / "m.atn")


@pytest.mark.parametrize(
    ("targets", "options", "reason"),
    [
        ("x86-64-v3,neoverse-n1", {}, "several architectures"),
        ("x86-64-v3,x86-64-v5", {}, "unknown target 'x86-64-v5'"),
        ("x86-64-v3,x86-64-v4", {"precision": "auto"}, "for one CPU"),
        ("x86-64-v3,x86-64-v4", {"runner": "env"}, "one CPU"),
    ],
)
def test_what_cannot_be_for_several_is_refused(
    targets: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        autotune.compile(mlp(), target=targets, threads=1, check=False, **options)


def test_equal_cpus_count_once_and_order_is_by_what_they_demand() -> None:
    assert in_order([AVX2, AMX, VNNI, AVX2, AVX512]) == [AMX, VNNI, AVX512, AVX2]
    native = parse_target("native")
    assert in_order([parse_target("x86-64-v3"), native])[-1].cpu == "x86-64-v3"
    assert demands(AVX2) == set()
    assert demands(AVX512) < demands(VNNI)


def test_what_all_run_is_code_for_what_they_have_in_common() -> None:
    assert common_target([AVX512, AVX2]) == AVX2
    assert common_target([AMX, AVX512]) == AVX512
    amd = parse_target("znver3")
    assert not demands(common_target([amd, AVX512]))
    assert demands(common_target([BF16, AMX])) <= demands(BF16) & demands(AMX)


@pytest.mark.slow
def test_records_of_the_nearest_cpu_serve_one_that_was_not_measured(tmp_path: Path) -> None:
    assert nearest(AVX512, [AVX2, AMX]) == AMX
    assert nearest(VNNI, [AMX, VNNI]) == VNNI
    log = tmp_path / "log.jsonl"
    model = tmp_path / "m.onnx"
    onnx.save(mlp(), model)
    autotune.tune(model, log=log, trials=4, threads=1, show="nothing", compare=False)
    said: list[str] = []
    native = parse_target("native")
    near = "x86-64-v4" if native.vector_bits == AVX512.vector_bits else "x86-64-v3"
    targets = f"{near},native"
    found = autotune.compile(log=log, target=targets, check=False, note=said.append).artifact
    assert all(len(one.tuned) == len(found.tuned) > 0 for one in found.by_cpu), said


@pytest.mark.slow
def test_the_command_tells_of_all_cpus(tmp_path: Path, cli: Cli) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    words = ["compile", "m.onnx", "--target", f"{LATER},x86-64-v3", "--sharing", "1.1x"]
    done = cli(*words, "--threads", 1, cwd=tmp_path)
    assert done.code == 0, done.err
    assert f"for {LATER} and x86-64-v3" in done.err
    told = cli("info", "m.atn", cwd=tmp_path)
    (least,) = (line for line in told.out.splitlines() if "x86-64-v3" in line)
    assert least.endswith("taken here")
    assert f"{LATER}, vectors of 512 bits, 1 thread, not checked, not for this CPU" in told.out
    assert cli("run", "m.atn", cwd=tmp_path).code == 0
    assert cli("bench", "m.atn", "--time", "0.1s", cwd=tmp_path).code == 0
    words[3] = "x86-64-v3,pdp11"
    assert cli(*words, cwd=tmp_path).code == ExitCode.USAGE
