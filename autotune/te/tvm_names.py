"""② Names of TVM and what has their place here: errors say it (docs/tvm.md has them as tables)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LOOPS = 's["C"].loops'
_STATIC = "a number, shapes are static; models take several by `dims`"
_OF_PAIRS = "te.min over the indices whose element is te.max (docs/tvm.md)"

TE: dict[str, str] = {
    "all": "a & b",
    "any": "a | b",
    "argmax": _OF_PAIRS,
    "argmin": _OF_PAIRS,
    "comm_reducer": "te.sum, te.prod, te.max, te.min, no others (docs/tvm.md)",
    "const": "a number of Python",
    "create_prim_func": "autotune.Task(function, args)",
    "create_schedule": "autotune.Task(function, args).schedule()",
    "extern": "nothing, no library is called (docs/tvm.md)",
    "floordiv": "a // b",
    "floormod": "a % b",
    "if_then_else": "te.where(condition, a, b)",
    "indexdiv": "a // b",
    "indexmod": "a % b",
    "nearbyint": "te.round(x)",
    "scan": "a chain of te.compute (docs/tvm.md)",
    "size_var": _STATIC,
    "thread_axis": 's["C"].bind(loop, "threadIdx.x")',
    "truncdiv": "te.quotient(a, b)",
    "truncmod": "te.remainder(a, b)",
    "var": _STATIC,
}
SCHEDULE: dict[str, str] = {
    "get_block": 's["C"]',
    "get_loops": _LOOPS,
    "mod": "s.lower()",
    "show": "print(s)",
    "trace": "s.steps, or s.python()",
}
STAGE: dict[str, str] = {
    "cache_read": 's.cache_read("A", "C")',
    "compute_inline": 's["C"].inline()',
    "compute_root": "a stage is at the root unless compute_at places it; s.undo() takes that back",
    "op": _LOOPS,
    "pragma": 's["C"].unroll(loop)',
    "reverse_compute_at": 's["producer"].compute_at("C", loop)',
    "reverse_compute_inline": 's["producer"].inline()',
    "set_scope": 's.cache_read(…, scope="shared")',
    "storage_align": "nothing, strides are chosen by themselves",
    "tensorize": 's["C"].dot(loop), or matrix(loops)',
    "transform_layout": 's["C"].pack("w")',
}
SPLIT: dict[str, str] = {
    "factor": 'split("i", 16)',
    "factors": 'split("i", 4, 16), the extents of the inner loops',
    "nparts": 'split("i", extent // nparts), the extent of the inner loop',
}
TILE: dict[str, str] = {
    "x_factor": 'tile("i", "j", 8, 16)',
    "y_factor": 'tile("i", "j", 8, 16)',
}
CACHE_WRITE: dict[str, str] = {
    "scope": 's["C"].cache_write(), whose new stage is local where compute_at places it',
}
PACKAGE: dict[str, str] = {
    "ApplyHistoryBest": "autotune.compile(model, log=path)",
    "RecordToFile": "autotune.tune(model, log), which always writes one",
    "SearchTask": "autotune.Task(function, args)",
    "TaskScheduler": "autotune.tune(model, log)",
    "TuningOptions": "arguments of autotune.tune: trials, time_s",
    "auto_scheduler": "autotune.tune(model, log), autotune.Task(function, args) (docs/tvm.md)",
    "autotvm": "autotune.tune(model, log): no templates (docs/tvm.md)",
    "build": "autotune.Task(function, args).build(), autotune.compile(model)",
    "extract_tasks": "autotune.build_network(model).tasks, or the command `autotune tasks`",
    "meta_schedule": "autotune.tune(model, log), autotune.Task(function, args) (docs/tvm.md)",
    "nd": "arrays of NumPy",
    "register_workload": "autotune.Task(function, args)",
    "relay": "autotune.compile(model), of an ONNX file",
}
"""By names of TVM: functions of `te`, attributes of a schedule and of a stage, arguments, and what
`tvm` and `tvm.auto_scheduler` have, of the package."""


def refuse(owner: str, name: str, places: Mapping[str, str], of: object = None) -> NoReturn:
    """Raise AttributeError, with what to write for a name of TVM's, else the nearest in `of`."""
    hint = f"; in its place: {places[name]}" if name in places else ""
    raise AttributeError(f"{owner} has no '{name}'{hint}", name=name, obj=of)


def with_hints(places: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that says what to write where an argument is called as in TVM: a TypeError."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **given: P.kwargs) -> R:
            for name in given:
                if name in places:
                    said = f"{function.__name__} has no argument '{name}'"
                    raise TypeError(f"{said}; in its place: {places[name]}")
            return function(*args, **given)

        return checked

    return decorate
