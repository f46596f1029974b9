"""⑪ `autotune tasks`: the tasks of a model, before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.api.sources import model_path
from autotune.cli.console import columns, common_options, put, put_json, say_note
from autotune.cli.models import read_workload, say_random_weights
from autotune.cli.option_types import FILE
from autotune.cli.options import (
    args_option,
    fallback_option,
    operators_option,
    precision_option,
    source_options,
)
from autotune.cli.passes import Look, look_options, show_passes
from autotune.cli.task_graph import dot_text
from autotune.codec import to_json
from autotune.config import AUTO, plain_precision
from autotune.errors import UsageError
from autotune.printable import one_line
from autotune.te.dag import shape_text
from autotune.units import counted, format_duration, format_flops, format_shapes

if TYPE_CHECKING:
    from autotune.api.bindings import Variant
    from autotune.config import Resolved
    from autotune.graph.network import Network
    from autotune.graph.tasks.sparse import Zeros

_MOST_CALLS = 3


@click.command("tasks")
@click.argument("model", required=False, type=FILE)
@source_options
@args_option
@operators_option
@fallback_option
@precision_option
@click.option("--dag", is_flag=True, help="Print the computation of every task as well.")
@look_options
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json", "dot"]),
    default="text",
    show_default=True,
    help="Form of the output; dot: the calls as a graph, for Graphviz.",
)
@common_options
def command(
    model: Path | None,
    arguments: str | None,
    precision: str | None,
    dag: bool,
    look: Look,
    style: str,
    **options: Any,
) -> None:
    """List the tuning tasks of MODEL: its distinct fused subgraphs.

    MODEL may be FILE.py:FUNCTION as well, a computation of `autotune.te`.

    The weight of a task is how often the model runs it. Ids are good for `explain --task`.
    A subgraph "for 3, 4" can replace those two tasks, which compile decides by what they take; one
    "in 4x16 blocks" runs over the blocks of a pruned weight that are not zero.
    """
    from autotune.api.bindings import Variant, bind
    from autotune.api.compile.fallback import sources_of
    from autotune.api.compile.mixed_precision import alternatives, mixtures_of
    from autotune.api.request import Source
    from autotune.target import host_target

    others: tuple[tuple[Network, ...], ...] = ()
    task = read_workload(model, arguments)
    if task is not None:
        if look:
            raise UsageError("a computation of `autotune.te` has no passes", "name an ONNX model")
        networks: tuple[Network, ...] = (task.network(),)
        found: tuple[Variant, ...] = (Variant({}),)
    else:
        options["random_weights"] = options["random_weights"] or model is None
        bound = bind(Source(model_path(model), **options))
        precision, found = precision or "f32", bound.variants
        for text in bound.notes:
            say_note(text)
        if look:
            if len(found) > 1:
                raise UsageError("passes are shown for one shape", "give each --dim one extent")
            show_passes(bound, look, plain_precision(precision))
            return
        sources = sources_of(bound, precision)
        for text in sources.notes:
            say_note(text)
        networks = sources.wholes
        if precision == AUTO and not sources.cuts:
            others = alternatives(mixtures_of(bound, networks), host_target())
        if bound.model.random_weights:
            say_random_weights(bound.path.name)
    if style == "json":
        put_json(tasks_json(networks, found, others, dag))
        return
    if style == "dot":
        ids = _ids(_in_order(networks, others))
        put("\n".join(dot_text(network, ids) for network in networks))
        return
    put(task_texts(networks, found, others))
    networks = _in_order(networks, others)
    ids = _ids(networks)
    for key, network in {k: n for n in reversed(networks) for k in n.weights}.items():
        if dag:
            put(f"\n# task {ids[key]}: {network.labels[key]}, key {key}")
            calls = map(one_line, _call_lines(network, key))
            put("\n".join([*calls, str(network.tasks[key])]))


def _call_lines(network: Network, key: str) -> Iterator[str]:
    """The tensors of the first calls of a task, by the names in the file as far as it has them."""
    calls = _calls_json(network, key)
    for call in calls[:_MOST_CALLS]:
        given, made = (
            ", ".join(f"{name} = {tensor}" for name, tensor in side.items())
            for side in (call["inputs"], call["outputs"])
        )
        yield f"# call: {given} -> {made}"
    if len(calls) > _MOST_CALLS:
        yield f"# and {len(calls) - _MOST_CALLS} more"


def _calls_json(network: Network, key: str) -> list[dict[str, Any]]:
    calls = (call for call in network.calls if call.task == key)
    return [{"inputs": call.inputs, "outputs": call.outputs} for call in calls]


def task_texts(
    networks: Sequence[Network],
    variants: Sequence[Variant],
    others: Sequence[Sequence[Network]] = (),
) -> str:
    """The table of every variant, below its shapes where there are several.

    `others`: the networks in other precisions, which have tables of their own.
    """

    ids = _ids(_in_order(networks, others))
    tables = []
    for several in (networks, *others):
        kind = [_precision_text(several[0])] if others else []
        for network, variant in zip(several, variants, strict=True):
            shape = f"{format_shapes(variant.shapes)}: {100 * variant.share:.3g} % of inferences"
            head = ", ".join([*kind, *([shape] if len(networks) > 1 else [])])
            tables.append(
                f"{head}\n{_task_text(network, ids)}" if head else _task_text(network, ids)
            )
    return "\n\n".join(tables)


def _precision_text(network: Network) -> str:
    more = " where an instruction multiplies it" if network.is_mixed else ""
    return f"products in {network.precision}{more}"


def _in_order(
    networks: Sequence[Network], others: Sequence[Sequence[Network]]
) -> tuple[Network, ...]:
    """All networks, those of one variant together, as a log has their tasks."""
    return tuple(n for several in zip(networks, *others, strict=True) for n in several)


def _ids(networks: Sequence[Network]) -> dict[str, int]:
    """The id of every task: its position among those of all networks, as a log has them."""
    keys = dict.fromkeys(key for network in networks for key in network.weights)
    return {key: n for n, key in enumerate(keys)}


def _task_text(network: Network, ids: Mapping[str, int]) -> str:
    """The table of tasks, and a line of totals."""
    head = ("id", "weight", "FLOPs", "key", "subgraph", "shapes")
    rows = [
        (
            str(ids[key]),
            str(weight),
            format_flops(network.tasks[key].flops),
            key,
            f"{network.labels[key]}{_replaced_text(network, key, ids)}",
            shape_text(network.tasks[key]),
        )
        for key, weight in network.weights.items()
    ]
    totals = (
        f"{counted(len(rows), 'task')}, {counted(len(network.calls), 'call')}, "
        f"{format_flops(network.flops)}"
    )
    lines = [columns(head, rows, right=head[:3]), *_zeros_text(network, ids)]
    return "\n".join([*lines, f"{network.name}: {totals}"])


def _zeros_text(network: Network, ids: Mapping[str, int]) -> Iterator[str]:
    """One line for each task with many zeros in its weights: how many, and in which blocks."""
    for key, zeros in network.zeros.items():
        least, most = (f"{100 * share:.0f}" for share in (zeros.least, zeros.most))
        share = f"{least} %" if least == most else f"{least} to {most} %"
        if zeros.block is None:
            blocks = "in no blocks that are worth leaving out"
        else:
            wholes = (ids[w] for w, parts in network.parts.items() if parts == (key,))
            height, width = zeros.block
            blocks = (
                f"{100 * zeros.blocks_left:.0f} % of the {height}x{width} blocks are left: "
                f"task {', '.join(map(str, wholes))}"
            )
        yield f"task {ids[key]}: {share} of the weights are zero, {blocks}"


def _replaced_text(network: Network, key: str, ids: Mapping[str, int]) -> str:
    """` for 3, 4`: ids of the tasks that this one can replace."""
    parts = ", ".join(map(str, _replaced(network, key, ids)))
    return f" for {parts}" if parts else ""


def _replaced(network: Network, key: str, ids: Mapping[str, int]) -> list[int]:
    return [ids[part] for part in network.parts.get(key, ())]


def _zeros_json(zeros: Zeros | None) -> dict[str, Any] | None:
    if zeros is None:
        return None
    block = None if zeros.block is None else list(zeros.block)
    return {
        "least": zeros.least,
        "most": zeros.most,
        "block": block,
        "blocks_left": zeros.blocks_left,
    }


def settings_text(resolved: Resolved) -> str:
    """Every setting, its value, and where that came from."""
    values = to_json(resolved.config)
    rows = [(name, _setting(name, value), resolved.sources[name]) for name, value in values.items()]
    return columns(("setting", "value", "from"), rows)


def settings_json(resolved: Resolved) -> list[dict[str, Any]]:
    """The same for scripts."""
    values = to_json(resolved.config)
    return [{"name": n, "value": v, "from": resolved.sources[n]} for n, v in values.items()]


def _setting(name: str, value: Any) -> str:
    if value is None:
        return "no limit"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if name == "threads" and value == 0:
        from autotune.measure.threads import explained_threads

        return str(explained_threads())
    return format_duration(value) if name.endswith("_s") else str(value)


def tasks_json(
    networks: Sequence[Network],
    variants: Sequence[Variant],
    others: Sequence[Sequence[Network]] = (),
    with_dag: bool = False,
) -> list[dict[str, Any]]:
    """An object for every task, for every variant; with its shapes where there are several."""
    ids = _ids(_in_order(networks, others))
    found: list[dict[str, Any]] = []
    for several in (networks, *others):
        for network, variant in zip(several, variants, strict=True):
            shapes = {name: list(shape) for name, shape in variant.shapes.items()}
            for key in network.weights:
                found.append(_task_json(network, key, with_dag, ids))
                if len(variants) > 1:
                    found[-1] |= {"shapes": shapes, "share": variant.share}
    return found


def _task_json(
    network: Network, key: str, with_dag: bool, ids: Mapping[str, int]
) -> dict[str, Any]:
    from autotune.te.products import precision_of

    dag = network.tasks[key]
    data: dict[str, Any] = {
        "id": ids[key],
        "weight": network.weights[key],
        "subgraph": network.labels[key],
        "precision": precision_of(dag),
        "replaces": _replaced(network, key, ids),
        "inputs": [list(p.tensor.shape) for p in dag.placeholders if not p.constant],
        "constants": [list(p.tensor.shape) for p in dag.placeholders if p.constant],
        "outputs": [list(dag[name].tensor.shape) for name in dag.outputs],
        "calls": _calls_json(network, key),
        "zeros": _zeros_json(network.zeros.get(key)),
        "flops": dag.flops,
        "bytes": dag.n_bytes,
        "key": key,
    }
    if with_dag:
        data["dag"] = str(dag)
    return data
