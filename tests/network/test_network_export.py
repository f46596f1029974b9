"""An exported network: a library of C that computes the same bits, for any compiler and caller."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray

import autotune
from autotune.errors import ArtifactError, MissingDependency, OutputError, UsageError
from autotune.network.artifact.artifact import Artifact
from autotune.network.export.library import Exported, write_library
from autotune.network.export.naming import identifiers, library_name, require_library_name
from autotune.network.export.source import WEIGHTS_HEADER
from autotune.network.runtime.exported import ExportedModel
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.toolchain import Toolchain, toolchain
from tests.hybrid_models import DETECTOR, saved

STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
MODELS: Mapping[str, str] = {
    "floats": "f (float[3, 40] x, float[40, 24] w) => (float[3, 24] y) { y = MatMul(x, w) }",
    "two outputs": """f (float[2, 3, 8] x) => (float[2, 8, 3] y, float[2, 3] z) {
        y = Transpose<perm = [0, 2, 1]>(x)  a = Constant<value_ints = [-1]>()
        z = ReduceSum<keepdims = 0>(x, a) }""",
    "halves": "f (float16[5, 33] x, bfloat16[7] b) => (float16[5, 33] y, bfloat16[7] z) "
    "{ y = Softmax(x) z = Relu(b) }",
    "integers": "f (int64[4, 6] i, uint8[9] b, bool[4, 6] m) => (int64[4, 6] j, uint8[9] c, "
    "bool[4, 6] n) { j = Add(i, i) c = Max(b, b) n = Not(m) }",
    "doubles": "f (double[3, 5] x) => (double[3, 5] y) { y = Exp(x) }",
    "windows": """f (float[1, 6, 5, 5] x) => (float[1, 4, 5, 5] y, float[1, 2, 5, 5] z) {
        y, z = Split<axis = 1>(x, s) }""",
    "what C has other words for": 'f (float[4] "1st/in put", float[4] "int") => '
    '(float[4] "out:0") { "out:0" = Add("1st/in put", "int") }',
    "scalars": "f (float x) => (float y) { y = Sqrt(x) }",
}


def compiled(model: onnx.ModelProto, **options: Any) -> Artifact:
    return autotune.compile(model, check=False, threads=2, **options).artifact


def parsed(text: str) -> onnx.ModelProto:
    if '"' not in text:
        model = onnx.parser.parse_model(f"{HEAD} {text}")
    else:
        model = onnx.parser.parse_model(
            f"{HEAD} f (float[4] a, float[4] b) => (float[4] c) {{ c = Add(a, b) }}"
        )
        names = {"a": "1st/in put", "b": "int", "c": "out:0"}
        for port in (*model.graph.input, *model.graph.output):
            port.name = names[port.name]
        node = model.graph.node[0]
        node.input[:], node.output[:] = [names[n] for n in node.input], ["out:0"]
    if "Split<" in text:
        sizes = onnx.numpy_helper.from_array(np.array([4, 2]), "s")
        model.graph.initializer.append(sizes)
    return model


def tools() -> Toolchain:
    try:
        return toolchain(None, "x86_64")
    except MissingDependency as error:
        pytest.skip(str(error))


def written(
    artifact: Artifact, folder: Path, name: str = "net", separate: bool = False
) -> Exported:
    return write_library(artifact, name, folder, tools(), separate)


def same_bits(a: Mapping[str, NDArray[Any]], b: Mapping[str, NDArray[Any]]) -> bool:
    return a.keys() == b.keys() and all(
        a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and a[n].tobytes() == b[n].tobytes()
        for n in a
    )


@pytest.fixture(scope="module")
def encoded() -> Artifact:
    """A network with two variants, of numbers and ids."""
    text = """f (int64[1, s] ids, float[1, s, 24] x, float[60, 24] table, float[24, 7] w)
        => (float[1, s, 7] y) { a = Gather(table, ids)  b = Add(a, x)  y = MatMul(b, w) }"""
    model = parsed(text)
    rng = np.random.default_rng(0)
    for name, shape in {"table": (60, 24), "w": (24, 7)}.items():
        weights = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
        model.graph.input.remove(next(i for i in model.graph.input if i.name == name))
    return compiled(model, dims={"s": [5, 16]})


@pytest.fixture(scope="module")
def library(encoded: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its library, `text`."""
    folder = tmp_path_factory.mktemp("library")
    written(encoded, folder, "text")
    return folder


def test_results_are_the_bits_of_python(tmp_path: Path) -> None:
    for name, text in MODELS.items():
        artifact = compiled(parsed(text))
        folder = tmp_path / library_name(name)
        written(artifact, folder)
        model, exported = Model(artifact), ExportedModel(folder / "libnet.so")
        for seed in range(3):
            inputs = random_inputs(artifact.inputs, seed)
            assert same_bits(model.run(inputs), exported.run(inputs)), name
        assert [p.name for p in exported.input_info] == [p.name for p in artifact.inputs]


def test_halves_are_rounded_as_numpy_does(tmp_path: Path) -> None:
    """Every half-precision number in, and floats around every step out."""
    text = """f (float16[65536] x, float[1200] s)
        => (float[65536] y, float16[1200] h, bfloat16[1200] b) {
        y = Cast<to = 1>(x)  h = Cast<to = 10>(s)  b = Cast<to = 16>(s) }"""
    artifact = compiled(parsed(text))
    written(artifact, tmp_path)
    exported, model = ExportedModel(tmp_path / "libnet.so"), Model(artifact)
    bits = np.arange(65536, dtype=np.uint16).view(np.float16)
    rng = np.random.default_rng(1)
    spread = np.ldexp(rng.uniform(-2, 2, 600), rng.integers(-30, 20, 600)).astype(np.float32)
    ties = (np.arange(600, dtype=np.float32) + 0.5) * np.float32(2.0**-24)
    inputs = {"x": bits, "s": np.concatenate([spread, ties])}
    found, expected = exported.run(inputs), model.run(inputs)
    finite = np.isfinite(bits)
    assert found["y"][finite].tobytes() == expected["y"][finite].tobytes()
    assert np.array_equal(found["y"], expected["y"], equal_nan=True)
    assert found["h"].tobytes() == expected["h"].tobytes()
    assert found["b"].tobytes() == expected["b"].tobytes()


def test_variants_are_chosen_by_shapes(encoded: Artifact, library: Path) -> None:
    model, exported = Model(encoded), autotune.ExportedModel(library / "libtext.so")
    for variant in model.variants:
        inputs = random_inputs(variant.input_info, 1)
        assert same_bits(model.run(inputs), exported.run(inputs))
    inputs = {n: x[:, :4] for n, x in random_inputs(model.input_info, 1).items()}
    with pytest.raises(UsageError, match="no variant is for inputs of shape"):
        exported.run(inputs)


def test_weights_can_be_a_file_beside_the_library(encoded: Artifact, tmp_path: Path) -> None:
    done = written(encoded, tmp_path / "a", separate=True)
    assert done.sizes["net.weights"] == WEIGHTS_HEADER + encoded.constants.nbytes
    embedded = written(encoded, tmp_path / "b")
    assert embedded.sizes["libnet.so"] >= done.sizes["libnet.so"] + encoded.constants.nbytes
    inputs = random_inputs(encoded.inputs, 1)
    found = ExportedModel(tmp_path / "a/libnet.so").run(inputs)
    assert same_bits(Model(encoded).run(inputs), found)
    weights = tmp_path / "a/net.weights"
    data = weights.read_bytes()
    for wrong in (data[:-1], bytes(32) + data[32:]):
        weights.write_bytes(wrong)
        with pytest.raises(ArtifactError, match="weights"):
            ExportedModel(tmp_path / "a/libnet.so")


def test_header_and_example_are_clean_in_c_and_cpp(library: Path, tmp_path: Path) -> None:
    cc = tools().cc
    header, example = library / "text.h", library / "example.c"
    subprocess.run([*cc, "-std=c99", *STRICT, "-fsyntax-only", example, f"-I{library}"], check=True)
    cpp = ["-std=c++17", *STRICT, "-fsyntax-only", "-x", "c++", str(header)]
    subprocess.run([*cc, *cpp], check=True)
    for end in (["-L.", "-ltext", "-Wl,-rpath,."], ["libtext.a", "-lpthread"]):
        program = tmp_path / "program"
        subprocess.run([*cc, "example.c", "-I.", *end, "-o", program], check=True, cwd=library)
        shown = subprocess.run([program], capture_output=True, text=True, check=True, cwd=library)
        assert shown.stdout.count(":") == 1


def test_cmake_and_pkg_config_find_the_library(library: Path, tmp_path: Path) -> None:
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    (tmp_path / "CMakeLists.txt").write_text(
        f"""cmake_minimum_required(VERSION 3.16)
        project(user C)
        find_package(text REQUIRED PATHS "{library}" NO_DEFAULT_PATH)
        add_executable(shared "{library}/example.c")
        target_link_libraries(shared text::text)
        add_executable(static "{library}/example.c")
        target_link_libraries(static text::text_static)
        """
    )
    quiet: dict[str, Any] = {"check": True, "capture_output": True, "text": True}
    subprocess.run(["cmake", "-S", ".", "-B", "made"], cwd=tmp_path, **quiet)
    subprocess.run(["cmake", "--build", "made"], cwd=tmp_path, **quiet)
    outputs = [
        subprocess.run([tmp_path / "made" / name], **quiet).stdout for name in ("shared", "static")
    ]
    assert outputs[0] == outputs[1] != ""
    if shutil.which("pkg-config"):
        asked = ["pkg-config", "--cflags", "--libs", "text"]
        environment = os.environ | {"PKG_CONFIG_PATH": str(library)}
        found = subprocess.run(asked, env=environment, **quiet)
        assert "-ltext" in found.stdout


def test_the_example_in_rust_runs(library: Path, tmp_path: Path) -> None:
    if not shutil.which("rustc"):
        pytest.skip("rustc is not installed")
    program = tmp_path / "example"
    link = f"link-arg=-Wl,-rpath,{library}"
    command = ["rustc", str(library / "example.rs"), "-L", str(library), "-C", link, "-o", program]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("y: Some(")


CALLERS = """
#define _GNU_SOURCE
#include "one.h"
#include "two.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = TWO_OUTPUT_Y_COUNT, ROUNDS = %d };
static one_model *one;
static two_model *two;
static float x[ONE_INPUT_X_COUNT], w[ONE_INPUT_W_COUNT], expected[N];

static int differs(void) {
  float y[N], z[N];
  one_inputs a = {x, w};
  one_outputs b = {y};
  two_inputs c = {x, w};
  two_outputs d = {z};
  if (one_run(one, &a, &b) || two_run(two, &c, &d)) return 1;
  return memcmp(y, expected, sizeof y) != 0 || memcmp(z, expected, sizeof z) != 0;
}

static void *calls(void *unused) {
  for (int n = 0; n < ROUNDS; n++)
    if (differs()) return (void *)1;
  return unused;
}

static int in_threads(void) {
  pthread_t threads[4];
  int wrong = 0;
  for (int n = 0; n < 4; n++) wrong |= pthread_create(&threads[n], NULL, calls, NULL);
  for (int n = 0; n < 4; n++) {
    void *found;
    pthread_join(threads[n], &found);
    wrong |= found != NULL;
  }
  return wrong;
}

int main(void) {
  one_options options = {.threads = 2, .callers = 2};
  one_outputs first = {expected};
  one_inputs inputs = {x, w};
  int status = 0;
  for (int n = 0; n < ONE_INPUT_X_COUNT; n++) x[n] = (float)(n %% 17) - 8;
  for (int n = 0; n < ONE_INPUT_W_COUNT; n++) w[n] = (float)(n %% 13) / 4;
  for (int round = 0; round < 3; round++) {
    if (one_create(&options, &one) || two_create(NULL, &two)) return 2;
    if (one_run(one, &inputs, &first) || in_threads()) return 3;
    pid_t child = fork();
    if (!child) _exit(in_threads());
    waitpid(child, &status, 0);
    if (status) return 4;
    one_destroy(one);
    two_destroy(two);
  }
  puts("right");
  return 0;
}
"""


def callers(folder: Path, flags: tuple[str, ...], rounds: int, sanitiser: str = "") -> Path:
    """A program with two libraries, four threads and a fork."""
    artifact = compiled(parsed(MODELS["floats"]), target="x86-64-v3")
    cc = shlex.join([*tools().cc, *([f"-fsanitize={sanitiser}"] if sanitiser else [])])
    for name in ("one", "two"):
        write_library(artifact, name, folder, toolchain(cc, "x86_64"), False)
    (folder / "callers.c").write_text(CALLERS % rounds)
    static = ["libone.a", "libtwo.a", "-lpthread"]
    command = [*shlex.split(cc), "-std=gnu11", *flags, "callers.c", "-I.", *static, "-o", "callers"]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "callers"


def test_libraries_share_a_process_with_threads_and_forks(tmp_path: Path) -> None:
    program = callers(tmp_path, (*STRICT, "-O1"), rounds=300)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "right\n")


def test_memory_is_used_as_valgrind_wants_it(tmp_path: Path) -> None:
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed")
    program = callers(tmp_path, ("-g",), rounds=3)
    # threads of the team live until the process ends, and the C library keeps a block for each
    leaks = "--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"
    checked = ["valgrind", "-q", "--error-exitcode=9", *leaks, str(program)]
    done = subprocess.run(checked, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("sanitiser", ["address,undefined", "thread"])
def test_sanitisers_have_nothing_to_say(tmp_path: Path, sanitiser: str) -> None:
    """Of the run time in C: kernels and the team are not instrumented."""
    try:
        program = callers(tmp_path, ("-g",), 500, sanitiser)
    except (OutputError, subprocess.CalledProcessError):
        pytest.skip("the compiler has no such sanitiser")
    environment = os.environ | {"TSAN_OPTIONS": "die_after_fork=0"}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


def test_a_library_runs_without_llvm(library: Path) -> None:
    text = f"""
import sys, numpy as np, autotune
model = autotune.ExportedModel({str(library / "libtext.so")!r})
inputs = {{p.name: np.zeros(p.shapes[0], p.dtype) for p in model.input_info}}
model.run(inputs)
loaded = {{"llvmlite", "onnx", "autotune.codegen.emission.emit"}} & set(sys.modules)
assert not loaded, sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", text], check=True)


def test_what_no_library_has_is_refused(tmp_path: Path) -> None:
    hybrid = autotune.compile(saved(DETECTOR, tmp_path), check=False).artifact
    with pytest.raises(ArtifactError, match="NonMaxSuppression"):
        written(hybrid, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="no compiler"):
        toolchain("no-such-compiler", "x86_64")
    false = Toolchain(("false",), ("false",))
    with pytest.raises(OutputError, match="false failed"):
        write_library(compiled(parsed(MODELS["scalars"])), "net", tmp_path / "out", false, False)
    assert not list((tmp_path / "out").iterdir())
    for name in ("int", "9lives", "a-b", ""):
        with pytest.raises(UsageError, match="name of a library"):
            require_library_name(name)


def test_identifiers_are_valid_and_differ() -> None:
    names = ["x", "X", "x/1", "x.1", "int", "", "7", "é", "class", "x_1"]
    found = identifiers(names)
    assert len({text.upper() for text in found.values()}) == len(names)
    assert all(text.isidentifier() and text.isascii() for text in found.values())
    assert found["int"] == "int_"


_HEADERS = """
assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign
stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar
wchar wctype
"""
HEADERS = _HEADERS.split()


@pytest.mark.parametrize("language", ["c", "c++"])
def test_no_macro_of_the_standard_headers_is_a_field(language: str, tmp_path: Path) -> None:
    """Also those that compilers define by themselves, as `linux` and `unix`."""
    cc = shutil.which({"c": "cc", "c++": "c++"}[language])
    if cc is None:
        pytest.skip("no compiler")
    headers = [h for h in HEADERS if language == "c" or h not in ("stdatomic", "stdnoreturn")]
    included = "".join(f"#include <{h}.h>\n" for h in headers)
    command = [cc, "-x", language, "-"]
    listed = subprocess.run(
        [*command, "-dM", "-E"], input=included, capture_output=True, text=True, check=True
    )
    macros = re.findall(r"^#define ([A-Za-z]\w*) ", listed.stdout, re.MULTILINE)
    assert len(macros) > 200
    words = ["x", "x_shape", "X_SHAPE", "x shape", "Self", "main", "size_t", "memcpy", *macros]
    fields = "".join(f"int {x}; long {x}_shape[2];\n" for x in identifiers(words).values())
    program = f"{included}struct inputs {{\n{fields}}};\n"
    subprocess.run([*command, "-fsyntax-only"], input=program, text=True, check=True)


_WORDS = """
NULL linux unix errno assert stdin I EOF INT32_MAX UINT8_C M_PI bool true and Self main printf
size_t self model status inputs outputs x x_shape X toString constructor valueOf hasOwnProperty
__proto__ __defineGetter__ prototype length then default arguments await
"""
_TEXTS = ('"quotes"', "*/ ends", "${x}", "back\\slash", "`tick`", "two\nlines", "\u2028", "日本")
NASTY = [*_WORDS.split(), *_TEXTS]


def sums(names: Sequence[str]) -> onnx.ModelProto:
    """Every other name is an input, and the next one the output that doubles it."""
    pairs = list(zip(names[::2], names[1::2], strict=True))
    nodes = [onnx.helper.make_node("Add", [a, a], [b]) for a, b in pairs]
    sides = [
        [onnx.helper.make_tensor_value_info(n, 1, [4]) for n in side]
        for side in zip(*pairs, strict=True)
    ]
    graph = onnx.helper.make_graph(nodes, "f", *sides)
    opsets = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def nasty(rng: np.random.Generator) -> list[str]:
    names = [str(name) for name in rng.permutation(NASTY)]
    return names[: len(names) // 2 * 2]


def test_a_library_of_any_names_compiles_and_runs(rng: np.random.Generator, tmp_path: Path) -> None:
    artifact = compiled(sums(nasty(rng)))
    written(artifact, tmp_path)
    exported, inputs = ExportedModel(tmp_path / "libnet.so"), random_inputs(artifact.inputs)
    assert same_bits(Model(artifact).run(inputs), exported.run(inputs))
    before = [f"-include{header}.h" for header in HEADERS]
    example = ["example.c", "-I.", "-L.", "-lnet", "-Wl,-rpath,$ORIGIN", "-o", "example"]
    subprocess.run(["cc", *before, *example], cwd=tmp_path, check=True)
    subprocess.run(["./example"], cwd=tmp_path, check=True, capture_output=True)
    if rustc := shutil.which("rustc"):
        linked = ["-L.", "-C", "link-arg=-Wl,-rpath,$ORIGIN"]
        subprocess.run([rustc, "example.rs", *linked], cwd=tmp_path, check=True)
