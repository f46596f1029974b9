"""The server of text encoders: what clients of other servers ask of it, and how it refuses."""

from __future__ import annotations

import base64
import importlib.util
import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import parser

import autotune
from tests.serving import Server, needs, started

Array = NDArray[Any]
pytestmark = needs("fastapi", "uvicorn", "tokenizers")

_NAMES = "[PAD] [UNK] [CLS] [SEP] what is deep learning cheese made of milk ?"
WORDS = tuple(_NAMES.split())
WIDTH, LONGEST, MOST_ROWS = 8, 20, 4
TABLE = np.random.default_rng(0).standard_normal((len(WORDS), WIDTH)).astype(np.float32)
BODY = """
  rows = Gather (table, input_ids)
  flags = Cast <to = 1> (attention_mask)
  wide = Unsqueeze (flags, two)
  kept = Mul (rows, wide)
  total = ReduceSum <keepdims = 0> (kept, one)
  n = ReduceSum <keepdims = 0> (wide, one)
  mean = Div (total, n)
"""
HEAD = "score = MatMul (mean, column)"
CONSTANTS = "int64[1] one = {1}, int64[1] two = {2}"


def compiled(folder: Path, output: str, more: str) -> Path:
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    m (int64[batch,sequence] input_ids, int64[batch,sequence] attention_mask) => ({output})
    <{CONSTANTS}> {{ {BODY} {more} }}"""
    model = parser.parse_model(text)
    arrays = {"table": TABLE, "column": TABLE[4][:, None].copy()}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in text
    )
    dims = {"batch": f"..{MOST_ROWS}", "sequence": f"..{LONGEST}"}
    done = autotune.compile(model, dims=dims, ragged=True, threads=2, check=False)
    path = folder / "model.atn"
    done.artifact.save(path)
    assert autotune.load(path).is_ragged
    return path


def tokens(text: str) -> list[int]:
    words = text.lower().replace("?", " ?").split()
    return [2, *(WORDS.index(w) if w in WORDS else 1 for w in words), 3]


def vector(*rows: list[int]) -> list[float]:
    mean = TABLE[[id for row in rows for id in row]].mean(0)
    return [float(v) for v in mean / np.linalg.norm(mean)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({w: n for n, w in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.enable_padding(length=64)  # as files of sentence-transformers have it
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Iterator[Server]:
    model = compiled(tmp_path_factory.mktemp("embedder"), f"float[batch,{WIDTH}] mean", "")
    with started("embeddings.py", model, tokenizer) as server:
        yield server


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Iterator[Server]:
    model = compiled(tmp_path_factory.mktemp("ranker"), "float[batch,1] score", HEAD)
    with started("embeddings.py", model, tokenizer) as server:
        yield server


def near(found: Any, wanted: Any) -> bool:
    return bool(np.allclose(found, wanted, atol=1e-5))


# --- text-embeddings-inference: the requests of its README, with headers of curl ------------------

CURL = {"Content-Type": "application/json", "User-Agent": "curl/8.5.0", "Accept": "*/*"}


def test_the_example_of_embed(embedder: Server) -> None:
    text = "What is Deep Learning?"
    status, body = embedder.ask("/embed", b'{"inputs":"What is Deep Learning?"}', CURL)
    assert status == 200
    assert near(json.loads(body), [vector(tokens(text))])


def test_texts_of_all_lengths_in_one_request_and_in_many(embedder: Server) -> None:
    texts = ["cheese", "cheese is made of milk", "what is deep learning ?"] * 5
    status, found = embedder.post("/embed", {"inputs": texts})
    assert status == 200
    assert near(found, [vector(tokens(text)) for text in texts])
    with ThreadPoolExecutor(8) as pool:
        each = list(pool.map(lambda text: embedder.post("/embed", {"inputs": text}), texts))
    assert near([vectors[0] for _, vectors in each], found)
    counts = embedder.metrics()
    assert max(int(n.split('"')[1]) for n in counts if n.startswith("batches_total")) == MOST_ROWS
    assert (counts["requests_waiting"], counts["batches_running"]) == (0, 0)


def test_options_of_embed(embedder: Server) -> None:
    raw = TABLE[tokens("cheese")].mean(0)
    _, found = embedder.post("/embed", {"inputs": "cheese", "normalize": False})
    assert near(found, [raw])
    status, found = embedder.post("/embed", {"inputs": "cheese", "dimensions": 3})
    assert (status, np.shape(found)) == (200, (1, 3))
    assert near(np.linalg.norm(found), 1)
    long = {"inputs": "milk " * 100, "truncate": True}
    assert near(
        embedder.post("/embed", long)[1], [vector([2, *[WORDS.index("milk")] * (LONGEST - 2), 3])]
    )


def test_the_example_of_rerank(ranker: Server) -> None:
    query, texts = "What is Deep Learning?", ["Deep Learning is not...", "Deep learning is..."]
    asked = {"query": query, "texts": texts, "raw_scores": True, "return_text": True}
    status, body = ranker.ask("/rerank", json.dumps(asked).encode(), CURL)
    rows = [[*tokens(query), *tokens(text.replace("...", " ..."))[1:]] for text in texts]
    rows = [[*row[:-2], 1, 1, 1, row[-1]] for row in rows]
    scores = [float(TABLE[row].mean(0) @ TABLE[4]) for row in rows]
    order = np.argsort([-s for s in scores])
    found = json.loads(body)
    assert status == 200
    assert [one["index"] for one in found] == order.tolist()
    assert [one["text"] for one in found] == [texts[k] for k in order]
    assert near([one["score"] for one in found], np.array(scores)[order])
    _, plain = ranker.post("/rerank", {"query": query, "texts": texts})
    assert near([one["score"] for one in plain], 1 / (1 + np.exp(-np.array(scores)[order])))


WRONG = (
    ("/embed", b"{", 422, "Tokenizer"),
    ("/embed", b'{"inputs": 3}', 422, "Tokenizer"),
    ("/embed", b'{"inputs": []}', 400, "Empty"),
    ("/embed", json.dumps({"inputs": "milk " * 99}).encode(), 413, "Validation"),
    ("/embed", b"x" * 3_000_000, 413, "Validation"),
    ("/rerank", b'{"query": "milk", "texts": ["a"]}', 424, "Backend"),
)


@pytest.mark.parametrize(("path", "body", "status", "kind"), WRONG)
def test_what_cannot_be_is_refused_as_by_tei(
    path: str, body: bytes, status: int, kind: str, embedder: Server
) -> None:
    found, answer = embedder.ask(path, body)
    assert (found, json.loads(answer)["error_type"]) == (status, kind)
    assert "\n" not in json.loads(answer)["error"]


def test_a_ranker_embeds_nothing(ranker: Server) -> None:
    status, answer = ranker.post("/embed", {"inputs": "milk"})
    assert (status, answer["error"]) == (424, "Model is not an embedding model")


# --- OpenAI's ------------------------------------------------------------------------------------

AS_OPENAI = {"Authorization": "Bearer x", "Content-Type": "application/json"}
TEXTS = ["cheese", "cheese is made of milk"]


def test_what_the_client_of_openai_sends(embedder: Server) -> None:
    """Its body as recorded: it asks for base64 where its user says nothing."""
    body = {"input": TEXTS, "model": "m", "encoding_format": "base64"}
    status, answer = embedder.ask("/v1/embeddings", json.dumps(body).encode(), AS_OPENAI)
    found = json.loads(answer)
    assert (status, found["object"], found["model"]) == (200, "list", "m")
    n_tokens = sum(len(tokens(text)) for text in TEXTS)
    assert found["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    for k, one in enumerate(found["data"]):
        floats = struct.unpack(f"<{WIDTH}f", base64.b64decode(one["embedding"]))
        assert (one["object"], one["index"]) == ("embedding", k)
        assert near(floats, vector(tokens(TEXTS[k])))


@pytest.mark.parametrize("given", [tokens("cheese"), [tokens("cheese")]])
def test_tokens_in_place_of_texts(given: Any, embedder: Server) -> None:
    status, found = embedder.post("/v1/embeddings", {"input": given, "model": "m"})
    assert status == 200
    assert near(found["data"][0]["embedding"], vector(tokens("cheese")))


@pytest.mark.parametrize(
    "body", [{"input": "milk " * 99}, {"input": []}, {"input": [[99]]}, {"input": [[]]}, {}]
)
def test_what_cannot_be_is_refused_as_by_openai(body: Any, embedder: Server) -> None:
    status, found = embedder.post("/v1/embeddings", body)
    assert (status, found["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="without openai")
def test_the_client_of_openai(embedder: Server) -> None:
    from openai import BadRequestError, OpenAI

    with OpenAI(base_url=f"http://127.0.0.1:{embedder.port}/v1", api_key="x") as client:
        found = client.embeddings.create(model="m", input=TEXTS)
        assert near([one.embedding for one in found.data], [vector(tokens(t)) for t in TEXTS])
        few = client.embeddings.create(model="m", input=TEXTS[0], dimensions=3)
        assert len(few.data[0].embedding) == 3
        with pytest.raises(BadRequestError, match="1 to 20 tokens"):
            client.embeddings.create(model="m", input="milk " * 99)


def test_a_model_of_padded_rows_is_refused(tokenizer: Path) -> None:
    from tokenizers import Tokenizer

    from texts import Encoder  # isort: skip

    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> m (float[2] x) => (float[2] y) { y = Relu (x) }'
    )
    padded = autotune.Model(autotune.compile(model, check=False).artifact)
    with pytest.raises(autotune.UsageError, match="rows of different lengths") as caught:
        Encoder(padded, Tokenizer.from_file(str(tokenizer)))
    assert "--ragged" in caught.value.hint
