"""A server of a text encoder: embeddings and reranking, as clients of other servers ask for them.

    pip install 'autotune-compiler[examples]'
    autotune compile model.onnx --ragged --dim batch=..32 --dim sequence=..512 -o model.atn
    python examples/serving/embeddings.py model.atn tokenizer.json [--pooling mean|cls]

    POST /v1/embeddings   OpenAI's: input, encoding_format, dimensions
    POST /embed           of text-embeddings-inference: inputs, normalize, truncate
    POST /rerank          likewise, of a model with one score for a row: query, texts, raw_scores

What else it does: `service`.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from fastapi import FastAPI, Response
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from service import Refused, Service, model_of, serve
from texts import POOLINGS, Encoder, Row, Unfit
from tokenizers import Tokenizer

import autotune

Floats = NDArray[np.float32]
_MOST_BYTES = 2_000_000
_MOST_TEXTS = 2048
"""Of one request, as OpenAI has it."""
_KINDS = {413: "Validation", 422: "Tokenizer", 400: "Empty", 503: "Overloaded", 424: "Backend"}

Tokens = list[int]


class Embed(BaseModel):
    """Body of /embed."""

    inputs: str | list[str]
    normalize: bool = True
    truncate: bool = False
    dimensions: int | None = Field(None, ge=1)


class Rerank(BaseModel):
    """Body of /rerank."""

    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool = False


class Embeddings(BaseModel):
    """Body of /v1/embeddings."""

    input: str | Tokens | list[str] | list[Tokens]
    model: str = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)


class Routes:
    """What the three routes make of an encoder."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    async def embed(self, body: bytes) -> Response:
        """Vectors of texts."""
        asked = _parsed(Embed, body)
        texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
        vectors = await self._vectors(await self._rows(texts, asked.truncate), asked.dimensions)
        if asked.normalize:
            vectors = [_normalised(vector) for vector in vectors]
        return _json([vector.tolist() for vector in vectors])

    async def rerank(self, body: bytes) -> Response:
        """Texts by how well they answer a query, the best one first."""
        asked = _parsed(Rerank, body)
        if not self.encoder.is_ranking:
            raise Refused(424, "Model is not a re-ranker model")
        pairs = [(asked.query, text) for text in asked.texts]
        found = await self.encoder.answers(await self._rows(pairs, asked.truncate))
        scores = np.concatenate(found).astype(np.float64)
        if not asked.raw_scores:
            scores = 1 / (1 + np.exp(-scores))
        ranked: list[dict[str, Any]] = []
        for k in np.argsort(-scores, kind="stable").tolist():
            text = {"text": asked.texts[k]} if asked.return_text else {}
            ranked.append({"index": k, **text, "score": float(scores[k])})
        return _json(ranked)

    async def openai(self, body: bytes) -> Response:
        """Vectors of texts or of tokens, of length 1."""
        asked = _parsed(Embeddings, body)
        given = asked.input
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = [given]
        rows = await self._rows(given, False)
        vectors = [_normalised(v) for v in await self._vectors(rows, asked.dimensions)]
        is_text = asked.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": k, "embedding": _base64(v) if is_text else v.tolist()}
            for k, v in enumerate(vectors)
        ]
        n_tokens = sum(len(row.ids) for row in rows)
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        name = asked.model or self.encoder.model.artifact.name
        return _json({"object": "list", "data": data, "model": name, "usage": usage})

    async def _rows(self, texts: Sequence[Any], truncate: bool) -> list[Row]:
        """Rows of texts, of pairs of texts, or of what are rows."""
        if not texts:
            raise Refused(400, "`inputs` cannot be empty")
        if len(texts) > _MOST_TEXTS:
            raise Refused(
                413, f"batch size {len(texts)} > maximum allowed batch size {_MOST_TEXTS}"
            )
        try:
            if isinstance(texts[0], list):
                return [self.encoder.row(ids) for ids in texts]
            return await self.encoder.rows(texts, truncate)
        except Unfit as error:
            raise Refused(413, str(error)) from None

    async def _vectors(self, rows: list[Row], n: int | None) -> list[Floats]:
        if self.encoder.is_ranking:
            raise Refused(424, "Model is not an embedding model")
        return [vector[:n] for vector in await self.encoder.answers(rows)]


def _parsed(kind: type[BaseModel], body: bytes) -> Any:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise Refused(422, f"{place or 'body'}: {first['msg']}".replace("\n", " ")) from None


def _normalised(vector: Floats) -> Floats:
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def _base64(vector: Floats) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _json(found: Any, status: int = 200) -> Response:
    return Response(json.dumps(found), status, media_type="application/json")


def _as_tei(refused: Refused) -> Response:
    status = 429 if refused.status == 503 else refused.status
    return _json({"error": refused.text, "error_type": _KINDS[refused.status]}, status)


def _as_openai(refused: Refused) -> Response:
    status = {503: 429, 424: 400, 413: 400, 422: 400}.get(refused.status, refused.status)
    kind = "rate_limit_error" if status == 429 else "invalid_request_error"
    told = {"message": refused.text, "type": kind, "param": None, "code": None}
    return _json({"error": told}, status)


def app() -> FastAPI:
    """The application, of the environment's MODEL, TOKENIZER, POOLING and THREADS."""
    model, tokenizer = model_of(), _tokenizer(os.environ["TOKENIZER"])
    encoder = Encoder(model, tokenizer, os.environ.get("POOLING", POOLINGS[0]))
    service, routes = Service(model.artifact.name, encoder, _MOST_BYTES), Routes(encoder)
    service.post("/embed", routes.embed, _as_tei)
    service.post("/rerank", routes.rerank, _as_tei)
    service.post("/v1/embeddings", routes.openai, _as_openai)
    return service.app


def _tokenizer(path: str) -> Tokenizer:
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # the package has no class of its own
        raise autotune.UsageError(
            f"'{path}' is no tokenizer: {error}", "give the tokenizer.json of the model"
        ) from None


def main() -> None:
    """Serve a text encoder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--pooling", choices=POOLINGS)
    serve("embeddings:app", parser)


if __name__ == "__main__":
    main()
