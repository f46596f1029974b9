"""⑧ Tables of the choices that mattered, and of the nodes of the file that tasks compute."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.reporting.blocks import Block, Paragraph, Sheet
from autotune.reporting.figures import SearchFigures
from autotune.units import format_seconds

_MOST_NODES = 8


def nodes_text(figures: SearchFigures, task: int) -> str:
    """Numbers of the first nodes of a task, as the table of nodes has them."""
    found = [str(n) for n, node in enumerate(figures.nodes) if task in node.tasks]
    more = f" and {len(found) - _MOST_NODES} more" if len(found) > _MOST_NODES else ""
    return ", ".join(found[:_MOST_NODES]) + more or "-"


def choice_blocks(figures: SearchFigures) -> Iterator[Block]:
    """Choices of all tasks, the largest first."""
    rows = [
        (
            str(task.id),
            choice.text,
            format_seconds(task.tuned_s),
            format_seconds(choice.other_s),
            f"{choice.ratio:.2f}×",
            str(choice.n_others),
        )
        for task in figures.tasks
        for choice in task.choices
    ]
    if rows:
        yield Paragraph(
            "Of each task up to three choices of its best program: what the fastest measured "
            "candidate takes that chose otherwise, in the same structure."
        )
        rows.sort(key=lambda row: -float(row[4][:-1]))
        head = ("task", "choice", "best", "otherwise", "slower", "candidates")
        yield Sheet("Choices, the largest first", head, tuple(rows), frozenset(head) - {"choice"})


def node_blocks(figures: SearchFigures) -> Iterator[Block]:
    """Nodes in the order of the file."""
    rows = tuple(
        (str(n), node.name, node.operator, ", ".join(map(str, node.tasks)))
        for n, node in enumerate(figures.nodes)
    )
    if rows:
        head, numbers = ("node", "name", "operator", "tasks"), frozenset({"node", "tasks"})
        yield Sheet("Nodes that tasks compute", head, rows, numbers, True, "node")
