"""The measuring program: memory and calls behind any command, and what happens when it ends."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import autotune
from autotune.codegen.compile import assemble
from autotune.codegen.image.link import Part, link
from autotune.errors import CodegenError, MissingDependency, OutputError, UsageError
from autotune.measure.build import BuiltProgram
from autotune.measure.far.program import (
    Connection,
    FarBlock,
    FarCode,
    ProgramEnded,
    ProgramExecutor,
    connect,
    connected,
    measuring_program,
)
from autotune.measure.far.program_device import ProgramDevice, program_device
from autotune.measure.measurer import measurer_of
from autotune.measure.options import MeasureOptions
from autotune.measure.processes.messages import Time
from autotune.measure.processes.process import WorkerError
from autotune.measure.timing.driver import Driver, TimedKernel
from autotune.network.runtime.far import FarModel
from autotune.records import read_log
from autotune.result import MeasureStatus
from autotune.search.defaults import default_steps
from autotune.target import Target, host_target, parse_target
from autotune.te.dag import ComputeDAG
from autotune.toolchain import static_program
from tests.network.small_networks import conv, linear_relu
from tests.node import node

TARGET = host_target()
TRAP = """
declare void @llvm.trap()
define void @{name}({arguments}) {{
  call void @llvm.trap()
  ret void
}}"""
SHELL = """#!/bin/sh
shift
exec sh -c "$*"
"""


@pytest.fixture(scope="module")
def program() -> bytes:
    try:
        return measuring_program(TARGET)
    except MissingDependency as error:
        pytest.skip(str(error))


@pytest.fixture(params=["native", "wasm32"])
def device(request: pytest.FixtureRequest) -> ProgramDevice:
    """The measuring programs of this machine: that of its CPU and that of Node."""
    if request.param == "wasm32":
        node()
        target = parse_target("wasm32")
        return ProgramDevice("node", target, 1, measuring_program(target))
    return ProgramDevice("", TARGET, 2, request.getfixturevalue("program"))


@pytest.fixture
def connection(device: ProgramDevice) -> Iterator[Connection]:
    found = connect(device.command, device.program)
    yield found
    found.close()


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A command of that name that gives its words to a shell, as sshd does."""
    file = tmp_path / "bin/ssh"
    file.parent.mkdir()
    file.write_text(SHELL)
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")
    return "ssh board"


def test_memory_is_written_read_and_given_back(
    connection: Connection, device: ProgramDevice
) -> None:
    executor = ProgramExecutor(connection, device.target, 1)
    rng = np.random.default_rng(0)
    for n_bytes in (0, 1, 4095, 1 << 20, (5 << 20) + 3):
        block = executor.block(n_bytes)
        block.array[:] = data = rng.integers(0, 256, n_bytes).astype(np.uint8)
        block.push()
        block.array[:] = 0
        block.pull()
        assert (block.array == data).all()
        assert block.address % 64 == 0
        block.array[:] = 0
        middle = slice(n_bytes // 3, n_bytes // 2)
        block.push(middle.start, middle.stop)
        block.pull()
        data[middle] = 0
        assert (block.array == data).all()
        del block
        again = executor.block(n_bytes)
        again.pull()
        assert not again.array.any()


def test_kernels_run_on_all_threads(connection: Connection, device: ProgramDevice) -> None:
    for n_threads in range(1, device.n_threads + 1):
        bump(ProgramExecutor(connection, device.target, n_threads), device.target)


def bump(executor: ProgramExecutor, target: Target) -> None:
    text = """
declare double @exp(double)
define void @bump(ptr %x, i64 %begin, i64 %end) {
entry:
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %at = getelementptr double, ptr %x, i64 %i
  %v = load double, ptr %at
  %w = call double @exp(double %v)
  store double %w, ptr %at
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}"""
    code = executor.load([assemble(text, target)])
    driver = Driver(target, executor.n_threads, executor)
    driver.pin(executor.cpus)
    block = executor.block(8 * 1000)
    values = block.array.view(np.float64)
    values[:] = np.linspace(-1, 1, 1000)
    expected = np.exp(values)
    block.push()
    launch = TimedKernel(code.address("bump"), (block.address,), 1000)
    plan = driver.plan([launch], [(block.address, 8000)], executor.block(1 << 16))
    assert driver.evaluate(plan) > 0
    block.pull()
    assert np.allclose(values, expected, rtol=1e-14)


def test_what_the_program_does_not_have_is_an_error(
    connection: Connection, device: ProgramDevice
) -> None:
    executor = ProgramExecutor(connection, device.target, 1)
    text = "declare void @nowhere()\ndefine void @f() {\n  call void @nowhere()\n  ret void\n}"
    with pytest.raises(CodegenError, match="nowhere"):
        executor.load([assemble(text, device.target)])


def test_code_that_crashes_ends_the_program(connection: Connection, device: ProgramDevice) -> None:
    target = device.target
    executor = ProgramExecutor(connection, target, 1)
    code = executor.load([assemble(TRAP.format(name="f", arguments="ptr, i64"), target)])
    with pytest.raises(ProgramEnded, match=r"SIGILL|RuntimeError: unreachable"):
        executor.call(code.address("f"), 0)
    with pytest.raises(ProgramEnded):
        executor.block(8)


def test_a_call_of_what_is_no_function_ends_the_program(connection: Connection) -> None:
    with pytest.raises(ProgramEnded):
        connection.call(1)


def test_a_hang_is_ended_by_an_alarm(connection: Connection, device: ProgramDevice) -> None:
    executor = ProgramExecutor(connection, device.target, 1)
    text = "define void @f(ptr %p, i64 %t) {\nentry:\n  br label %a\na:\n  br label %a\n}"
    code = executor.load([assemble(text, device.target)])
    with pytest.raises(ProgramEnded, match="SIGALRM"):
        connection.call(code.address("f"), limit_s=1)


def test_code_comes_and_goes_without_end() -> None:
    """A module that is removed gives back its memory and its slots."""
    node()
    target = parse_target("wasm32")
    numbers = ", ".join(f"i32 {n}" for n in range(50_000))
    text = f"""
@table = internal global [50000 x i32] [{numbers}]
define void @f(ptr %p, i64 %t) {{
  %at = getelementptr i32, ptr @table, i64 %t
  %old = load i32, ptr %at
  %new = add i32 %old, 1
  store i32 %new, ptr %at
  store i32 %new, ptr %p
  ret void
}}"""
    image = link([Part(assemble(text, target))])
    with connected("node", measuring_program(target)) as connection:
        first = FarCode(connection, image).start
        block = FarBlock(connection, 4)
        end = connection.map(1)
        for _ in range(50):
            code = FarCode(connection, image)
            connection.call(code.address("f"), block.address, 49_999)
            block.pull()
            assert block.array.view(np.int32)[0] == 50_000
            assert code.start <= first + 2
            del code
        assert connection.map(1) < end + 4 * 50_000 * 4


@pytest.mark.parametrize(
    "dag", [linear_relu(9, 17, 33), conv(9, 8, 3, 24, 3)], ids=["product", "conv"]
)
def test_a_candidate_is_checked_and_timed_there(device: ProgramDevice, dag: ComputeDAG) -> None:
    steps = default_steps(dag, device.target, device.n_threads)
    options = MeasureOptions(n_builders=1, flush_bytes=1 << 16)
    with measurer_of(device, options) as measurer:
        (result,) = measurer.measure(dag, [steps])
    assert result.status is MeasureStatus.OK
    assert result.latency_s


def test_a_crash_there_is_a_status_of_its_candidate(device: ProgramDevice) -> None:
    target = device.target
    dag = linear_relu(4, 8, 8)
    options = MeasureOptions(n_builders=1, flush_bytes=0)
    with closing(device.builder(options)) as builder:
        (built,) = builder.build(dag, [default_steps(dag, target, 1)])
        assert built.program is not None
        kernel = built.program.program.kernels[0]
        arguments = ", ".join(["ptr"] * len(kernel.buffers) + ["i64", "i64"])
        broken = assemble(TRAP.format(name=kernel.name, arguments=arguments), target)
        wrong = replace(built, program=BuiltProgram(broken, built.program.program))
        runner = device.runner(options)
        results = list(runner.run(dag, [wrong, built], Time()))
        runner.close()
    assert [r.status for r in results] == [MeasureStatus.RUN_CRASH, MeasureStatus.OK]
    assert re.search("SIGILL|RuntimeError: unreachable", results[0].error)


def test_a_shell_elsewhere_gets_the_program_over_its_input(device: ProgramDevice, ssh: str) -> None:
    before = set(Path("/tmp").glob("tmp.*"))
    found = program_device(ssh, device.target)
    assert found.n_threads >= 1
    assert found.target.l1_bytes > 0
    connection = connect(ssh, device.program)
    block = ProgramExecutor(connection, device.target, 1).block(64)
    assert block.address
    connection.close()
    assert set(Path("/tmp").glob("tmp.*")) <= before  # it removes its own file


def test_commands_that_start_nothing_are_one_line() -> None:
    with pytest.raises(UsageError, match="cannot run no-such-command"):
        program_device("no-such-command", TARGET)
    with pytest.raises(WorkerError, match="does not start: exit code 3"):
        program_device("sh -c 'exit 3'", TARGET)
    with pytest.raises(WorkerError, match="does not start"):
        program_device("true", TARGET)
    with pytest.raises(UsageError, match="has one thread"):
        program_device("node", parse_target("wasm32"), 2)


def test_a_session_behind_a_command_is_logged_and_resumed(tmp_path: Path) -> None:
    log = tmp_path / "far.jsonl"
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    text = f"{head} f (float[9, 33] x) => (float[9, 33] y) {{ y = Softmax(x) }}"
    model = onnx.parser.parse_model(text)
    autotune.tune(model, log, trials=4, threads=1, runner="env A=1", show="nothing")
    found = read_log(log)
    assert found.header.config["runner"] == "env A=1"
    assert {r.result.status for r in found.records} == {MeasureStatus.OK}
    result = autotune.resume(log, trials=2, show="nothing")
    assert result is not None


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
def test_a_network_is_checked_behind_a_command(target: str) -> None:
    """Of all kinds of ports: half precision, windows, integers."""
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    text = f"""{head} f (float[1, 6, 5, 5] x, float16[7, 9] h, int64[3] i)
        => (float[1, 6, 5, 5] y, float[1, 2, 5, 5] z, float16[7, 9] g, int64[3] j) {{
        y = Relu(x)  s = Constant<value_ints = [4, 2]>()  v, z = Split<axis = 1>(y, s)
        g = Softmax(h)  j = Add(i, i) }}"""
    model = onnx.parser.parse_model(text)
    done = autotune.compile(model, target=target, threads=1, runner="env A=1", cache=False)
    assert done.report is not None
    assert done.error < 1e-3


ELSEWHERE = {
    "wasm32": ("node", ""),
    "neoverse-n1": ("qemu-aarch64-static", "-cpu max"),
    "neoverse-v1": ("qemu-aarch64-static", "-cpu max,sve-default-vector-length=32"),
    "rv64gcv-zvl256b": ("qemu-riscv64-static", "-cpu rv64,v=true,vlen=256,elen=64,vext_spec=v1.0"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ELSEWHERE)
def test_another_architecture_is_tuned_compiled_and_checked(tmp_path: Path, target: str) -> None:
    emulator, options = ELSEWHERE[target]
    if shutil.which(emulator) is None:
        pytest.skip(f"{emulator} is not installed")
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    text = f"""{head} f (float[1, 8, 9, 9] x, float[16, 8, 3, 3] w) => (float[1, 16, 9, 9] y) {{
        a = Conv<pads = [1, 1, 1, 1]>(x, w)  y = Relu(a) }}"""
    model = onnx.parser.parse_model(text)
    log = tmp_path / "far.jsonl"
    far = {"target": target, "threads": 1, "runner": f"{emulator} {options}"}
    autotune.tune(model, log, trials=6, show="nothing", **far)
    found = read_log(log)
    assert found.header.target.cpu == target
    assert {r.result.status for r in found.records} == {MeasureStatus.OK}
    done = autotune.compile(model, log, **far)
    assert done.report is not None
    assert done.error < 1e-5


def test_a_compiler_without_a_static_library_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cc").write_text("#!/bin/sh\necho 'error: cannot find -lc' >&2\nexit 1\n")
    (tmp_path / "ar").write_text("#!/bin/sh\nexit 1\n")
    for name in ("cc", "ar"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("autotune.toolchain.find_spec", lambda name: None)
    with pytest.raises(OutputError, match="cannot find -lc"):
        static_program("int main(void) { return 0; }", "x86_64")
    with pytest.raises(MissingDependency, match="for aarch64"):
        static_program("int main(void) { return 0; }", "aarch64")


def test_inputs_behind_a_command_go_by_their_names(program: bytes) -> None:
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    text = f"{head} f (float[3] a, float[3] b) => (float[3] y) {{ y = Sub(a, b) }}"
    artifact = autotune.compile(onnx.parser.parse_model(text), check=False, threads=1).artifact
    inputs = {"b": np.ones(3, np.float32), "a": np.full(3, 5, np.float32)}
    with connected("", program) as connection:
        model = FarModel(connection, artifact)
        assert (model.run(inputs)["y"] == 4).all()
        with pytest.raises(UsageError, match="the inputs are 'a'"):
            model.run({"a": inputs["a"]})


def test_a_program_that_ends_is_one_error(program: bytes) -> None:
    def jump_nowhere() -> None:
        with connected("", program) as connection:
            connection.call(1)

    with pytest.raises(WorkerError, match="ended: killed by SIGSEGV"):
        jump_nowhere()
