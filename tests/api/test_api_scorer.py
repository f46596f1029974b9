"""The server of rows of a table: bodies that a scoring server of MLflow takes, and wrong ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from onnx import parser

import autotune
from tests.serving import Server, needs, started

pytestmark = needs("fastapi", "uvicorn")

TEXT = """<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
m (float[rows,1] age, int64[rows,1] size) => (int64[rows] label, float[rows,2] score)
<int64[2] names = {7, 9}> {
  wide = Cast <to = 1> (size)
  scores = Concat <axis = 1> (age, wide)
  best = ArgMax <axis = 1, keepdims = 0> (scores)
  label = Gather (names, best)
  score = Identity (scores)
}"""
MOST_ROWS = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("scorer") / "model.atn"
    done = autotune.compile(parser.parse_model(TEXT), dims={"rows": f"..{MOST_ROWS}"}, check=False)
    done.artifact.save(path)
    with started("scorer.py", path) as made:
        yield made


def said(ages: list[float], sizes: list[int]) -> list[dict[str, Any]]:
    return [
        {"label": 9 if size > age else 7, "score": [age, size]}
        for age, size in zip(ages, sizes, strict=True)
    ]


AGES, SIZES = [1.5, 2.5, 0.5], [2, 1, 3]
ROWS = [{"age": a, "size": s} for a, s in zip(AGES, SIZES, strict=True)]
BODIES = (
    {"dataframe_split": {"columns": ["size", "age"], "data": [[2, 1.5], [1, 2.5], [3, 0.5]]}},
    {"dataframe_split": {"data": [[1.5, 2], [2.5, 1], [0.5, 3]]}},
    {"dataframe_records": ROWS},
    {"instances": ROWS},
    {"inputs": {"age": AGES, "size": SIZES}},
    {"inputs": {"age": [[a] for a in AGES], "size": [[s] for s in SIZES]}, "params": {}},
)


@pytest.mark.parametrize("body", BODIES)
def test_every_form_of_a_table(body: Any, server: Server) -> None:
    assert server.post("/invocations", body) == (200, {"predictions": said(AGES, SIZES)})


def test_as_many_rows_as_are_asked(server: Server) -> None:
    for n in (0, 1, MOST_ROWS, 5 * MOST_ROWS + 3):
        ages, sizes = [float(k % 7) for k in range(n)], [k % 5 for k in range(n)]
        asked = {"inputs": {"age": ages, "size": sizes}}
        assert server.post("/invocations", asked) == (200, {"predictions": said(ages, sizes)})


def test_null_is_nan_and_so_is_null(server: Server) -> None:
    status, found = server.post("/invocations", {"inputs": {"age": [None], "size": [1]}})
    assert status == 200
    assert found["predictions"][0]["score"] == [None, 1.0]


WRONG = (
    (b"{", "no JSON"),
    (b"[1]", "a body has dataframe_split"),
    (b'{"rows": []}', "a body has dataframe_split"),
    (b'{"inputs": {"age": [1]}}', "no column 'size'"),
    (b'{"inputs": {"age": [1, 2], "size": [1]}}', "different numbers of rows"),
    (b'{"inputs": {"age": ["x"], "size": [1]}}', "'age' is float32[rows, 1]"),
    (b'{"inputs": {"age": 1, "size": [1]}}', "'age' is float32[rows, 1]"),
    (b'{"inputs": {"age": [[1, 2]], "size": [1]}}', "'age' is float32[rows, 1]"),
    (b'{"inputs": {"age": [1], "size": [1.5]}}', "'size' is int64[rows, 1]"),
    (b'{"inputs": {"age": [1], "size": ["1"]}}', "'size' is int64[rows, 1]"),
    (b'{"inputs": {"age": [1], "size": [null]}}', "'size' is int64[rows, 1]"),
    (b'{"inputs": {"age": [1], "size": [99999999999999999999]}}', "'size' is int64[rows, 1]"),
    (b'{"dataframe_split": {"data": [[1]]}}', "each row has 2 values"),
    (json.dumps({"instances": [ROWS[0], {"age": 1}]}).encode(), "different names"),
)


@pytest.mark.parametrize(("body", "text"), WRONG)
def test_wrong_tables_are_refused_in_one_line(body: bytes, text: str, server: Server) -> None:
    status, answer = server.ask("/invocations", body)
    assert (status, answer.count(b"\n")) == (400, 1)
    assert text in answer.decode()


def test_batches_hold_as_many_rows_as_the_model_takes() -> None:
    from scorer import Scorer  # isort: skip

    done = autotune.compile(parser.parse_model(TEXT), dims={"rows": "..8"}, check=False)
    scorer = Scorer(autotune.Model(done.artifact))
    scorer.free = 1

    async def main() -> list[Any]:
        asked = [scorer.columns({"inputs": {"age": [1.0] * n, "size": [2] * n}}) for n in (3, 5, 4)]
        return await asyncio.gather(*map(scorer.predictions, asked))

    assert list(map(len, asyncio.run(main()))) == [3, 5, 4]
