"""⑦ The child's side of a builder: one process that lowers and compiles candidates."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from autotune.errors import AutotuneError, ScheduleError
from autotune.measure.build import Build
from autotune.measure.processes.frames import Message
from autotune.measure.processes.messages import BuildRequest, BuildResult, from_message, to_message
from autotune.measure.processes.process import Setup
from autotune.measure.processes.supervisor import Handler
from autotune.result import MeasureStatus
from autotune.target import Target
from autotune.te.dag import ComputeDAG

_BUILDS_PER_COLLECTION = 12
"""Python's own frequency of garbage collection takes a sixth of the time of lowering."""


class BuildHandler:
    """Runs in the builder process."""

    def __init__(self, build: Build, target: Target) -> None:
        self._build = build
        self._target = target
        self._dags: dict[int, ComputeDAG] = {}
        self._n_built = 0
        gc.freeze()
        gc.disable()

    def __call__(self, request: BuildRequest) -> BuildResult:
        """Build one candidate; every exception becomes a status."""
        if request.dag is not None:
            self._dags[request.task] = request.dag
        start_s = time.perf_counter()
        program, status, error = None, MeasureStatus.OK, ""
        try:
            program = self._build(self._dags[request.task], request.steps, self._target)
        except ScheduleError as problem:
            status, error = MeasureStatus.SCHEDULE_ERROR, problem.message
        except AutotuneError as problem:
            status, error = MeasureStatus.BUILD_ERROR, problem.message
        except Exception:
            status, error = MeasureStatus.BUILD_ERROR, traceback.format_exc()
        self._n_built += 1
        if self._n_built % _BUILDS_PER_COLLECTION == 0:
            gc.collect()
        return BuildResult(status, program, time.perf_counter() - start_s, error)


def serve_builds(arguments: Mapping[str, Any], blobs: Sequence[Any]) -> Handler:
    """The handler of a builder process, of the arguments that `_setup` gives."""
    module, _, name = arguments["build"].partition(":")
    build = partial(getattr(import_module(module), name), **arguments["options"])
    handler = BuildHandler(build, Target.from_json(arguments["target"]))

    def handle(message: Message) -> Message:
        request = from_message(message)
        assert isinstance(request, BuildRequest)
        return to_message(handler(request))

    return handle


def build_setup(build: Build, target: Target, data_bytes: int) -> Setup:
    """Setup of a builder process: `build` by name, a function of a module or a `partial` of one
    with named arguments."""
    function, options = build, {}
    if isinstance(build, partial):
        function, options = build.func, build.keywords
    name = f"{function.__module__}:{function.__qualname__}"
    arguments = {"build": name, "options": options, "target": target.to_json()}
    return Setup(
        "autotune.measure.processes.build_worker:serve_builds", arguments, data_bytes=data_bytes
    )
