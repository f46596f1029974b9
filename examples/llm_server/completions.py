"""A server of a language model, with the HTTP interface of OpenAI's: chats and completions.

    pip install 'autotune-compiler[examples]'
    autotune compile decoder.onnx --capacity 4096 --sessions 8,4,2 -o decoder.atn
    python examples/llm_server/completions.py decoder.atn --tokenizer FOLDER [--port 8000]
    curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \
      -d '{"model": "decoder", "messages": [{"role": "user", "content": "Hello"}]}'

FOLDER has `tokenizer.json`, and `tokenizer_config.json` with the chat template, as Hugging Face
keeps them. Requests are computed together, those that begin alike read their beginning once, and a
client that leaves is computed no further. /healthz says whether the server is there, /metrics what
it has done. SIGTERM ends it: what has begun is answered, new connections are refused.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from chat import Text, Words
from choosing import Choice, Grammars
from engine import Engine
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from wire import Asked, Chat, Completion, Refused, chat_shares, text_shares, usage

import autotune
from autotune.network.runtime.sampling import sampler

MOST_BYTES = 4 << 20
"""Of a request."""


@dataclass
class Settings:
    """What a server is told, see `main`."""

    name: str
    keys: Sequence[str] = ()
    timeout_s: float = 600.0


@dataclass
class Answer:
    """One text of an answer, in pieces."""

    request: autotune.TextRequest
    choice: Choice
    words: Words
    tokens: AsyncIterator[int]
    end: str = ""
    told: int = 0
    """Shares that were told of so far."""

    async def pieces(self) -> AsyncIterator[str]:
        """Text as it comes; `end` is known behind the last piece."""
        async for token in self.tokens:
            if token in self.request.stop:
                break
            piece = self.words.more(token)
            yield piece.text
            if piece.is_end:
                self.end = "stop"
                self.request.cancel()
                break
        if self.request.error is not None:
            raise self.request.error
        if not self.end:
            yield self.words.rest()
            self.end = "length" if self.request.end == "length" else "stop"

    @property
    def new_shares(self) -> list[Any]:
        """Of the tokens since it was asked last."""
        new = self.choice.chosen[self.told :]
        self.told += len(new)
        return new


@dataclass
class Form:
    """How an answer is written: of a chat, or of a completion."""

    kind: str
    shares: Callable[[Text, Any], Any]
    of_text: Callable[[str, bool], dict[str, Any]]
    """The part of a choice with its text; whether it is a piece of a stream."""


def _chat_text(text: str, is_piece: bool) -> dict[str, Any]:
    return {"delta" if is_piece else "message": {"role": "assistant", "content": text}}


CHAT = Form("chat.completion", chat_shares, _chat_text)
TEXT = Form("text_completion", text_shares, lambda text, is_piece: {"text": text})


@dataclass
class Service:
    """The routes of a model, and what they count. It owns the engine."""

    settings: Settings
    text: Text
    scheduler: autotune.TurnScheduler
    codes: Counter[int] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.engine = Engine(self.scheduler)
        self.grammars = Grammars(self.text, self.text.ends)
        self.start = int(time.time())

    async def chat(self, asked: Chat, http: Request) -> Response:
        """POST /v1/chat/completions."""
        try:
            prompt = self.text.chat([message.plain() for message in asked.messages])
        except ValueError as error:
            raise Refused(400, str(error), "messages") from error
        return await self._complete(asked, [prompt], CHAT, http)

    async def completion(self, asked: Completion, http: Request) -> Response:
        """POST /v1/completions."""
        return await self._complete(asked, asked.prompts(self.text), TEXT, http)

    async def _complete(
        self, asked: Asked, prompts: list[list[int]], form: Form, http: Request
    ) -> Response:
        self._require_model(asked.model)
        answers = self._begun(asked, prompts)
        head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": self.settings.name,
        }
        n_prompt = sum(map(len, prompts))
        self.counts["prompt"] += n_prompt
        if asked.stream:
            lines = self._streamed(asked, answers, form, head, n_prompt)
            return StreamingResponse(lines, media_type="text/event-stream")
        whole = asyncio.ensure_future(self._whole(answers, form))
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                while not (await asyncio.wait([whole], timeout=0.2))[0]:
                    if await http.is_disconnected():
                        raise Refused(499, "the client has left")
            choices = await whole
        except TimeoutError as error:
            raise Refused(504, f"no answer in {self.settings.timeout_s:g} s") from error
        finally:
            whole.cancel()
            self._end(answers)
        n_found = sum(len(answer.request.found) for answer in answers)
        body = {**head, "object": form.kind, "choices": choices, "usage": usage(n_prompt, n_found)}
        return JSONResponse(body)

    async def _whole(self, answers: Sequence[Answer], form: Form) -> list[dict[str, Any]]:
        """The choices of an answer."""

        async def of(answer: Answer) -> str:
            return "".join([piece async for piece in answer.pieces()])

        texts = await asyncio.gather(*map(of, answers))
        return [
            self._choice(n, answer, form, text, False)
            for n, (answer, text) in enumerate(zip(answers, texts, strict=True))
        ]

    async def _streamed(
        self, asked: Asked, answers: Sequence[Answer], form: Form, head: Any, n_prompt: int
    ) -> AsyncIterator[str]:
        """Pieces of all choices as they come, as server-sent events."""
        kind = f"{form.kind}.chunk" if form is CHAT else form.kind
        pieces = asyncio.Queue[tuple[int, str] | BaseException | None]()
        readers = [asyncio.ensure_future(_read(n, one, pieces)) for n, one in enumerate(answers)]
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                for _ in range(len(answers)):
                    while (found := await pieces.get()) is not None:
                        if isinstance(found, BaseException):
                            raise found
                        n, text = found
                        choice = self._choice(n, answers[n], form, text, True)
                        yield _event({**head, "object": kind, "choices": [choice]})
            if asked.has_usage:
                n_found = sum(len(answer.request.found) for answer in answers)
                numbers = usage(n_prompt, n_found)
                yield _event({**head, "object": kind, "choices": [], "usage": numbers})
            yield "data: [DONE]\n\n"
        except Exception as error:
            yield _event(Refused(500, str(error) or type(error).__name__).body)
        finally:
            for reader in readers:
                reader.cancel()
            self._end(answers)

    def _choice(
        self, n: int, answer: Answer, form: Form, text: str, is_piece: bool
    ) -> dict[str, Any]:
        is_told = answer.choice.likeliest is not None
        shares = form.shares(self.text, answer.new_shares) if is_told else None
        end = answer.end or None
        return {
            "index": n,
            **form.of_text(text, is_piece),
            "logprobs": shares,
            "finish_reason": end,
        }

    def _end(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            answer.request.cancel()
            self.counts["generated"] += len(answer.request.found)

    def _begun(self, asked: Asked, prompts: list[list[int]]) -> list[Answer]:
        """A request of the engine for each text. Raises Refused, and then none has begun."""
        found: list[Answer] = []
        try:
            for n, tokens in enumerate(one for one in prompts for _ in range(asked.n)):
                answer = self._answer(asked, tokens, n)
                found.append(answer)
        except autotune.QueueFull as error:
            self._end(found)
            raise Refused(429, str(error)) from error
        except (autotune.UsageError, ValueError) as error:
            self._end(found)
            raise Refused(400, str(error)) from error
        return found

    def _answer(self, asked: Asked, tokens: list[int], n: int) -> Answer:
        unknown = [t for t in (*tokens, *(asked.logit_bias or {})) if not 0 <= t < self._n_tokens]
        if unknown:
            raise ValueError(f"{unknown[0]} is no token of the model")
        how: dict[str, Any] = {}
        if asked.temperature > 0:
            seed = None if asked.seed is None else asked.seed + n
            how = {"sample": "top_p", "temperature": asked.temperature, "top_p": asked.top_p}
            how["seed"] = seed
        grammar = self._grammar(asked.response_format)
        bias = asked.logit_bias or {}
        choice = Choice(sampler(**how), grammar, bias, asked.likeliest)
        room = max(1, self.scheduler.capacity - len(tokens))
        most = min(asked.most or room, room)
        request = autotune.TextRequest(tokens, most, self.text.ends, choice)
        words = Words(self.text, asked.stops)
        return Answer(request, choice, words, self.engine.submit(request))

    @property
    def _n_tokens(self) -> int:
        return int(self.text.tokenizer.get_vocab_size(with_added_tokens=True))

    def _grammar(self, form: dict[str, Any] | None) -> Any:
        kind = (form or {"type": "text"}).get("type")
        if kind == "text":
            return None
        if kind == "json_object":
            return self.grammars.of_schema({"type": "object"})
        if kind == "json_schema":
            assert form is not None
            return self.grammars.of_schema(form.get("json_schema", {}).get("schema", {}))
        raise ValueError(f"there is no response format '{kind}'")

    def _require_model(self, name: str) -> None:
        if name != self.settings.name:
            raise Refused(404, f"there is no model '{name}', only '{self.settings.name}'", "model")

    def _told(self) -> dict[str, Any]:
        return {
            "id": self.settings.name,
            "object": "model",
            "created": self.start,
            "owned_by": "autotune",
        }

    async def models(self) -> dict[str, Any]:
        """GET /v1/models."""
        return {"object": "list", "data": [self._told()]}

    async def model(self, name: str) -> dict[str, Any]:
        """GET /v1/models/NAME."""
        self._require_model(name)
        return self._told()

    async def healthz(self) -> Response:
        """That the server is there."""
        return Response("ok\n", media_type="text/plain")

    async def metrics(self) -> Response:
        """Counters, as Prometheus reads them."""
        lines = [f'requests_total{{code="{code}"}} {n}' for code, n in self.codes.items()]
        lines += [f'tokens_total{{kind="{kind}"}} {n}' for kind, n in self.counts.items()]
        lines.append(f"requests_waiting {self.scheduler.n_waiting}")
        lines.append(f"requests_running {self.scheduler.n_running}")
        if (prefixes := self.scheduler.prefixes) is not None:
            lines.append(f"prefix_tokens_total {prefixes.n_known}")
            lines.append(f"prefix_bytes {prefixes.n_bytes}")
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


async def _read(n: int, answer: Answer, into: asyncio.Queue[Any]) -> None:
    """Put the pieces of an answer into a queue, and None behind the last."""
    try:
        async for text in answer.pieces():
            if text:
                await into.put((n, text))
        await into.put((n, ""))
        await into.put(None)
    except Exception as error:
        await into.put(error)


def _event(told: Any) -> str:
    return f"data: {json.dumps(told, ensure_ascii=False)}\n\n"


def app(service: Service) -> FastAPI:
    """The application of a service."""

    @asynccontextmanager
    async def running(made: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.engine.stop)

    made = FastAPI(title=service.settings.name, lifespan=running)
    made.add_api_route("/v1/chat/completions", service.chat, methods=["POST"], response_model=None)
    made.add_api_route("/v1/completions", service.completion, methods=["POST"], response_model=None)
    made.add_api_route("/v1/models", service.models)
    made.add_api_route("/v1/models/{name:path}", service.model)
    made.add_api_route("/healthz", service.healthz)
    made.add_api_route("/metrics", service.metrics)
    made.middleware("http")(partial(_guarded, service))
    made.add_exception_handler(Refused, _refused)
    made.add_exception_handler(RequestValidationError, _invalid)
    made.add_exception_handler(404, _unknown)
    made.add_exception_handler(405, _unknown)
    return made


async def _guarded(
    service: Service, request: Request, go_on: Callable[[Request], Awaitable[Response]]
) -> Response:
    """Look at the key and at the size before anything is read."""
    response: Response
    length, key = request.headers.get("content-length", ""), request.headers.get("authorization")
    is_open = not request.url.path.startswith("/v1/") or not service.settings.keys
    if not is_open and not _is_known((key or "").removeprefix("Bearer "), service.settings.keys):
        response = await _refused(request, Refused(401, "the key is unknown"))
    elif request.method == "POST" and not length.isdigit():
        response = await _refused(request, Refused(411, "a request tells its Content-Length"))
    elif length.isdigit() and int(length) > MOST_BYTES:
        response = await _refused(
            request, Refused(413, f"a request has {MOST_BYTES} bytes at most")
        )
    else:
        others = [pair for pair in request.scope["headers"] if pair[0] != b"content-type"]
        request.scope["headers"] = [*others, (b"content-type", b"application/json")]  # as curl -d
        response = await go_on(request)
    service.codes[response.status_code] += 1
    return response


def _is_known(key: str, keys: Sequence[str]) -> bool:
    return any(hmac.compare_digest(key.encode(), one.encode()) for one in keys)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return JSONResponse(error.body, error.status)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    message = f"{where}: {first['msg']}" if where else str(first["msg"])
    return JSONResponse(Refused(400, message, where or None).body, 400)


async def _unknown(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    told = f"there is no {request.method} {request.url.path}"
    return JSONResponse(Refused(status, told).body, status)


def _service(given: argparse.Namespace) -> Service:
    """What `main` is told. Raises AutotuneError, OSError and ValueError for what is none."""
    text = Text(given.tokenizer)
    keys = given.key_file.read_text("utf-8").split() if given.key_file else []
    if given.key_file and not keys:
        raise ValueError(f"'{given.key_file}' has no key")
    scheduler = autotune.TurnScheduler(
        autotune.load(given.model, given.threads),
        sessions=given.sessions,
        waiting=given.waiting,
        part=given.part,
        prefixes=autotune.Prefixes(given.prefix_mib << 20) if given.prefix_mib else None,
    )
    return Service(Settings(given.name or given.model.stem, keys, given.timeout), text, scheduler)


def main() -> None:
    """Serve a decoder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", type=Path, help="an artifact with a KV cache")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder")
    parser.add_argument("--name", help="of the model, for clients")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--key-file", type=Path, help="a key on each line")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--sessions", type=int, default=8, help="requests computed at once")
    parser.add_argument("--waiting", type=int, default=64, help="further requests that may wait")
    parser.add_argument("--part", type=int, default=128, help="tokens of a prompt between steps")
    parser.add_argument("--prefix-mib", type=int, default=1024, help="memory of known beginnings")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of a request")
    given = parser.parse_args()
    try:
        service = _service(given)
    except (autotune.AutotuneError, OSError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")
    where: dict[str, Any] = {"host": given.host, "port": given.port, "log_level": "warning"}
    uvicorn.run(app(service), timeout_graceful_shutdown=int(given.timeout), **where)


if __name__ == "__main__":
    main()
