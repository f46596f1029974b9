"""Text of a model: its tokenizer, its chat template, and words out of tokens as they come."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class Text:
    """The tokenizer of a folder as Hugging Face keeps it, and its chat template."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text("utf-8"))
        config = _json(folder / "tokenizer_config.json")
        self._special = {name: _content(config.get(name)) for name in ("bos_token", "eos_token")}
        ends = _json(folder / "generation_config.json").get("eos_token_id", [])
        self.ends = set(ends if isinstance(ends, list) else [ends])
        if self._special["eos_token"]:
            self.ends.add(self.tokenizer.token_to_id(self._special["eos_token"]))
        self.ends.discard(None)
        self._template = _template(folder, config.get("chat_template"))

    def tokens(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text; with those that the tokenizer puts around one."""
        return list(self.tokenizer.encode(text, add_special_tokens=special).ids)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens of a conversation, up to where the answer begins. Raises ValueError."""
        if self._template is None:
            raise ValueError("the model has no chat template: use /v1/completions")
        special = {name: text or "" for name, text in self._special.items()}
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, **special)
        except TemplateError as error:
            raise ValueError(f"the chat template refuses the messages: {error}") from error
        return self.tokens(text, special=False)

    def token(self, number: int) -> str:
        """The text of a token alone."""
        return str(self.tokenizer.decode([number], skip_special_tokens=False))


@dataclass
class Piece:
    """Text that can be shown, and whether it ends in front of a stop word."""

    text: str
    is_end: bool = False


class Words:
    """Text out of tokens one by one, up to the first of some words, which is left out.

    A token may be a part of a character, and text may be the beginning of a stop word: both wait.
    """

    def __init__(self, text: Text, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = text.tokenizer, stop
        self._stream, self._held = DecodeStream(skip_special_tokens=True), ""

    def more(self, token: int) -> Piece:
        """What a further token shows."""
        self._held += self._stream.step(self._tokenizer, token) or ""
        found = [place for word in self._stop if (place := self._held.find(word)) >= 0]
        if found:
            text, self._held = self._held[: min(found)], ""
            return Piece(text, True)
        begun = max((_begun(self._held, word) for word in self._stop), default=0)
        shown = self._held[: len(self._held) - begun]
        self._held = self._held[len(shown) :]
        return Piece(shown)

    def rest(self) -> str:
        """What was held back, where the text ends."""
        text, self._held = self._held, ""
        return text


def _begun(text: str, word: str) -> int:
    """How many characters of a word a text ends in."""
    sizes = range(min(len(word) - 1, len(text)), 0, -1)
    return next((n for n in sizes if text.endswith(word[:n])), 0)


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _template(folder: Path, told: Any) -> Any:
    """The chat template, in a file of its own or among the settings; the first of several."""
    own = folder / "chat_template.jinja"
    if own.exists():
        told = own.read_text("utf-8")
    elif isinstance(told, list):
        told = next((one["template"] for one in told if one["name"] == "default"), None)
    if told is None:
        return None
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    made.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made.from_string(told)


def _refuse(message: str) -> None:
    raise TemplateError(message)
