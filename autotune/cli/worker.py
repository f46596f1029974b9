"""⑪ `autotune worker`: a device of a fleet."""

from __future__ import annotations

import os
import socket
import threading

import click

from autotune.cli.console import common_options, say
from autotune.cli.options import THREADS, runner_option, target_option
from autotune.errors import ExitCode

_END_S = 12.0
"""Dask has so long to end in order."""


@click.command("worker")
@click.argument("fleet", metavar="dask://HOST:PORT")
@runner_option
@target_option("CPU of the machine behind --runner.  [native]")
@click.option("--threads", type=THREADS, help="Threads that run a program.  [as many as usable]")
@click.option("--name", help="Name of the device in tables and logs.  [host and process]")
@common_options
def command(
    fleet: str, runner: str | None, target: str | None, threads: int | None, name: str | None
) -> int:
    """Serve this machine, or the one behind --runner, to sessions of `tune --runner dask://…`.

    Whoever can connect to the scheduler can run code here: see the page on fleets. Ends with
    Ctrl-C.
    """
    from autotune.api.tune.machines import served_device
    from autotune.cli.signals import end_now, exit_code, handled
    from autotune.measure.fleet import connected_fleet
    from autotune.measure.fleet_serving import FleetServing

    with connected_fleet(fleet):
        pass
    device = served_device(target or "native", runner, threads)
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    serving = FleetServing(fleet, device, name, say)
    say(f"{name}: {device.target.key}, {device.n_threads} threads")
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
