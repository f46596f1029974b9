"""What sessions of ONNX Runtime may ask of calls: many callers, their memory, an end, profiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import autotune

_BEGIN = """
import json, sys, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np, onnxruntime as ort

provider, folder, own = sys.argv[1:]
ort.set_default_logger_severity(4)
ort.register_execution_provider_library("autotune", provider)
devices = [d for d in ort.get_ep_devices() if d.ep_name == "AutotuneExecutionProvider"]

def session(settings=None, **options):
    settings = settings or ort.SessionOptions()
    settings.add_provider_for_devices(devices, options)
    return ort.InferenceSession(folder + "/net_ctx.onnx", settings)

def feeds(n, seed):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((n, 64)).astype(np.float32),
            "s": rng.standard_normal(n).astype(np.float32)}

def require(found, given):
    np.testing.assert_array_equal(found[0], np.maximum(given["x"], 0))
    np.testing.assert_allclose(found[1], found[0].sum(1) + given["s"], rtol=1e-4, atol=1e-4)
"""
_CALLERS = """
sessions = [session(callers=str(n), threads=str(m)) for n, m in ((1, 1), (1, 2), (3, 2), (8, 1))]
def calls(caller):
    for k in range(60):
        given = feeds(1 + (caller + k) % 16, 100 * caller + k)
        require(sessions[(caller + k // 7) % len(sessions)].run(None, given), given)
        if k == 30:
            require(session(callers="2").run(None, given), given)  # one that begins and ends
with ThreadPoolExecutor(8) as pool:
    list(pool.map(calls, range(8)))
"""
_MEMORY = """
settings = ort.SessionOptions()
settings.enable_cpu_mem_arena = settings.enable_mem_pattern = False
info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
ort.create_and_register_allocator(info, ort.OrtArenaCfg(0, -1, -1, -1))
shared = ort.SessionOptions()
shared.add_session_config_entry("session.use_env_allocators", "1")
for one in (session(settings), session(shared)):
    given = feeds(5, 1)
    require(one.run(None, given), given)
    binding = one.io_binding()
    y, z = np.full((5, 64), 7, np.float32), np.full(5, 7, np.float32)
    at = 1 + np.zeros(5 * 64 + 1, np.float32)  # bound inputs and outputs at any multiple of 4
    at[1:] = given["x"].ravel()
    odd = at[1:].reshape(5, 64)
    for name, x in (("x", odd), ("s", given["s"])):
        binding.bind_input(name, "cpu", 0, np.float32, x.shape, x.ctypes.data)
    for name, x in (("y", y), ("z", z)):
        binding.bind_output(name, "cpu", 0, np.float32, x.shape, x.ctypes.data)
    one.run_with_iobinding(binding)
    require((y, z), given)  # written in place
    found = binding.get_outputs()
    assert found[0].data_ptr() == y.ctypes.data
    for n in (3, 9, 2):  # memory of ONNX Runtime's, of another size each time
        given = feeds(n, n)
        binding = one.io_binding()
        for name, x in given.items():
            binding.bind_cpu_input(name, x)
        for name in "yz":
            binding.bind_output(name)
        one.run_with_iobinding(binding)
        require(binding.copy_outputs_to_cpu(), given)
"""
_END = """
one, given = session(), feeds(4, 2)
options = ort.RunOptions()
options.terminate = True
try:
    one.run(None, given, options)
    raise SystemExit("it ran to its end")
except Exception as error:
    assert "terminate" in str(error), error
options.terminate = False
require(one.run(None, given, options), given)
"""
_ENDED = """
import threading
one, given = session(), feeds(4, 2)
options, seen = ort.RunOptions(), threading.Event()
def ends():
    seen.wait()
    options.terminate = True
other = threading.Thread(target=ends)
other.start()
error = ""
for n in range(10**6):  # it is ended before a run, within one, or before its node
    try:
        require(one.run(None, given, options), given)
    except Exception as told:
        error = str(told)
        break
    seen.set()
other.join()
assert "terminate" in error, error
options.terminate = False
require(one.run(None, given, options), given)
"""
_PROFILE = """
settings = ort.SessionOptions()
settings.enable_profiling, settings.profile_file_prefix = True, own + "/profile"
one, given = session(settings), feeds(4, 3)
for _ in range(3):
    require(one.run(None, given), given)
events = json.load(open(one.end_profiling()))
ours = [e for e in events if e.get("args", {}).get("provider") == "AutotuneExecutionProvider"]
ran = [e for e in ours if e["name"].endswith("_kernel_time")]
assert len(ran) == 3, [e["name"] for e in ours]
assert all(e["dur"] > 0 for e in ran)
"""


@pytest.mark.parametrize(
    "script",
    [_CALLERS, _MEMORY, _END, _ENDED, _PROFILE],
    ids=["callers of several sessions", "memory of callers", "an end", "an end within", "profiles"],
)
def test_calls_are_those_of_any_provider(script: str, lengths: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", minversion="1.23")
    words = [str(autotune.onnxruntime_provider()), str(lengths), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + script, *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
