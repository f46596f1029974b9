"""What makes two CPUs the same one."""

from __future__ import annotations

import os
from dataclasses import replace

import llvmlite.binding as llvm
import pytest

from autotune.target import (
    Target,
    cpuid,
    difference,
    host_target,
    missing_features,
    parse_target,
)
from autotune.target.isa.x86 import NAMES

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
    for name in ("native", *NAMES):
        features = parse_target(name).llvm_features.split(",")
        assert "-sse4a" in features
        assert "+sse4a" not in features
