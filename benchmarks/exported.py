"""Exported libraries beside ONNX Runtime's C library: code, start, memory, latency.

    python -m benchmarks.exported MODEL.onnx … [--threads 2] [--rounds 7]

Every model is compiled without tuning and exported; a program of C is built against the library by
CMake, another against the `libonnxruntime.so` of its PyPI package. Each starts anew `--rounds`
times, in turns, runs on zeros, and says when its first inference was done, the median of later
ones, and the memory of the process (proportional set size). Outputs of the library are compared
with Python's, bit by bit: `docs/results/exported.md`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx

import autotune
from autotune.network.export.naming import library_name
from autotune.network.runtime.runtime import random_inputs

RESULT = Path(__file__).parents[1] / "docs" / "results" / "exported.md"

_CMAKE = """cmake_minimum_required(VERSION 3.16)
project(user C)
find_package({name} REQUIRED PATHS "{folder}" NO_DEFAULT_PATH)
set(CMAKE_BUILD_TYPE Release)
add_executable(ours ours.c)
target_link_libraries(ours {name}::{name})
add_executable(peer peer.c)
target_link_libraries(peer "{onnxruntime}")
set_target_properties(peer PROPERTIES BUILD_RPATH "{rpath}")
"""

_SAID = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEATS = 30 };

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int compare(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

static void say(int64_t first, int64_t *times) {
  char line[256];
  long pss = 0;
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  while (file && fgets(line, sizeof line, file))
    if (!strncmp(line, "Pss:", 4)) pss = strtol(line + 4, NULL, 10);
  qsort(times, REPEATS, sizeof *times, compare);
  printf("{\\"first\\": %lld, \\"median\\": %lld, \\"pss_kb\\": %ld}\\n", (long long)first,
         (long long)times[REPEATS / 2], pss);
}
"""

_OURS = """#include "{name}.h"
{said}
int main(void) {{
  int64_t first, times[REPEATS];
  {name}_model *model;
  {name}_options options = {{.threads = {threads}}};
  {name}_inputs inputs = {{0}};
  {name}_outputs outputs = {{0}};
  if ({name}_create(&options, &model)) return 1;
{arrays}
  if ({name}_run(model, &inputs, &outputs)) return 2;
  first = now();
  for (int n = 0; n < REPEATS; n++) {{
    int64_t begin = now();
    {name}_run(model, &inputs, &outputs);
    times[n] = now() - begin;
  }}
  say(first, times);
  return 0;
}}
"""

# Places of functions in the table of ONNX Runtime's C API, whose order never changes.
_PEER = """{said}
typedef void *(*Function)();
typedef struct {{ const Function *(*api)(uint32_t version); const char *(*version)(void); }} Base;
extern const Base *OrtGetApiBase(void);
enum {{ CREATE_ENV = 3, CREATE_SESSION = 7, RUN = 9, CREATE_OPTIONS = 10, SET_THREADS = 24,
        CREATE_TENSOR = 49, CREATE_CPU = 69 }};

int main(void) {{
  int64_t first = 0, times[REPEATS];
  const Function *api = OrtGetApiBase()->api(16);
  void *env, *options, *session, *cpu, *inputs[{n} + 1], *outputs[{m}];
  const char *names[] = {{{names}}}, *results[] = {{{results}}};
  if (api[CREATE_ENV](3, "peer", &env) || api[CREATE_OPTIONS](&options) ||
      api[SET_THREADS](options, {threads}) || api[CREATE_SESSION](env, {path}, options, &session) ||
      api[CREATE_CPU](0, 0, &cpu))
    return 1;
{arrays}
  for (int n = -1; n < REPEATS; n++) {{
    int64_t begin = now();
    memset(outputs, 0, sizeof outputs);
    if (api[RUN](session, NULL, names, inputs, (size_t){n}, results, (size_t){m}, outputs))
      return 2;
    if (n < 0)
      first = now();
    else
      times[n] = now() - begin;
  }}
  say(first, times);
  return 0;
}}
"""


_THEIRS = "ONNX Runtime"


@dataclass(frozen=True, slots=True)
class Side:
    """Medians of a program: ms from its start to the first inference, ms of one, MB."""

    first_ms: float
    median_ms: float
    pss_mb: float


def programs(model: Path, folder: Path, threads: int) -> tuple[Any, list[Path]]:
    """The exported library of a model, and the programs of both sides."""
    name = library_name(model.stem)
    artifact = autotune.compile(model, threads=threads).artifact
    exported = autotune.export(artifact, folder / "library", name)
    require_same_bits(artifact, folder / f"library/lib{name}.so")
    spec = find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    peer = next((Path(spec.origin).parent / "capi").glob("libonnxruntime.so.*"))
    user = folder / "user"
    user.mkdir()
    (user / "libonnxruntime.so.1").symlink_to(peer)  # the name that programs look for
    known = {"name": name, "folder": folder / "library", "onnxruntime": peer, "rpath": user}
    (user / "CMakeLists.txt").write_text(_CMAKE.format(**known))
    (user / "ours.c").write_text(_ours(artifact, name, threads))
    (user / "peer.c").write_text(_peer(model, artifact, threads))
    for command in (["cmake", "-S", ".", "-B", "made"], ["cmake", "--build", "made"]):
        subprocess.run(command, cwd=user, check=True, capture_output=True)
    return exported, [user / "made/ours", user / "made/peer"]


def require_same_bits(artifact: Any, library: Path) -> None:
    """Raise AssertionError where the library computes other bits than Python."""
    ours, theirs = autotune.Model(artifact), autotune.ExportedModel(library)
    inputs = random_inputs(artifact.inputs, 1)
    expected, found = ours.run(inputs), theirs.run(inputs)
    assert all(expected[n].tobytes() == found[n].tobytes() for n in expected)


def _ours(artifact: Any, name: str, threads: int) -> str:
    lines = []
    for kind, ends in (("inputs", artifact.inputs), ("outputs", artifact.outputs)):
        for end in ends:
            n_bytes = int(np.prod(end.shape)) * end.numpy_dtype.itemsize
            lines.append(f"  {kind}.{library_name(end.name)} = calloc({n_bytes}, 1);")
    arrays = "\n".join(lines)
    return _OURS.format(name=name, said=_SAID, threads=threads, arrays=arrays)


def _peer(model: Path, artifact: Any, threads: int) -> str:
    lines = []
    for n, end in enumerate(artifact.inputs):
        kind = onnx.helper.np_dtype_to_tensor_dtype(end.numpy_dtype)
        n_bytes = int(np.prod(end.shape)) * end.numpy_dtype.itemsize
        shape = ", ".join(f"{extent}ll" for extent in end.shape)
        lines += [
            f"  int64_t shape{n}[] = {{{shape}}};",
            f"  if (api[CREATE_TENSOR](cpu, calloc({n_bytes}, 1), (size_t){n_bytes}, shape{n}, "
            f"(size_t){len(end.shape)}, {kind}, &inputs[{n}])) return 1;",
        ]
    return _PEER.format(
        said=_SAID,
        n=len(artifact.inputs),
        m=len(artifact.outputs),
        names=", ".join(json.dumps(end.name) for end in artifact.inputs),
        results=", ".join(json.dumps(end.name) for end in artifact.outputs),
        threads=threads,
        path=json.dumps(str(model.resolve())),
        arrays="\n".join(lines),
    )


def measured(commands: Sequence[Path], rounds: int) -> list[Side]:
    """Both sides in turns."""
    found: list[list[tuple[float, float, float]]] = [[] for _ in commands]
    for _ in range(rounds):
        for rows, command in zip(found, commands, strict=True):
            begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            done = subprocess.run([command], capture_output=True, text=True, check=True)
            said = json.loads(done.stdout)
            rows.append(
                ((said["first"] - begin) * 1e-6, said["median"] * 1e-6, said["pss_kb"] * 1024e-6)
            )
    return [
        Side(*(statistics.median(column) for column in zip(*rows, strict=True))) for rows in found
    ]


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=7, show_default=True)
def main(models: tuple[Path, ...], threads: int, rounds: int) -> None:
    """Write the table of MODELS."""
    lines = [
        "# Exported libraries",
        "",
        "Programs of C built by CMake against an exported library, and against ONNX Runtime's C",
        f"library, in turns on {autotune.host_target().cpu} (`benchmarks/exported.py`; untuned, "
        f"{threads} threads, medians of {rounds} starts;",
        "outputs equal Python's bit for bit): kB beside the weights, ms from exec to the first",
        "inference, ms of a later one, MB of the process.",
        "",
        f"| model | code kB | start | {_THEIRS} | inference | {_THEIRS} | memory | {_THEIRS} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            exported, commands = programs(model, Path(folder), threads)
            ours, peer = measured(commands, rounds)
        cells = [
            model.stem,
            f"{exported.code_bytes / 1000:.0f}",
            f"{ours.first_ms:.1f}",
            f"{peer.first_ms:.0f}",
            f"{ours.median_ms:.2f}",
            f"{peer.median_ms:.2f}",
            f"{ours.pss_mb:.0f}",
            f"{peer.pss_mb:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        click.echo(lines[-1], err=True)
        RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
