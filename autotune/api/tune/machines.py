"""⑪ The machines of a session: this one, one behind a command, or the kinds of a fleet.

config ─► machines_of ─► TunedMachine, one for each kind of CPU ─► header ─► device_of ─► Device
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.config import TuneConfig
from autotune.errors import LogMismatch, UsageError
from autotune.machine import require_threads
from autotune.measure.far.program_device import ProgramDevice, program_device
from autotune.measure.fleet.address import is_fleet
from autotune.measure.fleet.fleet import FleetDevice, fleet_devices
from autotune.measure.local import LocalDevice
from autotune.measure.protocols import Device
from autotune.measure.threads import default_threads
from autotune.records import Header
from autotune.target import Target, parse_target, runs_here
from autotune.units import counted


@dataclass(frozen=True, slots=True)
class TunedMachine:
    """A CPU to tune for, and the threads that the model will run on; 0: the default."""

    target: Target
    n_threads: int


def machines_of(config: TuneConfig) -> tuple[TunedMachine, ...]:
    """The CPUs to tune for; several where the devices of a fleet differ.

    Raises UsageError for one that cannot be tuned for from here, WorkerError where it cannot be
    reached.
    """
    if is_fleet(config.runner):
        return tuple(TunedMachine(d.target, d.n_threads) for d in _wanted(config))
    if config.runner:
        target = parse_target(config.target)
        device = program_device(config.runner, target, config.threads)
        return (TunedMachine(device.target, device.n_threads),)
    require_threads(config.threads or None)
    return (TunedMachine(local_target(config.target), config.threads),)


def device_of(header: Header, config: TuneConfig) -> Device:
    """The machine that a session measures: this one, or what its runner reaches."""
    if is_fleet(config.runner):
        return fleet_device(config.runner, header.target, header.n_threads)
    if config.runner:
        return program_device(config.runner, header.target, header.n_threads)
    return LocalDevice(header.target, header.n_threads)


def fleet_device(runner: str, target: Target, n_threads: int) -> FleetDevice:
    """The devices of this kind in a fleet. Raises LogMismatch where there is none."""
    devices = fleet_devices(runner)
    for device in devices:
        if (device.target.key, device.n_threads) == (target.key, n_threads):
            return device
    raise LogMismatch(
        f"no device of {runner} is {target.key} with {counted(n_threads, 'thread')}: "
        f"it has {_names(devices)}",
        "start a worker on such a machine, or a new log: autotune tune",
    )


def served_device(
    name: str, runner: str | None, n_threads: int | None
) -> LocalDevice | ProgramDevice:
    """What a worker of a fleet serves: this machine, or the one behind a command."""
    if runner and is_fleet(runner):
        raise UsageError("a worker serves one machine, no fleet", "give a command as `runner`")
    if runner:
        return program_device(runner, parse_target(name), n_threads or 0)
    require_threads(n_threads)
    return LocalDevice(local_target(name), n_threads or default_threads())


def local_target(name: str) -> Target:
    """The target of a name, for code that runs here. Raises UsageError."""
    target = parse_target(name)
    if not runs_here(target):
        raise UsageError(f"this CPU cannot run code for '{name}'", "leave `target` out")
    return target


def _wanted(config: TuneConfig) -> list[FleetDevice]:
    """The kinds of devices that the settings ask for: all, those of a CPU, of a thread count."""
    devices = fleet_devices(config.runner)
    is_any = config.target in ("native", "")
    names = {config.target} if is_any else {config.target, _key_of(config.target)}
    found = [
        device
        for device in devices
        if (is_any or names & {device.target.cpu, device.target.key})
        and config.threads in (0, device.n_threads)
    ]
    if not found:
        raise UsageError(
            f"no device of {config.runner} is as `target` and `threads` ask: "
            f"it has {_names(devices)}",
            "leave them out to tune for all",
        )
    return found


def _key_of(name: str) -> str:
    """The key of the target of a name; the name where it is none."""
    try:
        return parse_target(name).key
    except UsageError:
        return name


def with_machine(config: TuneConfig, machine: TunedMachine) -> TuneConfig:
    """The settings with the number of threads of a machine."""
    return replace(config, threads=machine.n_threads)


def _names(devices: list[FleetDevice]) -> str:
    return ", ".join(f"{d.target.key} with {counted(d.n_threads, 'thread')}" for d in devices)
