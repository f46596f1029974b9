"""⑪ `autotune worker`: a device of a fleet."""

from __future__ import annotations

import os
import socket
import threading

import click

from autotune.cli.console import common_options, say, say_note
from autotune.cli.option_types import THREADS
from autotune.cli.options import runner_option, target_option
from autotune.errors import ExitCode
from autotune.units import counted

_END_S = 12.0
"""Dask has so long to end in order."""
_PORT = click.IntRange(0, (1 << 16) - 2)


@click.command("worker")
@click.argument("fleet", metavar="dask://HOST:PORT")
@runner_option
@target_option("CPU of the machine behind --runner.  [native]")
@click.option("--threads", type=THREADS, help="Threads that run a program.  [as many as usable]")
@click.option("--name", help="Name of the device in tables and logs.  [host and process]")
@click.option("--host", default="", help="Listen there.  [the address that reaches the scheduler]")
@click.option("--port", default=0, type=_PORT, help="Listen there and at the next one.  [any]")
@click.option("--insecure", is_flag=True, help="Listen without certificates, for others to reach.")
@common_options
def command(
    fleet: str,
    runner: str | None,
    target: str | None,
    threads: int | None,
    name: str | None,
    host: str,
    port: int,
    insecure: bool,
) -> int:
    """Serve this machine, or the one behind --runner, to sessions of `tune --runner dask://…`.

    Whoever can connect to the worker or its scheduler can run code here: see the page on fleets.
    Ends with Ctrl-C.
    """
    from autotune.api.tune.machines import served_device
    from autotune.cli.signals import end_now, exit_code, handled
    from autotune.measure.fleet.address import Listening, is_private, listening_host
    from autotune.measure.fleet.connection import connected_fleet
    from autotune.measure.fleet.serving import FleetServing

    with connected_fleet(fleet):
        pass
    listening = Listening(host, port, insecure)
    at = listening_host(fleet, listening)
    if insecure and not is_private(fleet, at):
        say_note(f"whoever reaches {at} can run code here")
    device = served_device(target or "native", runner, threads)
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    serving = FleetServing(fleet, device, name, listening, say)
    say(f"{name}: {device.target.key}, {counted(device.n_threads, 'thread')}")
    number = 0

    def stop(signal_number: int, frame: object) -> None:
        nonlocal number
        if number:
            end_now(signal_number)
        number = signal_number
        serving.stop()
        late = threading.Timer(_END_S, end_now, [signal_number])  # all below end with this process
        late.daemon = True
        late.start()

    with handled(stop):
        serving.run()
    return exit_code(number) if number else ExitCode.OK
