"""The server of examples/llm_server as a process: real clients, grammars, wrong requests."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import autotune
from tests.decoders import VOCABULARY, decoder
from tests.serving import FOLDER, Server, needs, started

pytestmark = needs("fastapi", "uvicorn", "openai", "llguidance", "tokenizers", "jinja2")
SERVER = "../llm_server/completions.py"
CAPACITY = 256
_LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789", *'{}[]",:.-', "Ġ"]
_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}bot:"
KEY = "secret"


def compiled(folder: Path) -> Path:
    """A small decoder in a folder."""
    told: dict[str, Any] = {"capacity": CAPACITY, "sessions": (2,), "check": False}
    autotune.compile(decoder(), **told).artifact.save(folder / "tiny.atn")
    return folder / "tiny.atn"


def tokenized(folder: Path) -> Path:
    """The folder with a tokenizer of letters, a chat template and keys."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    names = ["<unk>", "</s>", *_LETTERS]
    names += [f"<{n}>" for n in range(VOCABULARY - len(names))]
    vocabulary = {name: n for n, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "</s>", "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "keys").write_text(f"other\n{KEY}\n")
    return folder


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("llm"))


@pytest.fixture(scope="module")
def words(artifact: Path) -> Path:
    return tokenized(artifact.parent)


@pytest.fixture(scope="module")
def server(artifact: Path, words: Path) -> Iterator[Server]:
    told = ("--tokenizer", words, "--key-file", words / "keys", "--sessions", 3, "--waiting", 4)
    with started(SERVER, artifact, *told, "--part", 16) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    from openai import OpenAI

    return OpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0)


def expected(artifact: Path, words: Path, text: str, n: int) -> str:
    """Greedy text behind a prompt, of a session alone."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(words / "tokenizer.json"))
    tokens = tokenizer.encode(text).ids
    found = autotune.load(artifact).session().generate([tokens], n, {1})
    return str(tokenizer.decode([token for token in found if token != 1]))


def test_the_client_of_openai_gets_texts(
    client: Any, artifact: Path, words: Path, server: Server
) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "autotune"
    greedy = {"model": "tiny", "temperature": 0}
    text = expected(artifact, words, "hello there", 30)
    found = client.completions.create(prompt="hello there", max_tokens=30, **greedy)
    assert found.choices[0].text == text
    assert found.usage.total_tokens == 11 + found.usage.completion_tokens
    said = [{"role": "user", "content": "hi"}]
    answer = expected(artifact, words, "user: hi bot:", 20)
    whole = client.chat.completions.create(messages=said, max_tokens=20, **greedy)
    assert whole.choices[0].message.content == answer
    usage = {"include_usage": True}
    parts = list(
        client.chat.completions.create(
            messages=said, max_tokens=20, stream=True, stream_options=usage, **greedy
        )
    )
    assert "".join(p.choices[0].delta.content for p in parts if p.choices) == answer
    assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert parts[-1].usage == whole.usage
    several = client.completions.create(prompt=["a", "hello there"], max_tokens=30, **greedy)
    assert [c.text for c in several.choices] == [expected(artifact, words, "a", 30), text]


def test_what_is_drawn_follows_the_seed(client: Any) -> None:
    told = {"model": "tiny", "prompt": "abc", "max_tokens": 20, "n": 2, "temperature": 1.3}
    first, again, other = (
        [c.text for c in client.completions.create(seed=seed, **told).choices] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len(set(first)) == 2


def test_stop_words_biases_and_shares(client: Any, artifact: Path, words: Path) -> None:
    text = expected(artifact, words, "stop", 40)
    word = text[5:8]
    told = {"model": "tiny", "prompt": "stop", "temperature": 0, "max_tokens": 40}
    found = client.completions.create(stop=[word, "never"], **told).choices[0]
    assert (found.text, found.finish_reason) == (text[: text.index(word)], "stop")
    biased = client.completions.create(logit_bias={"5": 100}, **told | {"max_tokens": 4})
    assert biased.choices[0].text == _LETTERS[3] * 4
    shares = client.completions.create(logprobs=3, **told | {"max_tokens": 5}).choices[0].logprobs
    assert "".join(shares.tokens).replace("</s>", "").startswith(text[:4])
    assert all(
        max(top.values()) == pytest.approx(share)
        for share, top in zip(shares.token_logprobs, shares.top_logprobs, strict=True)
    )
    chat = (
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "x"}],
            logprobs=True,
            top_logprobs=VOCABULARY // 3,
            max_tokens=3,
        )
        .choices[0]
        .logprobs.content
    )
    assert all(-60 < one.logprob <= 0 and len(one.top_logprobs) == 16 for one in chat)


def test_an_answer_follows_a_schema(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "yz"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "pair", "schema": schema}}
    for seed in range(3):
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "go"}],
            response_format=form,
            seed=seed,
            max_tokens=200,
            temperature=1.0,
            logit_bias={str(_LETTERS.index("Ġ") + 2): -20},
        ).choices[0]
        assert answer.finish_reason == "stop"
        found = json.loads(answer.message.content)
        assert found["b"] in ("x", "yz")
        assert found["a"] <= 99


def test_eight_clients_get_what_each_gets_alone(
    server: Server, artifact: Path, words: Path
) -> None:
    texts = [f"the same beginning of all of them {n}"[: 10 + 4 * n] for n in range(8)]
    wanted = [expected(artifact, words, text, 40) for text in texts]
    found: dict[int, Any] = {}

    def ask(n: int) -> None:
        body = {"model": "tiny", "prompt": texts[n], "max_tokens": 40, "temperature": 0}
        while (answer := post(server, "/v1/completions", body))[0] == 429:
            time.sleep(0.05)
        found[n] = answer

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n][1]["choices"][0]["text"] for n in range(8)] == wanted
    body = {"model": "tiny", "prompt": texts[-1], "max_tokens": 40, "temperature": 0}
    before = server.metrics()["prefix_tokens_total"]
    assert post(server, "/v1/completions", body)[1]["choices"][0]["text"] == wanted[-1]
    assert server.metrics()["prefix_tokens_total"] == before + 32


def test_a_client_that_leaves_is_computed_no_further(server: Server) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": CAPACITY, "stream": True}
    body["logit_bias"] = {"1": -100}
    for stream in (True, False):
        data = json.dumps({**body, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head.encode() + data)
            if stream:
                client.recv(200)
    end_s, n_idle = time.monotonic() + 60, 0
    while n_idle < 20 and time.monotonic() < end_s:  # one may begin when its client has left
        n_idle = 0 if server.metrics()["requests_running"] else n_idle + 1
        time.sleep(0.05)
    assert n_idle == 20


def post(server: Server, path: str, body: Any, key: str = KEY) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    status, answer = server.ask(path, data, headers)
    return status, json.loads(answer)


_TEXT = {"model": "tiny", "prompt": "a"}
_CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("path", "change", "status", "word"),
    [
        ("completions", {"model": "gpt-9"}, 404, "gpt-9"),
        ("completions", {"model": None}, 400, "model"),
        ("completions", {"prompt": None}, 400, "prompt"),
        ("completions", {"prompt": "a" * CAPACITY}, 400, "256 places"),
        ("completions", {"prompt": ""}, 400, "0 tokens"),
        ("completions", {"prompt": [VOCABULARY + 1]}, 400, "no token"),
        ("completions", {"prompt": [-1]}, 400, "no token"),
        ("completions", {"max_tokens": 0}, 400, "max_tokens"),
        ("completions", {"temperature": -1}, 400, "temperature"),
        ("completions", {"temperature": "hot"}, 400, "temperature"),
        ("completions", {"top_p": 0}, 400, "top_p"),
        ("completions", {"n": 100}, 400, "n"),
        ("completions", {"n": 16}, 429, "waiting"),
        ("completions", {"stop": [""]}, 400, "stop"),
        ("completions", {"logprobs": 1000}, 400, "logprobs"),
        ("completions", {"best_of": 4}, 400, "best_of"),
        ("completions", {"logit_bias": {"999": 1}}, 400, "999"),
        ("chat/completions", {"messages": []}, 400, "messages"),
        ("chat/completions", {"messages": "hello"}, 400, "messages"),
        ("chat/completions", {"tools": [{"type": "function"}]}, 400, "tools"),
        ("chat/completions", {"response_format": {"type": "xml"}}, 400, "xml"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "text alone",
        ),
        ("images/generations", {}, 404, "images"),
    ],
)
def test_wrong_requests_get_a_line(
    server: Server, path: str, change: dict[str, Any], status: int, word: str
) -> None:
    body = {**(_CHAT if path.startswith("chat") else _TEXT), **change}
    found, answer = post(server, f"/v1/{path}", body)
    assert found == status, answer
    assert word in answer["error"]["message"]
    assert post(server, "/v1/completions", {**_TEXT, "max_tokens": 1})[0] == 200


def test_keys_sizes_and_what_is_no_json(server: Server) -> None:
    assert post(server, "/v1/completions", _TEXT, "wrong")[0] == 401
    assert post(server, "/v1/completions", b"{")[0] == 400
    assert post(server, "/v1/completions", b" " * (5 << 20))[0] == 413
    assert server.ask("/v1/models")[0] == 401
    assert server.ask("/v1/completions", headers={"Authorization": f"Bearer {KEY}"})[0] == 405


@pytest.mark.skipif(shutil.which("curl") is None, reason="without curl")
def test_curl_reads_a_stream(server: Server) -> None:
    data = json.dumps({**_CHAT, "stream": True, "max_tokens": 3})
    where = f"http://127.0.0.1:{server.port}/v1/chat/completions"
    command = ["curl", "-sN", where, "-H", f"Authorization: Bearer {KEY}"]
    command += ["-d", data]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert json.loads(lines[0].removeprefix("data: "))["object"] == "chat.completion.chunk"


def test_the_server_ends_when_it_is_told(artifact: Path, words: Path) -> None:
    with started(SERVER, artifact, "--tokenizer", words, "--name", "mine") as server:
        assert server.post("/v1/completions", {**_TEXT, "model": "mine"})[0] in (400, 200)
        server.process.terminate()
        assert server.process.wait(60) in (0, -15)


def test_wrong_arguments_get_a_line(artifact: Path, words: Path, tmp_path: Path) -> None:
    (tmp_path / "none").write_text("")
    right = [artifact, "--tokenizer", words]
    for arguments, told in (
        ([tmp_path / "no.atn", "--tokenizer", words], "no.atn"),
        ([artifact, "--tokenizer", tmp_path], "tokenizer.json"),
        ([*right, "--key-file", tmp_path / "none"], "has no key"),
        ([*right, "--sessions", 0], "one session"),
    ):
        command = [sys.executable, FOLDER / SERVER, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert told in done.stderr
        assert "Traceback" not in done.stderr
