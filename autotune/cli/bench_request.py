"""⑪ The request of `autotune bench`: its options, of which some do not go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.arrays import Arrays, largest_inputs, read_inputs
from autotune.cli.console import counting, say, say_note
from autotune.cli.models import is_onnx
from autotune.errors import UsageError
from autotune.file_kinds import BENCH, TIMELINE
from autotune.files import require_place

if TYPE_CHECKING:
    from autotune.api.compile.compiled import Compiled
    from autotune.network.runtime.runtime import Model

BASELINES = ("onnxruntime", "openvino", "openvino:default")
GENAI = "onnxruntime-genai"


@dataclass(frozen=True)
class BenchRequest:
    """Options by their names; `source`: an artifact or an ONNX model, which is compiled with
    `options`. `against`: names of baselines, `model`: what they run. `log_path`: of latencies of
    tasks, or to compile from.
    """

    source: Path
    against: tuple[str, ...]
    options: dict[str, Any]
    _: KW_ONLY
    tokens: tuple[int, int] | None
    callers: int | None
    rows: list[int] | None
    per_task: bool
    timeline: Path | None
    append: Path | None
    save: Path | None
    force: bool
    compare: Path | None
    fail_above: float | None
    log_path: Path | None
    threads: int | None
    model: Path | None
    time_s: float
    files: tuple[tuple[str, Path], ...]
    style: str

    @staticmethod
    def of(against: tuple[tuple[str, ...], ...], given: dict[str, Any]) -> BenchRequest:
        """Raises UsageError for options that do not go together, and a place that is taken."""
        own = {f.name: given.pop(f.name) for f in fields(BenchRequest) if f.name in given}
        names = tuple(dict.fromkeys(name for part in against for name in part))
        request = BenchRequest(own.pop("source"), names, given, **own)
        for is_refused, what, hint in request._refusals():
            if is_refused:
                raise UsageError(what, hint)
        for place, kind in ((request.save, BENCH), (request.timeline, TIMELINE)):
            if place is not None:
                own_kind = None if request.force else kind
                require_place(place, inputs=[request.source], kind=own_kind)
        return request

    def _refusals(self) -> Iterator[tuple[object, str, str]]:
        """What does not go together, with what is said and hinted then; the first one counts."""
        names, rows, tokens = self.against, self.rows, self.tokens
        beside = (self.callers, self.save, self.compare, self.files or None, rows)
        is_called = self.callers is not None
        yield self.per_task and names, "--per-task cannot look into others", "leave --against out"
        what = "--per-task looks into single inferences"
        yield self.per_task and is_called, what, "leave --callers out"
        what = "--compare is with an earlier artifact alone"
        hint = "leave --against, --callers and --per-task out"
        yield self.compare and (names or self.per_task or is_called), what, hint
        what, hint = "--timeline is of the kernels of --per-task", "add --per-task"
        yield self.timeline and not self.per_task, what, hint
        what = "--append keeps latencies of whole inferences"
        hint = "leave --per-task, --callers, --compare and --tokens out"
        is_kept = self.append is not None
        yield is_kept and (self.per_task or is_called or self.compare or tokens), what, hint
        what, hint = "--fail-above is for --compare", "name what it was: --compare base.json"
        yield self.fail_above is not None and not self.compare, what, hint
        what = "--rows times a batch of random tokens"
        hint = "leave --input, --per-task, --save and --compare out"
        is_other = self.files or self.per_task or self.compare or self.save
        yield rows is not None and is_other, what, hint
        what = "--tokens times sequences of a session"
        hint = "leave --callers, --input, --rows, --save and --compare out"
        yield tokens is not None and any(value is not None for value in beside), what, hint
        what, hint = f"{GENAI} generates tokens alone", "add --tokens 128+64, or leave it out"
        yield tokens is None and GENAI in names, what, hint
        what, hint = "--log is for --per-task", "add --per-task, or leave --log out"
        yield self.log_path and not self.per_task and not self.is_model, what, hint

    @cached_property
    def is_model(self) -> bool:
        """Whether the source is compiled first."""
        return is_onnx(self.source)

    @property
    def latencies(self) -> Path | None:
        """A log with the latencies of tasks, beside those of the artifact."""
        return None if self.is_model else self.log_path

    def compiled(self) -> Model:
        """The compiled model: loaded, or compiled now."""
        from autotune.api.request import CompileRequest

        if not self.is_model:
            return self._loaded({field.name: field.default for field in fields(CompileRequest)})
        from autotune.api.compile.compiling import compile_plan, plan
        from autotune.api.compile.kept import kept_or_made
        from autotune.api.folders import source_in
        from autotune.network.runtime.loading import proved_model

        options = dict(self.options)
        if self.tokens is not None and options["capacity"] is None:
            options["capacity"] = sum(self.tokens)
        request = CompileRequest(
            self.source, self.log_path, threads=self.threads, note=say_note, **options
        )

        def make(known: CompileRequest) -> Compiled:
            return compile_plan(replace(plan(known), progress=counting))

        done = kept_or_made(source_in(request, say_note), make)
        if done.report is not None:
            say(str(done.report))
        return proved_model(done.artifact, self.threads)

    def _loaded(self, usual: Mapping[str, Any]) -> Model:
        from autotune.network.runtime.loading import load

        model = load(self.source, self.threads)
        open_ = ("dims", "like") if model.lengths else ()
        given = [n for n, value in self.options.items() if value and value != usual.get(n)]
        if fixed := [name for name in given if name not in open_]:
            raise UsageError(
                f"{self.source} is compiled: its {fixed[0]} cannot change",
                "give the ONNX model instead",
            )
        return model

    def inputs(self, compiled: Model) -> Arrays | None:
        """Those of files, or a batch of rows; None for random ones."""
        if self.rows is not None:
            from autotune.network.bench.rows import batch_of

            return batch_of(compiled, self.rows)
        return read_inputs(largest_inputs(compiled), self.files) if self.files else None

    def of_one_size(self, compiled: Model, inputs: Arrays | None) -> Model:
        """A model with lengths at the size that is asked for; others as they are."""
        from autotune.api.compile.benching import of_one_size

        if not compiled.lengths:
            return compiled
        options = {} if self.is_model else self.options
        dims, like = options.get("dims") or {}, options.get("like") or {}
        if like and (dims or inputs is not None):
            raise UsageError("--like gives all sizes", "leave --dim and --input out")
        if like:
            ports = compiled.input_info
            arrays = {name or ports[0].name: array for name, array in like.items()}
            return compiled.at({name: array.shape for name, array in arrays.items()})
        sizes = {name: _one(name, given) for name, given in dims.items()}
        return of_one_size(compiled, inputs, sizes)


def _one(name: str, extents: Any) -> int:
    """The single extent of a dimension."""
    if not isinstance(extents, Mapping) or len(extents) != 1:
        raise UsageError(f"--dim {name} is one size here", f"write it like --dim {name}=17")
    return int(next(iter(extents)))
