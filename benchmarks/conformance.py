"""The official test cases of ONNX (`onnx.backend.test`), each compiled and run.

    python -m benchmarks.conformance            # tries all, writes docs/results/conformance.csv
    python -m benchmarks.conformance --check    # tries all, exit 1 where the file says otherwise

All cases that come with the package: of operators, simple models, models converted from PyTorch and
whole networks, each with the tolerances of the library and its dtypes. A case that is refused is
tried once more with all inputs but the first as constants, as exporters write them; one that stays
refused is also compiled with the fallback, and run in ONNX Runtime alone.
"""

from __future__ import annotations

import csv
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from benchmarks.isolation import outcomes
from benchmarks.outcomes import Case, Compiler, Kind, Outcome, Tell, judge, with_constants

FILE = Path(__file__).parents[1] / "docs" / "results" / "conformance.csv"
HEAD = ("set", "case", "outcome", "form", "types", "fallback", "onnxruntime", "reason")
SETS = ("node", "simple", "pytorch-operator", "pytorch-converted", "real")
TIMEOUT_S = 300.0

_PLAIN = {
    *(TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BOOL),
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
}
_TRANSFORM_ATOL = 1e-6
"""Expected values are NumPy's in complex64: 2e-7 where the exact transform of 0 to 99 is 0."""

Row = dict[str, str]


@click.command()
@click.option("--check", is_flag=True, help="Compare with the file instead of writing it.")
@click.option("--processes", default=2, help="How many cases at a time.")
@click.option("--only", default="", help="Cases whose name contains this; nothing is written.")
def main(check: bool, processes: int, only: str) -> None:
    """Try the official cases."""
    cases = [(s, case) for s, case in official() if only in case.name]
    rows: list[Row] = []
    for n, row in enumerate(tried(cases, processes)):
        rows.append(row)
        if row["outcome"] not in ("right", "refused") or only:
            click.echo(" ".join(row.values()), err=True)
        if n % 100 == 99:
            click.echo(f"{n + 1} of {len(cases)}", err=True)
    rows.sort(key=lambda row: (SETS.index(row["set"]), row["case"]))
    click.echo(tally(rows))
    if check:
        known = {row["case"]: row for row in read()}
        changed = [row for row in rows if known.get(row["case"]) != row]
        for row in changed:
            click.echo(f"{' '.join(row.values())}, in the file: {known.get(row['case'])}", err=True)
        sys.exit(1 if changed or (not only and len(known) != len(rows)) else 0)
    if not only:
        with FILE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, HEAD, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def read(path: Path = FILE) -> list[Row]:
    """What was found last."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def tried(cases: Iterable[tuple[str, Case]], n_processes: int = 1) -> Iterator[Row]:
    """A row per case, in the order in which they are done."""
    listed = list(cases)
    others: list[tuple[str, Case, Row]] = []
    for kind, case, row in _natively(listed, n_processes):
        if row["outcome"] == "right":
            yield row
        else:
            others.append((kind, case, row))
    for column in ("fallback", "onnxruntime"):
        items = [case for _, case, _ in others]
        for index, found in outcomes(_WHOLE[column], items, n_processes, TIMEOUT_S):
            others[index][2][column] = str(found.kind)
    yield from (row for _, _, row in others)


_WHOLE = {
    "fallback": "benchmarks.whole_models:with_fallback",
    "onnxruntime": "benchmarks.whole_models:by_onnxruntime",
}


def _natively(listed: list[tuple[str, Case]], n_processes: int) -> Iterator[tuple[str, Case, Row]]:
    """Every case with its row, whose last columns are empty."""
    largest_first = sorted(range(len(listed)), key=lambda n: -len(listed[n][1].model))
    items = [listed[n][1] for n in largest_first]
    for index, found in outcomes(f"{__name__}:judged", items, n_processes, TIMEOUT_S):
        kind, case = listed[largest_first[index]]
        form, _, reason = found.text.partition(":")
        if found.kind is Kind.LOST:
            form, reason = "", found.text
        cells = (kind, case.name, str(found.kind), form, types_of(case), "", "", short(reason))
        yield kind, case, dict(zip(HEAD, cells, strict=True))


_compiler = cache(Compiler)


def judged(case: Case, tell: Tell) -> Outcome:
    """The outcome of a case, of its second form where the first is refused: `form:reason`."""
    found = judge(case, _compiler(), tell)
    if found.kind is Kind.REFUSED:
        try:
            second = judge(with_constants(case), _compiler(), tell)
            return Outcome(second.kind, f"constants:{second.text}")
        except ValueError:
            pass
    return Outcome(found.kind, f"as given:{found.text}")


def types_of(case: Case) -> str:
    """`plain`: all inputs and outputs are tensors of float16, float, double, (u)int8 to 64 or bool;
    else `other`: strings, sequences, optionals, bfloat16, float8, integers of 2 or 4 bits."""
    graph = onnx.ModelProto.FromString(case.model).graph
    kinds = [v.type for v in (*graph.input, *graph.output)]
    is_plain = all(k.HasField("tensor_type") and k.tensor_type.elem_type in _PLAIN for k in kinds)
    return "plain" if is_plain else "other"


def short(reason: str) -> str:
    """At most 120 characters of a reason, without the names of nodes."""
    text = re.sub(r" ?\((operator '[^']*', )?node '[^']*'(, opset \d+)?\)", "", reason)
    return text if len(text) <= 120 else text[:119] + "…"


def tally(rows: Iterable[Row]) -> str:
    """`1900 tried: 1700 right, 200 refused, …`."""
    kinds = [row["outcome"] for row in rows]
    parts = (f"{kinds.count(kind)} {kind}" for kind in Kind)
    return f"{len(kinds)} tried: {', '.join(parts)}"


def official() -> list[tuple[str, Case]]:
    """Every case with the set that it is of."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [(kind, _case(t)) for kind in SETS for t in load_model_tests(kind=kind)]


def _case(test: Any) -> Case:
    if test.model is not None:
        data = [(_arrays(inputs), _arrays(outputs)) for inputs, outputs in test.data_sets]
        atol = _TRANSFORM_ATOL if test.name.startswith("test_dft") else test.atol
        return Case(test.name, test.model.SerializeToString(), tuple(data), test.rtol, atol)
    if test.model_dir is not None:
        folder = Path(test.model_dir)
        data = [
            (_stored(f, "input"), _stored(f, "output")) for f in sorted(folder.glob("test_data_*"))
        ]
        model = (folder / "model.onnx").read_bytes()
        return Case(test.name, model, tuple(data), test.rtol, test.atol)
    return _light(test)


def _light(test: Any) -> Case:
    """A whole network: its inputs are those of the test runner, its outputs come with it."""
    path = Path(onnx.__file__).parents[1] / test.url
    proto = onnx.load(path)
    known = {t.name for t in proto.graph.initializer}
    ports = [i for i in proto.graph.input if i.name not in known]
    inputs = tuple(Runner.generate_dummy_data(port) for port in ports)
    outputs = tuple(_tensor(f) for f in sorted(path.parent.glob(f"{path.stem}_output_*.pb")))
    return Case(test.name, path.read_bytes(), ((inputs, outputs),), test.rtol, test.atol)


def _stored(folder: Path, kind: str) -> tuple[Any, ...]:
    n = len(list(folder.glob(f"{kind}_*.pb")))
    return tuple(_tensor(folder / f"{kind}_{i}.pb") for i in range(n))


def _tensor(path: Path) -> Any:
    """A stored tensor, or bytes where it is something else."""
    data = path.read_bytes()
    try:
        return numpy_helper.to_array(TensorProto.FromString(data))
    except Exception:  # a sequence, an optional: of whatever the decoder makes of it
        return [data]


def _arrays(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(numpy_helper.to_array(v) if isinstance(v, TensorProto) else v for v in values)


if __name__ == "__main__":
    main()
