"""What clients of OpenAI's HTTP interface send and get, as far as this server takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chat import Text
from choosing import Chosen
from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_LIKELIEST = 20


class Refused(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param

    @property
    def body(self) -> dict[str, Any]:
        """As OpenAI's clients read errors."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        told = {"message": str(self), "type": kind, "param": self.param, "code": None}
        return {"error": told}


class StreamOptions(BaseModel):
    """Whether a stream ends with the numbers of tokens."""

    include_usage: bool = False


class Asked(BaseModel):
    """What both kinds of completions take; other fields that change an answer are refused."""

    model_config = ConfigDict(extra="allow", strict=False)
    model: str
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=0)
    n: int = Field(1, ge=1, le=16)
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    logit_bias: dict[int, float] | None = None
    response_format: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _known(self) -> Asked:
        refused = ("tools", "functions", "audio", "suffix", "best_of", "echo")
        penalties = ("presence_penalty", "frequency_penalty")
        for name in (*refused, *penalties):
            if (self.model_extra or {}).get(name) not in (
                None,
                0,
                False,
                [],
                1 if name == "best_of" else None,
            ):
                raise ValueError(f"'{name}' is not supported")
        if any(not word for word in self.stops) or len(self.stops) > 8:
            raise ValueError("'stop' is up to 8 texts that are not empty")
        return self

    @property
    def stops(self) -> list[str]:
        """Words that end the text."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def has_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def likeliest(self) -> int | None:
        """The number of likeliest tokens to tell of; None for no shares."""
        raise NotImplementedError

    @property
    def most(self) -> int | None:
        """The most tokens of the answer."""
        raise NotImplementedError


class Message(BaseModel):
    """One of a conversation; the parts of its content are text."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: str | list[dict[str, Any]] | None = None

    def plain(self) -> dict[str, Any]:
        """As templates read it. Raises Refused for images and sounds."""
        content = self.content
        if isinstance(content, list):
            if any(part.get("type") != "text" for part in content):
                raise Refused(400, "the model reads text alone", "messages")
            content = "".join(str(part.get("text", "")) for part in content)
        return {**(self.model_extra or {}), "role": self.role, "content": content or ""}


class Chat(Asked):
    """A conversation to go on."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MOST_LIKELIEST)

    @property
    def likeliest(self) -> int | None:
        """See `Asked`."""
        return self.top_logprobs if self.logprobs else None

    @property
    def most(self) -> int | None:
        """See `Asked`."""
        return self.max_completion_tokens or self.max_tokens


class Completion(Asked):
    """A text to go on, or several, or their tokens."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=MOST_LIKELIEST)

    @property
    def likeliest(self) -> int | None:
        """See `Asked`."""
        return self.logprobs

    @property
    def most(self) -> int | None:
        """See `Asked`."""
        return self.max_tokens

    def prompts(self, text: Text) -> list[list[int]]:
        """The tokens of each."""
        many: Sequence[Any]
        if isinstance(self.prompt, str) or not self.prompt or isinstance(self.prompt[0], int):
            many = [self.prompt]
        else:
            many = self.prompt
        return [text.tokens(one) if isinstance(one, str) else list(one) for one in many]


def chat_shares(text: Text, chosen: Sequence[Chosen]) -> dict[str, Any]:
    """The `logprobs` of a chat."""

    def of(token: int, logprob: float) -> dict[str, Any]:
        word = text.token(token)
        return {"token": word, "logprob": logprob, "bytes": list(word.encode())}

    tops = [[of(*pair) for pair in one.likeliest] for one in chosen]
    pairs = zip(chosen, tops, strict=True)
    return {"content": [{**of(c.token, c.logprob), "top_logprobs": top} for c, top in pairs]}


def text_shares(text: Text, chosen: Sequence[Chosen]) -> dict[str, Any]:
    """The `logprobs` of a completion."""
    words, places = [text.token(one.token) for one in chosen], [0]
    for word in words:
        places.append(places[-1] + len(word))
    tops = [{text.token(n): share for n, share in one.likeliest} for one in chosen]
    shares = [one.logprob for one in chosen]
    told = {"tokens": words, "token_logprobs": shares, "top_logprobs": tops}
    return {**told, "text_offset": places[:-1]}


def usage(n_prompt: int, n_found: int) -> Mapping[str, int]:
    """The numbers of tokens."""
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_found,
        "total_tokens": n_prompt + n_found,
    }
