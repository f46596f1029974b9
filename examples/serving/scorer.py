"""A server of a model of rows of a table (a pipeline of scikit-learn, LightGBM or XGBoost).

    pip install 'autotune-compiler[examples]'
    autotune compile pipeline.onnx --dim rows=..1024 -o model.atn
    python examples/serving/scorer.py model.atn

    curl localhost:8000/invocations -H 'Content-Type: application/json' \\
         -d '{"dataframe_split": {"columns": ["age", "job"], "data": [[31, "cook"]]}}'

POST /invocations takes what a scoring server of MLflow does: `dataframe_split`,
`dataframe_records`, `inputs` or `instances`. A model has one input of all columns in order, or one
for each by name; null is NaN. What else the server does: `service`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Response
from numpy.typing import NDArray
from service import Refused, Service, model_of, serve
from waiting import MOST_WAITING, Batcher

import autotune

Columns = Mapping[str, NDArray[Any]]
"""Arrays of the same number of rows, by input."""
_MOST_BYTES = 32_000_000
_KINDS = ("dataframe_records", "inputs", "instances")
_UNKNOWN = Refused(
    400, f"a body has dataframe_split, {', '.join(_KINDS)}: a list, or lists by name"
)


class Scorer(Batcher[Columns, list[Any]]):
    """A model of rows; an answer has what it says of each."""

    def __init__(self, model: autotune.Model, most_waiting: int = MOST_WAITING) -> None:
        super().__init__(self._scored, self._size, most_waiting)
        self.model = model
        self.most_rows = min(port.shape[0] for port in model.input_info)

    async def predictions(self, columns: Columns) -> list[Any]:
        """Of each row the output, or outputs by name."""
        n = _n_rows(columns)
        cuts = range(0, n, self.most_rows)
        parts = [{k: v[at : at + self.most_rows] for k, v in columns.items()} for at in cuts]
        return [row for part in await self.answers(parts) for row in part]

    def _size(self, waiting: Sequence[Columns]) -> int:
        total = n = 0
        for columns in waiting:
            total += _n_rows(columns)
            if total > self.most_rows:
                break
            n += 1
        return max(n, 1)

    async def _scored(self, parts: list[Columns]) -> list[list[Any]]:
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        found = await self.model.run_async(joined)
        outputs: dict[str, Any] = dict(found)  # of a ZipMap a list of dictionaries
        values = [v if isinstance(v, list) else v.tolist() for v in outputs.values()]
        rows = [dict(zip(found, row, strict=True)) for row in zip(*values, strict=True)]
        said = [next(iter(row.values())) if len(row) == 1 else row for row in rows]
        ends = np.cumsum([_n_rows(part) for part in parts])
        return [said[end - _n_rows(part) : end] for part, end in zip(parts, ends, strict=True)]

    def columns(self, data: Any) -> Columns:
        """The inputs that the body of a request has. Raises Refused."""
        if not isinstance(data, dict):
            raise _UNKNOWN
        split = data.get("dataframe_split")
        if isinstance(split, dict):
            return self._of_rows(split.get("columns"), split.get("data"))
        given = next((data[k] for k in _KINDS if k in data), None)
        if isinstance(given, dict):
            return self._of_columns(given)
        if isinstance(given, list) and given and isinstance(given[0], dict):
            return self._of_rows([*given[0]], [_values(record, given[0]) for record in given])
        return self._of_rows(None, given)

    def _of_rows(self, names: Any, rows: Any) -> Columns:
        if not isinstance(rows, list) or not isinstance(names, list | None):
            raise _UNKNOWN
        n = len(names or self.model.input_info)
        if len(self.model.input_info) == 1:
            return self._of_columns({self.model.input_info[0].name: rows})
        if any(not isinstance(row, list) or len(row) != n for row in rows):
            raise Refused(400, f"each row has {n} values")
        known = names or [port.name for port in self.model.input_info]
        return self._of_columns({name: [r[k] for r in rows] for k, name in enumerate(known)})

    def _of_columns(self, named: Mapping[str, Any]) -> Columns:
        ports = self.model.input_info
        missing = [port.name for port in ports if port.name not in named]
        if missing:
            raise Refused(400, f"there is no column '{missing[0]}'")
        found = {port.name: _array(port, named[port.name]) for port in ports}
        if len({*map(len, found.values())}) > 1:
            raise Refused(400, "columns of different numbers of rows")
        return found


def _n_rows(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _values(record: Any, first: Mapping[str, Any]) -> list[Any]:
    if not isinstance(record, dict) or record.keys() != first.keys():
        raise Refused(400, "records have different names")
    return [record[name] for name in first]


def _array(port: Any, values: Any) -> NDArray[Any]:
    """Values of one input; a number for each row is a matrix of one column where it takes one."""
    is_text = port.dtype == "string"
    kinds = "O" if is_text else "fiub" if port.is_float else "iub"
    try:
        as_float = not is_text and port.is_float
        array = np.array(values, np.float64 if as_float else object if is_text else None)
        if array.size and array.dtype.kind not in kinds:
            raise ValueError
        if is_text and not all(isinstance(value, str) for value in array.flat):
            raise ValueError
        return array.reshape(len(values), *port.shape[1:]).astype(port.numpy_dtype)
    except (ValueError, TypeError, OverflowError):
        kind = f"{port.dtype}[rows{''.join(f', {n}' for n in port.shape[1:])}]"
        raise Refused(400, f"'{port.name}' is {kind}") from None


def _text(found: Any) -> str:
    """JSON, in which what is no finite number is null."""
    try:
        return json.dumps(found, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(found))


def _finite(found: Any) -> Any:
    match found:
        case float():
            return found if np.isfinite(found) else None
        case dict():
            return {name: _finite(value) for name, value in found.items()}
        case list():
            return [*map(_finite, found)]
    return found


def app() -> FastAPI:
    """The application, over the artifact that the environment names: MODEL, and THREADS."""
    model = model_of()
    scorer = Scorer(model)

    async def invocations(body: bytes) -> Response:
        try:
            data = json.loads(body)
        except ValueError:
            raise Refused(400, "the body is no JSON") from None
        found = await scorer.predictions(scorer.columns(data))
        return Response(_text({"predictions": found}), media_type="application/json")

    service = Service(model.artifact.name, scorer, _MOST_BYTES)
    service.post("/invocations", invocations)
    return service.app


def main() -> None:
    """Serve an artifact."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", type=Path)
    serve("scorer:app", parser)


if __name__ == "__main__":
    main()
