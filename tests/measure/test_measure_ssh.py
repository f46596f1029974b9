"""A measuring program behind ssh: what ssh says is told, a greeting of the shell is skipped."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from autotune.errors import MissingDependency
from autotune.measure.far.program import ProgramExecutor, connect, measuring_program
from autotune.measure.processes.process import WorkerError
from autotune.target import host_target, parse_target
from tests.node import node

TARGET = host_target()
QUIET = "-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"


@pytest.fixture(scope="module", params=["native", "wasm32"])
def program(request: pytest.FixtureRequest) -> bytes:
    if request.param == "wasm32":
        node()
        return measuring_program(parse_target("wasm32"))
    try:
        return measuring_program(TARGET)
    except MissingDependency as error:
        pytest.skip(str(error))


def stand_in(folder: Path, script: str) -> str:
    """A command called `ssh` that runs `script` instead, with the words for the shell in $2."""
    path = folder / "ssh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"{path} board"


SAID = {
    "Warning: Permanently added 'board' (ED25519) to the list of known hosts.\n"
    "me@board: Permission denied (publickey).": 255,
    "ssh: connect to host board port 22: Connection refused": 255,
    "Host key verification failed.": 255,
    "sh: 1: mktemp: not found": 127,
}


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("where", [1, 2])
def test_what_ssh_says_last_is_told_in_one_line(
    tmp_path: Path, program: bytes, said: str, where: int
) -> None:
    script = f"cat >&{where} <<'END'\n{said}\nEND\nexit {SAID[said]}"
    with pytest.raises(WorkerError) as caught:
        connect(stand_in(tmp_path, script), program)
    last = said.splitlines()[-1]
    assert caught.value.message == (
        f"the measuring program does not start: {last}: exit code {SAID[said]}"
    )


@pytest.mark.parametrize("greeting", ["Welcome to board", "\0" * 9, "autotun", "a" * 60_000])
def test_a_greeting_is_skipped(tmp_path: Path, program: bytes, greeting: str) -> None:
    (tmp_path / "motd").write_text(greeting)
    command = stand_in(tmp_path, f'cat {tmp_path / "motd"}\nexec sh -c "$2"')
    connection = connect(command, program)
    assert connection.facts().cpus
    connection.close()


def test_a_shell_that_writes_without_end_is_given_up(tmp_path: Path, program: bytes) -> None:
    with pytest.raises(WorkerError, match="writes without end"):
        connect(stand_in(tmp_path, "exec yes"), program)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A folder with the keys of a server on loopback, which runs, and its port."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if server is None or not shutil.which("ssh"):
        pytest.skip("there is no OpenSSH here")
    folder = tmp_path_factory.mktemp("sshd")
    for key in ("host", "mine", "wrong"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key]
        subprocess.run(words, check=True)
    shutil.copy(folder / "mine.pub", folder / "authorized")
    (folder / "banner").write_text("Keep out.\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized",
        "Banner": folder / "banner",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "yes",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
    }
    lines = [f"{name} {value}\n" for name, value in settings.items()]
    (folder / "config").write_text("".join(lines))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen([server, "-D", "-e", "-f", folder / "config"], stderr=-3)
    try:
        if not _answers(process, port):
            pytest.skip("sshd does not run here")
        yield folder, port
    finally:
        process.kill()
        process.wait()


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    for _ in range(200):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    return False


def command_of(sshd: tuple[Path, int], key: str, port: int | None = None) -> str:
    folder, listening = sshd
    user = getpass.getuser()
    return f"ssh {QUIET} -i {folder / key} -p {port or listening} {user}@127.0.0.1"


@pytest.mark.slow
def test_a_real_server_runs_the_program_behind_its_banner(
    sshd: tuple[Path, int], program: bytes
) -> None:
    connection = connect(command_of(sshd, "mine"), program)
    target = TARGET if program[:4] == b"\x7fELF" else parse_target("wasm32")
    assert ProgramExecutor(connection, target, 1).block(64).address
    connection.close()


@pytest.mark.slow
def test_a_wrong_key_and_a_closed_port_are_told_in_the_words_of_ssh(
    sshd: tuple[Path, int], program: bytes
) -> None:
    with pytest.raises(WorkerError, match=r"start: .*Permission denied .*: exit code 255"):
        connect(command_of(sshd, "wrong"), program)
    with pytest.raises(WorkerError, match=r"start: .*port 1: Connection refused.*: exit code 255"):
        connect(command_of(sshd, "mine", 1), program)
