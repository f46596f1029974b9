"""Artifacts whose kernels are written by hand in LLVM IR: the runtime without the compiler."""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.binding as llvm
import numpy as np

from autotune.codegen.image.link import Image
from autotune.codegen.memory import aligned
from autotune.codegen.team.native_object import team_object
from autotune.network.artifact.artifact import Artifact, Endpoint, KernelInfo
from autotune.network.artifact.table import ARENA, CONSTANTS, FIRST_BOUND
from autotune.network.compile.compiler import link_networks
from autotune.network.compile.entry import Launch, Pointer, compile_entry
from autotune.target import Target, host_target

N = 96
"""Elements of every vector of the reversing network."""

# to[i] = from[N - 1 - i] + by[0], so every thread reads what another one has written
REVERSE = f"""
define void @reverse(ptr %from, ptr %by, ptr %to, i64 %begin, i64 %end) {{
entry:
  br label %loop
loop:
  %i = phi i64 [%begin, %entry], [%next, %loop]
  %j = sub i64 {N - 1}, %i
  %from_at = getelementptr float, ptr %from, i64 %j
  %to_at = getelementptr float, ptr %to, i64 %i
  %x = load float, ptr %from_at
  %step = load float, ptr %by
  %y = fadd float %x, %step
  store float %y, ptr %to_at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %exit
exit:
  ret void
}}
; a kernel that cannot be divided: adds 1 to the first element
define void @bump(ptr %x, i64 %begin, i64 %end) {{
  %n = sub i64 %end, %begin
  %f = sitofp i64 %n to float
  %old = load float, ptr %x
  %new = fadd float %old, %f
  store float %new, ptr %x
  ret void
}}
"""


def assemble(text: str, target: Target) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.features, reloc="pic", codemodel="default"
    )
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


def image_of(*networks: Sequence[Launch]) -> Image:
    """The code of networks, each by its launches."""
    target = host_target()
    return link_networks(
        [assemble(REVERSE, target), team_object(target)],
        [compile_entry(calls, FIRST_BOUND + 2, target) for calls in networks],
    )


def artifact(
    calls: Sequence[Launch],
    inputs: Sequence[Endpoint],
    outputs: Sequence[Endpoint],
    arena_bytes: int = 8 * N,
    n_threads: int = 1,
) -> Artifact:
    target = host_target()
    constants = aligned((64,), "uint8")
    constants.view(np.float32)[0] = 1.0
    return Artifact(
        name="reverse",
        model_hash="0" * 64,
        target=target,
        n_threads=n_threads,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        kernels=tuple(KernelInfo("t", "label", x.symbol, x.extent) for x in calls),
        arena_bytes=arena_bytes,
        n_bases=FIRST_BOUND + 2,
        image=image_of(calls),
        constants=constants,
        autotune_version="0.0",
    )


def reversing(
    n_kernels: int, n_threads: int = 1, bump: bool = False, time_s: float = 0.0
) -> Artifact:
    """x reversed `n_kernels` times, + 1 each time; with `bump` y[0] also grows by 1 at the end.

    `time_s`: what a kernel is said to take, which makes parts of it.
    """
    x = Endpoint("x", (2, N // 2), "float32", FIRST_BOUND)
    y = Endpoint("y", (N,), "float32", FIRST_BOUND + 1)
    return artifact(launches(n_kernels, bump), [x], [y], n_threads=n_threads)


def launches(n_kernels: int, bump: bool = False) -> list[Launch]:
    """Those of `reversing`."""
    places = [Pointer(ARENA, 4 * N * (k % 2)) for k in range(n_kernels)]
    places[-1] = Pointer(FIRST_BOUND + 1, 0)
    step = Pointer(CONSTANTS, 0)
    sources = [Pointer(FIRST_BOUND, 0), *places]
    found = [Launch("reverse", N, (a, step, b)) for a, b in zip(sources, places, strict=False)]
    return [*found, Launch("bump", 1, (places[-1],))] if bump else found
