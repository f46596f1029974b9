"""⑪ `autotune tasks --passes`, `--after PASS`, `--dump DIR`: a model between its passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.console import columns, put
from autotune.errors import ModelError, UsageError
from autotune.units import counted

if TYPE_CHECKING:
    from autotune.api.bindings import Bound
    from autotune.graph.ir import Graph
    from autotune.graph.passes.pipeline import GraphPass


@dataclass(frozen=True, slots=True)
class Look:
    """Parts of the passes to show; nothing if all is left out."""

    passes: bool
    after: str | None
    dump: Path | None
    rewrites: int | None

    def __bool__(self) -> bool:
        return bool(self.passes or self.after or self.dump) or self.rewrites is not None


_OPTIONS = (
    click.option(
        "--passes", is_flag=True, help="Print what every pass over the graph does, instead."
    ),
    click.option("--after", metavar="PASS", help="Print the graph behind this pass, instead."),
    click.option(
        "--dump",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Write the graph behind every pass and all stages of every task, untuned, to a new "
        "folder, instead.",
    ),
    click.option(
        "--rewrites",
        type=click.IntRange(min=0),
        metavar="N",
        help="With these, let only the first N rewrites of the graph happen: to find by bisection "
        "which one is wrong. --dump fails behind the graphs where operators are left that have no "
        "definition.",
    ),
)


def look_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a `Look`, as parameter `look`."""

    @wraps(command)
    def looking(**options: Any) -> None:
        names = (each.name for each in fields(Look))
        command(look=Look(**{name: options.pop(name) for name in names}), **options)

    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), looking)


def show_passes(bound: Bound, look: Look, precision: str) -> None:
    """Print or write what `look` asks for; every graph is verified.

    Raises UsageError for an unknown pass, ModelError where a pass leaves a graph that is not
    consistent.
    """
    from autotune.graph.printer import print_graph

    if look.dump is not None:
        _dump(bound, look.dump, precision, look.rewrites)
        return
    if not (look.passes or look.after):
        raise UsageError(
            "--rewrites stands alone", "give --passes, --after PASS or --dump DIR as well"
        )
    names, rows = [], []
    for step, graph, rewrites in _verified(bound, precision, look.rewrites):
        names.append(step.name)
        if step.name == look.after:
            put(print_graph(graph))
            return
        sizes = (len(graph.nodes), len(graph.constants), len(rewrites))
        rows.append((step.name, *map(str, sizes), step.summary))
    if look.after is not None:
        raise UsageError(f"there is no pass '{look.after}'", f"the passes are: {', '.join(names)}")
    head = ("pass", "nodes", "constants", "rewrites", "what it does")
    put(columns(head, rows, right=head[1:4]))


def _dump(bound: Bound, to: Path, precision: str, most: int | None) -> None:
    """Write all stages of a model to a new folder.

    graph/NN-PASS.txt         the rewrites of every pass, and the graph behind it
    tasks/ID-KEY/STAGE.txt    every task and its untuned program: te, schedule, …, llvm, asm

    Raises UsageError where the folder has files.
    """
    from autotune.api.compile.fallback import sources_of
    from autotune.cli.stages import STAGES
    from autotune.graph.network import named, stored_network
    from autotune.graph.printer import print_graph
    from autotune.search.defaults import default_steps
    from autotune.target import host_target

    if to.exists() and any(to.iterdir()):
        raise UsageError(f"'{to}' is not empty", "name a new folder")
    n_rewrites = 0
    graphs = []
    for number, (step, graph, rewrites) in enumerate(_verified(bound, precision, most)):
        graphs.append(graph)
        told = [f"# rewrite {n}: {text}" for n, text in enumerate(rewrites, n_rewrites + 1)]
        n_rewrites += len(rewrites)
        _write(
            to / "graph" / f"{number:02}-{step.name}.txt", "\n".join([*told, print_graph(graph)])
        )
    if most is None:
        network = sources_of(bound, precision).wholes[0]
    else:
        name, digest = bound.path.stem, bound.model.digest
        network = named(lambda: stored_network(graphs[0], graphs[-1], name, digest))
    target = host_target()
    for number, (key, dag) in enumerate(network.tasks.items()):
        steps = default_steps(dag, target, n_threads=1)
        for name, text_of in STAGES.items():
            _write(to / "tasks" / f"{number}-{key}" / f"{name}.txt", text_of(dag, steps, target))
    put(f"{to}: {counted(n_rewrites, 'rewrite')}, {counted(len(network.tasks), 'task')}")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def _verified(
    bound: Bound, precision: str, most: int | None
) -> Iterator[tuple[GraphPass, Graph, list[str]]]:
    """Every pass, the graph behind it, and the rewrites of its rules."""
    from autotune.graph.lengths.writing import written_in
    from autotune.graph.network import prepared_graphs
    from autotune.graph.rewriter import RewriteLog
    from autotune.graph.verify import MalformedGraph, verify

    log, n_before = RewriteLog(most), 0
    shapes = bound.variants[0].shapes
    lengths = written_in(bound.model, shapes)
    written = lengths.at(lengths.mosts) if lengths is not None else None
    for step, graph in prepared_graphs(bound.model, shapes, precision, log, written):
        try:
            verify(graph, step.form)
        except MalformedGraph as error:
            raise ModelError(
                f"pass '{step.name}' left an inconsistent graph: {error}",
                "this is a fault of autotune: please report the model",
            ) from error
        yield step, graph, log.done[n_before:]
        n_before = len(log.done)
