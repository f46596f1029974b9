"""⑪ Mixed precision (`auto`): the fastest type of each product that keeps the network exact enough.

    networks in float32, in bfloat16, and with the products mixed ─► the fastest by what is known
    products of integers as they are, and as exact sums of floats ─► the same
    the error of the network > max_error ─► the products that gain least go back to float32

Every attempt is a whole network with its casts, compiled and checked: errors of tasks do not add
up, and the cost of rounding a tensor depends on its readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from statistics import median
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from autotune.api.bindings import Bound
from autotune.api.compile.selection import CompilePlan, best_records, drafted
from autotune.api.request import Note
from autotune.config import AUTO, PRECISIONS
from autotune.errors import WrongNumbers
from autotune.graph.mixture import Mixture
from autotune.graph.network import Network, TaskCall, chosen
from autotune.network.compile.variants import tasks_of, unified
from autotune.records import MeasureRecord
from autotune.target import Target
from autotune.te.products import instructions_of, precision_of
from autotune.wording import arguments

NOT_MIXED = "precision auto: float32, because parts of the model run in ONNX Runtime"
_WORTH_IT = 0.97
"""Of the seconds of float32: a mixture that gains less is not worth its rounding."""
_MOST_ATTEMPTS = 8
"""Networks that are compiled and checked to find the number of narrow products."""


@dataclass(frozen=True)
class Mixtures:
    """A model at the shapes of every variant; `shares` of all inferences."""

    mixtures: tuple[Mixture, ...]
    shares: tuple[float, ...]

    @property
    def narrowable(self) -> frozenset[str]:
        """Nodes of any variant that may be narrow."""
        return frozenset().union(*(m.narrowable for m in self.mixtures))

    @property
    def integers(self) -> frozenset[str]:
        """Nodes of any variant whose products of integers floats compute exactly."""
        return frozenset().union(*(m.integers for m in self.mixtures))

    def networks(
        self, precision: str, kept: Set[str] = frozenset(), floats: Set[str] = frozenset()
    ) -> tuple[Network, ...]:
        """A network for every variant, see `Mixture.network`."""
        found = [m.network(precision, kept, floats) for m in self.mixtures]
        return unified(found) if len(found) > 1 else tuple(found)


def mixtures_of(bound: Bound, networks: Sequence[Network]) -> Mixtures:
    """The model at the shapes of every variant, whose networks in float32 are `networks`; see
    `graph.network.build_network` for errors."""
    has_lengths = [bool(n.lengths or n.written) and not bound.grown for n in networks]
    made = (
        Mixture(bound.model, one.shapes, bound.open_model(one) if is_open else None)
        for one, is_open in zip(bound.variants, has_lengths, strict=True)
    )
    return Mixtures(tuple(made), tuple(variant.share for variant in bound.variants))


def narrow_precisions(target: Target) -> tuple[str, ...]:
    """Precisions beside float32 that are worth a try: bf16, and others that a form multiplies."""
    forms = {operand for form in target.isa.forms for operand in form.operands}
    return tuple(p for p in PRECISIONS if p == "bf16" or (p != "f32" and PRECISIONS[p] in forms))


def form_notes(precision: str, target: Target) -> Iterable[str]:
    """A line where no instruction of the target multiplies factors of `precision`."""
    if precision in PRECISIONS and not _multiplies(precision, target):
        yield (
            f"{target.cpu} has no instruction for products of {PRECISIONS[precision]}: {precision} "
            "halves the bytes of weights and activations, products take the time of float32"
        )


def alternatives(mixtures: Mixtures, target: Target) -> tuple[tuple[Network, ...], ...]:
    """The networks beside float32 whose tasks are tuned too, each for every variant.

    All products narrow; those alone that an instruction of the target multiplies as they are; and
    products of integers as floats, in float32 and narrow.
    """
    found = []
    if mixtures.integers:
        found.append(mixtures.networks("f32", floats=mixtures.integers))
    for precision in narrow_precisions(target):
        all_narrow = mixtures.networks(precision)
        found.append(all_narrow)
        unfit = _unfit(all_narrow, target)
        if unfit and not unfit >= mixtures.narrowable:
            found.append(mixtures.networks(precision, unfit))
        if mixtures.integers and _multiplies(precision, target):
            found.append(mixtures.networks(precision, floats=mixtures.integers))
    return tuple(found)


def _multiplies(precision: str, target: Target) -> bool:
    """Whether an instruction of the target multiplies factors of `precision`."""
    return any(PRECISIONS[precision] in form.operands for form in target.isa.forms)


def _unfit(networks: Iterable[Network], target: Target) -> frozenset[str]:
    """Products whose reduction no narrow form of the target fits, where it has one at all."""
    calls = [(n.tasks[c.task], c) for n in networks for c in n.calls]
    products = [(dag, call) for dag, call in calls if precision_of(dag) in ("bf16", "f16")]
    fits = [
        any(instructions_of(op, target.isa.forms) for op in dag.computes) for dag, _ in products
    ]
    if not any(fits):
        return frozenset()
    unfit = (call for (_, call), fit in zip(products, fits, strict=True) if not fit)
    return frozenset(name for call in unfit for name in call.narrowable)


@dataclass(frozen=True, slots=True)
class _Mix:
    """A choice: `narrow` products, those that gain most first, and the seconds expected of it.

    `floats`: the products of integers that are computed as floats.
    """

    precision: str
    narrow: tuple[str, ...]
    cost_s: float
    floats: frozenset[str] = frozenset()


def seconds_by_product(calls: Iterable[tuple[TaskCall, float]]) -> dict[str, float]:
    """Seconds of every narrowable node; those of a call are split among its nodes."""
    found: dict[str, float] = {}
    for call, seconds in calls:
        for name in call.narrowable:
            found[name] = found.get(name, 0.0) + seconds / len(call.narrowable)
    return found


class _Costs:
    """Seconds of networks, from latencies of their tasks.

    Those of the log where a task was measured; else the estimate of its default program by the cost
    model, times the ratio of measured to estimated default programs in this log.
    """

    def __init__(self, plan: CompilePlan, networks: Sequence[Network]) -> None:
        self._plan = plan
        best = best_records(networks, plan)
        self._measured = {key: _seconds(record) for key, record in best.items()}
        self._scale = _optimism(plan)

    def total_s(self, networks: Sequence[Network], shares: Sequence[float]) -> float:
        """An average inference."""
        calls = zip(map(self._calls, networks), shares, strict=True)
        return sum(share * sum(s for _, s in found) for found, share in calls)

    def by_product(self, networks: Sequence[Network], shares: Sequence[float]) -> dict[str, float]:
        """Seconds of every narrowable node, see `seconds_by_product`."""
        calls = zip(map(self._calls, networks), shares, strict=True)
        return seconds_by_product((c, share * s) for found, share in calls for c, s in found)

    def _calls(self, network: Network) -> list[tuple[TaskCall, float]]:
        tasks = tasks_of([network])
        open_keys = [key for key in tasks if key not in self._measured]
        drafts = drafted(self._plan, {key: tasks[key] for key in open_keys})
        guess = {key: self._scale * (d.predicted_s or math.inf) for key, d in drafts.items()}
        known = guess | self._measured
        calls = chosen(network, known, known).calls
        return [(call, known[call.task]) for call in calls]


def _seconds(record: MeasureRecord) -> float:
    return record.result.latency_s or math.inf


def _optimism(plan: CompilePlan) -> float:
    """Measured over expected seconds of the default programs in a log, in the median."""
    ratios = [
        _seconds(r) / r.default_estimate_s
        for r in (plan.log.records if plan.log else ())
        if r.default_estimate_s and r.result.latency_s
    ]
    return median(ratios) if ratios else 1.0


def _fastest(mixtures: Mixtures, plan: CompilePlan) -> tuple[_Mix, float]:
    """The mix that is expected to be fastest, and the seconds of all as the model says."""
    chooser = _Chooser(mixtures, plan)
    plain = chooser.mix()
    best = min(chooser.mixes(), key=lambda mix: mix.cost_s)
    return (best if best.cost_s < _WORTH_IT * plain.cost_s else plain), plain.cost_s


class _Chooser:
    """The mixes that are worth a look: products that gain by themselves, all, and none."""

    def __init__(self, mixtures: Mixtures, plan: CompilePlan) -> None:
        self._mixtures, self._target = mixtures, plan.target
        self._precisions = ("f32", *narrow_precisions(plan.target))
        self._networks, self._gains = cache(self._made), cache(self._faster)
        whole = tuple(dict.fromkeys((frozenset(), mixtures.integers)))
        several = [self._networks(p, floats) for p in self._precisions for floats in whole]
        self._costs = _Costs(plan, [n for networks in several for n in networks])
        self._plain = self._by_product(several[0])

    def mixes(self) -> Iterable[_Mix]:
        """All that are looked at."""
        everything = self._mixtures.integers
        for precision in self._precisions:
            faster = everything.intersection(self._gains(precision, everything))
            for floats in dict.fromkeys((frozenset(), faster, everything)):
                gains = self._gains(precision, floats)
                for kept in self._worth_keeping(precision, floats, gains):
                    yield self.mix(precision, floats, kept, gains)

    def _worth_keeping(
        self, precision: str, floats: frozenset[str], gains: Mapping[str, float]
    ) -> Iterable[frozenset[str]]:
        """Sets of products that may better stay in float32."""
        if precision == "f32":
            return (frozenset(),)
        slower = self._mixtures.narrowable.difference(gains)
        unfit = _unfit(self._networks(precision, floats), self._target)
        return dict.fromkeys((frozenset(), slower, unfit))

    def mix(
        self,
        precision: str = "f32",
        floats: frozenset[str] = frozenset(),
        kept: frozenset[str] = frozenset(),
        gains: Mapping[str, float] = MappingProxyType({}),
    ) -> _Mix:
        """A choice, and its expected time."""
        networks = self._networks(precision, floats, kept)
        names = self._mixtures.narrowable - kept if precision != "f32" else ()
        order = sorted(names, key=lambda name: (-gains.get(name, 0.0), name))
        cost_s = self._costs.total_s(networks, self._mixtures.shares)
        return _Mix(precision, tuple(order), cost_s, floats)

    def _made(
        self, precision: str, floats: frozenset[str], kept: frozenset[str] = frozenset()
    ) -> tuple[Network, ...]:
        return _networks(self._mixtures, self._target, precision, floats, kept)

    def _by_product(self, networks: Sequence[Network]) -> dict[str, float]:
        return self._costs.by_product(networks, self._mixtures.shares)

    def _faster(self, precision: str, floats: frozenset[str]) -> dict[str, float]:
        """Seconds that products gain where all are so, of those that gain any."""
        after = self._by_product(self._networks(precision, floats))
        names = self._mixtures.narrowable | self._mixtures.integers
        gains = {n: self._plain.get(n, 0.0) - after.get(n, 0.0) for n in names}
        return {name: gain for name, gain in gains.items() if gain > 0}


def _networks(
    mixtures: Mixtures,
    target: Target,
    precision: str,
    floats: frozenset[str],
    kept: frozenset[str],
) -> tuple[Network, ...]:
    """Networks whose `floats` are in `precision` where an instruction multiplies it."""
    return mixtures.networks(precision, kept | _wide_floats(precision, floats, target), floats)


def _wide_floats(precision: str, floats: frozenset[str], target: Target) -> frozenset[str]:
    """Of products of integers computed as floats, those that are in float32: all or none."""
    return frozenset() if _multiplies(precision, target) else floats


class Checked(Protocol):
    """Result of an attempt: the largest error of its outputs, None where not checked."""

    @property
    def error(self) -> float | None:
        """Of the largest value."""
        ...


C = TypeVar("C", bound=Checked)
T = TypeVar("T")
Attempt = Callable[[Sequence[Network], Note], C]
"""Compiles networks and checks them; raises WrongNumbers."""


def most_within(last: int, within: Callable[[int], T | None]) -> tuple[int, T] | None:
    """The largest number up to `last` for which `within` has a result, found by bisection.

    `within` is asked for `last`, and then for eight numbers at most; None where it has no result.
    """
    found = within(last) if last else None
    if found is not None:
        return last, found
    low, high, best = 0, last, None
    for _ in range(_MOST_ATTEMPTS):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        found = within(middle)
        low, high, best = (middle, high, found) if found is not None else (low, middle, best)
    return None if best is None else (low, best)


class _Search(Generic[C]):
    """Bisection: the number of low-precision products, of those that gain most."""

    def __init__(
        self, mixtures: Mixtures, mix: _Mix, plan: CompilePlan, attempt: Attempt[C]
    ) -> None:
        self._mixtures, self._mix, self._plan, self._attempt = mixtures, mix, plan, attempt

    def run(self) -> tuple[int, C, list[str]]:
        """The number, the network compiled with it, and its notes."""
        found = most_within(len(self._mix.narrow), self._within)
        if found is not None:
            return found[0], *found[1]
        notes: list[str] = []
        return 0, self._attempt(self._networks(0), notes.append), notes

    def _networks(self, n_narrow: int) -> tuple[Network, ...]:
        mix, target = self._mix, self._plan.target
        kept = self._mixtures.narrowable - set(mix.narrow[:n_narrow])
        return _networks(self._mixtures, target, mix.precision, mix.floats, kept)

    def _within(self, n_narrow: int) -> tuple[C, list[str]] | None:
        """The compiled network where its error is within the limit."""
        notes: list[str] = []
        try:
            found = self._attempt(self._networks(n_narrow), notes.append)
        except WrongNumbers:
            return None
        is_exact = found.error is None or found.error <= self._plan.network_error
        return (found, notes) if is_exact else None


def compile_mixed(plan: CompilePlan, networks: Sequence[Network], attempt: Attempt[C]) -> C:
    """Compile the fastest mix of precisions that is within `plan.network_error`.

    Products go back to float32 in the order of their gains, the least first, half of them at a
    time. `networks`: in float32. Raises WrongNumbers where float32 alone is wrong.
    """
    mixtures = mixtures_of(plan.bound, networks)
    mix, plain_s = _fastest(mixtures, plan)
    n_narrow, found, notes = _Search(mixtures, mix, plan, attempt).run()
    for text in (*_told(mixtures, mix, n_narrow, plain_s, plan), *notes):
        plan.note(text)
    return found


def _told(
    mixtures: Mixtures, mix: _Mix, n_narrow: int, plain_s: float, plan: CompilePlan
) -> Iterable[str]:
    """The chosen precisions, in lines for a user."""
    share = ""
    if n_narrow == len(mix.narrow) and plain_s > 0:
        share = f", about {100 * mix.cost_s / plain_s:.0f} % of the time as the model states them"
    if mix.floats:
        is_wide = _wide_floats(mix.precision, mix.floats, plan.target)
        yield (
            f"precision {AUTO}: {len(mix.floats)} of {len(mixtures.integers)} products of integers "
            f"as exact sums of {'f32' if is_wide else mix.precision}{'' if n_narrow else share}"
        )
    if not mix.narrow:
        if mixtures.narrowable:
            yield f"precision {AUTO}: no product is worth rounding to half precision"
        return
    if n_narrow < len(mix.narrow):
        yield (
            f"precision {AUTO}: {len(mix.narrow) - n_narrow} of {len(mix.narrow)} products and "
            f"windows that {mix.precision} makes faster are in float32: the error of the network "
            f"would exceed {arguments(max_error=plan.network_error)}"
        )
    if n_narrow:
        n_all = len(mixtures.narrowable)
        yield (
            f"precision {AUTO}: {n_narrow} of {n_all} products and windows in {mix.precision}"
            f"{share}"
        )
