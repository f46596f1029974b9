"""⑦ Addresses of a fleet: where its scheduler is, and where a worker listens.

    fleet_address("dask://farm")      ─► "tcp://farm:8786", or tls:// where there are certificates
    listening_host("dask://farm", …)  ─► the address of this machine that reaches the scheduler

Processes of Dask run what is sent to them. So a worker listens where its scheduler reaches it and
nowhere else. If that is not within this machine, connections have certificates, or the user says
that the network is trusted.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from autotune.errors import MissingDependency, UsageError
from autotune.measure.processes.frames import VERSION
from autotune.target import Target
from autotune.version import __version__

SCHEME = "dask://"
CONNECT_S = 5.0
"""A scheduler answers within so long."""
_PORT = 8786


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a worker listens, if not at any port of the address that reaches its scheduler.

    Dask's nanny, which starts the worker again, listens at the port behind `port`. `is_insecure`:
    the network is trusted; whoever reaches the worker may run code.
    """

    host: str = ""
    port: int = 0
    is_insecure: bool = False

    @property
    def ports(self) -> tuple[int, int]:
        """Of the worker and of the nanny; zeros: any that are free."""
        return self.port, self.port and self.port + 1


def kind_of(target: Target, n_threads: int) -> str:
    """Kind of a device: batches for it run on any of the same kind. A resource of Dask."""
    return f"autotune {__version__}.{VERSION} {target.key} {n_threads}"


def is_fleet(runner: str) -> bool:
    """Whether a runner is the address of a fleet, and no command."""
    return runner.startswith(SCHEME)


def scheduler_place(runner: str) -> tuple[str, int]:
    """Host and port of the scheduler. Raises UsageError."""
    try:
        parts = urlsplit(runner)
        place = parts.hostname or "", _PORT if parts.port is None else parts.port
        is_bare = not (parts.username or parts.path.strip("/") or parts.query or parts.fragment)
        if is_fleet(runner) and is_bare and all(place):
            return place
    except ValueError:
        pass
    raise UsageError(f"'{runner}' is no address of a fleet", "write it like dask://HOST:8786")


def fleet_address(runner: str) -> str:
    """The address of the scheduler as Dask writes it. Raises UsageError."""
    host, port = scheduler_place(runner)
    return f"{'tls' if _has_certificates('client') else 'tcp'}://{_written(host)}:{port}"


def listening_host(runner: str, asked: Listening) -> str:
    """The address at which a worker listens, as Dask writes it.

    Raises UsageError where others could run code here, OSError where the scheduler is away.
    """
    host = asked.host or _own_address(runner)
    if not is_private(runner, host) and not asked.is_insecure:
        raise UsageError(
            f"whoever reaches {host} could run code here: this worker has no certificates",
            "give Dask certificates, or a tunnel to a scheduler on 127.0.0.1: see the page on "
            "fleets; in a network that you trust, --insecure",
        )
    return _written(host)


def is_private(runner: str, host: str) -> bool:
    """Whether only this machine, or who has a certificate, can talk to what listens at `host`.

    Raises UsageError for certificates of clients without those of workers.
    """
    is_encrypted = fleet_address(runner).startswith("tls:")
    if is_encrypted and not _has_certificates("worker"):
        raise UsageError(
            "Dask's configuration has certificates for clients, but none for workers",
            "name them at distributed.comm.tls.worker: see the page on fleets",
        )
    return is_encrypted or _is_loopback(host)


def require_free(host: str, ports: tuple[int, int]) -> None:
    """Raise UsageError where this machine cannot listen at `host` (as Dask writes it)."""
    bare = host.strip("[]")
    for port in ports:
        try:
            family, kind, *_, place = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError as error:
            where = f"{host}:{port}" if port else host
            raise UsageError(
                f"cannot listen at {where}: {error.strerror}",
                "give an address of this machine as --host, and as --port the first of two in a "
                "row that are free",
            ) from error


def distributed_package() -> Any:
    """The package of Dask, silent. Raises MissingDependency."""
    try:
        import distributed
    except ImportError as error:
        raise MissingDependency(
            "a fleet needs Dask: the package 'distributed'",
            "pip install 'autotune-compiler[fleet]'",
        ) from error
    import logging

    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return distributed


def _own_address(runner: str) -> str:
    with socket.create_connection(scheduler_place(runner), CONNECT_S) as there:
        return str(there.getsockname()[0])


def _has_certificates(role: str) -> bool:
    """Whether Dask's configuration has some for "client" or "worker". Raises UsageError."""
    security = distributed_package().Security()
    try:
        return security.get_connection_args(role)["ssl_context"] is not None
    except OSError as error:  # of ssl as well
        raise UsageError(
            f"the certificates in Dask's configuration cannot be read: {error}",
            "see the page on fleets for the files that it has to name",
        ) from error


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`. Raises UsageError for a name of nothing."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None)
    except OSError as error:
        raise UsageError(
            f"there is no host '{host}'", "give an address of this machine as --host"
        ) from error
    return all(ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
