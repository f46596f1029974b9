"""Floor 0: how a user says which CPU is meant: `native`, a name, or a file that describes it.

"znver5" or "machine.json"  ─►  parse_target  ─►  Target  ─►  target_text  ─►  machine.json
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.codec import Misfit
from autotune.errors import UsageError
from autotune.files import open_input
from autotune.target.cpu import (
    Target,
    cpu_elsewhere,
    cpu_here,
    host_cpu_name,
    host_target,
    needed_features,
)
from autotune.target.isa import ALIASES, EMULATION, FEATURES, HOST, PROCESSORS, architecture_of

_MOST_BYTES = 1 << 16
_FILE = ".json"
_CACHE = (1 << 10, 1 << 40)
_LIMITS = {"n_cores": (1, 1 << 16), "l1_bytes": _CACHE, "l2_bytes": _CACHE, "l3_bytes": _CACHE}


def parse_target(text: str) -> Target:
    """The target of a name: `native`, one of `target_names`, or the path of a file `….json`.

    `emulated-amx`, for tests: this CPU with functions in place of matrix tiles.

    A level (`x86-64-v3`) and the name of this very CPU have the caches of this machine; another CPU
    has those of its record. Raises `UsageError` for a name that is not known or a file that
    `autotune target` has not written.
    """
    if is_of_file(text):
        return read_target(Path(text))
    if text in ("native", "host", ""):
        return host_target()
    if text == EMULATION:
        host = host_target()
        own = [f for f in host.features.split(",") if not f.startswith("+amx-")]
        return replace(host, features=",".join([*own, f"+{EMULATION}"]))
    hyphened = text.replace("_", "-")
    cpu = ALIASES.get(hyphened, hyphened)
    known = PROCESSORS.get(cpu)
    if known is None:
        raise _unknown(text)
    architecture = architecture_of(cpu)
    if architecture is not HOST:
        return cpu_elsewhere(cpu, architecture, known)
    target = cpu_here(cpu, "", known.isa)
    if not known.l1_bytes or cpu == host_cpu_name():
        return target
    return replace(
        target, l1_bytes=known.l1_bytes, l2_bytes=known.l2_bytes, l3_bytes=known.l3_bytes
    )


def demands(target: Target) -> frozenset[str]:
    """What code for `target` needs beyond the least of its architecture, of the features by which
    CPUs with a name differ."""
    architecture = target.architecture
    of_isas = (name for isa in architecture.isas for name in isa.requires)
    told = frozenset(of_isas).union(*(FEATURES[name] for name in architecture.processors))
    return (told & {*needed_features(target)}) - {*architecture.isas[-1].requires}


def common_target(targets: Sequence[Target]) -> Target:
    """The most demanding CPU, of `targets` and of those with a name, whose code all of them run.

    Raises UsageError for CPUs of several architectures.
    """
    first, *others = targets
    if not others:
        return first
    if len({target.arch for target in targets}) > 1:
        raise UsageError(
            f"{' and '.join(t.cpu for t in targets)} are of several architectures",
            "compile a file for each",
        )
    has = demands(first).intersection(*map(demands, others))
    named = map(parse_target, first.architecture.processors)
    fitting = [target for target in (*targets, *named) if has >= demands(target)]
    return max(fitting, key=lambda target: len(demands(target)))


def target_names() -> list[str]:
    """Names and aliases that `parse_target` takes."""
    return sorted(["native", *PROCESSORS, *ALIASES])


def _unknown(text: str) -> UsageError:
    import difflib  # compiled networks run without it

    if of_tvm := re.match(r"llvm\b.*-mcpu[= ](\S+)", text):
        return UsageError(f"'{text}' is TVM's form of a target", f"write '{of_tvm[1]}'")
    near = difflib.get_close_matches(text.lower(), target_names())
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return UsageError(f"unknown target '{text}'", f"{meant}`autotune target --list` has all names")


def target_name(target: Target) -> str:
    """Name for `parse_target` that gives `target` on the machine that it describes."""
    named = (name for name in ("native", EMULATION) if parse_target(name) == target)
    return next(named, target.cpu)


def is_of_file(text: str) -> bool:
    """Whether `parse_target` reads a file, which has the cores of its machine."""
    return text.endswith(_FILE)


def target_text(target: Target, also: Mapping[str, object]) -> str:
    """A target as the text of a file; `also`: further keys, for people."""
    data = target.to_json() | dict(also)
    return json.dumps(data, indent=2) + "\n"


def read_target(path: Path) -> Target:
    """The target that a file describes. Raises UsageError."""
    with open_input(path) as file:
        text = file.read(_MOST_BYTES)
    try:
        data: Any = json.loads(text)
        target = Target.from_json(data)
        _require_coherent(target)
    except (Misfit, ValueError, RecursionError) as error:
        what = "it is no JSON" if isinstance(error, json.JSONDecodeError) else error
        raise UsageError(
            f"{path} describes no target: {what}",
            "write it on that machine: `autotune target -o FILE`",
        ) from error
    return target


def _require_coherent(target: Target) -> None:
    """Raise ValueError where the fields of a target contradict each other."""
    features = target.features.split(",")
    isa = target.architecture.isa(target.vector_bits, {f[1:] for f in features if f[:1] == "+"})
    wrong = [f for f in features if f and not re.fullmatch(r"[+-][\w.-]+", f)]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no feature")
    if not re.fullmatch(r"[\w.-]+", target.cpu):
        raise ValueError(f"{target.cpu!r} is no CPU")
    if not target.features and target.cpu not in PROCESSORS:
        raise ValueError(f"the features of {target.cpu} are not known")
    lacking = [name for name in isa.requires if f"+{name}" not in features]
    if lacking and (target.features or PROCESSORS[target.cpu].isa.vector_bits < isa.vector_bits):
        raise ValueError(f"vectors of {target.vector_bits} bits need {lacking[0]}")
    if (target.vector_bits, target.n_registers) != (isa.vector_bits, isa.n_registers):
        raise ValueError(f"{isa.name} has {isa.n_registers} vectors of {isa.vector_bits} bits")
    for name, (least, most) in _LIMITS.items():
        if not least <= getattr(target, name) <= most:
            raise ValueError(f"{name} is {getattr(target, name)}, not {least} to {most}")
