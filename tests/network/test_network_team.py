"""The team under a compiled network: the same bits, threads that are missing, and rest."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from autotune.errors import ArtifactError
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.search.defaults import default_steps
from autotune.target import host_target
from tests.network.hand_made import N, reversing
from tests.network.small_networks import branches

ROOT = Path(__file__).parents[2]


BUSY = "import time; end = time.time() + 60\nwhile time.time() < end: pass"


@pytest.fixture
def neighbours() -> Iterator[None]:
    """More processes that compute without end than there are cores."""
    n_busy = len(os.sched_getaffinity(0)) + 1
    with ExitStack() as stack:
        for _ in range(n_busy):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
            stack.callback(process.kill)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("neighbours")
def test_the_same_bits_on_every_number_of_threads_beside_busy_processes() -> None:
    network, target = branches(), host_target()
    steps = {key: default_steps(dag, target, 2) for key, dag in network.tasks.items()}
    artifact = compile_network(network, steps, target)
    models = [Model(artifact, n) for n in (1, 2, 3, 5)]
    for seed in range(20):
        inputs = random_inputs(models[0].input_info, seed)
        want = models[0].run(inputs)
        for model in models[1:]:
            for name, array in model.run(inputs).items():
                assert array.tobytes() == want[name].tobytes()


@pytest.mark.usefixtures("neighbours")
@pytest.mark.parametrize("time_s", [0.0, 1e-4, 1.0])
def test_many_callers_of_many_parts_beside_busy_processes(time_s: float) -> None:
    models = [Model(reversing(25, time_s=time_s), n) for n in (2, 4)]
    wrong: list[int] = []

    def calls(caller: int) -> None:
        for turn in range(40):
            x = np.full((2, N // 2), caller + turn, np.float32)
            found = models[(caller + turn) % 2].run({"x": x})["y"]
            wrong.extend([caller] * int(np.any(found != caller + turn + 25)))

    threads = [threading.Thread(target=calls, args=(caller,)) for caller in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_team_that_has_nothing_to_do_takes_no_processor_time() -> None:
    model = Model(reversing(25), 4)
    model.run({"x": np.zeros((2, N // 2), np.float32)})
    begin_s, rest_s = time.process_time(), 0.3
    time.sleep(rest_s)
    assert time.process_time() - begin_s < rest_s / 10


def test_working_memory_is_what_callers_at_once_need() -> None:
    model = Model(reversing(3))
    x = np.zeros((2, N // 2), np.float32)
    lent = [model._memory.take() for _ in range(5)]
    assert len({w.arena.ctypes.data for w in lent}) == 5
    for working in lent:
        model._memory.give_back(working)
    assert len(model._memory._free) == 5
    for _ in range(4000):
        model.run({"x": x})
    assert len(model._memory._free) == 1, "what was not needed for long is freed"


@pytest.mark.slow
def test_threads_that_cannot_be_started_are_named_and_done_without() -> None:
    script = f"""
import sys, warnings, resource
sys.path.insert(0, {str(ROOT)!r})
import numpy as np
from autotune.errors import ArtifactError
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.search.defaults import default_steps
from autotune.target import host_target
from tests.network.hand_made import N, reversing
artifact = reversing(9, 3)
model = Model(artifact, 3)
used = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmSize")) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), -1))
x = np.ones((2, N // 2), np.float32)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    outputs = [model.run({{"x": x}})["y"] for _ in range(50)]
assert all(np.array_equal(y, np.full(N, 10, np.float32)) for y in outputs)
print(*[w.message for w in said], sep="\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("autotune: 2 of 3 threads cannot be started")
    assert "ulimit -u" in line


def test_code_for_another_team_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = reversing(2)
    monkeypatch.setattr("autotune.network.runtime.working_memory.SYMBOLS", "autotune_team0_")
    with pytest.raises(ArtifactError, match="threads of this version") as caught:
        Model(artifact)
    assert caught.value.hint == "compile the model again"
