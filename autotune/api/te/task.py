"""⑪ One computation as a task: define, tune, schedule by hand, build, time.

    task = autotune.Task(matmul_add, (1024, 1024, 1024))
    task.tune(trials=64, log="matmul.jsonl")
    f = task.build(constants={"b": b})
    out = f(a, c)
    print(task.time(f))

A task is a network of one call, so its log is a log like any other: `resume`, `distill` and
`explain` take it.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.api.showing import Show, showing
from autotune.api.te.schedule import Schedule, python_text
from autotune.api.tune.model import resuming, tune_network
from autotune.api.tune.tune_result import Events
from autotune.brief import brief, cut
from autotune.calls import PublicNames, checked
from autotune.config import resolve
from autotune.errors import AutotuneError, DefinitionError, LogMismatch, UsageError
from autotune.graph.network import Network, Port, TaskCall
from autotune.graph.tasks.storage import Activation
from autotune.machine import require_threads
from autotune.measure.threads import default_threads
from autotune.measure.timing.peak import fma_peak, form_peaks
from autotune.network.artifact.artifact import Artifact
from autotune.network.bench.bench import Timing, interleave
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.records import best_for, read_log
from autotune.schedule.steps import Steps
from autotune.search.defaults import default_candidate
from autotune.search.partial import Rule
from autotune.strides import dense
from autotune.target import Target, parse_target, target_name
from autotune.te.dag import ComputeDAG
from autotune.te.language import dag_of
from autotune.te.values import Tensor, numbered
from autotune.tuner import arithmetic_s, dots_of
from autotune.units import counted, format_flops, format_seconds

Array: TypeAlias = NDArray[Any]
Workload: TypeAlias = Callable[..., Tensor | Sequence[Tensor]]


@brief
@dataclass(frozen=True, slots=True)
class Best:
    """The fastest program of a task in a log: its latency in seconds, and its schedule."""

    latency_s: float
    steps: Steps
    sketch: str

    def _repr_html_(self) -> str:
        from autotune.reporting.blocks import Listing, Sheet
        from autotune.reporting.html import fragment

        facts = (("Latency", format_seconds(self.latency_s)), ("Structure", self.sketch))
        steps = "\n".join(map(python_text, self.steps))
        return fragment([Sheet("Best program", ("", ""), facts), Listing("Steps", steps)])


class Task(PublicNames):
    """A computation on `threads` threads of `target` (default: `measure.threads`, of this CPU).

    `target`: the name of a CPU, or a Target. `workload`: a function that returns the
    outputs, called with `args`; or the outputs themselves, tensors of `te`; or a ComputeDAG. Raises
    DefinitionError where they are no computation, UsageError for a target or threads that the
    machine does not have.
    """

    @checked
    def __init__(
        self,
        workload: Workload | Tensor | Sequence[Tensor] | ComputeDAG,
        args: Sequence[Any] = (),
        *,
        target: Target | str | None = None,
        threads: int | None = None,
        name: str = "",
        source: str = "",
    ) -> None:
        require_threads(threads)
        self.dag = _dag(workload, args)
        self.name = name or str(getattr(workload, "__name__", "task"))
        self.source = source
        """Origin of the task, in the header of a log."""
        self.target = target if isinstance(target, Target) else parse_target(target or "native")
        self.threads = threads or default_threads()
        self._log: Path | None = None

    def __repr__(self) -> str:
        return cut(f"Task({self.name}, {self.key}, {counted(self.threads, 'thread')})")

    def _repr_html_(self) -> str:
        from autotune.reporting.blocks import Block, Listing, Paragraph
        from autotune.reporting.document import search_blocks
        from autotune.reporting.figures import figures_of
        from autotune.reporting.html import fragment

        machine = f"{self.threads} {'thread' if self.threads == 1 else 'threads'}"
        text = f"{self.name}: {format_flops(self.dag.flops)}, {machine} of {self.target.cpu}"
        blocks: list[Block] = [Paragraph(text), Listing("Computation", str(self.dag))]
        if self._log is not None:
            with suppress(AutotuneError):  # no log yet, or no more
                blocks += search_blocks(figures_of(read_log(self._log), self._log.name))
        return fragment(blocks)

    @property
    def key(self) -> str:
        """Identity of the computation, whatever its tensors and axes are called."""
        return self.dag.key

    def schedule(self, steps: Steps = ()) -> Schedule:
        """A schedule to write by hand, which begins with `steps`."""
        return Schedule(self.dag, self.target, steps)

    def tune(
        self,
        trials: int | None = None,
        time_s: float | None = None,
        log: str | Path | None = None,
        show: Show = "auto",
        rules: Sequence[Rule] = (),
        **settings: Any,
    ) -> Best:
        """Search, and return the best that was found; `tuning` tells the other arguments.

        `show`: "table", a live one; "lines", one per batch; "auto", a table where stderr is a
        terminal, else lines; "nothing"; or a function that is called with each event of `tuning`.
        Raises UsageError for another word, LogMismatch where no candidate was valid.
        """
        with (
            showing(show) as tell,
            closing(self.tuning(trials, time_s, log, rules, **settings)) as events,
        ):
            for event in events:
                tell(event)
        return self.best()

    def tuning(
        self,
        trials: int | None = None,
        time_s: float | None = None,
        log: str | Path | None = None,
        rules: Sequence[Rule] = (),
        **settings: Any,
    ) -> Events:
        """Search, as an iterator of events (`tuner.events`).

        `log`: a file to write, or one of this task to go on with; by default one that lasts as long
        as this object. `rules`: sketch rules, see `api.rules`. `settings`: seed, preset,
        max_error, … as of the command line; a log that is there keeps its own, but for max_error.
        Raises UsageError for settings that are none, LogMismatch for the log of another task.
        """
        path = self._log_path(log)
        if path.exists():
            self._require_resumable(path, settings)
            self._log = path
            limit = settings.get("max_error")
            return resuming(path, trials=trials, time_s=time_s, max_error=limit, rules=rules)
        target = target_name(self.target)
        given = {"trials": trials, "time_s": time_s, "threads": self.threads, "target": target}
        config = resolve(settings.pop("preset", None), given | settings).config
        self._log = path
        return tune_network(self.network(), path, config, self.source, rules=rules)

    def best(self, log: str | Path | None = None) -> Best:
        """The best program in `log`, by default that of the last `tune`.

        Raises UsageError where there is no log, LogMismatch where it does not know this task.
        """
        path = Path(log) if log else self._log
        if path is None:
            raise UsageError("this task was not tuned", "call tune first, or name a log")
        self._require_own(path)
        read = read_log(path)
        record = best_for(read.within(read.max_error), self.target.key, self.threads).get(self.key)
        if record is None or record.result.latency_s is None:
            raise LogMismatch(f"{path} has no valid record of this task", "tune it: Task.tune")
        return Best(record.result.latency_s, record.steps, record.sketch)

    def default(self) -> Schedule:
        """The schedule that the analytic cost model chooses without measuring."""
        return self.schedule(default_candidate(self.dag, self.target, self.threads).steps)

    def build(
        self,
        schedule: Schedule | Steps | None = None,
        constants: Mapping[str, Array] | None = None,
        verify: bool = False,
    ) -> Function:
        """Machine code as a callable on NumPy arrays.

        `schedule`: by default that of the best record, where the task was tuned, else the analytic
        one. `constants`: the arrays of constant placeholders, by name. `verify`: check the loop IR
        after every pass of lowering. Raises ScheduleError where a schedule has no program,
        UsageError for arrays that do not fit.
        """
        artifact = self.artifact(schedule, constants, verify)
        return Function(artifact, self.dag, self.threads)

    def artifact(
        self,
        schedule: Schedule | Steps | None = None,
        constants: Mapping[str, Array] | None = None,
        verify: bool = False,
    ) -> Artifact:
        """What `build` loads: compiled, also for a target that this CPU is not."""
        steps = schedule.steps if isinstance(schedule, Schedule) else schedule
        if steps is None:
            steps = self.best().steps if self._log else self.default().steps
        network = self.network(constants or {})
        return compile_network(network, {self.key: steps}, self.target, self.threads, verify=verify)

    def time(self, function: Function, time_s: float = 0.5, runs: int = 10) -> TaskTiming:
        """Time `function` on random inputs, with all threads, inputs as the last run left them.

        At least `runs` runs, which together take at least `time_s` seconds.
        """
        return self.compare([function], time_s, runs)[0]

    def compare(
        self, functions: Sequence[Function], time_s: float = 0.5, runs: int = 10
    ) -> list[TaskTiming]:
        """`time` of several functions of this task, in turns: disturbances hit all alike."""
        inputs = random_inputs(functions[0].model.input_info)
        sides = [partial(f.model.run, inputs) for f in functions]
        rate = fma_peak(self.target, self.threads) * 1e9
        dots = form_peaks(self.target, self.threads, dots_of([self.dag], self.target))
        peak = self.dag.flops / arithmetic_s(self.dag, rate, dots) * 1e-9 if self.dag.flops else 0.0
        return [
            TaskTiming(Timing(tuple(times), self.threads), self.dag.flops, peak)
            for times in interleave(sides, runs, time_s)
        ]

    def _log_path(self, log: str | Path | None) -> Path:
        if log is not None:
            return Path(log)
        if self._log is None:
            folder = Path(tempfile.mkdtemp(prefix="autotune-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            return folder / "task.jsonl"
        return self._log

    def _require_resumable(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._require_own(path)
        header = read_log(path).header_of(self.target.key)
        if (header.target.key, header.n_threads) != (self.target.key, self.threads):
            raise LogMismatch(
                f"{path} is for {counted(header.n_threads, 'thread')} of {header.target.cpu}, "
                f"this task for {self.threads} of {self.target.cpu}",
                "name another file, or make the task for what the log is for",
            )
        others = sorted(settings.keys() - {"max_error"})
        if others:
            raise UsageError(
                f"{path} is there and keeps its own {', '.join(others)}",
                "leave it out to go on with that log, or name another file",
            )

    def _require_own(self, path: Path) -> None:
        if self.key not in read_log(path).workloads:
            raise LogMismatch(f"{path} is the log of another task", "name another file")

    def _constants(self, given: Mapping[str, Array]) -> dict[str, Array]:
        wanted = {p.name: p.tensor for p in self.dag.placeholders if p.constant}
        if given.keys() != wanted.keys():
            names = ", ".join(wanted) or "none"
            raise UsageError(
                f"the constants are {', '.join(given) or 'none'}, the task has {names}",
                "give each as an array: build(constants={name: array})",
            )
        for name, tensor in wanted.items():
            array = np.asarray(given[name])
            if (array.shape, str(array.dtype)) != (tensor.shape, tensor.dtype):
                raise UsageError(
                    f"constant '{name}' is {array.dtype} of shape {array.shape}, expected "
                    f"{tensor.dtype} of {tensor.shape}",
                    "convert or reshape it",
                )
        return {name: np.ascontiguousarray(given[name]) for name in wanted}

    def network(self, constants: Mapping[str, Array] | None = None) -> Network:
        """The network of one call of this task; without `constants` it can be tuned, not run.

        Raises UsageError for constants that do not fit.
        """
        arrays = {} if constants is None else self._constants(constants)
        inputs = [p.tensor for p in self.dag.placeholders if not p.constant]
        outputs = [self.dag[name].tensor for name in self.dag.outputs]
        values = {
            t.name: Activation(t.name, t.shape, t.dtype, dense(t.shape)) for t in inputs + outputs
        }
        call = TaskCall(
            task=self.key,
            inputs={t.name: t.name for t in inputs},
            constants=arrays,
            outputs={t.name: t.name for t in outputs},
            label=self.name,
        )
        return Network(
            name=self.name,
            inputs=tuple(Port(t.name, t.shape, t.dtype, t.name) for t in inputs),
            outputs=tuple(Port(t.name, t.shape, t.dtype, t.name) for t in outputs),
            values=values,
            calls=(call,),
            tasks={self.key: self.dag},
            model_hash=self.key,
        )


def _dag(
    workload: Workload | Tensor | Sequence[Tensor] | ComputeDAG, args: Sequence[Any]
) -> ComputeDAG:
    if isinstance(workload, ComputeDAG):
        return workload
    if isinstance(workload, Tensor | Sequence):
        return dag_of(workload)
    if not callable(workload):
        raise DefinitionError(
            f"{workload!r} is no computation", "give a function of te expressions, or its tensors"
        )
    with numbered():
        outputs = workload(*args)
        if not isinstance(outputs, Tensor | Sequence):
            raise DefinitionError(
                f"{getattr(workload, '__name__', 'the function')} returns {outputs!r}, no tensor",
                "return the tensor of a te.compute, or several",
            )
        return dag_of(outputs)


class Function:
    """A built task: call it with its inputs in order, as NumPy arrays.

    Safe to call from several threads. `save` writes an artifact that `autotune.load` takes.
    """

    def __init__(self, artifact: Artifact, dag: ComputeDAG, threads: int) -> None:
        self.artifact = artifact
        self.model = Model(artifact, threads)
        self._names = [p.name for p in dag.placeholders if not p.constant]

    def __repr__(self) -> str:
        return cut(f"Function({self.model!r})")

    def __call__(
        self, *inputs: Array, out: Array | Sequence[Array] | None = None
    ) -> Array | tuple[Array, ...]:
        """The output, or a tuple of several; `out`: arrays to write them to.

        Raises UsageError where shapes, dtypes or the number of arrays do not fit.
        """
        if len(inputs) != len(self._names):
            raise UsageError(
                f"{len(inputs)} arrays are given, the function takes {len(self._names)}",
                f"its inputs are {', '.join(self._names)}",
            )
        return self.model(*inputs, out=out)

    def save(self, path: str | Path) -> None:
        """Write the compiled function to a file: `autotune.load(path).run({name: array})`."""
        self.artifact.save(Path(path))


@brief
@dataclass(frozen=True, slots=True)
class TaskTiming:
    """Latencies of a built task. `flops`: of one call.

    `peak_gflops`: peak rate of the threads, by the multiply-adds that fit the task.
    """

    timing: Timing
    flops: int
    peak_gflops: float

    @property
    def median_s(self) -> float:
        """Median latency in seconds."""
        return self.timing.median_s

    @property
    def gflops(self) -> float:
        """Floating-point operations per second at the median, in 10⁹."""
        return self.flops / self.median_s * 1e-9

    @property
    def share_of_peak(self) -> float:
        """`gflops` over the measured peak: 1 is all that the cores can do."""
        return self.gflops / self.peak_gflops if self.peak_gflops else 0.0

    def _repr_html_(self) -> str:
        from autotune.reporting.blocks import Sheet
        from autotune.reporting.html import fragment

        data = self.timing.to_json()
        rows = [(w, format_seconds(data[f"{w}_s"] or 0.0)) for w in ("median", "min", "max")]
        rows.append(("GFLOPS", f"{self.gflops:.1f}"))
        rows.append(("of the peak", f"{100 * self.share_of_peak:.1f} %"))
        rows += [("runs", str(data["runs"])), ("threads", str(data["threads"]))]
        return fragment([Sheet("Latency", ("", " "), tuple(rows), frozenset(" "))])

    def __str__(self) -> str:
        data = self.timing.to_json()
        words = ("median", "min", "mean", "max", "std")
        times = ", ".join(f"{w} {format_seconds(data[f'{w}_s'] or 0.0)}" for w in words)
        runs = counted(len(self.timing.times_s), "run")
        return (
            f"{times}; {self.gflops:.1f} GFLOPS, {100 * self.share_of_peak:.1f} % of the peak "
            f"({runs}, {counted(self.timing.n_threads, 'thread')})"
        )
