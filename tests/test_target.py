"""What makes two CPUs the same one."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest

from autotune.errors import UsageError
from autotune.target import (
    Target,
    auxv,
    cpuid,
    difference,
    host_target,
    missing_features,
    parse_target,
    target_names,
    target_text,
)
from autotune.target.isa import ALIASES, HOST, NAMES, PROCESSORS

pytestmark = pytest.mark.target


def test_the_key_is_the_cpu_not_the_cores_that_a_process_may_use(any_target: Target) -> None:
    fewer = replace(any_target, n_cores=1)
    assert fewer.key == any_target.key
    assert fewer == any_target
    assert fewer.former_key != any_target.former_key


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"cpu": "znver9"}, "cpu is znver9 there and testcpu here"),
        ({"l3_bytes": 1}, "l3_bytes is 1 there and 33554432 here"),
        ({"features": "+avx2,-fma,+amx"}, "only the CPU there has amx; only the CPU here has fma"),
    ],
)
def test_everything_else_is_another_cpu_and_is_named(
    any_target: Target, changed: dict[str, object], text: str
) -> None:
    other = replace(any_target, **changed)  # type: ignore[arg-type]
    assert other.key != any_target.key
    assert difference(other, any_target) == text


def test_features_are_read_as_llvm_reads_them() -> None:
    """One that is read as missing would refuse artifacts of this very CPU."""
    assert dict(cpuid.features()) == dict(llvm.get_host_cpu_features())


def test_features_of_other_architectures_are_those_that_linux_tells() -> None:
    words = struct.iter_unpack("QQ", Path("/proc/self/auxv").read_bytes())
    told = auxv.features({str(n): ("AT_HWCAP2", n) for n in range(64)})
    assert sum(there << int(n) for n, there in told.items()) == dict(words).get(26, 0)


_ARM = """
import json, platform
platform.machine = lambda: "aarch64"
from autotune.target import auxv, cpu, parse_target, missing_features
told = {"neon": True, "dotprod": True, "sve": True}
auxv.features = lambda capabilities: told
found = []
for bits in (0, 128, 256, 1024):
    auxv.scalable_bits = lambda: bits
    target = cpu.host_target()
    lacks = [missing_features(parse_target(n)) for n in ("neoverse-v1", "x86-64-v3")]
    found.append([target.arch, target.isa.name, *map(len, lacks), target.to_json()["arch"]])
print(json.dumps(found))
"""


def test_a_cpu_of_arm_has_the_vectors_of_its_length() -> None:
    """Code for vectors of another length is wrong, whatever the features are."""
    done = subprocess.run([sys.executable, "-c", _ARM], capture_output=True, text=True, check=True)
    names, of_v1 = ["neon", "sve-128", "sve-256", "neon"], [7, 7, 6, 7]
    lacks = len(missing_features(parse_target("neoverse-v1"))) - len(("neon", "dotprod", "sve"))
    assert of_v1 == [lacks + 1, lacks + 1, lacks, lacks + 1]
    found = json.loads(done.stdout)
    assert [(arch, name, n) for arch, name, n, *_ in found] == [
        ("aarch64", *each) for each in zip(names, of_v1, strict=True)
    ]
    assert all(of_x86 and arch == "aarch64" for *_, of_x86, arch in found)


def test_names_that_are_not_known_are_asked_of_llvm(
    any_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {**llvm.get_host_cpu_features(), "avx4096": True, "avx8192": False}
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: theirs)
    newer = replace(any_target, features="+sse2,+avx4096,+avx8192,+avx9999")
    assert missing_features(newer) == ("avx8192", "avx9999")


def test_fields_of_later_versions_are_left_out(any_target: Target) -> None:
    data = any_target.to_json()
    assert Target.from_json(data | {"n_sockets": 2}) == any_target
    assert Target.from_json({k: v for k, v in data.items() if k != "n_cores"}) == any_target


def test_affinity_does_not_change_the_key() -> None:
    allowed = os.sched_getaffinity(0)
    before = host_target()
    try:
        os.sched_setaffinity(0, {min(allowed)})
        restricted = host_target()
    finally:
        os.sched_setaffinity(0, allowed)
    assert restricted.n_cores == 1
    assert restricted.key == before.key


def test_no_code_moves_bytes_by_an_instruction_that_is_microcoded() -> None:
    for name in ("native", *HOST.processors):
        features = parse_target(name).llvm_features.split(",")
        assert "-sse4a" in features
        assert "+sse4a" not in features


def test_a_named_cpu_has_its_own_caches_and_a_level_those_of_this_machine() -> None:
    """Else the choice of tiles would follow the machine that compiles."""
    host = host_target()
    for name, known in PROCESSORS.items():
        target = parse_target(name)
        is_here = not known.l1_bytes or name == host.cpu
        own = (known.l1_bytes, known.l2_bytes, known.l3_bytes)
        here = (host.l1_bytes, host.l2_bytes, host.l3_bytes)
        assert (target.l1_bytes, target.l2_bytes, target.l3_bytes) == (here if is_here else own)


def test_aliases_and_underscores_name_the_same_target() -> None:
    assert parse_target("core-avx2") == parse_target("core_avx2") == parse_target("haswell")
    assert parse_target("avx512") == parse_target("x86-64-v4")
    assert {"native", *NAMES, *ALIASES} == set(target_names())


@pytest.mark.parametrize(
    ("name", "near"), [("znver55", "znver5"), ("Cascadelake", "cascadelake"), ("AVX2", "avx2")]
)
def test_an_unknown_name_is_told_with_close_ones(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"unknown target '{name}'") as caught:
        parse_target(name)
    assert f"did you mean {near}" in caught.value.hint
    assert "autotune target --list" in caught.value.hint


def test_a_file_is_the_target_that_wrote_it(any_target: Target, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    for target in map(parse_target, target_names()):
        path.write_text(target_text(target, {"peaks": {"flops_per_s": 1e9}}))
        assert parse_target(str(path)) == target
        assert parse_target(str(path)).n_cores == target.n_cores
        assert parse_target(str(path)).key == target.key


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cpu": 3}, "cpu is 3"),
        ({"cpu": "z80"}, "the features of z80 are not known"),
        ({"cpu": "a\n"}, "is no CPU"),
        ({"vector_bits": 64}, "vector_bits is 64"),
        ({"vector_bits": 512, "n_registers": 32}, "vectors of 512 bits need avx512f"),
        ({"vector_bits": 384}, "x86-64-v3 has 16 vectors of 256 bits"),
        ({"n_registers": 0}, "x86-64-v3 has 16 vectors of 256 bits"),
        ({"features": "+avx2,+fma\n"}, "is no feature"),
        ({"features": "+avx2"}, "vectors of 256 bits need fma"),
        ({"l2_bytes": 0}, "l2_bytes is 0"),
        ({"n_cores": -1}, "n_cores is -1"),
        (None, "it is no JSON"),
    ],
)
def test_a_broken_file_is_one_clear_line(
    change: dict[str, Any] | None, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "broken.json"
    data = json.dumps(parse_target("haswell").to_json() | (change or {}))
    path.write_text(data if change else data[:-9])
    with pytest.raises(UsageError, match="describes no target") as caught:
        parse_target(str(path))
    assert text in caught.value.message
    assert "\n" not in caught.value.message
    assert "autotune target -o" in caught.value.hint
