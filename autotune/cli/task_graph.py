"""⑪ `autotune tasks --format dot`: the calls of tasks as a graph for Graphviz."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from autotune.te.dag import shape_text
from autotune.units import format_flops

if TYPE_CHECKING:
    from autotune.graph.network import Network, TaskCall

_HUES = 12
_PLAIN = "shape=plain, style=solid"


def dot_text(network: Network, ids: Mapping[str, int]) -> str:
    """A node per call, an edge from each call whose results another one reads.

    Calls of one task have one id and colour; a task that may replace some is dashed beside them.
    """
    lines = [f"digraph {_quoted(network.name)} {{"]
    lines += ['  node [shape=box, style="rounded,filled", fontname="sans-serif"];']
    makers: dict[str, str] = {}
    for n, port in enumerate(network.inputs):
        lines.append(f"  in{n} [label={_quoted(port.name)}, {_PLAIN}];")
        makers[port.value] = f"in{n}"
    for n, call in enumerate(network.calls):
        lines.append(f"  c{n} [{_look(network, call, ids)}];")
        read = (maker for v in call.inputs.values() for maker in _makers(network, v, makers))
        lines += [f"  {maker} -> c{n};" for maker in dict.fromkeys(read)]
        makers |= dict.fromkeys(call.outputs.values(), f"c{n}")
    for n, chain in enumerate(network.chains):
        lines.append(f'  w{n} [{_look(network, chain.whole, ids)}, style="rounded,dashed"];')
        lines += [f"  w{n} -> c{part} [style=dashed, arrowhead=none];" for part in chain.parts]
    for n, port in enumerate(network.outputs):
        lines.append(f"  out{n} [label={_quoted(port.name)}, {_PLAIN}];")
        lines += [f"  {maker} -> out{n};" for maker in _makers(network, port.value, makers)]
    return "\n".join([*lines, "}"])


def _makers(network: Network, value: str, makers: Mapping[str, str]) -> Iterator[str]:
    """What made a value: one node, or those that wrote parts of the memory that it views."""
    if value in makers:
        yield makers[value]
        return
    root = network.values[value].root
    parts = (node for name, node in makers.items() if network.values[name].root == root)
    yield from dict.fromkeys(parts)


def _look(network: Network, call: TaskCall, ids: Mapping[str, int]) -> str:
    dag, task = network.tasks[call.task], ids[call.task]
    text = f"{task}: {call.label}\n{shape_text(dag)}\n{format_flops(dag.flops)}"
    colour = f"{task % _HUES / _HUES:.3f} 0.2 1.0"
    return f'label={_quoted(text)}, fillcolor="{colour}", tooltip="{call.task}"'


def _quoted(text: str) -> str:
    """A string of the language, whatever the name holds."""
    return json.dumps(text, ensure_ascii=False)
