"""⑪ The end of a session: the network that its log compiles to, in turns with the untuned one.

    concluded(journal, log) ─► InTurns; the last `end` of the log keeps it, `compile` follows it

Sums of latencies of tasks alone are estimates of a network: in it, caches and neighbours differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from autotune.api.bindings import variants_of
from autotune.api.compile.compiling import compile_plan, plan_of_log
from autotune.api.request import CompileRequest, Note, never, silent
from autotune.api.sources import model_bytes
from autotune.api.tune.comparable import require_comparable
from autotune.errors import AutotuneError
from autotune.machine import read_limits
from autotune.measure.memory_plan import private_bytes, require_memory
from autotune.network.bench.gate import GateVerdict, Rounds, loads_of, rounds_within, verdict
from autotune.network.runtime.loading import proved_model
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.records import End, InTurns, Journal, Log, read_log

_TIME_S = 6.0
"""After which the least rounds are enough: see `rounds_within`."""
_MOST_VARIANTS = 3
"""Of a model, those that are used most."""


def compare_in_turns(path: Path, stop: Callable[[], bool] = never) -> InTurns:
    """Compile the network of a log, and untuned, and time both in turns for a few seconds.

    Of several variants, those that are used most. Raises NotComparable, and what compiling raises.
    """
    log = read_log(path)
    require_comparable(log)
    chosen = plan_of_log(CompileRequest(log=path, target="log", check=False))
    require_memory(read_limits(), private_bytes(), 2 * model_bytes(chosen.bound.path))
    untuned = replace(chosen, log=None, records=None, drafts={}, carried=set())
    now = proved_model(compile_plan(chosen).artifact)
    before = proved_model(compile_plan(untuned).artifact)
    shares = [variant.share for variant in variants_of(log.header)]
    return _weighted([*_timed(now, before, shares, stop)])


@dataclass(frozen=True, slots=True)
class _Timed:
    """A variant with its share of the inferences."""

    share: float
    rounds: Rounds
    found: GateVerdict

    @property
    def untuned_s(self) -> float:
        """Seconds of an inference of the untuned network."""
        return float(np.median(self.rounds.before_s))


def _timed(
    now: Model, before: Model, shares: Sequence[float], stop: Callable[[], bool]
) -> list[_Timed]:
    pairs = zip_longest(shares, now.variants, before.variants, fillvalue=1.0)
    several: list[Any] = sorted(pairs, key=lambda pair: -pair[0])[:_MOST_VARIANTS]
    timed = []
    for share, ours, theirs in several:
        rounds = _rounds(ours, theirs, stop, _TIME_S / len(several))
        timed.append(_Timed(share, rounds, verdict(rounds, None)))
    return timed


def _rounds(now: Model, before: Model, stop: Callable[[], bool], time_s: float) -> Rounds:
    inputs = random_inputs(now.input_info, 0)
    return rounds_within(loads_of(now, inputs), loads_of(before, inputs), time_s, stop)


def _weighted(timed: Sequence[_Timed]) -> InTurns:
    """The average over variants by their shares, and by what an inference of each takes."""
    weights = [one.share * one.untuned_s for one in timed]

    def mean(ratios: Sequence[float]) -> float:
        return float(np.average(ratios, weights=weights))

    ratio = mean([one.found.ratio for one in timed])
    untuned_s = sum(weights) / sum(one.share for one in timed)
    return InTurns(
        untuned_s=untuned_s,
        tuned_s=untuned_s * ratio,
        ratio=ratio,
        low=mean([one.found.low for one in timed]),
        high=mean([one.found.high for one in timed]),
        n_rounds=min(one.found.n_rounds for one in timed),
    )


def concluded(
    journal: Journal,
    log: Log,
    stop: Callable[[], bool] = never,
    note: Note = silent,
    begin: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> InTurns | None:
    """The comparison at the end of a session, which becomes a second end of its last run.

    None after a `stop`, and where `note` tells why there is none. `begin`: around the work.
    """
    begun_s = time.monotonic()
    try:
        require_comparable(log)
        with begin():
            found = compare_in_turns(journal.path, stop)
    except AutotuneError as error:
        note(f"not timed in turns with the untuned network, nor finalists in it: {error.message}")
        return None
    if stop():
        return None
    _write(journal, found, begun_s)
    return found


def _write(journal: Journal, found: InTurns, begun_s: float) -> None:
    """A second end of the last run, with what was found, and the time until now.

    `begun_s`: of `time.monotonic`, when the first end was written.
    """
    last: End = read_log(journal.path).ends[-1]
    elapsed_s = last.elapsed_s + time.monotonic() - begun_s
    journal.append([End(last.run_id, last.reason, last.n_trials, elapsed_s, in_turns=found)])
    journal.sync()
